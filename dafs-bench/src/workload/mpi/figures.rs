//! The papers' figures, drawn from rows.

use std::collections::BTreeSet;

use crate::record::{Axis, Chart, Curve, MpiRow, Panel, Row, Scale};
use crate::report::size;

/// Methods in the order of the axis.
const METHODS: [&str; 7] = ["default", "multiple", "sieve", "list", "list_ads", "view", "two_phase"];

/// All panels that rows have something for.
pub(super) fn chart(rows: &[Row]) -> Chart {
    let mut panels = memory(rows);
    panels.extend(reuse(rows));
    panels.extend(by_size(rows));
    panels.extend(overlap(rows));
    panels.extend(block_column(rows));
    panels.extend(by_method(rows));
    panels.extend(mesh(rows));
    Chart { title: "MPI-IO".to_owned(), panels, columns: 4 }
}

/// Without MPI.
fn is_bare(mpi: &MpiRow) -> bool {
    matches!(mpi.way, "client" | "calls")
}

/// Rows of a case, with their part of it.
pub(super) fn of<'r>(rows: &'r [Row], case: &str) -> impl Iterator<Item = (&'r Row, &'r MpiRow)> + Clone {
    rows.iter().filter(move |row| row.case == Some(case)).filter_map(|row| Some((row, row.mpi.as_ref()?)))
}

fn axis(label: &str, scale: Scale) -> Axis {
    Axis { label: label.to_owned(), scale }
}

/// Who it was: `shm ompio`.
pub(super) fn who(row: &Row, mpi: &MpiRow) -> String {
    format!("{} {}", row.transport, mpi.way)
}

fn verb(row: &Row, mpi: &MpiRow) -> String {
    let how = match (row.cache, mpi.sync) {
        (Some(cache), _) => format!(", {cache}"),
        (None, Some(true)) => " and sync".to_owned(),
        _ => String::new(),
    };
    format!("{}{how}", row.op.map_or_else(String::new, |op| op.to_string()))
}

/// Panels in the order in which their titles come, curves in the order of their names' coming.
struct Draft {
    x: Axis,
    y: Axis,
    panels: Vec<Panel>,
}

impl Draft {
    fn new(x: Axis, y: Axis) -> Self {
        Self { x, y, panels: Vec::new() }
    }

    fn point(&mut self, title: String, curve: String, point: (Option<f64>, Option<f64>), reference: bool) {
        let (Some(x), Some(y)) = point else { return };
        let place = self.panels.iter().position(|panel| panel.title == title).unwrap_or_else(|| {
            let (x, y) = (self.x.clone(), self.y.clone());
            self.panels.push(Panel {
                title,
                x,
                y,
                curves: Vec::new(),
                marks: Vec::new(),
                remarks: Vec::new(),
            });
            self.panels.len() - 1
        });
        let curves = &mut self.panels[place].curves;
        let place = curves.iter().position(|other| other.name == curve).unwrap_or_else(|| {
            curves.push(Curve { name: curve, points: Vec::new(), reference, band: Vec::new() });
            curves.len() - 1
        });
        curves[place].points.push((x, y));
    }
}

/// Figure 4: time by reuse, a panel for each size.
fn memory(rows: &[Row]) -> Vec<Panel> {
    let mut draft = Draft::new(axis("buffer reuse (%)", Scale::Linear), axis("time (µs)", Scale::Linear));
    for (row, mpi) in of(rows, "memory").filter(|(_, mpi)| mpi.mode.is_some()) {
        let title =
            format!("{}, {} of {}, by memory mode", row.transport, verb(row, mpi), size(row.bytes as u64));
        let curve = match mpi.way {
            "client" => mpi.mode.unwrap_or_default().to_owned(),
            way => format!("{} by {way}", mpi.mode.unwrap_or_default()),
        };
        draft.point(title, curve, (mpi.reuse.map(f64::from), mpi.mean_us), is_bare(mpi));
    }
    draft.panels
}

/// Figure 5: what keeping registrations saves.
fn reuse(rows: &[Row]) -> Vec<Panel> {
    let mut draft =
        Draft::new(axis("buffer reuse (%)", Scale::Linear), axis("adio less adio_cache (µs)", Scale::Linear));
    for (row, mpi) in of(rows, "memory").filter(|(_, mpi)| mpi.mode == Some("adio_cache")) {
        let title = format!("{}, {}: what the cache saves", who(row, mpi), verb(row, mpi));
        let saved = mode(rows, row, mpi, "adio").zip(mpi.mean_us).map(|(adio, cached)| adio - cached);
        draft.point(title, size(row.bytes as u64), (mpi.reuse.map(f64::from), saved), false);
    }
    draft.panels
}

