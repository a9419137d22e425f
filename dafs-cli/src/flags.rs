//! Flags, as written; [`crate::config::Settings`] checks them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Looks at, copies and changes files of a dafs server.
#[derive(Debug, Parser)]
#[command(name = "dafs", version, after_help = HELP, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of all commands.
#[derive(Args, Debug, Default)]
pub(crate) struct Global {
    /// The key to prove, where the server demands one: a file with a line NAME:SECRET, as `dafs-server keygen` prints
    /// it, that only you can read
    #[arg(long, value_name = "FILE", global = true, env = "DAFS_KEY_FILE", help_heading = "Connection")]
    pub(crate) key_file: Option<PathBuf>,
    /// How to wait for replies: sleep at once, spin all the time, or spin while that pays
    #[arg(long, value_enum, default_value_t, global = true, help_heading = "Connection")]
    pub(crate) poll: Poll,
    /// How data travels: in messages, by RDMA of the server, or by what the server's thresholds say is faster
    #[arg(long, value_enum, default_value_t, global = true, help_heading = "Connection")]
    pub(crate) method: Method,
    /// Give up an operation, or an attempt to connect, after this many seconds
    #[arg(long, value_name = "SECONDS", global = true, help_heading = "Connection")]
    pub(crate) timeout: Option<f64>,
    /// Say more; twice: log what the library does
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Poll {
    /// Sleep at once; the kernel wakes the command
    Event,
    /// Spin: the lowest latency, one CPU always busy
    Busy,
    /// Spin for a short time while that pays, then sleep
    #[default]
    Adaptive,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Method {
    /// What is faster at that size
    #[default]
    Auto,
    /// Always in messages
    Inline,
    /// Always by RDMA of the server, from and to the program's memory
    Direct,
    /// By RDMA, through registered buffers of the library
    Staged,
    /// Through buffers that client and server register once
    Fast,
    /// By RDMA of the client, from and to buffers of the server
    Client,
    /// Writes by RDMA of the client, reads by RDMA of the server
    Hybrid,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List directories
    Ls(Ls),
    /// Show all attributes of files
    Stat(Stat),
    /// Write files to standard output
    Cat(Cat),
    /// Copy files and trees: to a server, from one, or between servers
    Cp(Cp),
    /// Make directories
    Mkdir(Mkdir),
    /// Remove files and trees
    Rm(Rm),
    /// Rename, or move within an export
    Mv(Mv),
    /// Make links
    Ln(Ln),
    /// Show what symbolic links point to
    Readlink(Urls),
    /// Show space: of one export, or of all that the server lets you mount
    Df(Df),
    /// List the exports that the server lets you mount
    Exports(Queries),
    /// Measure round trips to the server
    Ping(Ping),
    /// Show what was agreed with the server: provider and why, limits, thresholds, identity
    Info(Info),
    /// Show the server's counters
    Stats(Queries),
}

#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  dafs ls -l dafs://localhost/data\n  dafs ls -lR 'dafs+shm:///run/dafs/dafs.sock:/data/tree'"
)]
pub(crate) struct Ls {
    /// Long format: type and mode, links, owner, group, size, time, name
    #[arg(short)]
    pub(crate) long: bool,
    /// Also names that begin with a dot
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Directories below, too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// The directory itself, not its entries
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Sizes with K, M, G
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
    /// In the server's order: begins at once with a huge directory
    #[arg(short = 'U', long)]
    pub(crate) unsorted: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// What to list
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs stat dafs://localhost/data/file")]
pub(crate) struct Stat {
    /// Follow a symbolic link at the end
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// What to show
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs cat --offset 1M --length 4K dafs://localhost/data/file | xxd")]
pub(crate) struct Cat {
    /// Begin here: bytes, or with K, M, G, T (powers of 1024)
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size)]
    pub(crate) offset: u64,
    /// Write at most this much
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) length: Option<u64>,
    /// Files
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = CP_HELP, override_usage = "dafs cp [OPTIONS] SOURCE... DESTINATION")]
pub(crate) struct Cp {
    /// Directories with all that is in them; symbolic links stay symbolic links
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Keep owner, group, and the bits that run programs as them or give files to them; only where the destination lets you act as root
    #[arg(short, long)]
    pub(crate) preserve: bool,
    /// Do not keep owner and group, nor those bits: as without --preserve
    #[arg(long)]
    pub(crate) no_owner: bool,
    /// Write files where they shall be, not under a temporary name first: for a full disk, or to keep the file that is there. An
    /// interrupted copy leaves a part
    #[arg(long)]
    pub(crate) inplace: bool,
    /// Do not wait until the server has the data on its disk: faster; a crash of the server may lose what was copied
    #[arg(long)]
    pub(crate) no_sync: bool,
    /// Files copied at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(crate) jobs: u16,
    /// No progress, no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// What to copy, and last where to: paths and URLs
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub(crate) operands: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs mkdir -p dafs://localhost/data/a/b/c")]
pub(crate) struct Mkdir {
    /// Also missing directories above; it is no error when it exists
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Permission bits, octal, of the directories named, not of those above [default: 777 less the umask]
    #[arg(short, long, value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// Directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Symbolic links are removed, never followed.\n\nExample: dafs rm -r dafs://localhost/data/tree"
)]
pub(crate) struct Rm {
    /// Directories with all that is in them
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// It is no error when there is nothing to remove
    #[arg(short, long)]
    pub(crate) force: bool,
    /// What to remove
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "dafs mv [OPTIONS] SOURCE... DESTINATION",
    after_help = "Only within one export: between exports, copy with `dafs cp -r`, then `dafs rm -r`.\n\n\
                  Example: dafs mv dafs://localhost/data/old dafs://localhost/data/new"
)]
pub(crate) struct Mv {
    /// Do not replace an existing file
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    /// What to move, and last where to
    #[arg(required = true, num_args = 2.., value_name = "URL")]
    pub(crate) operands: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dafs ln -s ../target dafs://localhost/data/link\n\
                  \x20 dafs ln dafs://localhost/data/file dafs://localhost/data/second-name")]
pub(crate) struct Ln {
    /// A symbolic link: TARGET is any text
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace an existing name
    #[arg(short, long)]
    pub(crate) force: bool,
    /// What the link stands for: a URL, or with -s any text
    pub(crate) target: OsString,
    /// The new name
    #[arg(value_name = "URL")]
    pub(crate) link: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Urls {
    /// What to show
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = "Example: dafs df -h dafs://localhost")]
pub(crate) struct Df {
    /// Sizes with K, M, G
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
    /// One JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Servers, exports or paths
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Queries {
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The server
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dafs info dafs://localhost\n  dafs info --devices")]
pub(crate) struct Info {
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Instead of a server, the RDMA devices of this machine, or what is missing to use them
    #[arg(long, conflicts_with = "url")]
    pub(crate) devices: bool,
    /// The server
    #[arg(value_name = "URL", required_unless_present = "devices")]
    pub(crate) url: Option<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs ping -c 1000 dafs://localhost")]
pub(crate) struct Ping {
    /// Round trips
    #[arg(short, long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// One JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// The server
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

/// `4096`, `4K`, `1M`.
fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size: write bytes, or a number with K, M, G or T, such as 64K");
    let (digits, shift) = match text.as_bytes().last().map(u8::to_ascii_uppercase) {
        Some(b'K') => (&text[..text.len() - 1], 10),
        Some(b'M') => (&text[..text.len() - 1], 20),
        Some(b'G') => (&text[..text.len() - 1], 30),
        Some(b'T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err(format!("{text:?} are no permission bits: write them in octal, such as 755")),
    }
}

const HELP: &str = "\
Where things are:
  dafs://HOST/EXPORT/PATH                   shared memory when the server is on this host, else RDMA where there is a
                                            device and the server listens there, else TCP
  dafs+tcp://HOST:PORT/EXPORT/PATH          TCP
  dafs+verbs://HOST:PORT/EXPORT/PATH        RDMA (in builds with it: see dafs info --devices)
  dafs+shm:///SOCKET/PATH:/EXPORT/PATH      shared memory: the server's socket, a colon, then export and path

Examples:
  dafs exports dafs://localhost
  dafs ls -l dafs://localhost/data
  dafs cp -r ./tree dafs+tcp://192.0.2.7:12049/data/tree
  dafs cp -r 'dafs+shm:///tmp/dafs.sock:/data/tree' ./back
  dafs info dafs://localhost

Exit status: 0 all done; 1 something failed (said on standard error, the rest was done); 2 wrong usage; 130 interrupted.";

const CP_HELP: &str = "\
Modes, times (to the nanosecond), symbolic links, hard links within a tree and holes are kept; owners and set-id bits with
--preserve. A file is copied to a temporary name beside its own, .dafs-cp-..., and renamed when it is whole: until then what
was there before stays. Written in place are files with several names, what a symbolic link stands for that you named,
devices and pipes such as /dev/stdout, and files in a directory where you may make none. As with cp, what is copied goes into
DESTINATION when that is a directory, and becomes DESTINATION otherwise. Symbolic links that are in the way in a
destination tree are replaced, never followed. With -r fifos, devices and sockets are left out, said, and counted as
failures; without, a fifo or device of this machine is read to its end. After Ctrl-C the command ends in order as long as
the server answers, and else within a few seconds; a second Ctrl-C ends it at once.

Examples:
  dafs cp -r ./tree dafs://localhost/data/tree
  dafs cp dafs://localhost/data/a dafs://localhost/data/b .
  dafs cp -r dafs://one/data/tree dafs://two/backup/tree";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn size_with_and_without_suffix_is_read_and_nonsense_refused() {
        assert_eq!(size("0"), Ok(0));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1T"), Ok(1 << 40));
        for wrong in ["", "K", "-1", "1X", "99999999999T", "1.5M"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn octal_mode_above_permission_bits_is_refused() {
        assert_eq!(octal("7777"), Ok(0o7777));
        assert!(octal("10000").is_err() && octal("8").is_err());
    }
}
