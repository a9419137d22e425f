//! From the command line to the report.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use dafs_client::Key;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use crate::check::{check_options, settings};
use crate::cli::{Benchmark, Cli, Mount, Options, Peer, Poll, Transport};
use crate::links::Host;
use crate::load::{DATA_FILE, FILE_BYTES};
use crate::machine::{Machine, Pin, Pins, file_system};
use crate::peer;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::record::Outcome;
use crate::report;
use crate::subject::bulk::{BULK_FILE, Bulk, BulkSetup};
use crate::subject::dafs::{Dafs, Target};
use crate::subject::list::Lists;
use crate::subject::server::{self, Room, Server, ServerOptions};
use crate::subject::{Crowd, Pair, Subject, Subjects};
use crate::{interrupt, rdma, sys, workload};

/// Runs what `cli` asks for and reports it. Children and files are gone when it returns, however it returns.
pub fn run(cli: &Cli) -> anyhow::Result<()> {
    let start = Instant::now();
    interrupt::install()?;
    raise_open_files_limit();
    let options = cli.benchmark.options();
    // Clients are many, and servers.
    let pin = if matches!(
        cli.benchmark,
        Benchmark::Stripe { .. }
            | Benchmark::Distance { .. }
            | Benchmark::Scale { .. }
            | Benchmark::Cluster { .. }
    ) {
        Pin::None
    } else {
        options.pin
    };
    let pins = Pins::choose(pin)?;
    let mut plan = Plan { same_cpu: pins.same_cpu(), ..Plan::of(&cli.benchmark) };
    if let Benchmark::Crossover { time, .. } = &cli.benchmark {
        plan.until = Some(start + Duration::from_secs_f64(*time));
    }
    check_outputs(&cli.benchmark, options)?;
    check_options(&cli.benchmark, plan.benchmark, options)?;
    let verbs = plan.needs_rdma_device().then(|| rdma::device_address(options.verbs_address)).transpose()?;
    let progress = Progress::new();
    // With two files, --dir is where the one on the disk goes.
    let disk = cli.benchmark.has_two_files().then(|| disk_place(options.dir.as_deref())).transpose()?;
    let mut directories = vec![scratch_directory(options.dir.as_deref().filter(|_| disk.is_none()))?];
    if cli.benchmark.times_the_path_of_a_file() && options.dir.is_none() && options.server.is_none() {
        directories.extend(disk_directory(directories[0].path())?);
    }
    let places: Vec<&Path> = directories.iter().map(TempDir::path).chain(disk.as_deref()).collect();
    let machine = Machine::describe(&pins, &places);
    let options_used = settings(&cli.benchmark, &plan)?;
    let mut outcome =
        Outcome { benchmark: plan.benchmark.to_owned(), options: options_used, ..Outcome::default() };
    for (index, directory) in directories.iter().enumerate() {
        plan.directories = directories.len() - index;
        progress.doing("writing the file");
        let file = directory.path().join(DATA_FILE);
        write_data(&file)?;
        if let Benchmark::Pipeline { pipeline, .. } = &cli.benchmark {
            // Its largest file is made last.
            for place in disk.as_deref().into_iter().chain([directory.path()]) {
                has_room(place, pipeline.whole_size.max(pipeline.file_size))?;
            }
        }
        let mut fleet = Fleet {
            options,
            pins: &pins,
            directory: directory.path(),
            disk: disk.as_deref(),
            room: room(&cli.benchmark, &plan),
            verbs,
            progress: &progress,
            sockets: scratch_directory(None)?,
            socket_count: 0,
        };
        let one = workload::run(&cli.benchmark, &plan, (&file, verbs), &pins, &progress, &mut fleet);
        let mut one = one.inspect_err(|_| progress.finish())?;
        if directories.len() > 1 {
            one.label(known_file_system(directory.path()));
        }
        outcome.append(one);
    }
    progress.finish();
    // What was broken off is no result.
    interrupt::check()?;
    outcome.mark_disturbed();
    let html = match &cli.benchmark {
        Benchmark::Compare { html, .. } => report::html::write(&outcome, &machine, html)
            .inspect(|()| progress.say(&format!("the report is in {}", html.display()))),
        _ => Ok(()),
    };
    publish(&outcome, &machine, options)?;
    html
}

