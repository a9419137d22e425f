//! The manual pages of libdafs, made of its header: `libdafs(3)`, and a page for each group of functions.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use roff::{Inline, Roff, bold, roman};

/// The functions of one source of the C library.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// The page is `dafs_NAME(3)`.
    pub(crate) name: String,
    /// What they are about, in some words.
    pub(crate) about: String,
    /// Their names, in the order of the source.
    pub(crate) functions: Vec<String>,
}

/// What is declared in a header, each with the comment above it.
#[derive(Debug, Default)]
struct Header {
    /// The comment at its top.
    top: String,
    /// By name, with the comment and the prototype.
    functions: BTreeMap<String, (String, String)>,
    /// Name, comment, fields with their comments.
    structs: Vec<Struct>,
    /// Name, value and comment.
    constants: Vec<(String, String, String)>,
}

#[derive(Debug)]
struct Struct {
    name: String,
    comment: String,
    fields: Vec<(String, String)>,
}

/// All pages: file names, and their text.
pub(crate) fn pages(header: &str, groups: &[Group], version: &str) -> Result<Vec<(String, String)>> {
    let header = Header::parse(header);
    let mut pages = vec![("libdafs.3".to_owned(), overview(&header, groups, version))];
    for group in groups {
        let name = format!("dafs_{}", group.name);
        pages.push((format!("{name}.3"), page(&header, groups, group, version)?));
        // man(1) finds a function by its own name.
        let others = group.functions.iter().filter(|function| **function != name);
        pages.extend(others.map(|function| (format!("{function}.3"), format!(".so man3/{name}.3\n"))));
    }
    Ok(pages)
}

fn overview(header: &Header, groups: &[Group], version: &str) -> String {
    let mut roff = begun("libdafs", version, &["libdafs".to_owned()], "files of dafs servers for C and C++");
    synopsis(&mut roff, &[]);
    roff.control("SH", ["DESCRIPTION"]);
    paragraphs(&mut roff, &header.top);
    roff.control("SH", ["FUNCTIONS"]);
    for group in groups {
        roff.control("TP", []);
        roff.text([bold(format!("dafs_{}", group.name)), roman("(3)")]);
        roff.text([roman(format!("{}: {}.", group.about, group.functions.join(", ")))]);
    }
    roff.control("SH", ["STRUCTURES"]);
    for each in &header.structs {
        roff.control("SS", [format!("struct {}", each.name).as_str()]);
        paragraphs(&mut roff, &each.comment);
        for (field, comment) in &each.fields {
            roff.control("TP", []);
            roff.text([bold(field.as_str())]);
            roff.text(styled(comment));
        }
    }
    roff.control("SH", ["CONSTANTS"]);
    for (name, value, comment) in &header.constants {
        roff.control("TP", []);
        roff.text([bold(name.as_str()), roman(format!(" ({value})"))]);
        roff.text(styled(comment));
    }
    see_also(&mut roff, groups.iter().map(|group| format!("dafs_{}", group.name)));
    ascii(&roff.to_roff())
}

fn page(header: &Header, groups: &[Group], group: &Group, version: &str) -> Result<String> {
    let name = format!("dafs_{}", group.name);
    let mut roff = begun(&name, version, &group.functions, &group.about);
    let declared = |function: &String| {
        header.functions.get(function).with_context(|| format!("the header does not declare {function}"))
    };
    let functions: Vec<_> = group.functions.iter().map(declared).collect::<Result<_>>()?;
    let prototypes: Vec<&str> = functions.iter().map(|(_, prototype)| prototype.as_str()).collect();
    synopsis(&mut roff, &prototypes);
    roff.control("SH", ["DESCRIPTION"]);
    for (function, (comment, _)) in group.functions.iter().zip(functions) {
        roff.control("SS", [format!("{function}()").as_str()]);
        paragraphs(&mut roff, comment);
    }
    roff.control("SH", ["ERRORS"]);
    roff.text(styled(
        "Unless it is said otherwise, a call returns -1 or NULL for an error and sets errno; dafs_error() has the words. \
         A handle that was closed is EBADF. libdafs(3) says what holds for all calls: threads, memory, blocking, fork().",
    ));
    let others = groups.iter().filter(|other| other.name != group.name);
    see_also(
        &mut roff,
        ["libdafs".to_owned()].into_iter().chain(others.map(|other| format!("dafs_{}", other.name))),
    );
    Ok(ascii(&roff.to_roff()))
}

