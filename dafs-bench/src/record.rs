//! What a benchmark found: the data that passes from workloads to reports.

use std::fmt;

use serde::Serialize;

use crate::stats::{is_known, median_interval};

/// What a row measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// Reads of file data.
    Read,
    /// Unstable writes of file data.
    Write,
    /// A request without a body, answered without touching a file.
    #[value(skip)]
    Ping,
    /// A copy within memory (raw limits only).
    #[value(skip)]
    Copy,
}

/// A call on a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NameOp {
    /// Making an empty file that was not there, opening it and closing it.
    Create,
    /// Opening it to read, and closing it.
    Open,
    /// Looking at its attributes.
    Stat,
    /// Giving it another name.
    Rename,
    /// Listing it with its attributes, among all others of its directory.
    List,
    /// Removing it.
    Remove,
}

impl NameOp {
    /// All of them, in the order in which one leaves what the next needs.
    pub const ALL: [Self; 6] = [Self::Create, Self::Open, Self::Stat, Self::Rename, Self::List, Self::Remove];
    /// Those that are about one file and its one name.
    pub const PLAIN: [Self; 3] = [Self::Create, Self::Stat, Self::Remove];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Open => "open",
            Self::Stat => "stat",
            Self::Rename => "rename",
            Self::List => "list",
            Self::Remove => "remove",
        }
    }
}

/// How file data travels between client and server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// As the client library decides, from the thresholds that the server exports. Memory in pieces: packed or gathered.
    Auto,
    /// In the request or reply message.
    Inline,
    /// By the server's RDMA from or to the client's memory.
    Direct,
    /// Memory in pieces: a request for each (`noncontiguous` and `listio`).
    Multiple,
    /// Memory in pieces: copied to or from one contiguous transfer.
    Pack,
    /// Memory in pieces: gathered or scattered by RDMA.
    Gather,
    /// File and memory in pieces: an operation of one batch for each (`listio`).
    Batch,
    /// By RDMA write with immediate, through buffers registered when the session began.
    Eager,
    /// By the client's RDMA, into and out of buffers that the server lent.
    ClientInitiated,
    /// Writes as `client-initiated`, reads as `direct`.
    Hybrid,
    /// Pieces of a file with what lies between, wherever that can be (`sieve`).
    #[value(skip)]
    On,
    /// Pieces of a file without what lies between.
    #[value(skip)]
    Off,
    /// Pieces of a file as a view shows them.
    #[value(skip)]
    View,
    /// A local call for each piece.
    #[value(skip)]
    Separate,
    /// One local call for all pieces.
    #[value(skip)]
    Vectored,
    /// A local call for a window of the file, and copies.
    #[value(skip)]
    Sieved,
    /// All pieces at once by a local io_uring.
    #[value(skip)]
    #[serde(rename = "io_uring")]
    IoUring,
}

/// Which way a figure is compared with its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Microseconds for one operation: less is better.
    Us,
    /// MiB/s: more is better.
    MibPerS,
    /// Operations per second: more is better.
    OpsPerS,
}

impl Unit {
    /// How far `ours` is from `limit`: 1.0 is perfect, less is better.
    pub fn ratio(self, ours: f64, limit: f64) -> f64 {
        match self {
            Self::Us => ours / limit,
            Self::MibPerS | Self::OpsPerS => limit / ours,
        }
    }

    /// The unit as reports write it.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Us => "us",
            Self::MibPerS => "MiB/s",
            Self::OpsPerS => "op/s",
        }
    }
}

/// Rounds whose ratios are further apart than by this factor are disturbed.
pub const SPREAD_MAX: f64 = 3.0;

