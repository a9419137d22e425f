//! An aligned table for a terminal.

use std::fmt::Write;

use crate::machine::Machine;
use crate::record::{CpuRow, MpiRow, NameOp, Outcome, Row, ScaleRow};
use crate::report::{crossing as faster, figure, size, threshold};

/// Draws `outcome` as text that ends with a newline.
pub fn render(outcome: &Outcome, machine: &Machine) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} × {}, kernel {}, {}, pinned: {}, load {:.1}",
        outcome.benchmark,
        machine.cores,
        machine.cpu,
        machine.kernel,
        machine.file_system,
        machine.pinned,
        machine.load_average
    );
    text.push_str(&grid(&columns(&outcome.rows), &outcome.rows.iter().map(cells).collect::<Vec<_>>()));
    if let Some(crossings) = &outcome.crossings {
        let rows = crossings.iter().map(|crossing| {
            vec![
                crossing.transport.clone(),
                crossing.case.unwrap_or("-").to_owned(),
                crossing.op.to_string(),
                yes_no(Some(crossing.registered)),
                faster(crossing),
                crossing.measured_bytes.map_or_else(|| "-".to_owned(), size),
                threshold(crossing.exported_bytes),
            ]
        });
        text.push_str("\nDirect beside inline\n");
        let has_case = crossings.iter().any(|crossing| crossing.case.is_some());
        let titles = ["transport", "case", "op", "registered", "is faster", "crossing", "is used"];
        let titles = titles.map(|title| (title, title != "case" || has_case));
        text.push_str(&grid(&titles, &rows.collect::<Vec<_>>()));
    }
    for note in &outcome.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Titles, and whether the column is shown.
