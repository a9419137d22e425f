//! `dafs-server`: flags → checked configuration → a server that runs.
#![deny(unsafe_code)]

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use clap_mangen::Man;
use dafs_server::Hangups;
use dafs_server::access::generate_key_line;
use dafs_server::cli::{Cli, Command, Settings};
use dafs_server::config::{Config, ConfigError, Environment};
use dafs_server::logging::{LogFormat, json_line};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json(std::env::args_os()) => {
            fatal(LogFormat::Json, error.to_string().trim_end());
            return ExitCode::from(2);
        }
        Err(error) => error.exit(),
    };
    // As far as is known before the settings are read.
    let mut format = cli.settings.log_format.unwrap_or_default();
    match start(cli, &mut format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            fatal(format, &format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Says why the server does not serve, whatever is logged.
fn fatal(format: LogFormat, text: &str) {
    let line = match format {
        LogFormat::Text => format!("dafs-server: {text}"),
        LogFormat::Json => json_line("ERROR", text),
    };
    // Where it cannot be said there is nobody to be told so: the exit status remains.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Flags that cannot be read ask for lines in JSON all the same.
fn asks_for_json(arguments: impl Iterator<Item = OsString>) -> bool {
    let arguments: Vec<_> = arguments.collect();
    arguments.iter().any(|word| word == "--log-format=json")
        || arguments.windows(2).any(|pair| pair[0] == "--log-format" && pair[1] == "json")
}

fn start(cli: Cli, format: &mut LogFormat) -> anyhow::Result<()> {
    if let Some(command) = &cli.command {
        return instead(command);
    }
    unblock_signals();
    // Before anything takes time.
    let hangups = Hangups::watch().context("cannot watch for SIGHUP")?;
    let settings = read(&cli)?;
    *format = settings.log_format.unwrap_or_default();
    let environment = Environment::of_process(settings.listen.is_empty())
        .context("cannot read the state of this system")?;
    let has_no_socket = settings.listen.is_empty() && environment.default_socket.is_none();
    let config = Config::from_settings(settings, &environment)?;
    config.log.install().map_err(anyhow::Error::msg)?;
    if has_no_socket {
        tracing::info!(
            "cannot make the default socket: neither /run/dafs nor $XDG_RUNTIME_DIR can be written, so that clients of this host use tcp; \
             for shared memory give --listen shm:///A/SOCKET (and tcp://127.0.0.1), and clients DAFS_SHM_SOCKET=/A/SOCKET"
        );
    }
    raise_descriptor_limit();
    // Before there are threads, and devices that hold on to the credentials they were opened with.
    dafs_server::storage::hold_back().context("cannot give up capabilities")?;
    let began = config.clone();
    let read_again = Box::new(move || Config::from_settings_over(read(&cli)?, &environment, &began));
    dafs_server::run(config, hangups, read_again)
}

/// What can be asked of this program besides serving.
fn instead(command: &Command) -> anyhow::Result<()> {
    match command {
        Command::Keygen { name } => {
            let line = generate_key_line(name).map_err(anyhow::Error::msg)?;
            writeln!(std::io::stdout(), "{line}").context("cannot write to standard output")
        }
        Command::CutOff { cluster, server, store } => {
            let server_uid = Environment::of_process(false)?.server.identity.uid;
            let (address, access) = dafs_server::config::store_of(cluster, store, server_uid)?;
            Ok(dafs_server::cut_off(&address, &access, *server)?)
        }
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "dafs-server", &mut script);
            std::io::stdout().write_all(&script).context("cannot write to standard output")
        }
        Command::Man { directory } => write_pages(directory)
            .with_context(|| format!("cannot write manual pages in {}", directory.display())),
    }
}

/// The manual pages: of the program, and of each subcommand. In the place of a date, which would differ with each build, stands the
/// version.
fn write_pages(directory: &Path) -> std::io::Result<()> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    let commands = program.get_subcommands().cloned().collect::<Vec<_>>();
    for command in commands.into_iter().chain([program]) {
        let page = Man::new(command).section("8").source("dafs").date(env!("CARGO_PKG_VERSION"));
        page.generate_to(directory)?;
    }
    Ok(())
}

/// Whoever starts a server may have blocked the signals that end it: the server would never hear them. To be called before there are
/// threads, which block what this one does.
fn unblock_signals() {
    use nix::sys::signal::{SigSet, Signal};
    let handled: SigSet =
        [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM, Signal::SIGXFSZ].into_iter().collect();
    if let Err(error) = handled.thread_unblock() {
        fatal(LogFormat::default(), &format!("cannot unblock signals: {error}; end the server with SIGKILL"));
    }
}

/// The settings: flags, over the file that they name. Blocking.
fn read(cli: &Cli) -> Result<Settings, ConfigError> {
    Ok(match &cli.config {
        Some(path) => cli.settings.clone().over(Settings::load(path)?),
        None => cli.settings.clone(),
    })
}

/// Connections and open files each take a descriptor, and the usual limit of 1,024 is soon reached.
fn raise_descriptor_limit() {
    match dafs_server::storage::raise_open_files_limit() {
        Ok(limit) => tracing::debug!(limit, "file descriptors"),
        Err(error) => tracing::warn!(%error, "cannot raise the limit of open files"),
    }
}
