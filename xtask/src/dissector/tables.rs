//! Which tables of the pages the dissector has, and how.

use anyhow::{Context, Result, bail, ensure};

use super::lua::{Key, Lua};
use super::page::{Page, Table, plain};
use super::values::{Allowed, number};

/// All tables, as one.
pub(super) fn spec(wire: &Page, errors: &Page, tcp: &Page) -> Result<Lua> {
    let mut spec = Lua::table()
        .set("features", bits(wire.table("Versions and features", &["feature", "bit"])?, "feature")?)
        .set("methods", numbers(wire.table("Bodies", &["method", "number"])?, "number", "method")?)
        .set("stabilities", numbers(wire.table("Bodies", &["stability", "number"])?, "number", "stability")?)
        .set("statuses", statuses(errors.table("Statuses", &["number", "status"])?)?)
        .set("opcodes", opcodes(wire.table("Operations", &["opcode", "name"])?)?)
        .set("layouts", layouts(wire)?)
        .set("nodes", nodes(wire)?)
        .set("structures", structures(wire)?);
    let faults = tcp.table("FAULT", &["code", "meaning"])?;
    let tcp_tables = Lua::table()
        .set("hello", typed_layout(tcp.table("Hello", &["offset", "field"])?)?)
        .set("header", typed_layout(tcp.table("Frames", &["offset", "field"])?)?)
        .set("range", typed_layout(tcp.table("Lists", &["offset", "field"])?)?)
        .set("faults", numbers(faults, "code", "meaning")?)
        .set("kinds", kinds(tcp)?);
    spec = spec.set("tcp", tcp_tables);
    Ok(spec)
}

/// A list of bits: value, name, and what it means.
fn bits(table: &Table, name: &str) -> Result<Lua> {
    table.rows.iter().try_fold(Lua::table(), |list, row| {
        let bit = number(table.cell(row, "bit")).with_context(|| format!("{row:?} has no bit"))?;
        let about = [table.cell(row, "meaning"), table.cell(row, "where both sides name it")].concat();
        let flag = Lua::table().push(Lua::Hex(bit)).push(Lua::text_of(table.cell(row, name)));
        Ok(list.push(flag.set_some("about", words(&about))))
    })
}

/// Names by number.
fn numbers(table: &Table, value: &str, name: &str) -> Result<Lua> {
    table.rows.iter().try_fold(Lua::table(), |list, row| {
        let value = number(table.cell(row, value)).with_context(|| format!("{row:?} has no number"))?;
        Ok(list.put(Key::Number(value), Lua::text_of(plain(table.cell(row, name)))))
    })
}

/// Name and meaning by number.
fn statuses(table: &Table) -> Result<Lua> {
    table.rows.iter().try_fold(Lua::table(), |list, row| {
        let value = number(table.cell(row, "number")).with_context(|| format!("{row:?} has no number"))?;
        let status = Lua::table()
            .push(Lua::text_of(table.cell(row, "status")))
            .push(Lua::text_of(plain(table.cell(row, "meaning"))));
        Ok(list.put(Key::Number(value), status))
    })
}

/// Name, and what request and reply carry, by number.
fn opcodes(table: &Table) -> Result<Lua> {
    table.rows.iter().try_fold(Lua::table(), |list, row| {
        let value = number(table.cell(row, "opcode")).with_context(|| format!("{row:?} has no opcode"))?;
        let mut opcode = Lua::table().push(Lua::text_of(table.cell(row, "name")));
        for (side, column) in [("request", "request body, payload"), ("reply", "reply body, payload")] {
            let cell = table.cell(row, column);
            if !cell.is_empty() {
                opcode = opcode.set(side, carried(cell)?);
            }
        }
        Ok(list.put(Key::Hex(value), opcode))
    })
}

/// `[read request](#read-request), [ranges](#ranges) when more than one`: body and payload. A body is named by its link. A
/// payload is what the cell says, without what explains it.
fn carried(cell: &str) -> Result<Lua> {
    let (body, payload) = cell.split_once(", ").unwrap_or((cell, "–"));
    let body = if body == "–" {
        None
    } else {
        let link = body.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        Some(link.map(|(name, _)| name).with_context(|| format!("{cell:?} links no body"))?)
    };
    let payload = payload.split(';').next().unwrap_or_default();
    // In a link a colon stands in no name of this page.
    let payload = plain(payload.split(": ").next().unwrap_or_default());
    let payload = Some(payload.trim()).filter(|payload| *payload != "–");
    Ok(Lua::table().set_some("body", body.map(Lua::text_of)).set_some("payload", payload.map(Lua::text_of)))
}