/// One line of a report: one case of one benchmark, medians over the rounds. What does not apply is `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Row {
    /// `tcp`, `shm`, a peer such as `nfs`, or `raw`.
    pub transport: String,
    /// What was done.
    pub op: Option<Op>,
    /// Which call on a name (`compare` and `metadata`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name_op: Option<NameOp>,
    /// How the data travelled.
    pub method: Option<Method>,
    /// Whether the client's memory was registered beforehand.
    pub registered: Option<bool>,
    /// Pieces of one operation (`noncontiguous` and `listio` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments: Option<usize>,
    /// Ranges of the file that another session holds (`locks` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub held: Option<u64>,
    /// File bytes of one operation; of one piece where there are `segments`.
    pub bytes: usize,
    /// Operations kept in flight.
    pub queue_depth: usize,
    /// Median time of one operation, submission to completion, in microseconds.
    #[serde(serialize_with = "rounded")]
    pub p50_us: Option<f64>,
    /// 99th percentile of the same.
    #[serde(serialize_with = "rounded")]
    pub p99_us: Option<f64>,
    /// File data moved, in MiB/s.
    #[serde(serialize_with = "rounded")]
    pub mib_per_s: Option<f64>,
    /// Operations completed per second.
    #[serde(serialize_with = "rounded")]
    pub ops_per_s: Option<f64>,
    /// Name of the raw limit beside it.
    pub limit: Option<String>,
    /// The limit, in the unit of the figure that it bounds.
    #[serde(serialize_with = "rounded")]
    pub limit_value: Option<f64>,
    /// Ours over the limit for times, the limit over ours for rates.
    #[serde(serialize_with = "rounded")]
    pub ratio: Option<f64>,
    /// The least of the ratios of single rounds.
    #[serde(serialize_with = "rounded")]
    pub ratio_min: Option<f64>,
    /// The greatest of them.
    #[serde(serialize_with = "rounded")]
    pub ratio_max: Option<f64>,
    /// Rounds that these are medians over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// The rounds are further apart than [`SPREAD_MAX`], also when measured again: something else ran meanwhile.
    #[serde(skip_serializing_if = "is_false")]
    pub disturbed: bool,
    /// With 95 % confidence, the median of the figure that the limit bounds is between this and `high`, in its unit.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// See `low`.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// That is further than 5 % from the median, also after three times as many rounds.
    #[serde(skip_serializing_if = "is_false")]
    pub unsettled: bool,
    /// What it took of CPUs.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuRow>,
    /// Share of computation in the time of one blocking step (`overlap` and `compare`).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub cpu_fraction: Option<f64>,
    /// Which part of the benchmark this is, where it has several (`mixed`, `idle`, `registration`, `locks`, `c`, `pipeline`, `fairness`,
    /// `mpi`, `views`, `compare`, `stripe`, `distance`, `scale`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub case: Option<&'static str>,
    /// Share of one CPU that the process took, in percent (`idle`; `compare`: of the client, for `bandwidth`; `stripe`: of each client).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub cpu_percent: Option<f64>,
    /// Sessions that were open (`idle` and `fairness` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<usize>,
    /// Servers that the file lies over (`stripe` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub servers: Option<usize>,
    /// Clients that moved data at once (`stripe` and `scale`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clients: Option<usize>,
    /// How long a round trip takes over the line, in milliseconds (`distance` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub round_trip_ms: Option<f64>,
    /// Resident memory that each of them cost, in KiB (`idle` only).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub kib_per_session: Option<f64>,
    /// Bytes of a piece (`sieve` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment_bytes: Option<usize>,
    /// Bytes wanted over bytes from the first to the last (`sieve` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub density: Option<f64>,
    /// `warm`, `cold`, or `direct`, where it is bypassed (`sieve`, `noncontiguous` and `listio`; others with `--cold` or `--direct-io`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<&'static str>,
    /// Bytes of a chunk (`pipeline` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chunk_bytes: Option<usize>,
    /// Chunks of one operation in progress at once (`pipeline` only).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pipeline_depth: Option<usize>,
    /// Registrations for each operation (`registration` and `mpi` only).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub registrations: Option<f64>,
    /// Share of operations whose memory was found registered (`registration` only).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// Time of one operation beyond the limit's, in microseconds (`registration` only).
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub added_us: Option<f64>,
    /// What only `scale` has.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub scale: Option<ScaleRow>,
    /// What only MPI programs have.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub mpi: Option<MpiRow>,
    /// Unit of `limit_value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_unit: Option<Unit>,
}

impl Row {
    /// With the interval of the median of these figures of its rounds.
    pub fn known_by(self, figures: impl Iterator<Item = f64>) -> Self {
        let figures: Vec<f64> = figures.collect();
        let interval = median_interval(figures.iter().copied());
        Self {
            low: interval.map(|(low, _)| low),
            high: interval.map(|(_, high)| high),
            rounds: Some(figures.len()),
            unsettled: !is_known(figures),
            ..self
        }
    }

    /// Whether its rounds are too far apart to mean much.
    pub fn is_disturbed(&self) -> bool {
        self.ratio_min.zip(self.ratio_max).is_some_and(|(min, max)| max > SPREAD_MAX * min)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_false(value: &bool) -> bool {
    !value
}

/// What more workers of a server give; medians over the rounds. Gains are over the first number of workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ScaleRow {
    /// Workers of the server.
    pub workers: usize,
    /// Operations a second of the client that got least.
    #[serde(serialize_with = "rounded")]
    pub least_ops_per_s: Option<f64>,
    /// How many times as many operations of all clients that are.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub gain: Option<f64>,
    /// The same of the client that got least.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub least_gain: Option<f64>,
    /// As many times as much can be had of as many CPUs, which serve the clients too.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// `gain` over `bound`.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub reached: Option<f64>,
}

/// What an operation takes of CPUs, in nanoseconds; medians over the rounds. A process that spins takes all that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct CpuRow {
    /// Of this process, the client.
    #[serde(serialize_with = "rounded")]
    pub client_cpu_ns: Option<f64>,
    /// The same for a MiB of data.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub client_cpu_ns_per_mib: Option<f64>,
    /// Of the server's process, where it is on this machine.
    #[serde(serialize_with = "rounded")]
    pub server_cpu_ns: Option<f64>,
    /// The same for a MiB of data.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub server_cpu_ns_per_mib: Option<f64>,
    /// Of both ends of the limit together.
    #[serde(serialize_with = "rounded")]
    pub limit_cpu_ns: Option<f64>,
    /// The same for a MiB of data.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub limit_cpu_ns_per_mib: Option<f64>,
}

