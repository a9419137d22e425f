//! Figures and tables of the papers beside the same of the rows: who wins from which size up, and what each side takes for a piece.

use std::cmp::Ordering;

use crate::record::{MpiRow, Op, Row};
use crate::report::figure;
use crate::workload::mpi::figures::of;
use crate::workload::mpi::targets::dafs_by;

/// As quick as the other is who takes at most so many times its time.
const AS_QUICK: f64 = 1.05;

/// What a figure or table says of two methods: how many times the speed of `over` `mode` has, by the pieces of a process.
struct Claim {
    name: &'static str,
    case: &'static str,
    ranks: u32,
    /// The operation, whether it is made durable, and whether its file is out of the page cache.
    kind: (Op, bool, bool),
    mode: &'static str,
    over: &'static str,
    /// Who wins from so many pieces on.
    winner: &'static [(usize, Ordering)],
    /// In figures, where it gives some.
    times: Option<(f64, f64)>,
}

const EVERYWHERE: &[(usize, Ordering)] = &[(0, Ordering::Greater)];
const BEFORE_2048: &[(usize, Ordering)] = &[(0, Ordering::Greater), (2048, Ordering::Equal)];
const FROM_4096: &[(usize, Ordering)] = &[(0, Ordering::Equal), (4096, Ordering::Greater)];
const NOWHERE: &[(usize, Ordering)] = &[(0, Ordering::Less)];

const WRITE: (Op, bool, bool) = (Op::Write, false, false);
const DURABLE: (Op, bool, bool) = (Op::Write, true, false);
const READ: (Op, bool, bool) = (Op::Read, false, false);
const COLD: (Op, bool, bool) = (Op::Read, false, true);

type Winner = &'static [(usize, Ordering)];

const fn of_columns(
    name: &'static str,
    kind: (Op, bool, bool),
    (mode, over): (&'static str, &'static str),
    winner: Winner,
    times: Option<(f64, f64)>,
) -> Claim {
    Claim { name, case: "block-column", ranks: 4, kind, mode, over, winner, times }
}

const fn of_tiles(
    name: &'static str,
    kind: (Op, bool, bool),
    over: &'static str,
    winner: Winner,
    times: Option<f64>,
) -> Claim {
    let times = match times {
        Some(times) => Some((times, times)),
        None => None,
    };
    Claim { name, case: "tiled", ranks: 4, kind, mode: "list_ads", over, winner, times }
}

const fn of_mesh(name: &'static str, ranks: u32, kind: (Op, bool, bool), times: (f64, f64)) -> Claim {
    let (mode, over) = ("ecio", "two_phase");
    Claim { name, case: "mesh", ranks, kind, mode, over, winner: EVERYWHERE, times: Some(times) }
}

/// Times of the tables are those of their columns "MPI CIO" over "ECIO", the least and the greatest.
const CLAIMS: &[Claim] = &[
    of_columns("Figure 6", WRITE, ("list", "sieve"), EVERYWHERE, Some((3.5, 12.1))),
    of_columns("Figure 6", WRITE, ("list_ads", "list"), BEFORE_2048, None),
    of_columns("Figure 6", DURABLE, ("list", "sieve"), EVERYWHERE, Some((3.5, 12.1))),
    of_columns("Figure 6", DURABLE, ("list_ads", "list"), BEFORE_2048, None),
    of_columns("Figure 7", READ, ("list_ads", "sieve"), EVERYWHERE, None),
    of_columns("Figure 7", READ, ("list_ads", "list"), BEFORE_2048, None),
    of_columns("Figure 7", COLD, ("list_ads", "sieve"), FROM_4096, None),
    of_tiles("Figure 8", WRITE, "multiple", EVERYWHERE, Some(5.7)),
    of_tiles("Figure 8", WRITE, "list", EVERYWHERE, Some(1.084)),
    of_tiles("Figure 8", WRITE, "sieve", EVERYWHERE, Some(5.7)),
    of_tiles("Figure 8", READ, "multiple", EVERYWHERE, Some(8.8)),
    of_tiles("Figure 8", READ, "list", EVERYWHERE, Some(1.45)),
    of_tiles("Figure 8", READ, "sieve", EVERYWHERE, Some(1.18)),
    of_tiles("Figure 9", DURABLE, "multiple", EVERYWHERE, None),
    of_tiles("Figure 9", DURABLE, "sieve", EVERYWHERE, None),
    of_tiles("Figure 9", COLD, "sieve", NOWHERE, None),
    of_mesh("Table 1", 2, WRITE, (1.94 / 1.77, 39.62 / 33.37)),
    of_mesh("Table 2", 4, WRITE, (11.45 / 10.86, 2.34 / 1.96)),
    of_mesh("Table 3", 2, READ, (1.56 / 1.42, 76.29 / 58.02)),
    of_mesh("Table 4", 4, READ, (1.52 / 1.42, 2.59 / 2.27)),
];

/// What a run cannot say anything of.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lacks {
    /// The files are in memory: what is made durable costs nothing there.
    pub(super) durable: bool,
    /// No read found the file out of the page cache.
    pub(super) cold: bool,
}

