//! What is to be said of the rows: a sentence for each figure, and whether its target is met.

use std::collections::BTreeSet;

use crate::record::{MpiRow, Op, Row};
use crate::report::{figure, size};
use crate::stats::median;
use crate::workload::mpi::figures::{mode, of};
use crate::workload::mpi::memory::MODES;

/// Bytes of the transfer that tells what MPI adds.
const SMALL_BYTES: usize = 4096;

/// All sentences that rows have something for.
pub(super) fn notes(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for (transport, way) in dafs_by(rows) {
        let mine = |row: &Row, mpi: &MpiRow| {
            mpi.subject == "dafs" && (row.transport.as_str(), mpi.way) == (&transport, way)
        };
        let of_mine = |case: &str| of(rows, case).filter(|(row, mpi)| mine(row, mpi)).collect::<Vec<_>>();
        let who = format!("{transport} by {way}");
        notes.extend(cache(rows, &of_mine("memory"), &who));
        notes.extend(auto(rows, &of_mine("memory"), &who));
        notes.extend(registrations(&of_mine("memory"), &who));
        notes.extend(latency(&of_mine("latency"), &who));
        notes.extend(bandwidth(rows, &of_mine("bandwidth"), &who));
        notes.extend(overlap(&of_mine("overlap"), &who));
        notes.extend(list_over(&of_mine("block-column"), "sieve", Op::Write, Some(3.5), &who));
        notes.extend(list_over(&of_mine("block-column"), "sieve", Op::Read, None, &who));
        notes.extend(list_over(&of_mine("tiled"), "multiple", Op::Write, None, &who));
        notes.extend(list_over(&of_mine("tiled"), "multiple", Op::Read, None, &who));
        for op in [Op::Write, Op::Read] {
            notes.extend(list_over(&of_mine("block-column"), "list_ads", op, None, &who));
            notes.extend(list_over(&of_mine("tiled"), "list_ads", op, None, &who));
            notes.extend(mesh(&of_mine("mesh"), op, &who));
        }
        notes.extend(requests(&of_mine("btio"), &who));
    }
    notes.extend(typed_notes(rows));
    notes
}

/// An access that names a datatype beside the list of the same pieces.
pub(super) fn typed_notes(rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    for (transport, way) in dafs_by(rows) {
        for case in ["block-column", "tiled", "mesh"] {
            for op in [Op::Write, Op::Read] {
                let mine: Vec<_> = of(rows, case)
                    .filter(|(row, mpi)| {
                        let is_mine = mpi.subject == "dafs" && row.op == Some(op);
                        is_mine && (row.transport.as_str(), mpi.way) == (&transport, way)
                    })
                    .collect();
                notes.extend(typed(&mine, op, &format!("{transport} by {way}")));
            }
        }
    }
    notes
}

type Rows<'r> = [(&'r Row, &'r MpiRow)];

/// Transports and ways of MPI programs on dafs, in the order of their coming.
pub(super) fn dafs_by(rows: &[Row]) -> Vec<(String, &'static str)> {
    let mut seen = BTreeSet::new();
    let all = rows.iter().filter_map(|row| Some((row.transport.clone(), row.mpi.as_ref()?)));
    let of_dafs = all.filter(|(_, mpi)| mpi.subject == "dafs" && mpi.way != "client");
    of_dafs.map(|(transport, mpi)| (transport, mpi.way)).filter(|pair| seen.insert(pair.clone())).collect()
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "missed" }
}

fn what(row: &Row) -> String {
    format!("{} of {}", row.op.map_or_else(String::new, |op| op.to_string()), size(row.bytes as u64))
}