fn columns(rows: &[Row]) -> [(&'static str, bool); 54] {
    let any = |has: fn(&Row) -> bool| rows.iter().any(has);
    let cpu = |has: fn(&CpuRow) -> bool| rows.iter().filter_map(|row| row.cpu.as_ref()).any(has);
    let scale = |has: fn(&ScaleRow) -> bool| rows.iter().filter_map(|row| row.scale.as_ref()).any(has);
    let mpi = |has: fn(&MpiRow) -> bool| rows.iter().filter_map(|row| row.mpi.as_ref()).any(has);
    [
        ("transport", true),
        ("case", any(|row| row.case.is_some())),
        ("round trip ms", any(|row| row.round_trip_ms.is_some())),
        ("way", mpi(|_| true)),
        ("op", any(|row| row.op.is_some() || row.name_op.is_some())),
        ("mode", mpi(|mpi| mpi.mode.is_some())),
        ("method", any(|row| row.method.is_some())),
        ("registered", any(|row| row.registered.is_some())),
        ("pieces", any(|row| row.segments.is_some())),
        ("held", any(|row| row.held.is_some())),
        ("density", any(|row| row.density.is_some())),
        ("cache", any(|row| row.cache.is_some())),
        ("order", mpi(|mpi| mpi.order.is_some())),
        ("reuse", mpi(|mpi| mpi.reuse.is_some())),
        ("ranks", mpi(|mpi| mpi.ranks > 1)),
        ("servers", any(|row| row.servers.is_some())),
        ("workers", scale(|_| true)),
        ("clients", any(|row| row.clients.is_some())),
        ("sync", mpi(|mpi| mpi.sync.is_some())),
        ("size", any(|row| row.op.is_some() || row.bytes > 0)),
        ("depth", any(|row| (row.op.is_some() || row.name_op.is_some()) && row.mpi.is_none())),
        ("chunk", any(|row| row.chunk_bytes.is_some())),
        ("at once", any(|row| row.pipeline_depth.is_some())),
        ("cpu", any(|row| row.cpu_fraction.is_some())),
        ("p50 us", any(|row| row.p50_us.is_some())),
        ("mean us", mpi(|mpi| mpi.mean_us.is_some())),
        ("p99 us", any(|row| row.p99_us.is_some())),
        ("MiB/s", any(|row| row.mib_per_s.is_some())),
        ("op/s", any(|row| row.ops_per_s.is_some())),
        ("least op/s", scale(|scale| scale.least_ops_per_s.is_some())),
        ("gain", scale(|scale| scale.gain.is_some())),
        ("least gain", scale(|scale| scale.least_gain.is_some())),
        ("can give", scale(|scale| scale.bound.is_some())),
        ("reached", scale(|scale| scale.reached.is_some())),
        ("sessions", any(|row| row.sessions.is_some())),
        ("CPU %", any(|row| row.cpu_percent.is_some())),
        ("KiB/session", any(|row| row.kib_per_session.is_some())),
        ("reg/op", any(|row| row.registrations.is_some())),
        ("hits", any(|row| row.hit_ratio.is_some())),
        ("requests", mpi(|mpi| mpi.requests.is_some())),
        ("lists", mpi(|mpi| mpi.lists.is_some())),
        ("paper", mpi(|mpi| mpi.requests_paper.is_some())),
        ("limit", any(|row| row.limit.is_some())),
        ("limit value", any(|row| row.limit_value.is_some())),
        ("added us", any(|row| row.added_us.is_some())),
        ("ratio", any(|row| row.ratio.is_some())),
        ("spread", any(|row| row.ratio_min.is_some())),
        ("95 %", any(|row| row.low.is_some())),
        ("client ns", cpu(|cpu| cpu.client_cpu_ns.is_some())),
        ("server ns", cpu(|cpu| cpu.server_cpu_ns.is_some())),
        ("limit ns", cpu(|cpu| cpu.limit_cpu_ns.is_some())),
        ("rounds", rounds_differ(rows)),
        ("known", any(|row| row.unsettled)),
        ("disturbed", any(|row| row.disturbed)),
    ]
}

/// Some cases were repeated, and others not.
fn rounds_differ(rows: &[Row]) -> bool {
    let first = rows.first().and_then(|row| row.rounds);
    rows.iter().any(|row| row.rounds != first)
}

fn cells(row: &Row) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), figure);
    let limit_value = match (row.limit_value, row.limit_unit) {
        (Some(value), Some(unit)) => format!("{} {:5}", figure(value), unit.symbol()),
        _ => "-".to_owned(),
    };
    let none = MpiRow::default();
    let mpi = row.mpi.as_ref().unwrap_or(&none);
    let scale = row.scale.unwrap_or_default();
    let part = |part: Option<f64>| part.map_or_else(|| "-".to_owned(), |part| format!("{part:.2}"));
    let word = |word: Option<&str>| word.unwrap_or("-").to_owned();
    vec![
        row.transport.clone(),
        row.case.unwrap_or("-").to_owned(),
        row.round_trip_ms.map_or_else(|| "-".to_owned(), figure),
        word(Some(mpi.way).filter(|way| !way.is_empty())),
        match (row.op, row.name_op) {
            (Some(op), _) => op.to_string(),
            (None, name) => name.map_or("-", NameOp::name).to_owned(),
        },
        word(mpi.mode),
        row.method.map_or_else(|| "-".to_owned(), |method| method.to_string()),
        yes_no(row.registered),
        row.segments.map_or_else(|| "-".to_owned(), |segments| segments.to_string()),
        row.held.map_or_else(|| "-".to_owned(), |held| held.to_string()),
        row.density.map_or_else(|| "-".to_owned(), |density| format!("1/{}", (1.0 / density).round())),
        word(row.cache),
        word(mpi.order),
        mpi.reuse.map_or_else(|| "-".to_owned(), |reuse| format!("{reuse} %")),
        mpi.ranks.to_string(),
        row.servers.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        row.scale.map_or_else(|| "-".to_owned(), |scale| scale.workers.to_string()),
        row.clients.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        yes_no(mpi.sync),
        size(row.bytes as u64),
        row.queue_depth.to_string(),
        row.chunk_bytes.map_or_else(|| "-".to_owned(), |bytes| size(bytes as u64)),
        row.pipeline_depth.map_or_else(|| "-".to_owned(), |depth| depth.to_string()),
        row.cpu_fraction.map_or_else(|| "-".to_owned(), |fraction| format!("{fraction:.2}")),
        number(row.p50_us),
        number(mpi.mean_us),
        number(row.p99_us),
        number(row.mib_per_s),
        number(row.ops_per_s),
        number(scale.least_ops_per_s),
        part(scale.gain),
        part(scale.least_gain),
        part(scale.bound),
        part(scale.reached),
        row.sessions.map_or_else(|| "-".to_owned(), |sessions| sessions.to_string()),
        number(row.cpu_percent),
        number(row.kib_per_session),
        number(row.registrations),
        row.hit_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        number(mpi.requests),
        number(mpi.lists),
        mpi.requests_paper.map_or_else(|| "-".to_owned(), |count| count.to_string()),
        row.limit.clone().unwrap_or_else(|| "-".to_owned()),
        limit_value,
        number(row.added_us),
        row.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}")),
        row.ratio_min
            .zip(row.ratio_max)
            .map_or_else(|| "-".to_owned(), |(min, max)| format!("{min:.2}-{max:.2}")),
        row.low
            .zip(row.high)
            .map_or_else(|| "-".to_owned(), |(low, high)| format!("{}-{}", figure(low), figure(high))),
        number(row.cpu.and_then(|cpu| cpu.client_cpu_ns)),
        number(row.cpu.and_then(|cpu| cpu.server_cpu_ns)),
        number(row.cpu.and_then(|cpu| cpu.limit_cpu_ns)),
        row.rounds.map_or_else(|| "-".to_owned(), |rounds| rounds.to_string()),
        if row.unsettled { "not to 5 %".to_owned() } else { String::new() },
        if row.disturbed { "disturbed".to_owned() } else { String::new() },
    ]
}

