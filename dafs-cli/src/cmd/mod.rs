//! The commands, one file each.

mod cat;
mod cp;
mod df;
mod dissector;
mod fence;
mod links;
mod lock;
mod ls;
pub(crate) mod mkdir;
mod mount;
mod mv;
mod pages;
mod query;
mod rm;
mod stat;
mod stripe;
mod umount;

use std::process::ExitCode;

use crate::config::Settings;
use crate::flags::Command;
use crate::remote::Remotes;
use crate::report::Result;

/// Carries a command out and returns the exit status.
pub(crate) fn run(command: &Command, mut settings: Settings) -> Result<ExitCode> {
    if matches!(command, Command::Fence(_)) {
        settings.session.client_id.get_or_insert_with(fence::operator_id);
    }
    if let Command::Mount(flags) = command {
        return mount::run(flags, &settings);
    }
    let remotes = Remotes::new(settings.session);
    match command {
        Command::Ls(flags) => ls::run(flags, &remotes),
        Command::Stat(flags) => stat::run(flags, &remotes),
        Command::Cat(flags) => cat::run(flags, &remotes),
        Command::Cp(flags) => cp::run(flags, &remotes, settings.verbose),
        Command::Mkdir(flags) => mkdir::run(flags, &remotes),
        Command::Rm(flags) => rm::run(flags, &remotes),
        Command::Mv(flags) => mv::run(flags, &remotes),
        Command::Ln(flags) => links::ln(flags, &remotes),
        Command::Readlink(flags) => links::readlink(flags, &remotes),
        Command::Df(flags) => df::run(flags, &remotes),
        Command::Exports(flags) => query::exports(flags, &remotes),
        Command::Ping(flags) => query::ping(flags, &remotes),
        Command::Info(flags) => query::info(flags, &remotes),
        Command::Stats(flags) => query::stats(flags, &remotes),
        Command::Fence(flags) => fence::run(flags, &remotes),
        Command::Lock(flags) => lock::run(flags, &remotes),
        Command::Stripe(flags) => stripe::run(flags, &remotes),
        Command::Mount(_) => unreachable!("it has no session of the command's"),
        Command::Umount(flags) => umount::run(flags),
        Command::Dissector => dissector::run(),
        Command::Completions(flags) => pages::completions(flags),
        Command::Man(flags) => pages::man(flags),
    }
}