/// The least and the greatest, with where they are.
fn extremes<'r>(values: impl Iterator<Item = (f64, &'r Row)>) -> Option<[(f64, &'r Row); 2]> {
    let values: Vec<_> = values.collect();
    let least = values.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let greatest = values.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some([least, greatest])
}

/// Figure 5: what a hit costs beside memory that needs no registering.
fn cache(rows: &[Row], mine: &Rows<'_>, who: &str) -> Option<String> {
    const TARGET_US: f64 = 2.0;
    let full = || mine.iter().filter(|(_, mpi)| mpi.mode == Some("adio_cache") && mpi.reuse == Some(100));
    let beside = |other: &'static str| {
        extremes(full().filter_map(|(row, mpi)| Some((mpi.mean_us? - mode(rows, row, mpi, other)?, *row))))
    };
    let [least, most] = beside("none")?;
    let pinned = beside("pinned").map_or_else(String::new, |[least, most]| {
        format!("; beside ordinary memory registered before {} to {} us", figure(least.0), figure(most.0))
    });
    Some(format!(
        "Figure 5, {who}: at full reuse adio_cache takes {} to {} us more than no registration, most in a {} (target 2 us: {}){pinned}",
        figure(least.0),
        figure(most.0),
        what(most.1),
        verdict(most.0 <= TARGET_US)
    ))
}

/// Figure 4: `auto` beside the best of the others.
fn auto(rows: &[Row], mine: &Rows<'_>, who: &str) -> Option<String> {
    const TARGET: f64 = 1.1;
    let ratio = |row: &Row, mpi: &MpiRow| {
        let others = MODES.iter().filter(|name| **name != "auto");
        let best = others.filter_map(|name| mode(rows, row, mpi, name)).reduce(f64::min)?;
        Some(mpi.mean_us? / best)
    };
    let autos = mine.iter().filter(|(_, mpi)| mpi.mode == Some("auto"));
    let ratios: Vec<(f64, &Row)> = autos.filter_map(|(row, mpi)| Some((ratio(row, mpi)?, *row))).collect();
    let of_size = |like: &Row| {
        median(
            ratios
                .iter()
                .filter(|(_, row)| (row.op, row.bytes) == (like.op, like.bytes))
                .map(|(ratio, _)| *ratio),
        )
    };
    let [least, most] = extremes(ratios.iter().filter_map(|(_, row)| Some((of_size(row)?, *row))))?;
    let [_, single] = extremes(ratios.iter().copied())?;
    Some(format!(
        "Figure 4, {who}: auto takes {:.2} to {:.2} times the best mode, medians over reuse, most in a {} (target {TARGET}: {}); \
         a single case {:.2}, in a {}",
        least.0,
        most.0,
        what(most.1),
        verdict(most.0 <= TARGET),
        single.0,
        what(single.1)
    ))
}

/// Registrations for each transfer, of the largest blocks, without reuse and with.
fn registrations(mine: &Rows<'_>, who: &str) -> Option<String> {
    let bytes = mine.iter().map(|(row, _)| row.bytes).max()?;
    let of = |name: &str, reuse: u32| {
        let found = mine
            .iter()
            .find(|(row, mpi)| row.bytes == bytes && mpi.mode == Some(name) && mpi.reuse == Some(reuse));
        found?.0.registrations
    };
    let each = |name: &str| Some(format!("{name} {:.2} and {:.2}", of(name, 0)?, of(name, 100)?));
    let modes: Vec<String> = MODES.iter().filter_map(|name| each(name)).collect();
    (!modes.is_empty()).then(|| {
        format!(
            "memory, {who}: registrations for each transfer of {} without reuse and at full reuse: {}",
            size(bytes as u64),
            modes.join(", ")
        )
    })
}

/// Figure 6: what MPI adds to the client API.
fn latency(mine: &Rows<'_>, who: &str) -> Option<String> {
    const TARGET: f64 = 1.15;
    let at = |(row, mpi): &&(&Row, &MpiRow)| row.bytes == SMALL_BYTES && mpi.order == Some("sequential");
    let ratios: Vec<(f64, &Row)> =
        mine.iter().filter(at).filter_map(|(row, _)| Some((row.ratio?, *row))).collect();
    let [_, worst] = extremes(ratios.iter().copied())?;
    let each: Vec<String> = ratios.iter().map(|(ratio, row)| format!("{} {ratio:.2}", what(row))).collect();
    Some(format!(
        "Figure 6, {who}: MPI over the client API: {} (target {TARGET}: {})",
        each.join(", "),
        verdict(worst.0 <= TARGET)
    ))
}

