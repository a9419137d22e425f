//! The report of `compare`: one HTML file without anything from elsewhere, for a screen of any width and for paper.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::Context;

use crate::machine::Machine;
use crate::record::{NameOp, Outcome, Row};
use crate::report::papers::{AXES, AxisText};
use crate::report::{figure, size};

const STYLE: &str = include_str!("compare.css");

/// How far the interval of a bar may reach, times the longest bar.
const INTERVAL_MAX: f64 = 1.25;

/// Writes the report into the file `path`, whole or not at all. What is no file, such as a pipe, is written to.
pub fn write(outcome: &Outcome, machine: &Machine, path: &Path) -> anyhow::Result<()> {
    let page = render(outcome, machine);
    let written = if path.exists() && !path.is_file() {
        std::fs::OpenOptions::new().write(true).open(path).and_then(|mut to| to.write_all(page.as_bytes()))
    } else {
        replace(path, page.as_bytes())
    };
    written.with_context(|| format!("cannot write the report to {}", path.display()))
}

/// Puts a file with these bytes at `path`, or where the link that is there points to.
fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().prefix(".dafs-compare-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(0o644))?;
    file.persist(&path)?;
    Ok(())
}

/// The report as text.
pub fn render(outcome: &Outcome, machine: &Machine) -> String {
    let mut page = String::new();
    let _ = write!(
        page,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<title>dafs compared</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    head(&mut page, outcome, machine);
    for axis in &AXES {
        section(&mut page, axis, outcome);
    }
    notes(&mut page, outcome);
    page.push_str("</body>\n</html>\n");
    page
}

fn head(page: &mut String, outcome: &Outcome, machine: &Machine) {
    let who = names(outcome.rows.iter());
    let _ = writeln!(
        page,
        "<h1>dafs beside other ways to a file</h1>\n<p class=\"lead\">{}. The same work by each, on one machine, in rounds in which \
        they take \
         turns. A bar is the median over the rounds; the thin line on it is where the median lies with 95&nbsp;% confidence.</p>",
        escape(&who.iter().map(|name| described(name)).collect::<Vec<_>>().join("; "))
    );
    let disturbed = outcome.rows.iter().filter(|row| row.disturbed).count();
    if machine.load_average > 0.2 || disturbed > 0 {
        let _ = writeln!(
            page,
            "<p class=\"warning\">The load average was {:.1} when the run began, and {disturbed} of {} rows were disturbed. Figures taken \
             beside other load say little: repeat the run on a quiet machine.</p>",
            machine.load_average,
            outcome.rows.len()
        );
    }
    page.push_str("<h2>Machine</h2>\n<table class=\"machine\">\n");
    let command: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    for (name, value) in [
        ("CPU", format!("{} × {}", machine.cores, machine.cpu)),
        ("kernel", machine.kernel.clone()),
        ("memory", format!("{} MiB", machine.memory_mib)),
        ("file system", machine.file_system.clone()),
        ("CPUs of the ends", machine.pinned.clone()),
        ("load before", format!("{:.2}", machine.load_average)),
        ("date", machine.date.clone()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("command", command.join(" ")),
    ] {
        let _ = writeln!(page, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(&value));
    }
    page.push_str("</table>\n");
}

fn section(page: &mut String, axis: &AxisText, outcome: &Outcome) {
    let rows: Vec<&Row> = outcome.rows.iter().filter(|row| row.case == Some(axis.case)).collect();
    let rows: Vec<&Row> = rows.into_iter().filter(|row| (axis.value)(row).is_some()).collect();
    let _ = writeln!(page, "<section>\n<h2>{}</h2>\n<p>{}</p>", escape(axis.title), escape(axis.what));
    if rows.is_empty() {
        page.push_str("<p class=\"warning\">Not measured.</p>\n");
    } else {
        page.push_str("<div class=\"figures\">\n");
        let mut tasks: Vec<String> = Vec::new();
        for row in &rows {
            let task = task(row);
            if !tasks.contains(&task) {
                tasks.push(task);
            }
        }
        for name in &tasks {
            let rows: Vec<&Row> = rows.iter().copied().filter(|row| task(row) == *name).collect();
            bars(page, axis, name, &rows);
        }
        page.push_str("</div>\n");
    }
    let _ = writeln!(page, "<p class=\"paper\"><b>In the papers:</b> {}</p>", escape(axis.papers));
    if let Some(here) = (axis.here)(&rows) {
        let _ = writeln!(page, "<p class=\"paper\"><b>Here:</b> {}</p>", escape(&here));
    }
    if !rows.is_empty() {
        table(page, axis, &rows);
    }
    page.push_str("</section>\n");
}

/// A bar for each contestant, from zero.
fn bars(page: &mut String, axis: &AxisText, name: &str, rows: &[&Row]) {
    let _ =
        writeln!(page, "<figure>\n<figcaption>{} <small>({})</small></figcaption>", escape(name), axis.unit);
    let interval = |row: &Row| axis.has_interval.then_some(row.low.zip(row.high)).flatten();
    let greatest = |values: &mut dyn Iterator<Item = f64>| values.fold(f64::MIN_POSITIVE, f64::max);
    let value = greatest(&mut rows.iter().filter_map(|row| (axis.value)(row)));
    let high = greatest(&mut rows.iter().filter_map(|row| interval(row)).map(|(_, high)| high));
    // An interval that is far wider than all bars ends at the edge, or nothing could be seen of them.
    let most = high.clamp(value, INTERVAL_MAX * value);
    let percent = |value: f64| (100.0 * value / most).clamp(0.0, 100.0);
    for row in rows {
        let Some(value) = (axis.value)(row) else { continue };
        let whisker = interval(row).map_or_else(String::new, |(low, high)| {
            let (low, high) = (percent(low), percent(high));
            format!("<i style=\"left:{low:.2}%;width:{:.2}%\"></i>", high - low)
        });
        let mark = if row.disturbed { " *" } else { "" };
        let _ = writeln!(
            page,
            "<div class=\"bar {}\"><span>{}</span><div><b style=\"width:{:.2}%\"></b>{whisker}</div><span>{}{mark}</span></div>",
            class(&row.transport),
            escape(&row.transport),
            percent(value),
            figure(value)
        );
    }
    page.push_str("</figure>\n");
}

fn table(page: &mut String, axis: &AxisText, rows: &[&Row]) {
    let _ = writeln!(
        page,
        "<div class=\"scroll\"><table>\n<tr><th>what</th><th>who</th><th>{}</th><th>95&nbsp;%</th><th>99th percentile, \
        µs</th><th>client CPU, \
         ns an operation</th><th>ns a MiB</th><th>server CPU, ns an operation</th><th>ns a MiB</th><th>rounds</th><th></th></tr>",
        axis.unit
    );
    // Figures are not broken across lines.
    let figure = |value: f64| figure(value).replace(' ', "\u{a0}");
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure);
    for row in rows {
        let cpu = row.cpu.unwrap_or_default();
        let interval = row.low.zip(row.high).filter(|_| axis.has_interval);
        let interval = interval.map_or_else(
            || "–".to_owned(),
            |(low, high)| format!("{}\u{a0}–\u{a0}{}", figure(low), figure(high)),
        );
        // Of plain sockets both ends are one process.
        let both = cpu.limit_cpu_ns.filter(|_| cpu.client_cpu_ns.is_none());
        let client =
            both.map_or_else(|| number(cpu.client_cpu_ns), |ns| format!("{} (both ends)", figure(ns)));
        let client_mib = number(cpu.client_cpu_ns_per_mib.or(cpu.limit_cpu_ns_per_mib));
        let remark = match (row.disturbed, row.unsettled) {
            (true, _) => "disturbed",
            (false, true) => "± over 5 %",
            (false, false) => "",
        };
        let cells = [
            task(row),
            row.transport.clone(),
            number((axis.value)(row)),
            interval,
            number(row.p99_us),
            client,
            client_mib,
            number(cpu.server_cpu_ns),
            number(cpu.server_cpu_ns_per_mib),
            row.rounds.map_or_else(String::new, |rounds| rounds.to_string()),
            remark.to_owned(),
        ];
        let cells: String = cells.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        let _ = writeln!(page, "<tr>{cells}</tr>");
    }
    page.push_str("</table></div>\n");
}

fn notes(page: &mut String, outcome: &Outcome) {
    page.push_str("<section>\n<h2>Notes</h2>\n<ul>\n");
    for note in &outcome.notes {
        let _ = writeln!(page, "<li>{}</li>", escape(note));
    }
    page.push_str(
        "<li>Client CPU is that of the measuring process. It includes waiting, where a client spins: dafs spins for a short time before \
        it sleeps, \
         sockets and NFS sleep.</li>\n<li>Of plain sockets both ends are threads of one process, so their CPU is that of both. They \
         read no \
         file.</li>\n<li>± over 5 %: the median is not known to 5 %; a longer --time helps.</li>\n\
         <li>* Disturbed: the middle half of the rounds is more than 1.5 times apart. Something else \
         ran.</li>\n</ul>\n</section>\n",
    );
}

/// What a row's contestant was asked to do.
fn task(row: &Row) -> String {
    match (row.op, row.name_op.map(NameOp::name)) {
        (Some(op), _) if row.queue_depth > 1 => {
            format!("{op} {}, {} at once", size(row.bytes as u64), row.queue_depth)
        }
        (Some(op), _) => format!("{op} {}", size(row.bytes as u64)),
        (None, Some(name)) => name.to_owned(),
        (None, None) => String::new(),
    }
}

/// Each name once.
fn names<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.transport.as_str()) {
            names.push(&row.transport);
        }
    }
    names
}