/// Every table of fields at fixed offsets, by the heading above it.
fn layouts(wire: &Page) -> Result<Lua> {
    let mut layouts = Lua::table();
    for table in wire.with_columns(&["offset", "size", "field"]) {
        let flags = wire.table(&table.section, &["flag", "bit"]).ok();
        let mut layout = Lua::table();
        for row in &table.rows {
            let place = [number(&row[0]), number(&row[1])];
            // Behind a field of any size, hand-written code goes on.
            let [Some(offset), Some(size)] = place else { break };
            let allowed = plain(&[table.cell(row, "values"), table.cell(row, "allowed values")].concat());
            let field = field(&table.section, offset, size, &row[2], &allowed);
            let is_open = table.cell(row, "meaning").contains("ignores other");
            let field = field.set_some("open", is_open.then_some(Lua::True));
            let flags = flags.filter(|_| row[2] == "flags").map(|flags| bits(flags, "flag")).transpose()?;
            let field = field.set_some("flags", flags);
            layout = layout.push(field.set_some("about", words(table.cell(row, "meaning"))));
        }
        layouts = layouts.set(&table.section.to_lowercase(), layout);
    }
    Ok(layouts)
}

/// Tables of the transport, whose fields have a type in place of a size.
fn typed_layout(table: &Table) -> Result<Lua> {
    table.rows.iter().try_fold(Lua::table(), |layout, row| {
        let offset = number(&row[0]).with_context(|| format!("{row:?} has no offset"))?;
        let size = match table.cell(row, "type").split(',').next().unwrap_or_default() {
            "u8" => 1,
            "u16" => 2,
            "u32" => 4,
            "u64" => 8,
            words => {
                words.strip_suffix(" bytes").and_then(number).with_context(|| format!("{row:?}: type"))?
            }
        };
        let allowed = table.cell(row, "allowed values");
        let field = field(&table.section, offset, size, &row[1], &plain(allowed));
        Ok(layout.push(field.set_some("about", words(table.cell(row, "meaning")))))
    })
}

/// What each kind of node of a view has behind its head: fields, and entries of a list.
fn nodes(wire: &Page) -> Result<Lua> {
    const SECTION: &str = "Node of a view";
    let fields = wire.table(SECTION, &["kind", "name", "offset", "type", "field"])?;
    let entries = wire.table(SECTION, &["kind", "name", "entry offset", "type", "field"])?;
    let head = wire.table(SECTION, &["offset", "size", "field"])?;
    let kinds = head.rows.iter().find(|row| row[2] == "kind").context("a node has no kind")?;
    let kinds = Allowed::new(&plain(head.cell(kinds, "values"))).names;
    ensure!(!kinds.is_empty(), "the kinds of nodes have no names");
    kinds.into_iter().try_fold(Lua::table(), |nodes, (kind, name)| {
        let of_kind = |table: &Table| {
            let mut rows = table.rows.iter().filter(|row| number(&row[0]) == Some(kind));
            rows.try_fold(Lua::table(), |list, row| {
                ensure!(row[1] == name, "{row:?} is a {name}");
                Ok(list.push(node_field(row, table.cell(row, "meaning"))?))
            })
        };
        let node = Lua::table().push(Lua::text_of(name.clone()));
        let node = node.set("fields", of_kind(fields)?).set("entries", of_kind(entries)?);
        Ok(nodes.put(Key::Number(kind), node))
    })
}

/// A field of a node: its type is a number, perhaps as two's complement.
fn node_field(row: &[String], meaning: &str) -> Result<Lua> {
    let offset = number(&row[2]).with_context(|| format!("{row:?} has no offset"))?;
    let (size, is_signed) = match row[3].as_str() {
        "u32" => (4, false),
        "u64" => (8, false),
        "i64" => (8, true),
        kind => bail!("{row:?}: no type {kind}"),
    };
    let allowed = Allowed::new(&plain(meaning));
    // Words with a number in them are no set of values here.
    let allowed = if allowed.names.is_empty() { "" } else { meaning };
    let field = field("", offset, size, &row[4], &plain(allowed));
    Ok(field.set_some("signed", is_signed.then_some(Lua::True)).set_some("about", words(meaning)))
}