impl Lacks {
    fn claim(self, claim: &Claim) -> bool {
        let (_, durable, cold) = claim.kind;
        durable && self.durable || cold && self.cold
    }

    /// Which parts of figures those are, and how to measure them.
    fn note(self) -> Option<String> {
        let mut parts: Vec<String> = Vec::new();
        for claim in CLAIMS.iter().filter(|claim| self.claim(claim)) {
            let kind = if claim.kind.1 { "durable writes" } else { "cold reads" };
            let part = format!("{}, {kind}", claim.name);
            if !parts.contains(&part) {
                parts.push(part);
            }
        }
        let how = "add --cold and a --dir on a disk";
        (!parts.is_empty()).then(|| format!("not measured: {}; {how}", parts.join("; ")))
    }
}

/// A sentence for each claim that the rows have something for, by each transport and way.
pub(super) fn notes(rows: &[Row], lacks: Lacks) -> Vec<String> {
    let each = dafs_by(rows).into_iter().flat_map(|(transport, way)| {
        let judged = CLAIMS.iter().filter(move |claim| !lacks.claim(claim)).filter_map(move |claim| {
            let points = points(rows, claim, &transport, way);
            Some(format!("{}, {transport} by {way}: {}", claim.name, sentence(claim, &points)?))
        });
        judged.collect::<Vec<_>>()
    });
    each.chain(lacks.note()).collect()
}

/// Both methods at one size.
struct Point<'r> {
    pieces: usize,
    mode: (&'r Row, &'r MpiRow),
    over: (&'r Row, &'r MpiRow),
    /// The speed of `mode` over that of `over`.
    times: f64,
}

impl Point<'_> {
    fn winner(&self) -> Ordering {
        match self.times {
            times if times > AS_QUICK => Ordering::Greater,
            times if times < 1.0 / AS_QUICK => Ordering::Less,
            _ => Ordering::Equal,
        }
    }
}

/// In ascending order of their pieces.
fn points<'r>(rows: &'r [Row], claim: &Claim, transport: &str, way: &str) -> Vec<Point<'r>> {
    let of_method = |method: &'static str| {
        of(rows, claim.case).filter(move |(row, mpi)| {
            let kind = (row.op, mpi.sync == Some(true), row.cache == Some("cold"));
            mpi.subject == "dafs"
                && mpi.mode == Some(method)
                && kind == (Some(claim.kind.0), claim.kind.1, claim.kind.2)
                && (row.transport.as_str(), mpi.way, mpi.ranks) == (transport, way, claim.ranks)
        })
    };
    let both = of_method(claim.mode).filter_map(|mode| {
        let over = of_method(claim.over).find(|(row, _)| row.segments == mode.0.segments)?;
        Some(Point { pieces: mode.0.segments?, mode, over, times: over.0.p50_us? / mode.0.p50_us? })
    });
    let mut points: Vec<Point<'_>> = both.collect();
    points.sort_by_key(|point| point.pieces);
    points
}

