//! `dafs lock`.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};

use dafs_client::{Error, File, LockConflict, LockKind, LockOptions, OpenOptions, Status};

use crate::flags::Lock;
use crate::quote;
use crate::remote::{Remotes, Target};
use crate::report::{Failure, Result, say, system_message};

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
    let ended = Command::new(program).args(arguments).status();
    let is_good = matches!(&ended, Ok(status) if status.success());
    // Nothing was begun where there is no program.
    let is_whole = is_good || ended.is_err() || !(flags.persistent || flags.repair);
    // Its end gives the lock back too, but whoever waits would wait for that.
    let unlocked = if is_whole { file.unlock(0..u64::MAX) } else { Ok(()) };
    if !is_whole {
        let url = target.url();
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
