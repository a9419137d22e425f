//! `dafs lock`.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{
    Completions, Error, File, LockConflict, LockKind, LockOptions, OpenOptions, Pending, Status,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::flags::Lock;
use crate::quote;
use crate::remote::{Remotes, Target};
use crate::report::{Failure, Result, say, system_message};
use crate::signals::heeded;

/// What flock(1) and shells say of a program that cannot be run.
const CANNOT_RUN: u8 = 127;

pub(crate) fn run(flags: &Lock, remotes: &Remotes) -> Result<ExitCode> {
    let target = remotes.target(&flags.url)?;
    let kind = if flags.shared { LockKind::Shared } else { LockKind::Exclusive };
    let mut options = OpenOptions::new();
    options.read(true).write(!flags.shared).create(!flags.shared);
    let file = target
        .export
        .open_with(&target.path, &options)
        .map_err(|error| target.failed(if flags.shared { "open" } else { "open or make" }, &error))?;
    let mut caught = Caught::new()
        .map_err(|error| Failure::text(format!("cannot catch signals: {}", system_message(&error))))?;
    let was_broken = take(flags, &target, &file, kind, &mut caught)?;
    let Some((program, arguments)) = flags.command.split_first() else { return Ok(ExitCode::SUCCESS) };
    let ended = carried_out(Command::new(program).args(arguments), &mut caught.signals);
    caught.let_through();
    let is_good = matches!(&ended, Ok(status) if status.success());
    // Nothing was begun where there is no program, and nothing repaired.
    let is_as_before = ended.is_err() && !was_broken;
    let is_whole = is_good || is_as_before || !(flags.persistent || flags.repair);
    let url = target.url();
    if is_whole && !target.session.is_connected() {
        say(&format!(
            "waiting for the server to release the lock of {url}: the connection is lost, connecting again"
        ));
    }
    // Its end gives the lock back too, but whoever waits would wait for that.
    let unlocked = if is_whole { file.unlock(0..u64::MAX) } else { Ok(()) };
    if !is_whole {
        let why = if ended.is_err() { "nothing was repaired" } else { "the program failed" };
        say(&format!("{why}: the lock of {url} is broken until somebody repairs it (--repair)"));
    }
    match ended {
        Err(error) => {
            let why = system_message(&error);
            say(&format!("cannot run {}: {why}", quote::shown(program.as_encoded_bytes())));
            Ok(ExitCode::from(CANNOT_RUN))
        }
        Ok(status) => {
            // While it ran, the lock was lost: what it did may have met what others did.
            match unlocked.map_err(|error| target.failed("keep the lock of", &error)) {
                Err(failure) if !status.success() => say(&failure.to_string()),
                kept => kept?,
            }
            Ok(exit_of(status))
        }
    }
}

/// The signals that end a program. They end this process only when they are let through.
struct Caught {
    signals: Signals,
    /// Readable since one came.
    told: UnixStream,
    is_let_through: Arc<AtomicBool>,
}

