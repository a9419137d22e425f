//! `dafs completions` and `dafs man`: made of the flags, as `cargo install` installs nothing but programs.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::{Command, CommandFactory};

use crate::flags::{Cli, Completions, Man};
use crate::output::Output;
use crate::quote::quoted;
use crate::report::{Failure, Result, system_message};

/// Prints a script that completes the words of the command in a shell.
pub(crate) fn completions(flags: &Completions) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "dafs", &mut script);
    let mut out = Output::new();
    out.bytes(&script)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the manual pages, one of the command and one of each subcommand.
pub(crate) fn man(flags: &Man) -> Result<ExitCode> {
    use std::os::unix::ffi::OsStrExt;
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    write(command, &flags.directory).map_err(|error| {
        let directory = quoted(flags.directory.as_os_str().as_bytes());
        Failure::text(format!("cannot write manual pages in {directory}: {}", system_message(&error)))
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Subcommands have subcommands. In the place of a date, which would differ with each build, stands the version.
fn write(command: Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write(subcommand.clone(), directory)?;
    }
    let page = clap_mangen::Man::new(command).source("dafs").date(env!("CARGO_PKG_VERSION"));
    page.generate_to(directory).map(drop)
}
