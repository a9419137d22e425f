//! Flags of `dafs stripe`, and those of `dafs cp` about striping.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};
use dafs_stripe::Striping;

use crate::flags::size;

#[derive(Args, Debug)]
#[command(after_help = STRIPE_HELP, arg_required_else_help = true)]
pub(crate) struct Stripe {
    #[command(subcommand)]
    pub(crate) action: StripeAction,
}

#[derive(Debug, Subcommand)]
pub(crate) enum StripeAction {
    /// Make an export of another server, or a directory in one, a data server of an export
    #[command(after_help = "Example: dafs stripe add dafs://meta/data io1 dafs://node1/data")]
    Add(AddServer),
    /// List the data servers of an export, and whether each can be reached
    Servers(Servers),
    /// Show how files are striped, and for directories how files will be that are created there
    Show(Show),
    /// Stripe files that are created in a directory from now on
    #[command(after_help = "Example: dafs stripe set --unit 1M --factor 4 dafs://meta/data/big")]
    Set(Set),
    /// Do not stripe files that are created in a directory from now on
    Unset(Unset),
    /// Find what crashes, and programs that cannot stripe, have left behind
    #[command(after_help = CHECK_HELP)]
    Check(Check),
}

#[derive(Args, Debug)]
pub(crate) struct AddServer {
    /// Export whose files are to be striped
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// Name of the data server: 1 to 32 of a-z, 0-9 and -
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Export of the data server, or a directory in it, as all clients reach it
    #[arg(value_name = "SERVER-URL")]
    pub(crate) server: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Servers {
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Export
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Files and directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Set {
    /// Put so many bytes on one server before the next; K, M, G and T are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "256K", value_parser = size)]
    pub(crate) unit: u64,
    /// Use so many servers [default: all]
    #[arg(long, value_name = "COUNT")]
    pub(crate) factor: Option<usize>,
    /// Begin at this server, counted from 0 [default: any]
    #[arg(long, value_name = "NUMBER")]
    pub(crate) first: Option<usize>,
    /// Directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Unset {
    /// Directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Check {
    /// Remove pieces of no file, and set marks, modes and owners right
    #[arg(long)]
    pub(crate) repair: bool,
    /// Leave pieces of no file alone that are younger than so many seconds: their files may be in the making
    #[arg(long, value_name = "SECONDS", default_value = "3600", value_parser = seconds)]
    pub(crate) age_min: Duration,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Export
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// How `dafs cp` stripes what it creates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Striping")]
pub(crate) struct CopyStriping {
    /// Lay new files over the data servers of the export [default: as the directory says]
    #[arg(long)]
    stripe: bool,
    /// With --stripe, put so many bytes on one server before the next; K, M, G and T are powers of 1024 [default: 256K]
    #[arg(long, value_name = "BYTES", value_parser = size, requires = "stripe")]
    stripe_unit: Option<u64>,
    /// With --stripe, use so many servers [default: all]
    #[arg(long, value_name = "COUNT", requires = "stripe")]
    stripe_factor: Option<usize>,
    /// With --stripe, begin at this server, counted from 0 [default: any]
    #[arg(long, value_name = "NUMBER", requires = "stripe")]
    stripe_first: Option<usize>,
}

impl CopyStriping {
    /// `None`: as the directory says.
    pub(crate) fn wanted(&self) -> Option<Striping> {
        let unit = self.stripe_unit.unwrap_or(Striping::default().unit);
        self.stripe.then_some(Striping { unit, factor: self.stripe_factor, first: self.stripe_first })
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds =
        text.parse().map_err(|_| format!("{text:?} is not a time; give whole seconds, such as 3600"))?;
    Ok(Duration::from_secs(seconds))
}

const STRIPE_HELP: &str = "\
A striped file has its name and attributes on one server, and its data in pieces on several: reads and writes of large files use all of \
them at once. Nothing is stored twice. If a server is lost, so is what it holds.

Examples:
  dafs stripe add dafs://meta/data io1 dafs://node1/data
  dafs stripe add dafs://meta/data io2 dafs://node2/data
  dafs cp --stripe big.dat dafs://meta/data/
  dafs stripe show dafs://meta/data/big.dat";

const CHECK_HELP: &str = "\
The exit status is 0 if nothing is left to repair, and 1 otherwise. All files of the export must be readable for you. \
With --repair, make sure that nobody renames files meanwhile.

Example: dafs stripe check --repair dafs://meta/data";