/// The mean time of another mode where all else is the same.
pub(super) fn mode(rows: &[Row], row: &Row, mpi: &MpiRow, mode: &str) -> Option<f64> {
    let same = of(rows, "memory").find(|(other, of_other)| {
        of_other.mode == Some(mode)
            && (of_other.way == mpi.way || of_other.way == "client")
            && of_other.reuse == mpi.reuse
            && (&other.transport, other.op, other.bytes) == (&row.transport, row.op, row.bytes)
    });
    same?.1.mean_us
}

/// Figures 6 and 7.
fn by_size(rows: &[Row]) -> Vec<Panel> {
    let bytes = axis("bytes of a transfer", Scale::LogBytes);
    let mut draft = Draft::new(bytes.clone(), axis("time (µs)", Scale::Log));
    for (row, mpi) in of(rows, "latency") {
        let title = format!("time of a {}, {}", verb(row, mpi), mpi.order.unwrap_or_default());
        draft.point(title, who(row, mpi), (Some(row.bytes as f64), row.p50_us), is_bare(mpi));
    }
    let mut panels = draft.panels;
    let mut draft = Draft::new(bytes, axis("bandwidth (MiB/s)", Scale::Log));
    for (row, mpi) in of(rows, "bandwidth") {
        let title = format!("bandwidth of a {}, sequential", verb(row, mpi));
        draft.point(title, who(row, mpi), (Some(row.bytes as f64), row.mib_per_s), is_bare(mpi));
    }
    panels.append(&mut draft.panels);
    panels
}

/// Figure 8.
fn overlap(rows: &[Row]) -> Vec<Panel> {
    let x = axis("CPU fraction, T/(T + Tio)", Scale::Linear);
    let mut draft = Draft::new(x, axis("bandwidth (MiB/s)", Scale::Linear));
    for (row, mpi) in of(rows, "overlap") {
        let title = format!("overlap, {} of {}", verb(row, mpi), size(row.bytes as u64));
        draft.point(title, who(row, mpi), (row.cpu_fraction, row.mib_per_s), is_bare(mpi));
    }
    draft.panels
}

/// Figures 6 and 7 of the second paper: bandwidth by the array's size, a curve for each method; the local file system's beside them.
fn block_column(rows: &[Row]) -> Vec<Panel> {
    let x = axis("columns of the array", Scale::Log);
    let mut draft = Draft::new(x, axis("bandwidth (MiB/s)", Scale::Log));
    let of_dafs = || of(rows, "block-column").filter(|(_, mpi)| mpi.subject == "dafs");
    let panels: BTreeSet<(String, &str)> =
        of_dafs().map(|(row, mpi)| (row.transport.clone(), mpi.way)).collect();
    for (transport, way) in panels {
        for (row, mpi) in of(rows, "block-column").filter(|(_, mpi)| mpi.way == way) {
            let dafs = mpi.subject == "dafs";
            if dafs && row.transport != transport {
                continue;
            }
            let title = format!("{transport} {way}, block-column, {}", verb(row, mpi));
            let method = mpi.mode.unwrap_or_default();
            let curve = if dafs { method.to_owned() } else { format!("{} {method}", row.transport) };
            let columns = row.segments.map(|pieces| pieces as f64);
            draft.point(title, curve, (columns, row.mib_per_s), !dafs);
        }
    }
    draft.panels
}