/// Figure 7: the largest transfers beside the same library without dafs.
fn bandwidth(rows: &[Row], mine: &Rows<'_>, who: &str) -> Option<String> {
    let bytes = mine.iter().map(|(row, _)| row.bytes).max()?;
    let mut parts = Vec::new();
    for (row, mpi) in mine.iter().filter(|(row, _)| row.bytes == bytes) {
        let others = of(rows, "bandwidth").filter(|(other, of_other)| {
            of_other.subject != "dafs"
                && of_other.way == mpi.way
                && (other.op, other.bytes) == (row.op, bytes)
        });
        for (other, of_other) in others {
            let ratio = row.mib_per_s? / other.mib_per_s?;
            parts.push(format!("{} {ratio:.2} times {}", what(row), of_other.subject));
        }
    }
    (!parts.is_empty()).then(|| {
        format!(
            "Figure 7, {who}: bandwidth: {}; the paper's was 1.6 to 5.6 times that of NFS",
            parts.join(", ")
        )
    })
}

/// Figure 8: what computation costs before half of the time is computation.
fn overlap(mine: &Rows<'_>, who: &str) -> Option<String> {
    const TARGET: f64 = 0.95;
    let at = |row: &Row, fraction: f64| row.cpu_fraction.is_some_and(|at| (at - fraction).abs() < 1e-6);
    let alone = |row: &Row| {
        let same =
            mine.iter().find(|(other, _)| at(other, 0.0) && (other.op, other.bytes) == (row.op, row.bytes));
        same?.0.mib_per_s
    };
    let kept: Vec<(f64, &Row)> = mine
        .iter()
        .filter(|(row, _)| at(row, 0.4))
        .filter_map(|(row, _)| Some((row.mib_per_s? / alone(row)?, *row)))
        .collect();
    let [least, _] = extremes(kept.iter().copied())?;
    let each: Vec<String> = kept.iter().map(|(kept, row)| format!("{} {kept:.2}", what(row))).collect();
    Some(format!(
        "Figure 8, {who}: bandwidth at a CPU fraction of 0.4 over that at 0: {} (target {TARGET}: {})",
        each.join(", "),
        verdict(least.0 >= TARGET)
    ))
}

/// List I/O beside another method: how many times its bandwidth.
fn list_over(mine: &Rows<'_>, other: &str, op: Op, target: Option<f64>, who: &str) -> Option<String> {
    let of_method = |name: &str, row: &Row, mpi: &MpiRow| {
        let same = mine.iter().find(|(same, of_same)| {
            of_same.mode == Some(name)
                && of_same.sync == mpi.sync
                && (same.op, same.segments, same.case) == (row.op, row.segments, row.case)
        });
        same?.0.mib_per_s
    };
    let lists = mine.iter().filter(|(row, mpi)| row.op == Some(op) && mpi.mode == Some("list"));
    let ratios = lists.filter_map(|(row, mpi)| Some((row.mib_per_s? / of_method(other, row, mpi)?, *row)));
    let [least, most] = extremes(ratios)?;
    let case = least.1.case.unwrap_or_default();
    let end = match target {
        Some(target) => format!(" (target {target}: {})", verdict(least.0 >= target)),
        None => String::new(),
    };
    let paper = match (case, op) {
        ("tiled", Op::Write) => "; the paper's was 5.7 times with data sieving at the server",
        ("tiled", _) => "; the paper's was 8.8 times with data sieving at the server",
        (_, Op::Write) => "; the paper's was 3.5 to 12.1 times",
        _ => "",
    };
    Some(format!(
        "{case}, {who}: {op}s by list have {:.2} to {:.2} times the bandwidth of {other}, the least with pieces of {}{end}{paper}",
        least.0,
        most.0,
        size(least.1.bytes as u64)
    ))
}

