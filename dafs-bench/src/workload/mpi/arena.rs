//! The MPI programs that are measured, where they find the file, and the server.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::cli::{MpiOptions, Transport, Way};
use crate::interrupt;
use crate::load::{DATA_FILE, FILE_BYTES};
use crate::mpi::{Command, Job, Kit, Reply, Setup};
use crate::subject::list::evicting;
use crate::subject::server::Server;
use crate::workload::Bench;

/// The file of cases that write an array.
const ARRAY_FILE: &str = "dafs-bench.array";

/// Memory touched before what is to come from the disk, at most.
const TOUCHED_BYTES_MAX: usize = 1 << 30;

/// MPI programs on one file system by one way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contender {
    /// `dafs`, `local`, or the name of a mount.
    pub(super) subject: String,
    pub(super) way: Way,
    /// How dafs is reached, where it is dafs.
    pub(super) dafs: Option<Transport>,
    /// Where the files are, as programs name it.
    place: String,
}

impl Contender {
    /// The value of `transport` in rows.
    pub(super) fn transport(&self) -> &str {
        self.dafs.map_or(self.subject.as_str(), |transport| transport.name())
    }
}

/// Files on mounts, removed when dropped.
#[derive(Debug)]
struct Guests(Vec<PathBuf>);

impl Drop for Guests {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// All of them, and the jobs that run so far.
pub(super) struct Arena<'a> {
    kit: &'a Kit,
    contenders: Vec<Contender>,
    // In this order, so that jobs end before their server and before the files are removed.
    jobs: Vec<(Contender, Setup, Job)>,
    pub(super) server: Option<Server>,
    _guests: Guests,
    setup: Setup,
}

impl<'a> Arena<'a> {
    /// A server, and what there is to be measured with jobs of so many ranks. What cannot be is a note.
    pub(super) fn new(
        bench: &mut Bench<'_>,
        kit: &'a Kit,
        options: &MpiOptions,
        ranks: usize,
    ) -> anyhow::Result<Self> {
        let mut ways = options.way.clone();
        ways.dedup();
        let server = match bench.plan.transports.is_empty() {
            true => None,
            false => {
                bench.progress.doing("starting dafs");
                Some(bench.subjects.single_server(bench.plan.poll(), ranks > 1)?)
            }
        };
        let mut contenders = match &server {
            Some(server) => on_dafs(bench, kit, server, &ways)?,
            None => Vec::new(),
        };
        let (guests, places) = places(bench)?;
        for (subject, directory) in places {
            contenders.extend(ways.iter().map(|way| stock(&subject, &directory, *way)));
        }
        let setup = Setup {
            way: Way::Ompio,
            dafs: false,
            ranks,
            cpus: if ranks == 1 { bench.pins.client.clone() } else { bench.pins.all.clone() },
            progress_thread: false,
            key_file: server.as_ref().and_then(Server::key_file).map(Path::to_owned),
        };
        Ok(Self { kit, contenders, jobs: Vec::new(), server, _guests: guests, setup })
    }

    /// Who is measured: those on dafs first.
    pub(super) fn contenders(&self) -> Vec<Contender> {
        self.contenders.clone()
    }

    /// Processes of a job.
    pub(super) fn ranks(&self) -> u32 {
        u32::try_from(self.setup.ranks).unwrap_or(u32::MAX)
    }

    /// The data file for a command.
    pub(super) fn data(&self, contender: &Contender, command: Command) -> Command {
        command.with("file", format!("{}/{DATA_FILE}", contender.place)).with("file_bytes", FILE_BYTES)
    }

    /// The array's file for a command.
    pub(super) fn array(&self, contender: &Contender, command: Command) -> Command {
        command.with("file", format!("{}/{ARRAY_FILE}", contender.place))
    }

