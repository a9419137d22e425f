//! The figures of "PVFS over InfiniBand", drawn from rows.

use crate::cli::Way;
use crate::record::{Axis, Chart, Curve, Op, Panel, Row, Scale};

use super::clients::Tile;
use super::{Load, REGION_BYTES_PER_SERVER};

/// How tiles travel, in the order of the axis.
const TILES: [&str; 2] = ["multiple", "list"];

/// All panels that rows have something for.
pub(super) fn chart(rows: &[Row]) -> Chart {
    let ops = [Op::Write, Op::Read];
    let mut panels: Vec<Panel> = ops.iter().filter_map(|op| by_clients(rows, *op)).collect();
    panels.extend(ops.iter().filter_map(|op| by_servers(rows, *op)));
    panels.extend(ops.iter().filter_map(|op| by_ranks(rows, *op)));
    panels.extend(cpu(rows));
    panels.extend(tiles(rows));
    Chart { title: "Files over several servers".to_owned(), panels, columns: 2 }
}

fn contiguous(rows: &[Row], op: Op) -> impl Iterator<Item = &Row> + Clone {
    rows.iter().filter(move |row| row.case == Some(Load::Contiguous.name()) && row.op == Some(op))
}

fn counts(rows: impl Iterator<Item = Option<usize>>) -> Vec<usize> {
    let mut counts: Vec<usize> = rows.flatten().collect();
    counts.sort_unstable();
    counts.dedup();
    counts
}

fn curve<'r>(
    name: String,
    rows: impl Iterator<Item = &'r Row> + Clone,
    x: fn(&Row) -> Option<usize>,
    y: fn(&Row) -> Option<f64>,
    reference: bool,
) -> Curve {
    let point = |row: &Row| Some((x(row)? as f64, y(row)?));
    let band = |row: &Row| Some((x(row)? as f64, row.low?, row.high?)).filter(|_| y(row) == row.mib_per_s);
    let band = if reference { Vec::new() } else { rows.clone().filter_map(band).collect() };
    Curve { name, points: rows.filter_map(point).collect(), reference, band }
}

fn panel(title: String, (x, scale): (&str, Scale), y: &str, curves: Vec<Curve>) -> Option<Panel> {
    let axis = |label: &str, scale| Axis { label: label.to_owned(), scale };
    let curves: Vec<Curve> = curves.into_iter().filter(|curve| !curve.points.is_empty()).collect();
    let (x, y) = (axis(x, scale), axis(y, Scale::Linear));
    (!curves.is_empty()).then(|| Panel { title, x, y, curves, marks: Vec::new(), remarks: Vec::new() })
}

/// Figure 5: bandwidth by clients, a curve for so many servers.
fn by_clients(rows: &[Row], op: Op) -> Option<Panel> {
    let curves = counts(contiguous(rows, op).map(|row| row.servers)).into_iter().map(|servers| {
        let name = format!("{servers}N, {} MiB", (REGION_BYTES_PER_SERVER >> 20) * servers);
        let own = contiguous(rows, op).filter(move |row| row.servers == Some(servers));
        curve(name, own, |row| row.clients, |row| row.mib_per_s, false)
    });
    panel(format!("{op}, by clients"), ("clients", Scale::Linear), "bandwidth (MiB/s)", curves.collect())
}

/// The same by servers, beside what sockets move over as many links.
fn by_servers(rows: &[Row], op: Op) -> Option<Panel> {
    let clients = counts(contiguous(rows, op).map(|row| row.clients));
    let curves = clients.iter().flat_map(|&clients| {
        let own = contiguous(rows, op).filter(move |row| row.clients == Some(clients));
        let name = format!("{clients} client{}", if clients == 1 { "" } else { "s" });
        Some(curve(name, own, |row| row.servers, |row| row.mib_per_s, false))
    });
    let most = clients.last().copied();
    let limits = contiguous(rows, op).filter(move |row| row.clients == most);
    let limit = curve("sockets".to_owned(), limits, |row| row.servers, |row| row.limit_value, true);
    let curves = curves.chain([limit]).collect();
    panel(format!("{op}, by servers"), ("servers", Scale::Linear), "bandwidth (MiB/s)", curves)
}