impl CpuRow {
    /// Of an operation of so many bytes; `None` where nothing is known. Of operations below 4 KiB a MiB says nothing.
    pub fn of(bytes: usize, client: Option<f64>, server: Option<f64>, limit: Option<f64>) -> Option<Self> {
        let per_mib =
            |ns: Option<f64>| ns.filter(|_| bytes >= 4096).map(|ns| ns * (1 << 20) as f64 / bytes as f64);
        let row = Self {
            client_cpu_ns: client,
            client_cpu_ns_per_mib: per_mib(client),
            server_cpu_ns: server,
            server_cpu_ns_per_mib: per_mib(server),
            limit_cpu_ns: limit,
            limit_cpu_ns_per_mib: per_mib(limit),
        };
        (row != Self::default()).then_some(row)
    }
}

/// The part of a [`Row`] that `mpi` fills.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MpiRow {
    /// `dafs`, `local`, or the name of a mount.
    pub subject: String,
    /// `ompio`, `romio`; without MPI `client`, the client API, and `calls`, `pread` and `pwrite`.
    pub way: &'static str,
    /// Memory mode, or the method by which pieces were moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<&'static str>,
    /// `sequential` or `random`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<&'static str>,
    /// Transfers of a hundred that used one and the same buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reuse: Option<u32>,
    /// Processes.
    pub ranks: u32,
    /// Whether `MPI_File_sync` was part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<bool>,
    /// Mean time of one operation without the slowest hundredth, in microseconds.
    #[serde(serialize_with = "rounded")]
    pub mean_us: Option<f64>,
    /// Least time of one operation.
    #[serde(serialize_with = "rounded")]
    pub min_us: Option<f64>,
    /// Requests for data that the server answered, for each operation of all processes.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub requests: Option<f64>,
    /// Of these, lists.
    #[serde(serialize_with = "rounded", skip_serializing_if = "Option::is_none")]
    pub lists: Option<f64>,
    /// Requests that the paper counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests_paper: Option<u64>,
}

/// Where Direct starts to beat Inline (`crossover` only).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Crossing {
    /// The transport.
    pub transport: String,
    /// File system of the file, where there are two.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub case: Option<&'static str>,
    /// Read or write.
    pub op: Op,
    /// Whether the client's memory was registered beforehand.
    pub registered: bool,
    /// The last size at which Inline is faster by more than the spread of the rounds; `None` where it is at no size.
    pub inline_until_bytes: Option<u64>,
    /// The first size after it at which Direct is; `None` where it never is.
    pub direct_from_bytes: Option<u64>,
    /// Inline cannot carry `direct_from_bytes`.
    pub inline_ends: bool,
    /// Where the curves cross; `None` where they do not, or are one within their spread between the two sizes above.
    pub measured_bytes: Option<u64>,
    /// The threshold that the server exported to the session: the size from which the client uses Direct.
    pub exported_bytes: Option<u64>,
}

/// All that one benchmark found.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Its name, as on the command line.
    pub benchmark: String,
    /// How it was run: an object for programs.
    pub options: serde_json::Value,
    /// One row a case.
    pub rows: Vec<Row>,
    /// Crossings, for `crossover`.
    pub crossings: Option<Vec<Crossing>>,
    /// What `--plot` draws, where the benchmark has a plot.
    pub chart: Option<Chart>,
    /// Remarks for the reader: parts that could not run, and why.
    pub notes: Vec<String>,
}

impl Outcome {
    /// What was found on this file system, beside what is found on another.
    pub fn label(&mut self, file_system: &'static str) {
        self.rows.iter_mut().for_each(|row| row.case = Some(file_system));
        self.crossings.iter_mut().flatten().for_each(|crossing| crossing.case = Some(file_system));
        let panels = self.chart.iter_mut().flat_map(|chart| &mut chart.panels);
        panels.for_each(|panel| panel.title = format!("{}, {file_system}", panel.title));
        self.notes.iter_mut().for_each(|note| *note = format!("{file_system}: {note}"));
    }