fn begun(title: &str, version: &str, names: &[String], about: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("TH", [title, "3", version, "dafs", "The dafs library"]);
    roff.control("SH", ["NAME"]);
    let mut about = about.to_owned();
    about.get_mut(..1).map(str::make_ascii_lowercase).unwrap_or_default();
    roff.text([roman(format!("{} - {about}", names.join(", ")))]);
    roff.control("SH", ["LIBRARY"]);
    roff.text([roman("libdafs (-ldafs; pkg-config --cflags --libs dafs)")]);
    roff
}

fn synopsis(roff: &mut Roff, prototypes: &[&str]) {
    roff.control("SH", ["SYNOPSIS"]);
    roff.control("nf", []);
    roff.text([bold("#include <dafs.h>")]);
    for prototype in prototypes {
        roff.control("PP", []);
        roff.text([bold(*prototype)]);
    }
    roff.control("fi", []);
}

fn see_also(roff: &mut Roff, names: impl Iterator<Item = String>) {
    roff.control("SH", ["SEE ALSO"]);
    let mut words = Vec::new();
    for name in names {
        if !words.is_empty() {
            words.push(roman(", "));
        }
        words.extend([bold(name), roman("(3)")]);
    }
    roff.text(words);
}

/// A comment: paragraphs, and what is indented line by line.
fn paragraphs(roff: &mut Roff, comment: &str) {
    let mut is_first = true;
    for paragraph in comment.split("\n\n") {
        if !std::mem::take(&mut is_first) {
            roff.control("PP", []);
        }
        if paragraph.starts_with(' ') {
            roff.control("RS", []);
            roff.text(styled(&paragraph.split_whitespace().collect::<Vec<_>>().join(" ")));
            roff.control("RE", []);
        } else {
            roff.text(styled(&paragraph.replace('\n', " ")));
        }
    }
}

/// Text with the names of the library in bold.
fn styled(text: &str) -> Vec<Inline> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut parts = Vec::new();
    let (mut plain, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let end = match rest.find(|c| !is_of_name(c)) {
            Some(0) => first.len_utf8(),
            Some(end) => end,
            None => rest.len(),
        };
        let (word, after) = rest.split_at(end);
        if word.len() > 5 && (word.starts_with("dafs_") || word.starts_with("DAFS_")) {
            parts.extend([roman(std::mem::take(&mut plain)), bold(word)]);
        } else {
            plain.push_str(word);
        }
        rest = after;
    }
    parts.push(roman(plain));
    parts
}

/// troff reads ASCII on every system.
fn ascii(text: &str) -> String {
    let escaped = |c: char| match c.is_ascii() {
        true => c.to_string(),
        false => format!("\\[u{:04X}]", u32::from(c)),
    };
    text.chars().map(escaped).collect()
}

impl Header {
    fn parse(text: &str) -> Self {
        let mut header = Self { top: top_of(text), ..Self::default() };
        let mut lines = text.lines();
        let mut comment: Vec<&str> = Vec::new();
        while let Some(line) = lines.next() {
            if let Some(words) = comment_in(line) {
                comment.push(words);
                continue;
            }
            let above = std::mem::take(&mut comment).join("\n");
            if let Some(name) = line.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
                let fields = fields_of(&mut lines);
                header.structs.push(Struct { name: name.to_owned(), comment: above, fields });
            } else if let Some((name, value)) =
                line.strip_prefix("#define DAFS_").and_then(|rest| rest.split_once(' '))
            {
                if !above.is_empty() {
                    let name = format!("DAFS_{name}");
                    header.constants.push((name, value.to_owned(), above.replace('\n', " ")));
                }
            } else if line.contains("dafs_") && line.contains('(') && !line.starts_with(['#', ' ', '/']) {
                let mut prototype = line.to_owned();
                while !prototype.ends_with(';') {
                    let Some(line) = lines.next() else { break };
                    prototype.push('\n');
                    prototype.push_str(line);
                }
                let name = prototype.split('(').next().unwrap_or_default();
                let name = name.rsplit([' ', '*']).next().unwrap_or_default().to_owned();
                header.functions.insert(name, (above, prototype));
            }
        }
        header
    }
}