/// Each session takes files, here and at the server that is started. Where the limit stays as it was, errors say so.
fn raise_open_files_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// What the servers of our own are to have room for.
fn room(benchmark: &Benchmark, plan: &Plan) -> Room {
    let deepest = plan.queue_depths.iter().copied().max().unwrap_or(1);
    match benchmark {
        Benchmark::Fairness { outstanding, sessions, .. } => {
            Room { slots: deepest.max(*outstanding as usize), sessions: sessions.unwrap_or(1) }
        }
        _ => Room { slots: deepest, sessions: plan.sessions },
    }
}

impl Benchmark {
    /// It times what a server does with a file, which is another path on a disk's file system than in memory.
    fn times_the_path_of_a_file(&self) -> bool {
        matches!(
            self,
            Self::Latency(_)
                | Self::Bandwidth(_)
                | Self::Iops(_)
                | Self::Crossover { .. }
                | Self::Metadata(_)
        )
    }

    /// It has one file in memory and one on a disk.
    fn has_two_files(&self) -> bool {
        matches!(self, Self::Mixed(_) | Self::Pipeline { .. } | Self::Fairness { sessions: None, .. })
    }

    fn has_plot(&self) -> bool {
        matches!(
            self,
            Self::Crossover { .. }
                | Self::Overlap(_)
                | Self::Noncontiguous(_)
                | Self::Listio(_)
                | Self::Registration(_)
                | Self::Locks(_)
                | Self::Sieve { .. }
                | Self::Pipeline { .. }
                | Self::Mpi { .. }
                | Self::Views { .. }
                | Self::Stripe { .. }
                | Self::Distance { .. }
                | Self::Scale { .. }
                | Self::Cluster { .. }
                | Self::Metadata(_)
        )
    }

    /// Its options.
    pub fn options(&self) -> &Options {
        match self {
            Self::Latency(options)
            | Self::Bandwidth(options)
            | Self::Iops(options)
            | Self::Crossover { options, .. }
            | Self::Compare { options, .. }
            | Self::Overlap(options)
            | Self::Noncontiguous(options)
            | Self::Listio(options)
            | Self::Mixed(options)
            | Self::Registration(options)
            | Self::Locks(options)
            | Self::Metadata(options)
            | Self::Sieve { options, .. }
            | Self::Idle { options, .. }
            | Self::C { options, .. }
            | Self::Pipeline { options, .. }
            | Self::Fairness { options, .. }
            | Self::Mpi { options, .. }
            | Self::Views { options, .. }
            | Self::Stripe { options, .. }
            | Self::Distance { options, .. }
            | Self::Scale { options, .. }
            | Self::Cluster { options, .. }
            | Self::Limits(options) => options,
        }
    }
}

/// Starts servers and peers on the benchmark's directory.
struct Fleet<'a> {
    options: &'a Options,
    pins: &'a Pins,
    directory: &'a Path,
    /// Where the file on the disk goes, where there are two.
    disk: Option<&'a Path>,
    room: Room,
    verbs: Option<IpAddr>,
    progress: &'a Progress,
    /// Where sockets go: the address of one has room for a hundred bytes, fewer than the name of a --dir may have.
    sockets: TempDir,
    socket_count: u32,
}

impl Fleet<'_> {
    /// A server of our own on the benchmark's directory, and on `disk`.
    fn server(&mut self, poll: Poll, coalescing: bool, disk: Option<PathBuf>) -> anyhow::Result<Server> {
        let options = self.server_options(poll);
        self.start(ServerOptions { coalescing, disk, ..options })
    }

    fn server_options(&mut self, poll: Poll) -> ServerOptions {
        self.socket_count += 1;
        ServerOptions {
            directory: self.directory.to_owned(),
            socket: self.sockets.path().join(format!("server-{}.sock", self.socket_count)),
            poll,
            direct_io: self.options.direct_io,
            disk: None,
            coalescing: true,
            pipeline: None,
            room: self.room,
            verbs: self.verbs,
            cpus: self.pins.server.clone(),
            host: None,
            workers: 1,
            store: None,
        }
    }

    fn start(&self, options: ServerOptions) -> anyhow::Result<Server> {
        if let Some(address) = &self.options.server {
            bail!("cannot use --server {address}: this benchmark starts a server of its own");
        }
        let binary = match &self.options.server_program {
            Some(binary) => binary.clone(),
            None => server::find_program("dafs-server", |line| self.progress.say(line))?,
        };
        Server::start(&binary, &options)
    }

    /// A directory of the benchmark's, served by dafs and mounted.
    fn dafs_mount(&mut self, transport: Transport) -> anyhow::Result<peer::mount::Mounted> {
        let program = match &self.options.server_program {
            Some(server) => server.with_file_name("dafs"),
            None => server::find_program("dafs", |line| self.progress.say(line))?,
        };
        let shown = tempfile::tempdir_in(self.directory)?;
        let options = self.server_options(Poll::Adaptive);
        let server = self.start(ServerOptions { directory: shown.path().to_owned(), ..options })?;
        peer::dafs_mount::mounted(&program, server, transport, (shown, scratch_directory(None)?), self.pins)
    }
}