    /// Adds what another run of the same benchmark found.
    pub fn append(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.notes.extend(other.notes);
        if let Some(crossings) = other.crossings {
            self.crossings.get_or_insert_default().extend(crossings);
        }
        match (&mut self.chart, other.chart) {
            (Some(chart), Some(other)) => chart.panels.extend(other.panels),
            (chart @ None, other) => *chart = other,
            _ => {}
        }
    }

    /// Marks the rows that were disturbed, in table, JSON and figure; beside those that are marked already.
    pub fn mark_disturbed(&mut self) {
        let are_far_apart = self.rows.iter().all(|row| !row.disturbed);
        self.rows.iter_mut().for_each(|row| row.disturbed |= row.is_disturbed());
        let (count, all) = (self.rows.iter().filter(|row| row.disturbed).count(), self.rows.len());
        if count == 0 {
            return;
        }
        let apart =
            if are_far_apart { format!("over {SPREAD_MAX} times apart") } else { "far apart".to_owned() };
        let text = format!("{count} of {all} rows disturbed: their rounds are {apart}");
        if let Some(chart) = &mut self.chart {
            chart.title = format!("{} ({text})", chart.title);
        }
        self.notes.push(text);
    }
}

/// A figure: panels of curves, described without saying how they are drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// Title over all panels.
    pub title: String,
    /// Panels in reading order.
    pub panels: Vec<Panel>,
    /// Panels beside each other.
    pub columns: usize,
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// Title over the axes.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Curves.
    pub curves: Vec<Curve>,
    /// Vertical lines and intervals.
    pub marks: Vec<Mark>,
    /// Words below the title, a line each.
    pub remarks: Vec<String>,
}

/// An axis and how it is divided.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// What is plotted, with its unit.
    pub label: String,
    /// How it is divided.
    pub scale: Scale,
}

/// How an axis is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// Linear, from zero.
    Linear,
    /// Logarithmic.
    Log,
    /// Logarithmic with labels as sizes in bytes (4 KiB).
    LogBytes,
    /// Names in place of numbers: the first stands at 1, the second at 2.
    Names(&'static [&'static str]),
}

/// One curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Name in the legend; curves of the same name look the same in every panel.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
    /// A bound or reference: drawn dashed and grey.
    pub reference: bool,
    /// Where the medians are with 95 % confidence: x, the least and the greatest y; in order of x. Empty where it is not known.
    pub band: Vec<(f64, f64, f64)>,
}

/// One vertical line, or an interval along the horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// Name in the legend.
    pub name: String,
    /// Where on the horizontal axis.
    pub x: f64,
    /// Where the interval ends that begins at `x`.
    pub to: Option<f64>,
    /// Dashed rather than solid.
    pub dashed: bool,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Ping => "ping",
            Self::Copy => "copy",
        })
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Inline => "inline",
            Self::Direct => "direct",
            Self::Multiple => "multiple",
            Self::Pack => "pack",
            Self::Gather => "gather",
            Self::Batch => "batch",
            Self::Eager => "eager",
            Self::ClientInitiated => "client-initiated",
            Self::Hybrid => "hybrid",
            Self::On => "on",
            Self::Off => "off",
            Self::View => "view",
            Self::Separate => "separate",
            Self::Vectored => "vectored",
            Self::Sieved => "sieved",
            Self::IoUring => "io_uring",
        })
    }
}

/// Three decimals are below what any of these figures means, and keep files readable.
fn rounded<S: serde::Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    match value {
        Some(value) if value.is_finite() => serializer.serialize_f64((value * 1e3).round() / 1e3),
        _ => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_of_two_file_systems_is_labelled_and_disturbed_rows_are_marked() {
        let row = |max| Row { ratio_min: Some(1.0), ratio_max: Some(max), ..Row::default() };
        let chart = Chart { title: "t".into(), panels: vec![], columns: 1 };
        let mut outcome = Outcome { rows: vec![row(2.9)], chart: Some(chart), ..Outcome::default() };
        outcome.label("tmpfs");
        let mut other = Outcome { rows: vec![row(3.1)], ..Outcome::default() };
        other.label("ext4");
        outcome.append(other);
        outcome.mark_disturbed();
        let found: Vec<_> = outcome.rows.iter().map(|row| (row.case, row.disturbed)).collect();
        assert_eq!(found, [(Some("tmpfs"), false), (Some("ext4"), true)]);
        assert!(outcome.chart.is_some_and(|chart| chart.title.contains("1 of 2 rows disturbed")));
        assert_eq!(outcome.notes.len(), 1);
    }

    #[test]
    fn row_that_its_benchmark_found_disturbed_stays_so() {
        let rows = vec![Row { disturbed: true, ..Row::default() }, Row::default()];
        let mut outcome = Outcome { rows, ..Outcome::default() };
        outcome.mark_disturbed();
        assert!(outcome.rows[0].disturbed && !outcome.rows[1].disturbed);
        assert_eq!(outcome.notes, ["1 of 2 rows disturbed: their rounds are far apart"]);
    }
}