/// Figure 6: the same by ranks of MPI programs, over all servers, beside the client library.
fn by_ranks(rows: &[Row], op: Op) -> Option<Panel> {
    let most = rows.iter().filter_map(|row| row.servers).max()?;
    let of = move |load: Load| {
        rows.iter().filter(move |row| {
            row.case == Some(load.name()) && row.op == Some(op) && row.servers == Some(most)
        })
    };
    let ways =
        [Way::Ompio, Way::Romio].map(|way| (format!("MPI-IO, {}", way.name()), of(Load::Mpi(way)), false));
    if ways.iter().all(|(_, own, _)| own.clone().next().is_none()) {
        return None;
    }
    let library = [("client library".to_owned(), of(Load::Contiguous), true)];
    let curves = ways.into_iter().chain(library);
    let curves = curves
        .map(|(name, own, reference)| curve(name, own, |row| row.clients, |row| row.mib_per_s, reference));
    let title = format!("{op} by MPI-IO, {most} servers");
    panel(title, ("ranks", Scale::Linear), "bandwidth (MiB/s)", curves.collect())
}

/// Figure 7: what a client takes of a CPU, with all servers.
fn cpu(rows: &[Row]) -> Option<Panel> {
    let most = rows.iter().filter_map(|row| row.servers).max();
    let curves = [Op::Write, Op::Read].map(|op| {
        let own = contiguous(rows, op).filter(move |row| row.servers == most);
        curve(op.to_string(), own, |row| row.clients, |row| row.cpu_percent, false)
    });
    let title = format!("CPU of a client, {} servers", most.unwrap_or(0));
    panel(title, ("clients", Scale::Linear), "CPU (%)", curves.into())
}

/// Figure 9: a picture of four displays.
fn tiles(rows: &[Row]) -> Option<Panel> {
    let place = |row: &Row| {
        let loads = [Tile::Multiple, Tile::List].map(|tile| Some(Load::Tile(tile).name()));
        loads.iter().position(|name| *name == row.case).map(|place| place + 1)
    };
    let curves = [Op::Write, Op::Read].map(|op| {
        let own = rows.iter().filter(move |row| row.op == Some(op));
        curve(op.to_string(), own, place, |row| row.mib_per_s, false)
    });
    let title = format!("tiles of {} clients", Tile::CLIENTS);
    panel(title, ("rows of a tile", Scale::Names(&TILES)), "bandwidth (MiB/s)", curves.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_figure_is_drawn_from_its_rows() {
        let row = |case, op, servers, clients| Row {
            case: Some(case),
            op: Some(op),
            servers: Some(servers),
            clients: Some(clients),
            mib_per_s: Some(90.0 * servers as f64),
            limit_value: Some(95.0 * servers as f64),
            cpu_percent: Some(7.0),
            ..Row::default()
        };
        let rows = [
            row("contiguous", Op::Write, 1, 1),
            row("contiguous", Op::Write, 2, 1),
            row("mpi-romio", Op::Write, 2, 3),
            row("tile-list", Op::Write, 2, 4),
        ];
        let chart = chart(&rows);
        let titles: Vec<&str> = chart.panels.iter().map(|panel| panel.title.as_str()).collect();
        let wanted = [
            "write, by clients",
            "write, by servers",
            "write by MPI-IO, 2 servers",
            "CPU of a client, 2 servers",
            "tiles of 4 clients",
        ];
        assert_eq!(titles, wanted);
        assert_eq!(chart.panels[1].curves[0].points, [(1.0, 90.0), (2.0, 180.0)]);
        assert_eq!(chart.panels[1].curves[1].points, [(1.0, 95.0), (2.0, 190.0)]);
        let by_ranks: Vec<_> =
            chart.panels[2].curves.iter().map(|curve| (&*curve.name, &*curve.points)).collect();
        assert_eq!(by_ranks, [("MPI-IO, romio", &[(3.0, 180.0)][..]), ("client library", &[(1.0, 180.0)])]);
        assert_eq!(chart.panels[4].curves[0].points, [(2.0, 180.0)]);
        assert!(crate::report::plot::render(&chart).unwrap().contains("2N, 4 MiB"));
    }
}