impl Subjects for Fleet<'_> {
    fn dafs(
        &mut self,
        transport: Transport,
        poll: Poll,
        coalescing: bool,
    ) -> anyhow::Result<Box<dyn Subject>> {
        if let Some(address) = &self.options.server {
            let key = self.options.key_file.as_deref().map(dafs_client::load_key).transpose()?;
            let target =
                Target { address: address.clone(), transport, file: DATA_FILE, poll, coalescing, key };
            let dafs = Dafs::connect(target, None)?;
            dafs.write_data().with_context(|| format!("cannot write the file {DATA_FILE} on {address}"))?;
            return Ok(Box::new(dafs));
        }
        let server = self.server(poll, coalescing, None)?;
        let target = Target { coalescing, ..Target::on(&server, transport, "bench", poll)? };
        Ok(Box::new(Dafs::connect(target, Some(server))?))
    }

    fn pair(&mut self, transport: Transport, poll: Poll) -> anyhow::Result<Pair> {
        let directory = scratch_directory(Some(self.disk.context("no place on a disk")?))?;
        let disk_file = directory.path().join(DATA_FILE);
        self.progress.doing("writing the file on the disk");
        write_data(&disk_file)?;
        let server = self.server(poll, true, Some(directory.path().to_owned()))?;
        // Its waits are long: spinning would take the CPU from the other client, whose rate is in question.
        let disk = Dafs::connect(Target::on(&server, transport, "disk", Poll::Event)?, None)?;
        let cached = Target::on(&server, transport, "bench", poll)?;
        let cached = Dafs::connect(cached, Some(server))?;
        Ok(Pair { disk: Box::new(disk), cached: Box::new(cached), disk_file, directory })
    }

    fn bulk(&mut self, setup: &BulkSetup) -> anyhow::Result<Bulk> {
        let directory = scratch_directory(Some(self.disk.context("no place on a disk")?))?;
        let disk_file = directory.path().join(BULK_FILE);
        self.progress.doing("writing the files");
        write_file(&disk_file, setup.file_bytes)?;
        let in_memory = self.directory.join(BULK_FILE);
        if std::fs::metadata(&in_memory).map_or(0, |file| file.len()) != setup.file_bytes {
            write_file(&in_memory, setup.file_bytes)?;
        }
        let disk = Some(directory.path().to_owned());
        let options = self.server_options(setup.poll);
        let server = self.start(ServerOptions { disk, pipeline: setup.pipeline, ..options })?;
        let target = |server: &Server, export, poll| {
            let target = Target::on(server, setup.transport, export, poll)?;
            Dafs::connect(Target { file: BULK_FILE, ..target }, None)
        };
        let disk = target(&server, "disk", setup.poll)?;
        let memory = Target { file: BULK_FILE, ..Target::on(&server, setup.transport, "bench", setup.poll)? };
        let memory = Dafs::connect(memory, Some(server))?;
        Ok(Bulk { disk, memory, disk_file, directory: Some(directory) })
    }

    fn crowd(&mut self, transport: Transport, poll: Poll, count: usize) -> anyhow::Result<Crowd> {
        let server = self.server(poll, true, None)?;
        let before = server.usage()?;
        let target = Target::on(&server, transport, "bench", poll)?;
        let clients = (0..count).map(|_| {
            interrupt::check()?;
            Dafs::connect(target.clone(), None)
        });
        let clients = clients.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Crowd { clients, before, server })
    }

    fn lists(&mut self, transport: Transport, poll: Poll) -> anyhow::Result<Lists> {
        let server = self.server(poll, true, None)?;
        let target = Target::on(&server, transport, "bench", poll)?;
        Ok(Lists::new(target, server))
    }

    fn single_server(&mut self, poll: Poll, on_all_cpus: bool) -> anyhow::Result<Server> {
        let mut options = self.server_options(poll);
        if on_all_cpus {
            options.cpus.clone_from(&self.pins.all);
        }
        self.start(options)
    }

    fn server_of_workers(&mut self, workers: usize) -> anyhow::Result<Server> {
        let options = self.server_options(Poll::Event);
        self.start(ServerOptions { workers, cpus: self.pins.all.clone(), ..options })
    }

    fn server_of_cluster(&mut self, folder: &str, store: Option<&str>) -> anyhow::Result<Server> {
        let options = self.server_options(Poll::Event);
        let directory = self.directory.join(folder);
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let store = store.map(str::to_owned);
        self.start(ServerOptions { directory, store, cpus: self.pins.all.clone(), ..options })
    }

    fn on_host(&mut self, host: &Host, key: &Key, folder: &str) -> anyhow::Result<Server> {
        let options = self.server_options(Poll::Event);
        let directory = self.directory.join(folder);
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
        let host = Some((host.clone(), key.clone()));
        self.start(ServerOptions { directory, host, cpus: Vec::new(), ..options })
    }

    fn peer(&mut self, peer: Peer) -> anyhow::Result<Box<dyn Subject>> {
        match peer {
            Peer::MountTcp => Ok(Box::new(self.dafs_mount(Transport::Tcp)?)),
            Peer::MountShm => Ok(Box::new(self.dafs_mount(Transport::Shm)?)),
            Peer::Fuse => {
                // Its threads run wherever there is room.
                sys::pin_thread(&self.pins.all)?;
                Ok(Box::new(peer::bare_fuse::mounted(scratch_directory(None)?)?))
            }
            Peer::Nfs => Ok(Box::new(peer::nfs::Nfs::start(self.directory, DATA_FILE, self.pins)?)),
            Peer::Perftest => {
                let ip = self
                    .verbs
                    .context("cannot run perftest: no RDMA device is measured; add --transport verbs")?;
                let sleeps = self.options.poll == Some(Poll::Event);
                Ok(Box::new(peer::perftest::Perftest::new(ip, sleeps, self.pins)?))
            }
        }
    }

    fn mount(&mut self, mount: &Mount) -> anyhow::Result<Box<dyn Subject>> {
        Ok(Box::new(peer::mount::Mounted::open(mount)?))
    }
}