impl Caught {
    /// Catches them from now on, but for those that this process was started to ignore: so does the program.
    fn new() -> io::Result<Self> {
        let caught: Vec<_> = heeded([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).collect();
        let is_let_through = Arc::<AtomicBool>::default();
        for signal in &caught {
            signal_hook::flag::register_conditional_default(*signal, Arc::clone(&is_let_through))?;
        }
        // Where it is ignored, no exit status would be kept.
        signal_hook::flag::register(SIGCHLD, Arc::default())?;
        let signals = Signals::new(&caught)?;
        let (told, tell) = UnixStream::pair()?;
        told.set_nonblocking(true)?;
        // Behind the handlers that note them: who is told finds them noted.
        for signal in caught {
            signal_hook::low_level::pipe::register(signal, tell.try_clone()?)?;
        }
        Ok(Self { signals, told, is_let_through })
    }

    /// From now on they end this process as ever: the server may not reply any more.
    fn let_through(&self) {
        self.is_let_through.store(true, Ordering::Relaxed);
    }
}

/// Runs a program to its end, which no signal to this process is: SIGTERM and SIGHUP go on to the program, and a terminal sends SIGINT and
/// SIGQUIT to it by itself.
fn carried_out(command: &mut Command, signals: &mut Signals) -> io::Result<ExitStatus> {
    let mut program = command.spawn()?;
    let Some(id) = i32::try_from(program.id()).ok().and_then(Pid::from_raw) else { return program.wait() };
    let handle = signals.handle();
    std::thread::scope(|scope| {
        let waiting = std::thread::Builder::new().name("program".into()).spawn_scoped(scope, move || {
            // Not by SIGCHLD, which this process may have been started to block. The number stays the program's own.
            let ended = || waitid(WaitId::Pid(id), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
            let _ = rustix::io::retry_on_intr(ended);
            handle.close();
        });
        if let Err(error) = waiting {
            tracing::debug!("signals are not passed on: {error}");
            return;
        }
        for signal in signals.forever() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            if let Err(error) = kill_process(id, signal) {
                tracing::debug!("cannot pass on a signal: {error}");
            }
        }
    });
    program.wait()
}

/// Waits for a lock; `None` when a signal came first, or as soon. `completions` were made before the lock was asked for.
fn granted(
    locking: Pending<dafs_client::Result<()>>,
    completions: &Completions,
    caught: &mut Caught,
) -> dafs_client::Result<Option<dafs_client::Result<()>>> {
    let id = locking.id();
    let mut has_ended = id.is_none();
    loop {
        while completions.turn() {}
        while let Some(ended) = completions.next() {
            has_ended |= Some(ended) == id;
        }
        if caught.signals.pending().next().is_some() {
            caught.let_through();
            // Whatever became of it, it is given back.
            let _ = locking.cancel();
            return Ok(None);
        }
        if has_ended {
            return Ok(Some(locking.wait()));
        }
        if completions.arm()? {
            let mut sources = [completions.as_fd(), caught.told.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            // Interrupted, or whatever else: it looks.
            let _ = poll(&mut sources, None);
            let _ = (&caught.told).read(&mut [0; 64]);
        }
    }
}

/// Locks; whether what was locked had been broken.
fn take(flags: &Lock, target: &Target, file: &File, kind: LockKind, caught: &mut Caught) -> Result<bool> {
    let Lock { mandatory, persistent, repair, .. } = *flags;
    let options = LockOptions { mandatory, persistent: persistent || repair, ..LockOptions::default() };
    let mut locked = take_with(flags, target, file, kind, options, caught)?;
    // Only who was refused knows that it was broken.
    let was_broken = repair && matches!(locked, Err(Error::Status { status: Status::LOCK_BROKEN, .. }));
    if was_broken {
        locked = take_with(flags, target, file, kind, LockOptions { repair, ..options }, caught)?;
    }
    if locked.is_err() {
        // Whoever asks next waits as long as the server is away.
        caught.let_through();
    }
    match locked {
        Err(Error::Status { status: Status::LOCK_BROKEN, .. }) => {
            let holder = file.test_lock(0..u64::MAX, kind).ok().flatten();
            let holder = holder.as_ref().map_or_else(|| "a client".to_owned(), shown);
            Err(Failure::text(format!(
                "cannot lock {}: it is broken: {holder} ended without releasing it; repair what it guards with --repair",
                target.url()
            )))
        }
        Err(Error::Status { status: Status::LOCKED, .. }) => {
            let holder = file.test_lock(0..u64::MAX, kind).ok().flatten();
            let holder = holder.as_ref().map_or_else(|| "another client".to_owned(), shown);
            Err(Failure::text(format!(
                "cannot lock {}: {holder} has it; leave --no-wait out to wait",
                target.url()
            )))
        }
        other => other.map(|()| was_broken).map_err(|error| target.failed("lock", &error)),
    }
}

/// Asks for the lock, and waits unless it is not to. A signal meanwhile is the error.
fn take_with(
    flags: &Lock,
    target: &Target,
    file: &File,
    kind: LockKind,
    options: LockOptions,
    caught: &mut Caught,
) -> Result<dafs_client::Result<()>> {
    let completions = match target.session.completions() {
        Ok(completions) => completions,
        Err(error) => return Ok(Err(error)),
    };
    let locking = match flags.no_wait {
        true => file.submit_try_lock_with(0..u64::MAX, kind, options),
        false => file.submit_lock_with(0..u64::MAX, kind, options),
    };
    match granted(locking, &completions, caught) {
        Ok(Some(locked)) => return Ok(locked),
        Ok(None) => {}
        Err(error) => return Ok(Err(error)),
    }
    // A persistent lock would be broken, although nothing was begun. One that was broken before stays so.
    if options.persistent && !options.repair && target.session.is_connected() {
        let _ = file.unlock(0..u64::MAX);
    }
    // Not to keep others out until the server misses this client.
    target.session.close();
    Err(Failure::Interrupted)
}

fn shown(conflict: &LockConflict) -> String {
    let id: String = conflict.client_id.iter().map(|byte| format!("{byte:02x}")).collect();
    let holder = match (conflict.is_local(), conflict.owner) {
        (true, 0) => "a process of the server's host".to_owned(),
        (true, process) => format!("process {process} of the server's host"),
        (false, _) => format!("client {id}"),
    };
    match (conflict.broken, conflict.kind) {
        (true, _) => holder,
        (_, LockKind::Shared) => format!("{holder} (shared)"),
        (_, LockKind::Exclusive) => format!("{holder} (exclusive)"),
    }
}

/// As shells tell of it.
fn exit_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