fn yes_no(value: Option<bool>) -> String {
    match value {
        Some(true) => "yes",
        Some(false) => "no",
        None => "-",
    }
    .to_owned()
}

/// Words to the left, figures to the right.
fn grid(titles: &[(&str, bool)], rows: &[Vec<String>]) -> String {
    let shown: Vec<usize> = (0..titles.len()).filter(|column| titles[*column].1).collect();
    let wide = |text: &str| text.chars().count();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| wide(&row[column]));
        cells.chain([wide(titles[column].0)]).max().unwrap_or(0)
    };
    let words = ["transport", "case", "way", "op", "mode", "method", "registered", "order", "limit"];
    let line = |cell: &dyn Fn(usize) -> String| {
        let cells = shown.iter().map(|column| {
            let width = width(*column);
            if words.contains(&titles[*column].0) {
                format!("{:<width$}", cell(*column))
            } else {
                format!("{:>width$}", cell(*column))
            }
        });
        let line = cells.collect::<Vec<_>>().join("  ");
        line.trim_end().to_owned() + "\n"
    };
    let mut text = line(&|column| titles[column].0.to_owned());
    text.push_str(&line(&|column| "─".repeat(width(column))));
    rows.iter().for_each(|row| text.push_str(&line(&|column| row[column].clone())));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;

    #[test]
    fn grid_aligns_words_left_and_figures_right() {
        let rows = [vec!["tcp".to_owned(), "7".to_owned()], vec!["shm".to_owned(), "1234567".to_owned()]];
        let text = grid(&[("transport", true), ("op/s", true)], &rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            ["transport     op/s", "─────────  ───────", "tcp              7", "shm        1234567"]
        );
    }

    #[test]
    fn columns_without_any_value_are_left_out() {
        let shown = columns(&[Row { op: Some(Op::Read), p50_us: Some(1.0), ..Row::default() }]);
        let hidden: Vec<_> = shown.iter().filter(|(_, shown)| !shown).map(|(title, _)| *title).collect();
        assert_eq!(
            hidden,
            [
                "case",
                "round trip ms",
                "way",
                "mode",
                "method",
                "registered",
                "pieces",
                "held",
                "density",
                "cache",
                "order",
                "reuse",
                "ranks",
                "servers",
                "workers",
                "clients",
                "sync",
                "chunk",
                "at once",
                "cpu",
                "mean us",
                "p99 us",
                "MiB/s",
                "op/s",
                "least op/s",
                "gain",
                "least gain",
                "can give",
                "reached",
                "sessions",
                "CPU %",
                "KiB/session",
                "reg/op",
                "hits",
                "requests",
                "lists",
                "paper",
                "limit",
                "limit value",
                "added us",
                "ratio",
                "spread",
                "95 %",
                "client ns",
                "server ns",
                "limit ns",
                "rounds",
                "known",
                "disturbed",
            ]
        );
    }
}