    /// Takes the array's file out of the page cache, where it is on this machine.
    pub(super) fn evict(&self, bench: &Bench<'_>, contender: &Contender) -> anyhow::Result<()> {
        let directory = match contender.dafs {
            Some(_) => bench.file.parent().context("the file is in a directory")?,
            None => Path::new(&contender.place),
        };
        let path = directory.join(ARRAY_FILE);
        evicting(true, &path)?()?;
        // A hypervisor may have taken back what was free, and gives it again page by page: who touches it first waits, and not for
        // the disk.
        let len = usize::try_from(std::fs::metadata(path)?.len())?.min(TOUCHED_BYTES_MAX);
        drop(std::hint::black_box(vec![1u8; len]));
        Ok(())
    }

    /// Has a command carried out by the contender's job, which is started if it does not run. `None` when another system failed: a note
    /// says so, and it is measured no more. A failure of dafs is an error.
    pub(super) fn ask(
        &mut self,
        bench: &mut Bench<'_>,
        contender: &Contender,
        progress_thread: bool,
        command: &Command,
    ) -> anyhow::Result<Option<Reply>> {
        if !self.contenders.contains(contender) {
            return Ok(None);
        }
        let dafs = contender.dafs.is_some();
        let setup = Setup { way: contender.way, dafs, progress_thread, ..self.setup.clone() };
        let what = || format!("{} by {}", contender.transport(), contender.way.name());
        match self.job(contender, &setup).and_then(|job| job.ask(command)) {
            Ok(reply) => Ok(Some(reply)),
            Err(error) if dafs || interrupt::requested() => Err(error.context(what())),
            Err(error) => {
                bench.note_once(format!("no more rows for {}: {error:#}", what()));
                self.contenders.retain(|other| other != contender);
                self.jobs.retain(|(other, ..)| other != contender);
                Ok(None)
            }
        }
    }

    fn job(&mut self, contender: &Contender, setup: &Setup) -> anyhow::Result<&mut Job> {
        let found = self.jobs.iter().position(|(other, started, _)| other == contender && started == setup);
        let place = match found {
            Some(place) => place,
            None => {
                self.jobs.push((contender.clone(), setup.clone(), Job::start(self.kit, setup)?));
                self.jobs.len() - 1
            }
        };
        Ok(&mut self.jobs[place].2)
    }
}

/// MPI programs on dafs, by each way that has its driver.
fn on_dafs(
    bench: &mut Bench<'_>,
    kit: &Kit,
    server: &Server,
    ways: &[Way],
) -> anyhow::Result<Vec<Contender>> {
    let mut contenders = Vec::new();
    for &way in ways {
        if let Some(why) = kit.lacks(way) {
            bench.note_once(format!("no rows for dafs by {}: {why}", way.name()));
            continue;
        }
        for &transport in &bench.plan.transports {
            let place = server.address(transport.name(), "bench")?;
            contenders.push(Contender { subject: "dafs".to_owned(), way, dafs: Some(transport), place });
        }
    }
    contenders
        .sort_by_key(|contender| bench.plan.transports.iter().position(|each| Some(*each) == contender.dafs));
    Ok(contenders)
}

/// Other directories with the data file: the server's own, and those of mounts.
fn places(bench: &mut Bench<'_>) -> anyhow::Result<(Guests, Vec<(String, PathBuf)>)> {
    let local = bench.file.parent().context("the file is in a directory")?.to_owned();
    let mut guests = Guests(Vec::new());
    let mut places = vec![("local".to_owned(), local)];
    for mount in &bench.plan.mounts {
        bench.progress.doing(format!("writing the file on {}", mount.directory.display()));
        guests.0.extend([DATA_FILE, ARRAY_FILE].map(|name| mount.directory.join(name)));
        match std::fs::copy(bench.file, mount.directory.join(DATA_FILE)) {
            Ok(_) => places.push((mount.name.clone(), mount.directory.clone())),
            Err(error) => {
                bench.note_once(format!("no rows for {}: cannot write the file: {error}", mount.name))
            }
        }
    }
    Ok((guests, places))
}

/// MPI programs on a directory, without dafs.
pub(super) fn stock(subject: &str, directory: &Path, way: Way) -> Contender {
    Contender { subject: subject.to_owned(), way, dafs: None, place: directory.display().to_string() }
}