/// Offset, size, name and what is allowed.
fn field(section: &str, offset: u64, size: u64, name: &str, allowed: &str) -> Lua {
    let is_reserved = matches!(name, "–" | "reserved");
    let name = if is_reserved { "reserved" } else { name };
    let field =
        Lua::table().push(Lua::Number(offset)).push(Lua::Number(size)).push(Lua::text_of(plain(name)));
    if is_reserved {
        return field.set("reserved", Lua::True);
    }
    // A structure within a layout has fields of its own; magic is bytes.
    if size > 8 || name == "magic" || section == "Header" {
        return field;
    }
    with_allowed(field, &Allowed::new(allowed))
}

fn with_allowed(field: Lua, allowed: &Allowed) -> Lua {
    let named = |pairs: &[(u64, String)]| {
        let list = pairs
            .iter()
            .fold(Lua::table(), |list, (value, name)| list.put(Key::Number(*value), Lua::text_of(name)));
        (!pairs.is_empty()).then_some(list)
    };
    let flags = allowed.flags.iter().fold(Lua::table(), |list, (bit, name)| {
        list.push(Lua::table().push(Lua::Hex(*bit)).push(Lua::text_of(name)))
    });
    field
        .set_some("min", allowed.min.map(Lua::Number))
        .set_some("max", allowed.max.map(Lua::Number))
        .set_some("names", named(&allowed.names))
        .set_some("flags", (!allowed.flags.is_empty()).then_some(flags))
}

/// Every structure of MessagePack, by the heading above it: name, type, what is allowed.
fn structures(wire: &Page) -> Result<Lua> {
    let mut structures = Lua::table();
    for table in wire.with_columns(&["index", "field", "type"]) {
        let mut structure = Lua::table();
        for (index, row) in (0..).zip(&table.rows) {
            ensure!(number(&row[0]) == Some(index), "{}: {row:?} is not field {index}", table.section);
            let values = plain(table.cell(row, "values"));
            let kind = kind(&row[2]);
            let mut field = Lua::table().push(Lua::text_of(&row[1])).push(Lua::text_of(&kind));
            if kind == "enumeration" {
                let names = values.split(", ").fold(Lua::table(), |list, name| list.push(Lua::text_of(name)));
                field = field.set("names", names);
            } else {
                field = with_allowed(field, &Allowed::new(&values));
            }
            let is_optional =
                [values.as_str(), table.cell(row, "meaning")].concat().contains("may be absent");
            let field = field.set_some("absent", is_optional.then_some(Lua::True));
            structure = structure.push(field.set_some("about", words(table.cell(row, "meaning"))));
        }
        structures = structures.set(&table.section, structure);
    }
    Ok(structures)
}

/// The type of a field, in one form: `T`, `T[]`, `T?`, `[T, T]`, `bytes[N]`.
fn kind(cell: &str) -> String {
    let cell = plain(cell);
    if let Some(inner) = cell.strip_prefix("array of ") {
        return format!("{inner}[]");
    }
    match cell.strip_suffix(" or nil") {
        Some(inner) => format!("{inner}?"),
        None => cell,
    }
}

/// What each kind of frame uses, and its limits.
fn kinds(tcp: &Page) -> Result<Lua> {
    const FIELDS: [&str; 6] = ["flags", "head_len", "len", "key", "offset", "value"];
    let table = tcp.table("Frames", &["kind", "name"])?;
    let limits = tcp.table("Frames", &["kind", "limits of head_len"])?;
    let mut kinds = Lua::table();
    for row in &table.rows {
        let name = table.cell(row, "name");
        let value = number(table.cell(row, "kind")).with_context(|| format!("{row:?} has no kind"))?;
        let mut kind = Lua::table().push(Lua::text_of(name));
        for field in FIELDS {
            let cell = plain(table.cell(row, field));
            if field == "flags" && cell != "–" {
                let (bit, name) = cell.split_once(": ").with_context(|| format!("{name}: flags"))?;
                let bit = number(bit).with_context(|| format!("{name}: flags"))?;
                kind = kind.set("flag", Lua::Hex(bit)).set("flag_name", Lua::text_of(name));
            } else if cell != "–" {
                kind = kind.set(field, Lua::text_of(cell));
            }
        }
        let of_kind = |row: &&Vec<String>| row[0].split(", ").any(|kind| kind == name);
        let row = limits.rows.iter().find(of_kind).with_context(|| format!("no limits of {name}"))?;
        for field in ["head_len", "len"] {
            let cell = plain(limits.cell(row, &format!("limits of {field}")));
            let (low, high) = cell.split_once(" … ").unwrap_or((&cell, &cell));
            kind = kind
                .set_some(&format!("{field}_min"), number(low).map(Lua::Number))
                .set_some(&format!("{field}_max"), number(high).map(Lua::Number));
        }
        kind = kind.set("body", Lua::text_of(limits.cell(row, "bytes of the body")));
        kinds = kinds.put(Key::Number(value), kind);
    }
    Ok(kinds)
}

