//! What is run. Each benchmark is one file; what they share is the comparison with a limit, round by round.

mod bandwidth;
mod binding;
mod cluster;
mod compare;
mod crossing;
mod crossover;
mod distance;
mod fairness;
mod idle;
mod latency;
mod limits;
mod locks;
mod metadata;
mod mixed;
mod mpi;
mod noncontiguous;
mod overlap;
mod pipeline;
pub(crate) mod registration;
mod scale;
mod sieve;
mod stripe;

use std::net::IpAddr;
use std::path::Path;

use anyhow::Context;

use crate::cli::{Benchmark, Poll};
use crate::interrupt;
use crate::limit::{self, Figure, Limit, Stage};
use crate::load::{Budget, Load, Work};
use crate::machine::Pins;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::record::{CpuRow, Op, Outcome, Row, SPREAD_MAX, Unit};
use crate::stats::{Samples, is_known, median, median_interval};
use crate::subject::list::evicting;
use crate::subject::{Subject, Subjects};
use crate::sys;

/// Operations whose times are kept in one round; more would only cost memory.
const SAMPLES_MAX: usize = 1 << 20;

/// How often rounds are repeated whose spread is over [`SPREAD_MAX`].
const AGAIN_MAX: u32 = 2;

/// Rounds are added until all medians are known to 5 %, or there are so many times as many as were asked for.
const ROUNDS_FACTOR_MAX: usize = 3;
/// With fewer rounds than this nobody asks for certainty.
const ROUNDS_CERTAIN_MIN: usize = 3;

/// All that a benchmark runs with.
pub struct Bench<'a> {
    /// What is run.
    pub plan: &'a Plan,
    /// The file that all read and write.
    pub file: &'a Path,
    /// Where the ends run.
    pub pins: &'a Pins,
    /// Address of the RDMA device, where one is measured.
    pub verbs: Option<IpAddr>,
    /// What the user sees meanwhile.
    pub progress: &'a Progress,
    subjects: &'a mut dyn Subjects,
    samples: Samples,
    /// What the last run took of CPUs: nanoseconds an operation, of the client and of the server.
    cpu_ns: [f64; 2],
    outcome: Outcome,
}

/// Runs `benchmark`.
pub fn run(
    benchmark: &Benchmark,
    plan: &Plan,
    (file, verbs): (&Path, Option<IpAddr>),
    pins: &Pins,
    progress: &Progress,
    subjects: &mut dyn Subjects,
) -> anyhow::Result<Outcome> {
    let outcome = Outcome { benchmark: plan.benchmark.to_owned(), ..Outcome::default() };
    let samples = Samples::with_capacity(SAMPLES_MAX);
    if plan.direct_io {
        evicting(true, file)?()?;
    }
    let mut bench =
        Bench { plan, file, pins, verbs, progress, subjects, samples, cpu_ns: [f64::NAN; 2], outcome };
    match benchmark {
        Benchmark::Latency(_) => latency::run(&mut bench)?,
        Benchmark::Bandwidth(_) => bandwidth::run(&mut bench, Unit::MibPerS)?,
        Benchmark::Iops(_) => bandwidth::run(&mut bench, Unit::OpsPerS)?,
        Benchmark::Crossover { publish, .. } => crossover::run(&mut bench, *publish)?,
        Benchmark::Compare { time, .. } => {
            compare::run(&mut bench, std::time::Duration::from_secs_f64(*time))?
        }
        Benchmark::Overlap(_) => overlap::run(&mut bench)?,
        Benchmark::Noncontiguous(_) => noncontiguous::run(&mut bench, false)?,
        Benchmark::Listio(_) => noncontiguous::run(&mut bench, true)?,
        Benchmark::Mixed(_) => mixed::run(&mut bench)?,
        Benchmark::Idle { .. } => idle::run(&mut bench)?,
        Benchmark::Registration(_) => registration::run(&mut bench)?,
        Benchmark::Pipeline { pipeline, .. } => pipeline::run(&mut bench, pipeline)?,
        Benchmark::Fairness { sessions: Some(count), .. } => fairness::run_many(&mut bench, *count)?,
        Benchmark::Fairness { outstanding, .. } => fairness::run(&mut bench, *outstanding as usize)?,
        Benchmark::Mpi { mpi, options } => mpi::run(&mut bench, mpi, options.sizes.as_deref())?,
        Benchmark::Views { views, .. } => mpi::run_views(&mut bench, views)?,
        Benchmark::Locks(_) => locks::run(&mut bench)?,
        Benchmark::Metadata(_) => metadata::run(&mut bench)?,
        Benchmark::C { library, .. } => binding::run(&mut bench, library)?,
        Benchmark::Sieve { .. } => sieve::run(&mut bench)?,
        Benchmark::Distance { distance, .. } => distance::run(&mut bench, distance)?,
        Benchmark::Scale { scale, .. } => scale::run(&mut bench, scale)?,
        Benchmark::Cluster { cluster, .. } => cluster::run(&mut bench, cluster)?,
        Benchmark::Stripe { stripe, .. } => stripe::run(&mut bench, stripe)?,
        Benchmark::Limits(_) => limits::run(&mut bench)?,
    }
    // What nfs does with the file is its own affair.
    if plan.direct_io && plan.own_server && plan.peers.is_empty() {
        let pages = sys::cached_pages(&std::fs::File::open(file)?)?;
        let note =
            format!("{pages} pages of the file came into the page cache: O_DIRECT was not everywhere taken");
        bench.outcome.notes.extend((pages > 0).then_some(note));
    }
    Ok(bench.outcome)
}