/// Says what is wrong with the outputs before an hour of measuring, not after it.
fn check_outputs(benchmark: &Benchmark, options: &Options) -> anyhow::Result<()> {
    if options.plot.is_some() && !benchmark.has_plot() {
        bail!(
            "cannot use --plot: it draws crossover, overlap, noncontiguous, listio, sieve, locks, registration, \
             pipeline, mpi, views, stripe, metadata, distance and scale"
        );
    }
    let html = match benchmark {
        Benchmark::Compare { html, .. } => Some(html),
        _ => None,
    };
    for (option, path) in [("--plot", options.plot.as_ref()), ("--html", html)] {
        if path.is_some_and(|path| is_stdout(path)) {
            bail!("cannot use {option} -: name a file");
        }
    }
    for path in [options.json.as_ref(), options.plot.as_ref(), html]
        .into_iter()
        .flatten()
        .filter(|path| !is_stdout(path))
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            bail!("cannot write {}: no such directory {}", path.display(), folder.display());
        }
        if path.is_dir() {
            bail!("cannot write {}: it is a directory; name a file in it", path.display());
        }
        let written = if path.exists() { path } else { folder };
        rustix::fs::access(written, rustix::fs::Access::WRITE_OK)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

/// A directory for this run: below `wanted`, else in memory, else wherever temporary files go.
fn scratch_directory(wanted: Option<&Path>) -> anyhow::Result<TempDir> {
    let make = |parent: &Path| tempfile::Builder::new().prefix("dafs-bench-").tempdir_in(parent);
    let (parent, made) = match wanted {
        Some(directory) => (directory.to_owned(), make(directory)),
        None => {
            let elsewhere = std::env::temp_dir();
            let made = make(Path::new("/dev/shm")).or_else(|_| make(&elsewhere));
            (elsewhere, made)
        }
    };
    made.with_context(|| format!("cannot create a directory in {}", parent.display()))
}

/// A directory on another file system, of a disk, where there is one that holds temporary files.
fn disk_directory(in_memory: &Path) -> anyhow::Result<Option<TempDir>> {
    let known = file_system(in_memory);
    let disk = temporary_on_disk().filter(|place| file_system(place) != known);
    disk.map(|place| scratch_directory(Some(&place))).transpose()
}

/// Where temporary files go that are to be on a disk.
fn temporary_on_disk() -> Option<PathBuf> {
    let places = [std::env::temp_dir(), PathBuf::from("/var/tmp")];
    places.into_iter().find(|place| sys::room(place).is_ok_and(|(in_memory, _)| !in_memory))
}