/// A view takes no longer than the list that it stands for.
fn typed(mine: &Rows<'_>, op: Op, who: &str) -> Option<String> {
    const TARGET: f64 = 1.0;
    let list = |row: &Row, mpi: &MpiRow| {
        let same = mine.iter().find(|(same, of_same)| {
            of_same.mode == Some("list_ads")
                && (of_same.sync, of_same.ranks) == (mpi.sync, mpi.ranks)
                && (same.segments, same.cache) == (row.segments, row.cache)
        });
        same?.0.p50_us
    };
    let views = mine.iter().filter(|(_, mpi)| mpi.mode == Some("view"));
    let ratios = views.filter_map(|(row, mpi)| Some((row.p50_us? / list(row, mpi)?, *row)));
    let [least, most] = extremes(ratios)?;
    Some(format!(
        "{}, {who}: {op}s by view take {:.2} to {:.2} of the time of list_ads, the most with {} pieces (target {TARGET}: {})",
        most.1.case.unwrap_or_default(),
        least.0,
        most.0,
        most.1.segments.unwrap_or_default(),
        verdict(most.0 <= TARGET)
    ))
}

/// ECIO, Tables 1 to 4: views in the server beside the exchange of MPI.
fn mesh(mine: &Rows<'_>, op: Op, who: &str) -> Option<String> {
    const INTEGERS_MIN: usize = 16_000;
    let integers = |row: &Row, mpi: &MpiRow| row.segments.unwrap_or_default() * mpi.ranks as usize;
    let time = |name: &str, segments: Option<usize>| {
        let is_same = |(row, mpi): &&(&Row, &MpiRow)| {
            row.op == Some(op) && row.segments == segments && mpi.mode == Some(name)
        };
        mine.iter().find(is_same)?.0.p50_us
    };
    let many = mine.iter().filter(|(row, mpi)| {
        mpi.mode == Some("ecio") && row.op == Some(op) && integers(row, mpi) >= INTEGERS_MIN
    });
    let ratios = many.filter_map(|(row, _)| Some((row.p50_us? / time("two_phase", row.segments)?, *row)));
    let [least, most] = extremes(ratios)?;
    let paper = match op {
        Op::Write => "0.84 to 0.95",
        _ => "0.76 to 0.92",
    };
    Some(format!(
        "mesh, {who}: {op}s by ecio take {:.2} to {:.2} of the time of two_phase from {INTEGERS_MIN} integers on, the most with {} a rank \
         (target 1: {}); the paper's took {paper}",
        least.0,
        most.0,
        most.1.segments.unwrap_or_default(),
        verdict(most.0 <= 1.0)
    ))
}