fn comment_in(line: &str) -> Option<&str> {
    let words = line.trim_start().strip_prefix("//")?;
    Some(words.strip_prefix(' ').unwrap_or(words))
}

/// The comment at the top, without its first line, which says what the header is.
fn top_of(text: &str) -> String {
    let end = text.find("*/").unwrap_or_default();
    let lines = text[..end].lines().skip(1).map(|line| line.trim_start_matches(" *").trim());
    lines.collect::<Vec<_>>().join("\n").trim().to_owned()
}

fn fields_of<'a>(lines: &mut impl Iterator<Item = &'a str>) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in lines.by_ref().take_while(|line| *line != "};") {
        match comment_in(line) {
            Some(words) => comment.push(words),
            None => fields.push((line.trim().to_owned(), std::mem::take(&mut comment).join(" "))),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "/* libx: things. Made by y.\n *\n * Calls block.\n *\n * Threads: any.\n */\n#ifndef X\n\n\
        // Nothing.\n#define DAFS_E_PLAIN 0\n#define DAFS_H\n\n// A part.\nstruct dafs_extent {\n  // Where.\n  uint64_t offset;\n};\n\n\
        #ifdef __cplusplus\nextern \"C\" {\n#endif\n\n// Opens \u{2026}. As dafs_close(), with \\ and\n// more.\n\
        //\n//   dafs_turn() first.\n\
        int64_t dafs_open(const char *path,\n                  int flags);\n\n// Closes.\nvoid *dafs_close(int64_t file);\n";

    fn group() -> Group {
        Group {
            name: "file".to_owned(),
            about: "Open files".to_owned(),
            functions: vec!["dafs_open".to_owned(), "dafs_close".to_owned()],
        }
    }

    #[test]
    fn header_is_read() {
        let header = Header::parse(HEADER);
        assert_eq!(header.top, "Calls block.\n\nThreads: any.");
        assert_eq!(header.constants, [("DAFS_E_PLAIN".to_owned(), "0".to_owned(), "Nothing.".to_owned())]);
        assert_eq!(header.structs[0].fields, [("uint64_t offset;".to_owned(), "Where.".to_owned())]);
        let (comment, prototype) = &header.functions["dafs_open"];
        assert!(comment.ends_with("with \\ and\nmore.\n\n  dafs_turn() first."), "{comment}");
        assert_eq!(prototype, "int64_t dafs_open(const char *path,\n                  int flags);");
        assert_eq!(header.functions["dafs_close"].1, "void *dafs_close(int64_t file);");
    }

    #[test]
    fn each_function_has_a_page_of_its_name() {
        let pages: BTreeMap<_, _> = pages(HEADER, &[group()], "1.2").unwrap().into_iter().collect();
        let names: Vec<&str> = pages.keys().map(String::as_str).collect();
        assert_eq!(names, ["dafs_close.3", "dafs_file.3", "dafs_open.3", "libdafs.3"]);
        assert_eq!(pages["dafs_close.3"], ".so man3/dafs_file.3\n");
        let page = &pages["dafs_file.3"];
        assert!(page.is_ascii() && page.contains("\\[u2026]"), "{page}");
        assert!(page.contains("dafs_open, dafs_close \\- open files"), "{page}");
    }

    #[test]
    fn function_that_the_header_does_not_declare_is_an_error() {
        let unknown = Group { functions: vec!["dafs_nothing".to_owned()], ..group() };
        let error = pages(HEADER, &[unknown], "1.2").unwrap_err().to_string();
        assert_eq!(error, "the header does not declare dafs_nothing");
    }

    #[test]
    fn names_of_the_library_are_bold_within_text() {
        let parts = styled("As dafs_open(2), with DAFS_E_X; dafs_ is none.");
        let expected = [
            roman("As "),
            bold("dafs_open"),
            roman("(2), with "),
            bold("DAFS_E_X"),
            roman("; dafs_ is none."),
        ];
        assert_eq!(parts, expected);
    }
}