/// Where the file on the disk goes: `wanted`, which must not be in memory, else where temporary files do.
fn disk_place(wanted: Option<&Path>) -> anyhow::Result<PathBuf> {
    let Some(wanted) = wanted else {
        return temporary_on_disk()
            .context("cannot find a disk: temporary files are in memory; name a --dir on a disk");
    };
    match sys::room(wanted) {
        Ok((true, _)) => bail!("cannot use --dir {}: it is in memory; name one on a disk", wanted.display()),
        Ok(_) => Ok(wanted.to_owned()),
        Err(error) => Err(error).with_context(|| format!("cannot use --dir {}", wanted.display())),
    }
}

/// The name of a file system, as rows have it.
fn known_file_system(directory: &Path) -> &'static str {
    let found = file_system(directory);
    let known = ["tmpfs", "ext4", "xfs", "btrfs", "overlay", "zfs", "f2fs"];
    known.into_iter().find(|known| *known == found).unwrap_or("disk")
}

/// A file without holes, so that reads find data.
fn write_data(path: &Path) -> anyhow::Result<()> {
    write_file(path, FILE_BYTES)
}

fn write_file(path: &Path, bytes: u64) -> anyhow::Result<()> {
    const BLOCK_BYTES: usize = 1 << 20;
    let write = || -> io::Result<()> {
        let mut file = File::create(path)?;
        let block: Vec<u8> = (0..BLOCK_BYTES).map(|index| (index % 251).to_le_bytes()[0]).collect();
        for _ in 0..bytes / BLOCK_BYTES as u64 {
            if interrupt::requested() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            file.write_all(&block)?;
        }
        file.sync_all()
    };
    // It takes the place of what is there.
    let before = std::fs::metadata(path).map_or(0, |file| file.len());
    has_room(path.parent().unwrap_or(Path::new(".")), bytes.saturating_sub(before))?;
    write().with_context(|| format!("cannot write {} MiB to {}", bytes >> 20, path.display()))
}

/// Says in time what would be told after minutes of writing.
fn has_room(directory: &Path, bytes: u64) -> anyhow::Result<()> {
    let (_, free) = sys::room(directory).with_context(|| format!("cannot use {}", directory.display()))?;
    if free < bytes {
        bail!(
            "cannot write {} MiB to {}: {} MiB are free; name another --dir, or with pipeline lower --whole-size and --file-size",
            bytes >> 20,
            directory.display(),
            free >> 20
        );
    }
    Ok(())
}

/// Files go first: they are there, whoever reads standard output. Where one cannot be written the rest is not lost.
fn publish(outcome: &Outcome, machine: &Machine, options: &Options) -> anyhow::Result<()> {
    let json_on_stdout = options.json.as_deref().is_some_and(is_stdout);
    let json = options.json.as_deref().filter(|_| !json_on_stdout).map_or(Ok(()), |path| {
        let written =
            File::create(path).and_then(|file| report::json::write(outcome, machine, BufWriter::new(file)));
        written.with_context(|| format!("cannot write {}", path.display()))
    });
    let plot = match (&options.plot, &outcome.chart) {
        (Some(path), Some(chart)) => report::plot::write(chart, path),
        _ => Ok(()),
    };
    show(outcome, machine, json_on_stdout)?;
    json.and(plot)
}

fn show(outcome: &Outcome, machine: &Machine, json_on_stdout: bool) -> anyhow::Result<()> {
    if json_on_stdout {
        unless_closed(report::json::write(outcome, machine, io::stdout().lock()))?;
        for note in &outcome.notes {
            writeln!(io::stderr(), "note: {note}")?;
        }
    } else {
        unless_closed(io::stdout().lock().write_all(report::table::render(outcome, machine).as_bytes()))?;
    }
    Ok(())
}

/// A reader of standard output that has seen enough, such as `head`, is no failure.
fn unless_closed(written: io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.context("cannot write to standard output"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_does_not_fit_is_refused_before_it_is_begun() {
        let directory = tempfile::tempdir().unwrap();
        let error = write_file(&directory.path().join("data"), u64::MAX).unwrap_err().to_string();
        assert!(error.contains("MiB are free") && error.contains("--dir"), "{error}");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn place_for_the_file_on_the_disk_is_on_a_disk() {
        let disk = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(disk_place(Some(disk)).unwrap(), disk);
        let error = |place: &str| disk_place(Some(Path::new(place))).unwrap_err().to_string();
        assert!(error("/dev/shm").contains("cannot use --dir /dev/shm: it is in memory"));
        assert!(error("/nonexistent").contains("/nonexistent"));
    }
}