/// Figures 8 and 9 of the second paper, and its Tables 5 and 6.
fn by_method(rows: &[Row]) -> Vec<Panel> {
    let methods = || axis("method", Scale::Names(&METHODS));
    let place = |mpi: &MpiRow| {
        METHODS.iter().position(|name| Some(*name) == mpi.mode).map(|place| place as f64 + 1.0)
    };
    let mut tiled = Draft::new(methods(), axis("bandwidth (MiB/s)", Scale::Linear));
    for (row, mpi) in of(rows, "tiled") {
        tiled.point(format!("tiled, {}", verb(row, mpi)), who(row, mpi), (place(mpi), row.mib_per_s), false);
    }
    let mut time = Draft::new(methods(), axis("time (ms)", Scale::Log));
    let mut requests = Draft::new(methods(), axis("requests", Scale::Log));
    for (row, mpi) in of(rows, "btio") {
        let ms = row.p50_us.map(|us| us / 1e3);
        time.point(format!("btio, {}", verb(row, mpi)), who(row, mpi), (place(mpi), ms), false);
    }
    // The paper's first, so that its curve does not depend on who was measured.
    for (row, mpi) in of(rows, "btio") {
        let title = format!("btio, requests of {}", verb(row, mpi));
        let paper = mpi.requests_paper.map(|count| count as f64);
        let first = of(rows, "btio").find(|(_, other)| other.requests_paper.is_some());
        if first
            .is_some_and(|(other, of_other)| (&other.transport, of_other.way) == (&row.transport, mpi.way))
        {
            requests.point(title.clone(), "paper".to_owned(), (place(mpi), paper), true);
        }
        requests.point(title, who(row, mpi), (place(mpi), mpi.requests), false);
    }
    let mut panels = tiled.panels;
    panels.extend(time.panels);
    panels.extend(requests.panels);
    panels
}

/// Tables 1 to 4 of the third paper: time by the integers of all ranks.
fn mesh(rows: &[Row]) -> Vec<Panel> {
    let mut draft = Draft::new(axis("integers of all ranks", Scale::Log), axis("time (ms)", Scale::Log));
    for (row, mpi) in of(rows, "mesh") {
        let title = format!("mesh of {} ranks, {}", mpi.ranks, verb(row, mpi));
        let curve = format!("{} {}", who(row, mpi), mpi.mode.unwrap_or_default());
        let count = row.segments.map(|pieces| pieces as f64 * f64::from(mpi.ranks));
        draft.point(title, curve, (count, row.p50_us.map(|us| us / 1e3)), mpi.subject != "dafs");
    }
    draft.panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;

    fn row(case: &'static str, mode: &'static str, reuse: u32, mean_us: f64) -> Row {
        Row {
            transport: "shm".to_owned(),
            case: Some(case),
            op: Some(Op::Read),
            bytes: 1024,
            segments: Some(512),
            mib_per_s: Some(100.0),
            p50_us: Some(mean_us),
            mpi: Some(MpiRow {
                subject: "dafs".to_owned(),
                way: if mode == "none" { "client" } else { "ompio" },
                mode: Some(mode),
                reuse: Some(reuse),
                mean_us: Some(mean_us),
                requests: Some(10.0),
                requests_paper: Some(680),
                ..MpiRow::default()
            }),
            ..Row::default()
        }
    }

    #[test]
    fn memory_chart_has_panels_for_modes_and_cache() {
        let rows = [
            row("memory", "none", 0, 3.0),
            row("memory", "adio", 0, 9.0),
            row("memory", "adio_cache", 0, 10.0),
            row("memory", "adio", 100, 9.0),
            row("memory", "adio_cache", 100, 4.0),
        ];
        let chart = chart(&rows);
        let titles: Vec<&str> = chart.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(titles, ["shm, read of 1 KiB, by memory mode", "shm ompio, read: what the cache saves"]);
        assert_eq!(chart.panels[1].curves[0].points, [(0.0, -1.0), (100.0, 5.0)]);
        assert!(chart.panels[0].curves[0].reference && chart.panels[0].curves[0].name == "none");
    }

    #[test]
    fn chart_of_methods_has_the_paper_beside_and_names_on_its_axis() {
        let rows = ["tiled", "btio", "block-column", "mesh"].map(|case| row(case, "list", 0, 1.0));
        let chart = chart(&rows);
        let titles: Vec<&str> = chart.panels.iter().map(|panel| panel.title.as_str()).collect();
        assert_eq!(
            titles,
            [
                "shm ompio, block-column, read",
                "tiled, read",
                "btio, read",
                "btio, requests of read",
                "mesh of 0 ranks, read"
            ]
        );
        let requests = &chart.panels[3];
        assert_eq!(requests.curves[0].points, [(4.0, 680.0)]);
        assert_eq!(requests.curves[1].points, [(4.0, 10.0)]);
        assert!(crate::report::plot::render(&chart).unwrap().contains("two_phase"));
    }
}