/// What one round of one load gave.
#[derive(Debug, Clone, Copy)]
struct Round {
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    mib_per_s: f64,
    ops_per_s: f64,
    limit: f64,
    ratio: f64,
    /// Nanoseconds an operation of the client, the server and both ends of the limit; NaN where it is not known.
    cpu_ns: [f64; 3],
}

impl Round {
    /// The figure that the limit bounds.
    fn figure(&self, unit: Unit) -> f64 {
        match unit {
            Unit::Us => self.p50_us.unwrap_or(f64::NAN),
            Unit::MibPerS => self.mib_per_s,
            Unit::OpsPerS => self.ops_per_s,
        }
    }
}

impl Bench<'_> {
    /// Calls `each` with every subject: dafs on each transport, waiting in each of the ways that `polls` gives for it,
    /// then the peers. What fails becomes a note where it is a peer, and an error where it is dafs.
    fn each_subject(
        &mut self,
        polls: impl Fn(&Plan, crate::cli::Transport) -> Vec<Poll>,
        mut each: impl FnMut(&mut Self, &mut dyn Subject) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for &transport in &self.plan.transports {
            for poll in polls(self.plan, transport) {
                self.progress.doing(format!("starting dafs over {}, {}", transport.name(), poll.name()));
                self.pins.be_client();
                let mut subject = self.subjects.dafs(transport, poll, true)?;
                each(self, subject.as_mut())?;
            }
        }
        for &peer in &self.plan.peers {
            let name = format!("{peer:?}").to_lowercase();
            self.progress.doing(format!("starting peer {name}"));
            let subject = self.subjects.peer(peer);
            self.peer(&name, subject, &mut each)?;
        }
        for mount in &self.plan.mounts {
            self.progress.doing(format!("writing the file on {}", mount.directory.display()));
            let subject = self.subjects.mount(mount);
            self.peer(&mount.name, subject, &mut each)?;
        }
        Ok(())
    }

    fn peer(
        &mut self,
        name: &str,
        subject: anyhow::Result<Box<dyn Subject>>,
        each: &mut impl FnMut(&mut Self, &mut dyn Subject) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        if let Err(error) = subject.and_then(|mut subject| each(self, subject.as_mut())) {
            interrupt::check()?;
            self.outcome.notes.push(format!("no more rows for {name}: {error:#}"));
        }
        Ok(())
    }

    /// Runs `loads`, which differ only in how the subject is to do them, in alternation with `limit`: limit, first
    /// load, second load, limit, first load … Adds and returns a row for each load that the subject supports.
    fn compare(
        &mut self,
        subject: &mut dyn Subject,
        limit: Limit,
        unit: Unit,
        loads: &[Load],
    ) -> anyhow::Result<Vec<Row>> {
        let loads = self.ready(subject, loads)?;
        if loads.is_empty() {
            return Ok(Vec::new());
        }
        let mut rounds = self.rounds(subject, limit, unit, &loads)?;
        for _ in 0..AGAIN_MAX {
            if worst_spread(&rounds) <= SPREAD_MAX {
                break;
            }
            // Something else ran meanwhile: all of it once more, for the loads are compared with each other.
            let again = self.rounds(subject, limit, unit, &loads)?;
            if worst_spread(&again) < worst_spread(&rounds) {
                rounds = again;
            }
        }
        Ok(self.rows(subject, limit, unit, &loads, &rounds))
    }

    /// Those of `loads` that the subject supports, warmed up.
    fn ready(&mut self, subject: &mut dyn Subject, loads: &[Load]) -> anyhow::Result<Vec<Load>> {
        for load in loads {
            let note = subject.refusal(load).filter(|note| !self.outcome.notes.contains(note));
            self.outcome.notes.extend(note);
        }
        let mut loads: Vec<Load> = loads.iter().copied().filter(|load| subject.supports(load)).collect();
        if !subject.has_methods() {
            // A peer has one way only.
            loads.truncate(1);
        }
        let warm_up = Budget { duration: self.plan.budget.duration / 10, ..self.plan.budget };
        for load in &loads {
            self.run_subject(subject, load, warm_up)?;
        }
        Ok(loads)
    }

    /// Adds and returns a row for each load.
    fn rows(
        &mut self,
        subject: &dyn Subject,
        limit: Limit,
        unit: Unit,
        loads: &[Load],
        rounds: &[Vec<Round>],
    ) -> Vec<Row> {
        let rows = loads.iter().zip(rounds).map(|(load, rounds)| row(subject, load, limit, unit, rounds));
        let mut rows: Vec<Row> = rows.collect();
        if self.plan.direct_io && subject.has_methods() {
            let with_data = rows.iter_mut().filter(|row| row.op != Some(Op::Ping));
            with_data.for_each(|row| row.cache = Some(self.plan.cache()));
        }
        self.outcome.rows.extend_from_slice(&rows);
        rows
    }

    /// There are not as many rounds as the plan has; or not all medians are known, and there may be more.
    fn wants_round(&self, rounds: &[Vec<Round>], unit: Unit) -> bool {
        let (count, wanted) = (rounds.first().map_or(0, Vec::len), self.plan.repeats as usize);
        let figures =
            |rounds: &'_ Vec<Round>| rounds.iter().map(|round| round.figure(unit)).collect::<Vec<_>>();
        let are_known = || rounds.iter().all(|rounds| is_known(figures(rounds)));
        let may_have_more =
            self.plan.settles && (ROUNDS_CERTAIN_MIN..ROUNDS_FACTOR_MAX * wanted).contains(&count);
        count < wanted || may_have_more && !are_known()
    }

    /// As many rounds of these loads as the plan has, and more where medians are not known; of each load by itself.
    fn rounds(
        &mut self,
        subject: &mut dyn Subject,
        limit: Limit,
        unit: Unit,
        loads: &[Load],
    ) -> anyhow::Result<Vec<Vec<Round>>> {
        let mut rounds = vec![Vec::new(); loads.len()];
        while self.wants_round(&rounds, unit) {
            self.one_round(subject, limit, unit, loads, &mut rounds)?;
        }
        Ok(rounds)
    }

    /// Adds a round of each load to its `rounds`.
    fn one_round(
        &mut self,
        subject: &mut dyn Subject,
        limit: Limit,
        unit: Unit,
        loads: &[Load],
        rounds: &mut [Vec<Round>],
    ) -> anyhow::Result<()> {
        let limit = self.run_limit(subject, limit, unit, &loads[0])?;
        for index in turns(rounds[0].len(), loads.len()) {
            let work = self.run_subject(subject, &loads[index], self.plan.budget)?;
            rounds[index].push(self.round(work, &loads[index], unit, limit)?);
            self.progress.step();
        }
        Ok(())
    }

    fn doing(&mut self, name: &str, load: &Load) {
        self.progress.doing(format!("{name} {} {} bytes", load.op, load.bytes));
        self.samples.clear();
    }

    fn run_limit(
        &mut self,
        subject: &mut dyn Subject,
        limit: Limit,
        unit: Unit,
        load: &Load,
    ) -> anyhow::Result<Figure> {
        interrupt::check()?;
        self.progress.doing(format!("{} {} {} bytes", limit.name(load.op), load.op, load.bytes));
        subject.rest()?;
        let stage = Stage { file: self.file, pins: self.pins, verbs: self.verbs, budget: self.plan.budget };
        let value = limit.measure(load, unit, &stage, &mut self.samples);
        subject.wake()?;
        self.progress.step();
        value
    }

    fn run_subject(
        &mut self,
        subject: &mut dyn Subject,
        load: &Load,
        budget: Budget,
    ) -> anyhow::Result<Work> {
        interrupt::check()?;
        self.progress.doing(format!(
            "{} {} {} bytes {}",
            subject.transport(),
            load.op,
            load.bytes,
            load.method
        ));
        self.pins.be_client();
        self.samples.clear();
        let before = (sys::process_cpu_ns(), subject.server_cpu_ns());
        let work = subject.run(load, budget, &mut self.samples).with_context(|| {
            format!(
                "{}: {} of {} bytes at queue depth {}",
                subject.transport(),
                load.op,
                load.bytes,
                load.queue_depth
            )
        })?;
        let after = (sys::process_cpu_ns(), subject.server_cpu_ns());
        let per_op = |before: u64, after: u64| after.saturating_sub(before) as f64 / work.ops.max(1) as f64;
        let server = before.1.zip(after.1).map_or(f64::NAN, |(before, after)| per_op(before, after));
        self.cpu_ns = [per_op(before.0, after.0), server];
        Ok(work)
    }

    fn round(&mut self, work: Work, load: &Load, unit: Unit, limit: Figure) -> anyhow::Result<Round> {
        let ours = limit::value(work, load.bytes, unit, &mut self.samples)?;
        Ok(Round {
            p50_us: self.samples.quantile_us(0.5),
            p99_us: self.samples.quantile_us(0.99),
            mib_per_s: work.mib_per_s(load.bytes),
            ops_per_s: work.ops_per_s(),
            limit: limit.value,
            ratio: unit.ratio(ours, limit.value),
            cpu_ns: [self.cpu_ns[0], self.cpu_ns[1], limit.cpu_ns],
        })
    }

    /// Adds a note that is not there yet.
    fn note_once(&mut self, note: String) {
        if !self.outcome.notes.contains(&note) {
            self.outcome.notes.push(note);
        }
    }

    /// Whether an io_uring of so many entries can be had; a note says why not.
    fn has_io_uring(&mut self, entries: usize) -> bool {
        let made = sys::IoRing::new(entries);
        if let Err(error) = &made {
            self.note_once(format!("no rows for io_uring of {entries} entries: {error}"));
        }
        made.is_ok()
    }

    /// The load that all of the plan's options describe.
    fn load(&self, op: Op, bytes: usize, queue_depth: usize) -> Load {
        Load {
            op,
            bytes,
            queue_depth,
            method: self.plan.methods[0],
            registered: self.plan.registered[0],
            pattern: self.plan.pattern,
            compute_ns: None,
        }
    }

    /// `load` with each kind of memory and each method of the plan.
    fn variants(&self, load: &Load) -> Vec<Load> {
        let of_memory = |&registered: &bool| {
            self.plan.methods.iter().map(move |&method| Load { method, registered, ..*load })
        };
        self.plan.registered.iter().flat_map(of_memory).collect()
    }

    /// The limit of local file access.
    fn file_limit(&self) -> Limit {
        if self.plan.direct_io { Limit::FileDirect } else { Limit::File }
    }

    /// Whether what bounds `subject` is the RDMA device: so it is for peers too, where dafs is measured on it.
    fn over_rdma(&self, subject: &dyn Subject) -> bool {
        subject.transport().starts_with("verbs") || (self.verbs.is_some() && !subject.has_methods())
    }

    /// The limit of one operation at a time on `subject`.
    fn latency_limit(&self, subject: &dyn Subject, bytes: usize) -> Limit {
        let waits = Waits {
            spins: subject.spins(),
            spins_first: subject.spins_first(),
            same_cpu: self.plan.same_cpu,
        };
        let transport = if self.over_rdma(subject) { "verbs" } else { subject.transport() };
        waits.latency_limit(transport, bytes, self.plan.direct_io)
    }
}

