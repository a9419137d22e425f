//! Trees over a long line: how long `dafs cp -r`, `ls -lR` and `rm -r` take where a round trip takes milliseconds.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::cli::{DistanceOptions, Poll};
use crate::interrupt;
use crate::line::Line;
use crate::record::{Axis, Chart, Curve, Panel, Row, Scale, Unit};
use crate::stats::median;
use crate::subject::server;
use crate::workload::Bench;

/// Requests that are on the line at a time, for the limit: the slots of a session.
const IN_FLIGHT: f64 = 64.0;

/// What is done to the tree, in the order in which one leaves what the next needs.
const CASES: [Case; 4] = [Case::CopyTo, Case::List, Case::CopyFrom, Case::Remove];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    CopyTo,
    List,
    CopyFrom,
    Remove,
}

impl Case {
    fn name(self) -> &'static str {
        match self {
            Self::CopyTo => "copy-to",
            Self::List => "list",
            Self::CopyFrom => "copy-from",
            Self::Remove => "remove",
        }
    }
}

/// A tree of this machine.
struct Tree {
    root: PathBuf,
    entries: usize,
    levels: usize,
}

/// The times of one case over one line, in seconds.
struct Times {
    case: Case,
    round_trip_ms: f64,
    seconds: Vec<f64>,
}

pub(super) fn run(bench: &mut Bench<'_>, options: &DistanceOptions) -> anyhow::Result<()> {
    let command = match &options.command {
        Some(command) => command.clone(),
        None => server::find_program("dafs", |line| bench.progress.say(line))?,
    };
    bench.progress.doing("making a tree");
    let scratch = tempfile::tempdir().context("cannot make a temporary directory")?;
    let tree = Tree::make(&scratch.path().join("tree"), options)?;
    bench.pins.be_anywhere();
    let server = bench.subjects.single_server(Poll::Event, true)?;
    let address = server.address("tcp", "bench")?;
    let far_end: SocketAddr = address.trim_start_matches("dafs+tcp://").trim_end_matches("/bench").parse()?;
    let mut times = Vec::new();
    let repeats = bench.plan.repeats as usize;
    bench.progress.announce(repeats * options.round_trip_ms.len() * CASES.len(), 1, None);
    for &round_trip_ms in &options.round_trip_ms {
        let line = Line::to(far_end, Duration::from_secs_f64(round_trip_ms / 2000.0))?;
        let url = format!("dafs+tcp://{}/bench/tree", line.near_end());
        let back = scratch.path().join("back");
        times.extend(CASES.map(|case| Times { case, round_trip_ms, seconds: Vec::new() }));
        for _ in 0..repeats {
            let own = times.len() - CASES.len()..;
            for case in &mut times[own] {
                interrupt::check()?;
                bench.progress.doing(format!("{}, round trips of {round_trip_ms} ms", case.case.name()));
                let began = Instant::now();
                run_case(&command, case.case, &tree, &url, &back)?;
                case.seconds.push(began.elapsed().as_secs_f64());
                bench.progress.pass(began.elapsed());
            }
            check_same(&tree.root, &back)?;
            fs::remove_dir_all(&back)?;
        }
    }
    bench.outcome.rows = times.iter().map(|times| row(times, &tree)).collect();
    bench.outcome.chart = Some(chart(&bench.outcome.rows, &tree));
    Ok(())
}

/// Runs the command once.
fn run_case(command: &Path, case: Case, tree: &Tree, url: &str, back: &Path) -> anyhow::Result<()> {
    let mut dafs = Command::new(command);
    match case {
        Case::CopyTo => dafs.args(["cp", "-r", "-q"]).arg(&tree.root).arg(url),
        Case::List => dafs.args(["ls", "-lR", url]),
        Case::CopyFrom => dafs.args(["cp", "-r", "-q", url]).arg(back),
        Case::Remove => dafs.args(["rm", "-r", url]),
    };
    let output = dafs.stdin(Stdio::null()).output().context("cannot run dafs")?;
    if !output.status.success() {
        bail!("{}: dafs ended ({}): {}", case.name(), output.status, String::from_utf8_lossy(&output.stderr));
    }
    let listed = || output.stdout.split(|byte| *byte == b'\n');
    // Headings and blank lines are between them.
    let is_entry = |line: &&[u8]| line.starts_with(b"-r") || line.starts_with(b"dr");
    if case == Case::List && listed().filter(is_entry).count() != tree.entries {
        bail!("dafs listed {} of {} entries", listed().filter(is_entry).count(), tree.entries);
    }
    Ok(())
}

