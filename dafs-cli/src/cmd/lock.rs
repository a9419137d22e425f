//! `dafs lock`.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Error, File, LockConflict, LockKind, LockOptions, OpenOptions, Status};
use rustix::process::{Pid, Signal, kill_process};
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
    take(flags, &target, &file, kind)?;
    let Some((program, arguments)) = flags.command.split_first() else { return Ok(ExitCode::SUCCESS) };
    let ended = carried_out(Command::new(program).args(arguments));
    let is_good = matches!(&ended, Ok(status) if status.success());
    // Nothing was begun where there is no program.
    let is_whole = is_good || ended.is_err() || !(flags.persistent || flags.repair);
    let url = target.url();
    if is_whole && !target.session.is_connected() {
        say(&format!(
            "waiting for the server to release the lock of {url}: the connection is lost, connecting again"
        ));
    }
    // Its end gives the lock back too, but whoever waits would wait for that.
    let unlocked = if is_whole { file.unlock(0..u64::MAX) } else { Ok(()) };
    if !is_whole {
        say(&format!("the program failed: the lock of {url} is broken until somebody repairs it (--repair)"));
    }
    match ended {
        Err(error) => {
            let why = system_message(&error);
            say(&format!("cannot run {}: {why}", quote::shown(program.as_encoded_bytes())));
            Ok(ExitCode::from(CANNOT_RUN))
        }
        Ok(status) => {
            // While it ran, the lock was lost: what it did may have met what others did.
            unlocked.map_err(|error| target.failed("keep the lock of", &error))?;
            Ok(exit_of(status))
        }
    }
}

/// Runs a program to its end, which no signal to this process is: SIGTERM and SIGHUP go on to the program, and a terminal sends SIGINT and
/// SIGQUIT to it by itself. What this process was started to ignore it ignores, and so does the program.
fn carried_out(command: &mut Command) -> io::Result<ExitStatus> {
    let mut caught: Vec<_> = heeded([SIGINT, SIGQUIT, SIGTERM, SIGHUP]).collect();
    // Afterwards they end this process as ever: the server may not answer any more.
    let is_over = Arc::<AtomicBool>::default();
    for signal in &caught {
        signal_hook::flag::register_conditional_default(*signal, Arc::clone(&is_over))?;
    }
    caught.push(SIGCHLD);
    // Before the program begins, which gets none of the handlers.
    let ended = Signals::new(caught).and_then(|signals| waited_for(command, signals));
    is_over.store(true, Ordering::Relaxed);
    ended
}

fn waited_for(command: &mut Command, mut signals: Signals) -> io::Result<ExitStatus> {
    let mut program = command.spawn()?;
    let id = i32::try_from(program.id()).ok().and_then(Pid::from_raw);
    loop {
        for signal in signals.wait() {
            let signal = match signal {
                SIGTERM => Signal::TERM,
                SIGHUP => Signal::HUP,
                _ => continue,
            };
            // The number is its own until its end is asked for.
            if let Some(Err(error)) = id.map(|id| kill_process(id, signal)) {
                tracing::debug!("cannot pass on a signal: {error}");
            }
        }
        if let Some(status) = program.try_wait()? {
            return Ok(status);
        }
    }
}

fn take(flags: &Lock, target: &Target, file: &File, kind: LockKind) -> Result<()> {
    let Lock { mandatory, persistent, repair, .. } = *flags;
    let options = LockOptions { mandatory, persistent, repair, ..LockOptions::default() };
    let locked = match flags.no_wait {
        true => file.try_lock_with(0..u64::MAX, kind, options),
        false => file.lock_with(0..u64::MAX, kind, options),
    };
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
        other => other.map_err(|error| target.failed("lock", &error)),
    }
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
        (_, LockKind::Exclusive) => format!("{holder} (alone)"),
    }
}

/// As shells tell of it.
fn exit_of(status: ExitStatus) -> ExitCode {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