/// How both ends of a subject wait.
#[derive(Clone, Copy, Debug, Default)]
struct Waits {
    spins: bool,
    /// For a while, before it sleeps.
    spins_first: bool,
    same_cpu: bool,
}

impl Waits {
    /// The limit of one operation of `bytes` at a time, which waits as its subject does.
    fn latency_limit(self, transport: &str, bytes: usize, direct_io: bool) -> Limit {
        /// From here on a request over shared memory is lost beside the system call that moves the data.
        const RING_LOST_BYTES: usize = 64 << 10;
        // On one CPU who spins only keeps the other end from it.
        let spins = self.spins || self.spins_first && !self.same_cpu;
        // A ring between two that spin on one CPU only waits for the scheduler.
        match (transport, spins && !self.same_cpu) {
            ("shm", true) if bytes == 0 => Limit::Ring,
            ("shm", false) if bytes == 0 => Limit::Doorbell,
            ("shm", _) if direct_io => Limit::FileDirect,
            ("shm", _) if bytes >= RING_LOST_BYTES => Limit::File,
            ("shm", true) => Limit::RingFile,
            ("shm", false) => Limit::DoorbellFile,
            ("verbs", _) if spins => Limit::VerbsRrSpin,
            ("verbs", _) => Limit::VerbsRr,
            _ if spins => Limit::TcpRrSpin,
            _ => Limit::TcpRr,
        }
    }
}