fn described(name: &str) -> String {
    match name {
        "local" => "local: system calls on the file".to_owned(),
        "sockets" => "sockets: as many bytes over loopback TCP, without a file".to_owned(),
        "tcp" | "shm" | "verbs" => format!("{name}: dafs over {name}"),
        "nfs" => "nfs: libnfs with NFS-Ganesha, NFS version 3 over loopback TCP".to_owned(),
        other => format!("{other}: a mounted file system"),
    }
}

fn class(name: &str) -> &'static str {
    match name {
        "tcp" | "shm" | "verbs" => "dafs",
        "local" | "sockets" => "plain",
        _ => "peer",
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Pins;
    use crate::record::{CpuRow, Op};

    fn outcome() -> Outcome {
        let row = |transport: &str, p50_us| Row {
            transport: transport.to_owned(),
            case: Some("latency"),
            op: Some(Op::Read),
            bytes: 4,
            queue_depth: 1,
            p50_us: Some(p50_us),
            low: Some(p50_us * 0.9),
            high: Some(p50_us * 1.1),
            cpu: CpuRow::of(4, Some(7.0), None, None),
            rounds: Some(9),
            ..Row::default()
        };
        let mut disturbed = row("<nfs>", 50.0);
        disturbed.disturbed = true;
        Outcome {
            rows: vec![row("tcp", 20.0), disturbed],
            notes: vec!["no rows for a & b".to_owned()],
            ..Outcome::default()
        }
    }

    fn page() -> String {
        render(&outcome(), &Machine::describe(&Pins::default(), &[Path::new("/")]))
    }

    #[test]
    fn page_has_every_axis_figures_and_what_was_not_measured() {
        let page = page();
        for axis in &AXES {
            assert!(page.contains(&format!("<h2>{}</h2>", escape(axis.title))), "{}", axis.title);
        }
        assert_eq!(page.matches("Not measured.").count(), AXES.len() - 1);
        assert!(
            page.contains("width:36.36%") && page.contains("width:90.91%"),
            "bars from zero to the end of the widest interval"
        );
        assert!(page.contains("left:81.82%;width:18.18%"), "an interval");
        assert!(page.contains("91 %") && page.contains("1.5 %"));
    }

    #[test]
    fn interval_far_beyond_the_bars_ends_at_the_edge() {
        let mut outcome = outcome();
        outcome.rows[0].high = Some(1000.0);
        let page = render(&outcome, &Machine::describe(&Pins::default(), &[Path::new("/")]));
        assert!(page.contains("width:32.00%") && page.contains("width:80.00%"), "bars of 20 and 50 of 62.5");
        assert!(page.contains("left:28.80%;width:71.20%"), "an interval from 18");
    }

    #[test]
    fn page_escapes_names_and_notes_and_loads_nothing() {
        let page = page();
        assert!(page.contains("&lt;nfs&gt;") && !page.contains("<nfs>"));
        assert!(page.contains("no rows for a &amp; b"));
        for word in ["http:", "https:", "src=", "url(", "@import", "<script", "<link"] {
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn disturbed_rows_are_marked_in_figure_table_and_head() {
        let page = page();
        assert!(page.contains("1 of 2 rows were disturbed"));
        assert!(page.contains("50.00 *") && page.contains("<td>disturbed</td>"));
    }

    #[test]
    fn report_that_cannot_be_written_leaves_what_was_there() {
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine::describe(&Pins::default(), &[Path::new("/")]);
        let error = write(&outcome(), &machine, &directory.path().join("none/report.html")).unwrap_err();
        assert!(error.to_string().starts_with("cannot write the report to "), "{error}");
        let path = directory.path().join("report.html");
        write(&outcome(), &machine, &path).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("</html>\n"));
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn report_goes_through_links_and_into_devices_and_replaces_neither() {
        let directory = tempfile::tempdir().unwrap();
        let machine = Machine::describe(&Pins::default(), &[Path::new("/")]);
        let (link, page) = (directory.path().join("link"), directory.path().join("page"));
        std::fs::write(&page, "old").unwrap();
        std::os::unix::fs::symlink(&page, &link).unwrap();
        write(&outcome(), &machine, &link).unwrap();
        assert!(link.is_symlink() && std::fs::read_to_string(&page).unwrap().ends_with("</html>\n"));
        std::fs::remove_file(&link).unwrap();
        std::os::unix::fs::symlink("/dev/full", &link).unwrap();
        let error = format!("{:#}", write(&outcome(), &machine, &link).unwrap_err());
        assert!(error.contains("No space left"), "{error}");
        assert!(link.is_symlink());
    }
}