/// Table 6: requests of writing and reading together.
fn requests(mine: &Rows<'_>, who: &str) -> Option<String> {
    let sum = |name: &str, count: &dyn Fn(&Row, &MpiRow) -> Option<f64>| {
        let of_method = mine.iter().filter(|(_, mpi)| mpi.mode == Some(name));
        let counts: Option<Vec<f64>> = of_method.map(|(row, mpi)| count(row, mpi)).collect();
        counts.filter(|counts| !counts.is_empty()).map(|counts| counts.iter().sum::<f64>())
    };
    let each = |name: &str| {
        let counted = sum(name, &|_, mpi| mpi.requests)?;
        let paper = sum(name, &|_, mpi| mpi.requests_paper.map(|count| count as f64));
        let paper = paper.map_or_else(String::new, |paper| format!(" (paper {paper:.0})"));
        let registered = sum(name, &|row, _| row.registrations)
            .map_or_else(String::new, |count| format!(", {count:.0} registrations"));
        Some(format!("{name} {counted:.0}{paper}{registered}"))
    };
    let methods: Vec<String> =
        ["multiple", "list", "two_phase", "sieve"].into_iter().filter_map(each).collect();
    (!methods.is_empty()).then(|| format!("Table 6, {who}: requests: {}", methods.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &'static str, mode: Option<&'static str>, us: f64) -> Row {
        Row {
            transport: "shm".to_owned(),
            case: Some(case),
            op: Some(Op::Write),
            bytes: 4096,
            segments: Some(512),
            p50_us: Some(us),
            mib_per_s: Some(1000.0 / us),
            mpi: Some(MpiRow {
                subject: "dafs".to_owned(),
                way: if mode == Some("none") { "client" } else { "romio" },
                mode,
                reuse: Some(100),
                mean_us: Some(us),
                ..MpiRow::default()
            }),
            ..Row::default()
        }
    }

    fn only(notes: Vec<String>, start: &str) -> String {
        notes.into_iter().find(|note| note.starts_with(start)).unwrap_or_else(|| panic!("no note {start}"))
    }

    #[test]
    fn cache_and_auto_are_judged_at_their_edges() {
        for (cached, auto, judged) in [(12.0, 11.0, "met"), (12.1, 11.2, "missed")] {
            let rows = [
                row("memory", Some("none"), 10.0),
                row("memory", Some("dafs"), 10.0),
                row("memory", Some("adio"), 14.0),
                row("memory", Some("adio_cache"), cached),
                row("memory", Some("auto"), auto),
            ];
            let all = notes(&rows);
            assert!(
                only(all.clone(), "Figure 5, shm by romio").contains(&format!("(target 2 us: {judged})"))
            );
            assert!(only(all, "Figure 4").contains(&format!("(target 1.1: {judged})")));
        }
    }

    #[test]
    fn overlap_is_judged_beside_the_bandwidth_without_computation() {
        for (slower, judged) in [(10.5, "met"), (10.6, "missed")] {
            let at =
                |fraction: f64, us: f64| Row { cpu_fraction: Some(fraction), ..row("overlap", None, us) };
            let note = only(notes(&[at(0.0, 10.0), at(0.4, slower), at(0.9, 100.0)]), "Figure 8");
            assert!(note.contains(&format!("(target 0.95: {judged})")), "{note}");
        }
    }

    #[test]
    fn latency_and_lists_are_judged() {
        let ratio = |ratio: f64| {
            let mut row = row("latency", None, 10.0);
            row.ratio = Some(ratio);
            row.mpi.as_mut().unwrap().order = Some("sequential");
            row
        };
        assert!(only(notes(&[ratio(1.15)]), "Figure 6").contains("write of 4 KiB 1.15 (target 1.15: met)"));
        assert!(only(notes(&[ratio(1.16)]), "Figure 6").contains("missed"));
        let lists = |us| [row("block-column", Some("list"), 10.0), row("block-column", Some("sieve"), us)];
        assert!(only(notes(&lists(35.0)), "block-column").contains("(target 3.5: met)"));
        assert!(only(notes(&lists(34.9)), "block-column").contains("(target 3.5: missed)"));
    }

    #[test]
    fn view_is_judged_beside_the_list_of_the_same_pieces() {
        for (us, judged) in [(10.0, "met"), (10.1, "missed")] {
            let mut other = row("mesh", Some("list_ads"), 1.0);
            other.segments = Some(513);
            let rows = [other, row("mesh", Some("list_ads"), 10.0), row("mesh", Some("view"), us)];
            let note = only(notes(&rows), "mesh, shm by romio: writes by view take");
            assert!(note.ends_with(&format!("with 512 pieces (target 1: {judged})")), "{note}");
        }
    }

    #[test]
    fn requests_are_added_up_over_reads_and_writes() {
        let counted = |op| {
            let mut row = row("btio", Some("list"), 10.0);
            row.op = Some(op);
            row.registrations = Some(4.0);
            let mpi = row.mpi.as_mut().unwrap();
            (mpi.requests, mpi.requests_paper) = (Some(640.0), Some(680));
            row
        };
        let note = only(notes(&[counted(Op::Read), counted(Op::Write)]), "Table 6");
        assert_eq!(note, "Table 6, shm by romio: requests: list 1280 (paper 1360), 8 registrations");
    }

    #[test]
    fn rows_without_dafs_or_without_a_counterpart_say_nothing() {
        let mut local = row("memory", Some("adio_cache"), 1.0);
        local.mpi.as_mut().unwrap().subject = "local".to_owned();
        assert_eq!(notes(&[local]), Vec::<String>::new());
        assert_eq!(
            notes(&[row("overlap", None, 1.0), row("block-column", Some("list"), 1.0)]),
            Vec::<String>::new()
        );
    }
}