fn sentence(claim: &Claim, points: &[Point<'_>]) -> Option<String> {
    let least = points.iter().map(|point| point.times).reduce(f64::min)?;
    let most = points.iter().map(|point| point.times).reduce(f64::max)?;
    let (op, sync, cold) = claim.kind;
    let how = if sync { " and syncs" } else { "" };
    let cache = if cold { " from the disk" } else { "" };
    let paper = claim.times.map_or_else(String::new, |(least, most)| {
        let range =
            if (most - least).abs() < 1e-9 { figure(least) } else { format!("{least:.2} to {most:.2}") };
        format!("; the paper's {range}")
    });
    let at =
        |pieces: usize| claim.winner.iter().rfind(|(from, _)| *from <= pieces).map(|(_, winner)| *winner);
    let expected = |point: &&Point<'_>| at(point.pieces);
    let measured = runs(points, |point| Some(point.winner()));
    let differs: Vec<&Point<'_>> =
        points.iter().filter(|point| expected(point) != Some(point.winner())).collect();
    let verdict = match differs.iter().max_by(|a, b| far(a).total_cmp(&far(b))) {
        None => "as in the paper".to_owned(),
        Some(farthest) => {
            format!("in the paper {}; {}", runs(points, |point| expected(&point)), why(farthest))
        }
    };
    let ranks = claim.ranks;
    Some(format!(
        "{op}s{how}{cache} of {ranks} processes by {} have {least:.2} to {most:.2} times the speed of {}{paper}: it {measured}: {verdict}",
        claim.mode, claim.over
    ))
}

/// How far apart the two methods are.
fn far(point: &Point<'_>) -> f64 {
    point.times.ln().abs()
}

/// `wins from 512, as quick from 2048`: pieces at which another wins than before.
fn runs<'p>(points: &'p [Point<'p>], winner: impl Fn(&'p Point<'p>) -> Option<Ordering>) -> String {
    let mut said: Vec<(usize, Option<Ordering>)> = Vec::new();
    for point in points {
        let now = winner(point);
        if said.last().is_none_or(|(_, before)| *before != now) {
            said.push((point.pieces, now));
        }
    }
    let word = |winner| match winner {
        Some(Ordering::Greater) => "wins",
        Some(Ordering::Less) => "loses",
        _ => "is as quick",
    };
    let each: Vec<String> =
        said.into_iter().map(|(from, winner)| format!("{} from {from} pieces", word(winner))).collect();
    each.join(", ")
}

/// What each side takes where they differ most: time and requests.
fn why(point: &Point<'_>) -> String {
    let side = |(row, mpi): &(&Row, &MpiRow)| {
        let ns = row.p50_us.unwrap_or(f64::NAN) * 1e3 / point.pieces.max(1) as f64;
        let requests =
            mpi.requests.map_or_else(String::new, |count| format!(" and {} requests", figure(count)));
        format!("{} takes {} ns a piece{requests}", mpi.mode.unwrap_or_default(), figure(ns))
    };
    format!("with {} pieces {}, {}", point.pieces, side(&point.mode), side(&point.over))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(case: &'static str, mode: &'static str, pieces: usize, us: f64) -> Row {
        Row {
            transport: "shm".to_owned(),
            case: Some(case),
            op: Some(Op::Write),
            segments: Some(pieces),
            p50_us: Some(us),
            mpi: Some(MpiRow {
                subject: "dafs".to_owned(),
                way: "romio",
                mode: Some(mode),
                ranks: 4,
                sync: Some(false),
                requests: Some(8.0),
                ..MpiRow::default()
            }),
            ..Row::default()
        }
    }

    const NOTHING: Lacks = Lacks { durable: false, cold: false };

    fn only(rows: &[Row]) -> String {
        let notes = notes(rows, NOTHING);
        assert_eq!(notes.len(), 1, "{notes:?}");
        notes[0].clone()
    }

    #[test]
    fn table_shape_matches_the_paper_or_the_note_explains() {
        let table = |ecio_us| {
            [
                row("mesh", "two_phase", 16_000, 40.0),
                row("mesh", "ecio", 16_000, 20.0),
                row("mesh", "two_phase", 4000, 10.0),
                row("mesh", "ecio", 4000, ecio_us),
            ]
        };
        let note = only(&table(9.0));
        assert!(
            note.starts_with("Table 2, shm by romio: writes of 4 processes by ecio have 1.11 to 2.00"),
            "{note}"
        );
        assert!(note.ends_with("it wins from 4000 pieces: as in the paper"), "{note}");
        // At the edge of what is as quick, and slower.
        assert!(
            only(&table(9.6))
                .contains("is as quick from 4000 pieces, wins from 16000 pieces: in the paper wins")
        );
        let note = only(&table(20.0));
        assert!(
            note.contains("it loses from 4000 pieces, wins from 16000 pieces: in the paper wins from 4000")
        );
        let sides = "ecio takes 5.000 ns a piece and 8.000 requests, two_phase takes 2.500 ns a piece and 8.000 requests";
        assert!(note.ends_with(&format!("with 4000 pieces {sides}")), "{note}");
    }

    #[test]
    fn winner_may_change_with_the_size_as_the_papers_does() {
        let columns = |from_2048_us| {
            [
                row("block-column", "list", 512, 20.0),
                row("block-column", "list_ads", 512, 10.0),
                row("block-column", "list", 2048, 20.0),
                row("block-column", "list_ads", 2048, from_2048_us),
            ]
        };
        assert!(only(&columns(20.0)).ends_with("is as quick from 2048 pieces: as in the paper"));
        assert!(
            only(&columns(10.0))
                .contains("wins from 512 pieces: in the paper wins from 512 pieces, is as quick from 2048")
        );
    }

    #[test]
    fn rows_of_others_and_of_another_kind_say_nothing() {
        let mut rows = [row("mesh", "two_phase", 4000, 10.0), row("mesh", "ecio", 4000, 9.0)];
        rows[1].cache = Some("cold");
        assert_eq!(notes(&rows, NOTHING), Vec::<String>::new());
        rows[1].cache = None;
        rows[1].mpi.as_mut().unwrap().ranks = 2;
        assert_eq!(notes(&rows, NOTHING), Vec::<String>::new());
    }

    #[test]
    fn durable_writes_to_memory_are_not_judged_but_named() {
        let mut rows = [row("tiled", "multiple", 768, 20.0), row("tiled", "list_ads", 768, 10.0)];
        rows.iter_mut().for_each(|row| row.mpi.as_mut().unwrap().sync = Some(true));
        assert!(only(&rows).starts_with("Figure 9, shm by romio: writes and syncs"));
        let said = notes(&rows, Lacks { durable: true, cold: false });
        assert_eq!(
            said,
            [
                "not measured: Figure 6, durable writes; Figure 9, durable writes; add --cold and a --dir on a disk"
            ]
        );
        let said = notes(&rows, Lacks { durable: false, cold: true });
        assert!(said[1].starts_with("not measured: Figure 7, cold reads; Figure 9, cold reads;"), "{said:?}");
    }
}