/// What a cell says, where it says something: without the ids of requirements, which only the pages explain.
fn words(cell: &str) -> Option<Lua> {
    let words = without_ids(&plain(cell));
    (!words.is_empty()).then(|| Lua::text_of(words))
}

/// Text without `([SESS-30])` and the like.
fn without_ids(text: &str) -> String {
    let Some((before, rest)) = text.split_once(" ([") else { return text.to_owned() };
    let Some((_, after)) = rest.split_once("])") else { return text.to_owned() };
    format!("{before}{}", without_ids(after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_of_operations_name_body_and_payload() {
        let cases = [
            ("–, –", "{}"),
            ("–, [Hello](#hello)", r#"{ payload = "Hello" }"#),
            (
                "[a b](#a-b), [ranges](#ranges) when more than one",
                r#"{ body = "a b", payload = "ranges when more than one" }"#,
            ),
            ("[a](#a) with offset 0, as of Write", r#"{ body = "a", payload = "as of Write" }"#),
            ("–, [Attributes](#attributes); handle: new", r#"{ payload = "Attributes" }"#),
            ("[a](#a), [two](#two): old and new", r#"{ body = "a", payload = "two" }"#),
            ("[a](#a), –", r#"{ body = "a" }"#),
        ];
        for (cell, lua) in cases {
            assert_eq!(carried(cell).unwrap().text(), lua, "{cell}");
        }
        assert!(carried("a, –").is_err());
    }

    #[test]
    fn layout_stops_behind_a_field_of_any_size() {
        let page = Page::new(
            "### Ab\n\n| offset | size | field | values | meaning |\n|---|---|---|---|---|\n\
             | 0 | 4 | len | ≤ 7 | [how](#x) many |\n| 4 | 4 | – | 0 | |\n| 8 | len | rest | | |\n| 9 | 1 | x | | |\n",
        );
        let lua = r#"{ ab = { { 0, 4, "len", max = 7, about = "how many" }, { 4, 4, "reserved", reserved = true } } }"#;
        assert_eq!(layouts(&page).unwrap().text(), lua);
    }

    #[test]
    fn nodes_have_fields_and_entries() {
        let page = |name: &str, kind: &str| {
            Page::new(&format!(
                "### Node of a view\n\n| offset | size | field | values |\n|---|---|---|---|\n\
                 | 0 | 1 | kind | 0 a b, 1 c |\n\n\
                 | kind | name | offset | type | field | meaning |\n|---|---|---|---|---|---|\n\
                 | 0 | {name} | 16 | {kind} | x | 5 bytes |\n\n\
                 | kind | name | entry offset | type | field | meaning |\n|---|---|---|---|---|---|\n\
                 | 1 | c | 0 | u32 | y | 0 no, 1 yes |\n| 1 | c | 4 | u32 | – | 0 |\n",
            ))
        };
        let lua = "{\n    [0] = { \"a b\", fields = { { 16, 8, \"x\", signed = true, about = \"5 bytes\" } }, entries = {} },\n    \
                   [1] = {\n        \"c\",\n        fields = {},\n        entries = {\n            \
                   { 0, 4, \"y\", min = 0, max = 1, names = { [0] = \"no\", [1] = \"yes\" }, about = \"0 no, 1 yes\" },\n            \
                   { 4, 4, \"reserved\", reserved = true, about = \"0\" },\n        },\n    },\n}";
        assert_eq!(nodes(&page("a b", "i64")).unwrap().text(), lua);
        assert!(nodes(&page("a b", "i128")).is_err());
    }

    #[test]
    fn ids_of_requirements_are_left_out() {
        assert_eq!(without_ids("a ([SESS-1]), b ([SESS-2])"), "a, b");
        assert_eq!(without_ids("a (b)"), "a (b)");
    }

    #[test]
    fn types_have_one_form() {
        let cases = [
            ("u32", "u32"),
            ("[A](#a) or nil", "A?"),
            ("[A](#a)[]", "A[]"),
            ("array of [string, u64]", "[string, u64][]"),
            ("[u64, u64]", "[u64, u64]"),
        ];
        for (cell, form) in cases {
            assert_eq!(kind(cell), form);
        }
    }

    #[test]
    fn structure_with_a_gap_is_refused() {
        let page =
            Page::new("### A\n\n| index | field | type |\n|---|---|---|\n| 0 | a | u8 |\n| 2 | b | u8 |\n");
        assert!(structures(&page).is_err());
    }
}