fn row(times: &Times, tree: &Tree) -> Row {
    let per_s = |seconds: f64| tree.entries as f64 / seconds;
    let round_trip = times.round_trip_ms / 1e3;
    let least = round_trip * (tree.entries as f64 / IN_FLIGHT + tree.levels as f64);
    let limit = (least > 0.0).then(|| per_s(least));
    let ratios = || {
        let limit = limit.unwrap_or(f64::NAN);
        times.seconds.iter().map(move |seconds| Unit::OpsPerS.ratio(per_s(*seconds), limit))
    };
    Row {
        transport: "tcp".to_owned(),
        case: Some(times.case.name()),
        round_trip_ms: Some(times.round_trip_ms),
        ops_per_s: median(times.seconds.iter().map(|seconds| per_s(*seconds))),
        limit: limit.map(|_| "line".to_owned()),
        limit_value: limit,
        limit_unit: limit.map(|_| Unit::OpsPerS),
        ratio: limit.and_then(|_| median(ratios())),
        ratio_min: limit.and_then(|_| ratios().reduce(f64::min)),
        ratio_max: limit.and_then(|_| ratios().reduce(f64::max)),
        ..Row::default()
    }
    .known_by(times.seconds.iter().map(|seconds| per_s(*seconds)))
}

fn chart(rows: &[Row], tree: &Tree) -> Chart {
    let axis = |label: &str| Axis { label: label.to_owned(), scale: Scale::Linear };
    let panel = |case: Case| {
        let own = || rows.iter().filter(move |row| row.case == Some(case.name()));
        let curve = |name: &str, y: fn(&Row) -> Option<f64>, reference| Curve {
            name: name.to_owned(),
            points: own()
                .filter_map(|row| Some((row.round_trip_ms?, tree.entries as f64 / y(row)?)))
                .collect(),
            reference,
            band: Vec::new(),
        };
        Panel {
            title: case.name().to_owned(),
            x: axis("round trip (ms)"),
            y: axis("time (s)"),
            marks: Vec::new(),
            remarks: Vec::new(),
            curves: vec![
                curve("dafs", |row| row.ops_per_s, false),
                curve("line", |row| row.limit_value, true),
            ],
        }
    };
    Chart {
        title: format!("{} files and directories over a long line", tree.entries),
        panels: CASES.map(panel).into(),
        columns: 2,
    }
}

impl Tree {
    /// Directories in one another as in trees of sources: most are in an early one, some in one that was made last. Small files.
    fn make(root: &Path, options: &DistanceOptions) -> anyhow::Result<Self> {
        let mut state = 1u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        fs::create_dir(root)?;
        let mut directories = vec![(root.to_owned(), 1)];
        for number in 1..options.directories as usize {
            let last = directories.len();
            let above = if random(10) < 7 { random(last) } else { last - 1 - random(last.min(20)) };
            let (path, level) = (directories[above].0.join(format!("d{number}")), directories[above].1 + 1);
            fs::create_dir(&path)?;
            directories.push((path, level));
        }
        for number in 0..options.files as usize {
            let size = random(16 << 10);
            let bytes: Vec<u8> =
                (0..size).flat_map(|at| (at * 31 + number).to_le_bytes()).take(size).collect();
            fs::write(directories[random(directories.len())].0.join(format!("f{number}")), bytes)?;
        }
        let levels = directories.iter().map(|(_, level)| *level).max().unwrap_or(1);
        Ok(Self { root: root.to_owned(), entries: options.files as usize + directories.len() - 1, levels })
    }
}

/// What came back is what was sent.
fn check_same(one: &Path, other: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(one)? {
        let entry = entry?;
        let copy = other.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => check_same(&entry.path(), &copy)?,
            false if fs::read(entry.path())? == fs::read(&copy)? => {}
            false => bail!("{} did not come back as it was sent", copy.display()),
        }
    }
    Ok(())
}