/// The order of so many subjects in a round: another is the first in each, so that what comes after the last round favours none.
fn turns(round: usize, count: usize) -> impl Iterator<Item = usize> {
    let first = round.checked_rem(count).unwrap_or(0);
    (first..count).chain(0..first)
}

/// The widest spread of these loads: the greatest ratio of a round over the least.
fn worst_spread(rounds: &[Vec<Round>]) -> f64 {
    let spread = |rounds: &Vec<Round>| {
        let ratios = || rounds.iter().map(|round| round.ratio);
        ratios().fold(0.0, f64::max) / ratios().fold(f64::INFINITY, f64::min)
    };
    rounds.iter().map(spread).fold(0.0, f64::max)
}

/// What bounds the rate of reads or writes over RDMA: the server writes into the client's memory, or reads out of it.
fn rdma_limit(op: Op) -> Limit {
    if op == Op::Write { Limit::VerbsRead } else { Limit::VerbsWrite }
}

fn row(subject: &dyn Subject, load: &Load, limit: Limit, unit: Unit, rounds: &[Round]) -> Row {
    let over = |field: fn(&Round) -> f64| median(rounds.iter().map(field));
    let with_data = load.op != Op::Ping;
    let with_methods = with_data && subject.has_methods();
    let figures: Vec<f64> = rounds.iter().map(|round| round.figure(unit)).collect();
    let interval = median_interval(figures.iter().copied());
    let cpu = |end: usize| median(rounds.iter().map(|round| round.cpu_ns[end]).filter(|ns| !ns.is_nan()));
    Row {
        transport: subject.transport().to_owned(),
        op: Some(load.op),
        method: with_methods.then_some(load.method),
        registered: with_methods.then_some(load.registered),
        bytes: load.bytes,
        queue_depth: load.queue_depth,
        p50_us: median(rounds.iter().filter_map(|round| round.p50_us)),
        p99_us: median(rounds.iter().filter_map(|round| round.p99_us)),
        mib_per_s: over(|round| round.mib_per_s).filter(|_| with_data),
        ops_per_s: over(|round| round.ops_per_s),
        limit: Some(limit.name(load.op).to_owned()),
        limit_value: over(|round| round.limit),
        ratio: over(|round| round.ratio),
        ratio_min: rounds.iter().map(|round| round.ratio).reduce(f64::min),
        ratio_max: rounds.iter().map(|round| round.ratio).reduce(f64::max),
        limit_unit: Some(unit),
        rounds: Some(rounds.len()),
        low: interval.map(|(low, _)| low),
        high: interval.map(|(_, high)| high),
        unsettled: !is_known(figures),
        cpu: CpuRow::of(if with_data { load.bytes } else { 0 }, cpu(0), cpu(1), cpu(2)),
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_one_operation_waits_as_its_subject_does() {
        let limit = |waits: Waits, transport| waits.latency_limit(transport, 4096, false);
        let sleeps = Waits::default();
        let spins = Waits { spins: true, ..sleeps };
        let first = Waits { spins_first: true, ..sleeps };
        for (transport, asleep, awake) in
            [("tcp", Limit::TcpRr, Limit::TcpRrSpin), ("verbs", Limit::VerbsRr, Limit::VerbsRrSpin)]
        {
            assert_eq!(limit(sleeps, transport), asleep);
            assert_eq!([limit(spins, transport), limit(first, transport)], [awake; 2]);
            // Where both ends have one CPU, who spins for a while gives it up at once.
            assert_eq!(limit(Waits { same_cpu: true, ..first }, transport), asleep);
            assert_eq!(limit(Waits { same_cpu: true, ..spins }, transport), awake);
        }
    }

    #[test]
    fn each_subject_is_the_first_in_a_round_and_all_take_part() {
        let orders: Vec<Vec<usize>> = (0..4).map(|round| turns(round, 3).collect()).collect();
        assert_eq!(orders, [[0, 1, 2], [1, 2, 0], [2, 0, 1], [0, 1, 2]]);
        assert_eq!(turns(5, 0).count(), 0);
    }

    #[test]
    fn limit_over_shared_memory_is_what_would_move_as_much() {
        let waits = Waits { spins_first: true, ..Waits::default() };
        let limit = |bytes, direct_io| waits.latency_limit("shm", bytes, direct_io);
        assert_eq!(limit(0, false), Limit::Ring);
        assert_eq!([limit(1, false), limit((64 << 10) - 1, false)], [Limit::RingFile; 2]);
        assert_eq!(limit(64 << 10, false), Limit::File);
        assert_eq!(limit(1, true), Limit::FileDirect);
        // Asleep, or on one CPU.
        for waits in [Waits { same_cpu: true, ..waits }, Waits { spins_first: false, ..waits }] {
            assert_eq!(waits.latency_limit("shm", 0, false), Limit::Doorbell);
            assert_eq!(waits.latency_limit("shm", 1, false), Limit::DoorbellFile);
        }
    }

    #[test]
    fn spread_of_several_loads_is_that_of_the_most_disturbed() {
        let round = |ratio| Round {
            p50_us: None,
            p99_us: None,
            mib_per_s: 0.0,
            ops_per_s: 0.0,
            limit: 1.0,
            ratio,
            cpu_ns: [0.0; 3],
        };
        let calm = vec![round(1.0), round(1.2)];
        assert_eq!(worst_spread(&[calm.clone(), vec![round(2.0), round(8.0)]]), 4.0);
        assert!(worst_spread(&[calm]) < SPREAD_MAX);
    }
}
