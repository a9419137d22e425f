//! `dafs mount`.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use dafs_mount::{Error, Options, Unmounter};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::cmd::umount::mounted_at;
use crate::config::Settings;
use crate::mount_flags::{Cache, Mount};
use crate::quote::quoted;
use crate::remote::parse_path;
use crate::report::{Failure, Result};

/// What a daemon writes to its standard output when it has mounted.
const MOUNTED: &str = "mounted\n";

pub(crate) fn run(flags: &Mount, settings: &Settings) -> Result<ExitCode> {
    let (url, _) = parse_path(&flags.url)?;
    let mounted = mounted_at(&flags.directory);
    if flags.remount {
        return remount(flags, mounted.as_deref());
    }
    if let Some(directory) = mounted {
        let cause = "a dafs export is mounted there already; take it away first with dafs umount";
        return Err(Failure::text(format!(
            "cannot mount at {}: {cause}",
            quoted(directory.as_os_str().as_bytes())
        )));
    }
    if !flags.foreground && !flags.daemon {
        return start_daemon();
    }
    let mut config = settings.session.clone();
    // A program that has a file open does not notice that the server was restarted.
    config.operation_timeout = None;
    config.client_name = Some("dafs mount".into());
    let options = Options {
        cache: match flags.cache {
            Cache::None => dafs_mount::Cache::None,
            Cache::CloseToOpen => dafs_mount::Cache::CloseToOpen,
            Cache::Lasting => dafs_mount::Cache::Lasting,
        },
        name_time: flags.name_time,
        attribute_time: flags.attribute_time,
        read_only: flags.read_only,
        no_exec: flags.no_exec,
        allow_other: rustix::process::geteuid().is_root() && !flags.private,
        writeback: flags.writeback,
        local: !flags.no_passthrough,
    };
    // A shell's directory may go while the mount stays.
    let directory = std::path::absolute(&flags.directory)
        .map_err(|error| Failure::text(format!("cannot mount at {}: {error}", flags.directory.display())))?;
    let mount = dafs_mount::Mount::new(&url, &directory, &config, options).map_err(|error| match error {
        Error::Server(error) => Failure::at("mount", &url, &error),
        other => Failure::text(other.to_string()),
    })?;
    heed_signals(mount.unmounter())?;
    if flags.daemon {
        leave_terminal()?;
    }
    mount.serve().map_err(|error| Failure::text(error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// Only what the kernel alone heeds can be changed while it is mounted.
fn remount(flags: &Mount, mounted: Option<&Path>) -> Result<ExitCode> {
    let failed = |cause: &str| {
        Failure::text(format!("cannot remount {}: {cause}", quoted(flags.directory.as_os_str().as_bytes())))
    };
    let directory = mounted.ok_or_else(|| failed("no dafs export is mounted there"))?;
    dafs_mount::remount(directory, flags.read_only, flags.no_exec)
        .map_err(|error| failed(&error.to_string()))?;
    Ok(ExitCode::SUCCESS)
}

/// The first signal that ends programs takes the mount away; whoever uses it may finish.
fn heed_signals(unmounter: Unmounter) -> Result<()> {
    let failed =
        |error: std::io::Error| Failure::text(format!("cannot mount: signals cannot be caught: {error}"));
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(failed)?;
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || signals.forever().for_each(|_| unmounter.unmount())).map_err(failed)?;
    Ok(())
}

/// Starts this program once more, in the background, and waits until it has mounted. What goes wrong until then it says itself.
fn start_daemon() -> Result<ExitCode> {
    let failed = |error: std::io::Error| {
        Failure::text(format!("cannot start a process that serves the mount: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut daemon = Command::new(program);
    // Flags stand before the places.
    let words = crate::mount_helper::words().map_err(Failure::usage)?;
    let (command, rest) =
        words[1..].split_at(words[1..].iter().position(|word| word == "mount").map_or(0, |at| at + 1));
    daemon.args(command).arg("--daemon").args(rest);
    daemon.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut daemon = daemon.spawn().map_err(failed)?;
    let mut said = String::new();
    if let Some(output) = daemon.stdout.take() {
        BufReader::new(output).read_line(&mut said).map_err(failed)?;
    }
    if said == MOUNTED {
        return Ok(ExitCode::SUCCESS);
    }
    let status = daemon.wait().map_err(failed)?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Tells the parent that it may go, and keeps nothing of its terminal.
fn leave_terminal() -> Result<()> {
    let failed = |error: std::io::Error| Failure::text(format!("cannot leave the terminal: {error}"));
    rustix::process::setsid().map_err(|error| failed(error.into()))?;
    std::env::set_current_dir("/").map_err(failed)?;
    let mut output = std::io::stdout();
    // A parent that has gone need not be told.
    let _ = output.write_all(MOUNTED.as_bytes()).and_then(|()| output.flush());
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| failed(error.into()))?;
    rustix::stdio::dup2_stderr(&null).map_err(|error| failed(error.into()))
}
