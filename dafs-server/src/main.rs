//! `dafs-server`: flags → checked configuration → a server that runs.
#![deny(unsafe_code)]

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use dafs_server::access::generate_key_line;
use dafs_server::cli::{Cli, Command, Settings};
use dafs_server::config::{Config, Environment};

fn main() -> ExitCode {
    match start(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Where it cannot be said there is nobody to be told so: the exit status remains.
            let _ = writeln!(std::io::stderr(), "dafs-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(cli: Cli) -> anyhow::Result<()> {
    if let Some(Command::Keygen { name }) = &cli.command {
        let line = generate_key_line(name).map_err(anyhow::Error::msg)?;
        return writeln!(std::io::stdout(), "{line}").context("cannot write to standard output");
    }
    let settings = match &cli.config {
        Some(path) => cli.settings.over(Settings::load(path)?),
        None => cli.settings,
    };
    let environment =
        Environment::of_process(settings.listen.is_empty()).context("cannot look at this system")?;
    let has_no_socket = settings.listen.is_empty() && environment.default_socket.is_none();
    let config = Config::from_settings(settings, &environment)?;
    config.log.install().map_err(anyhow::Error::msg)?;
    if has_no_socket {
        tracing::info!(
            "no shared memory, clients of this host use tcp: neither /run/dafs nor $XDG_RUNTIME_DIR can be written; \
             to have it, give --listen shm:///A/SOCKET (and tcp://127.0.0.1), and clients DAFS_SHM_SOCKET=/A/SOCKET"
        );
    }
    raise_descriptor_limit();
    // Before there are threads, and devices that hold on to the credentials they were opened with.
    dafs_server::storage::hold_back().context("cannot give up capabilities")?;
    dafs_server::run(config)
}

/// Connections and open files each take a descriptor, and the usual limit of 1,024 is soon reached.
fn raise_descriptor_limit() {
    match dafs_server::storage::raise_open_files_limit() {
        Ok(limit) => tracing::debug!(limit, "file descriptors"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}
