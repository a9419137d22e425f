//! Flags, as written; [`crate::config::Settings`] checks them.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

use crate::mount_flags::{Mount, Umount};
use crate::stripe_flags::{CopyStriping, Stripe};

/// List, copy and change files on a dafs server.
#[derive(Debug, Parser)]
#[command(name = "dafs", version, after_help = HELP, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// What the command line asks for; where it asks for nothing that can be, the process ends. A variable of the environment that is empty
    /// counts as not set.
    pub(crate) fn read() -> Self {
        let mut command = Self::command().mut_args(|arg| {
            match arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty()) {
                true => arg.env(Resettable::Reset),
                false => arg,
            }
        });
        let given = crate::mount_helper::words().unwrap_or_else(|refused| {
            eprintln!("dafs: {refused}");
            std::process::exit(2)
        });
        let words = command.try_get_matches_from_mut(given);
        let cli = words.and_then(|words| Self::from_arg_matches(&words));
        cli.unwrap_or_else(|error| {
            let error = error.format(&mut command);
            // Help goes to standard output, where it may not arrive.
            match error.use_stderr() {
                true => error.exit(),
                false => crate::output::end_with(&error),
            }
        })
    }
}

/// Flags of all commands.
#[derive(Args, Debug, Default)]
pub(crate) struct Global {
    /// Prove the key in this file, a line NAME:SECRET; only you may have access to the file [default: none]
    #[arg(long, value_name = "FILE", global = true, env = "DAFS_KEY_FILE", help_heading = "Connection")]
    pub(crate) key_file: Option<PathBuf>,
    /// How to wait for replies
    #[arg(long, value_enum, default_value_t, global = true, help_heading = "Connection")]
    pub(crate) poll: Poll,
    /// How to move data
    #[arg(long, value_enum, default_value_t, global = true, help_heading = "Connection")]
    pub(crate) method: Method,
    /// Wait at most this many seconds for an operation, for a connection, or for a server that is down [default: no limit for operations;
    /// 10 for a connection; 60 for a server, no limit in cp and lock]
    #[arg(long, value_name = "SECONDS", value_parser = seconds, global = true, help_heading = "Connection")]
    pub(crate) timeout: Option<Duration>,
    /// Client id of this program, 32 hexadecimal digits; fences can name it [default: that of the host]
    #[arg(long, value_name = "ID", value_parser = client_id, global = true, env = "DAFS_CLIENT_ID", help_heading = "Connection")]
    pub(crate) client_id: Option<[u8; 16]>,
    /// Print more; -vv also logs what the library does
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Poll {
    /// Sleep in the kernel
    Event,
    /// Spin: lowest latency, one CPU always busy
    Busy,
    /// Spin for a short time, then sleep
    #[default]
    Adaptive,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Method {
    /// Whatever the server measured to be fastest for the size
    #[default]
    Auto,
    /// In messages
    Inline,
    /// The server's RDMA, from and to the program's memory
    Direct,
    /// The server's RDMA, through bounce buffers
    Bounced,
    /// The sender's RDMA, into buffers that client and server register once
    Eager,
    /// The client's RDMA, from and to buffers of the server
    ClientInitiated,
    /// The client's RDMA for writes, the server's for reads
    Hybrid,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List directories
    Ls(Ls),
    /// Show all attributes of files
    Stat(Stat),
    /// Print files
    Cat(Cat),
    /// Copy files and trees to a server, from one, or between servers
    Cp(Cp),
    /// Make directories
    Mkdir(Mkdir),
    /// Remove files and trees
    Rm(Rm),
    /// Rename files, or move them within an export
    Mv(Mv),
    /// Make links
    Ln(Ln),
    /// Show the targets of symbolic links
    Readlink(Urls),
    /// Show the space of one export, or of all that you may mount
    Df(Df),
    /// List the exports that you may mount
    Exports(Queries),
    /// Measure round trips to the server
    Ping(Ping),
    /// Show transport, limits, thresholds and identity of a session
    Info(Info),
    /// Show the counters of a server
    Stats(Queries),
    /// Show or change who is fenced off an export
    Fence(Fence),
    /// Run a program while a file is locked
    Lock(Lock),
    /// Lay files over several servers
    Stripe(Stripe),
    /// Mount an export, so that every program can use it
    Mount(Mount),
    /// Take a mount away
    #[command(visible_alias = "unmount")]
    Umount(Umount),
    /// Print a script that makes Wireshark decode dafs over TCP
    #[command(after_help = DISSECTOR_HELP)]
    Dissector,
    /// Print a script with which a shell completes words of dafs
    #[command(
        after_help = "Example: dafs completions bash > ~/.local/share/bash-completion/completions/dafs"
    )]
    Completions(Completions),
    /// Write the manual pages of dafs to a directory
    #[command(after_help = "Example: mkdir -p ~/.local/share/man/man1 && dafs man ~/.local/share/man/man1")]
    Man(Man),
}

#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Man {
    /// The directory; existing pages are replaced
    pub(crate) directory: PathBuf,
}

#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:\n  dafs ls -l dafs://localhost/data\n  dafs ls -lR 'dafs+shm:///run/dafs/dafs.sock:/data/tree'"
)]
pub(crate) struct Ls {
    /// Also show type, mode, links, owner, group, size in bytes and time
    #[arg(short)]
    pub(crate) long: bool,
    /// Also list names that begin with a dot
    #[arg(short, long)]
    pub(crate) all: bool,
    /// Also list the directories below
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// List the directory itself, not its entries
    #[arg(short, long)]
    pub(crate) directory: bool,
    /// Show sizes with K, M, G (powers of 1024)
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
    /// Do not sort; output starts at once even for a huge directory
    #[arg(short = 'U', long)]
    pub(crate) unsorted: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Directories and files
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs stat dafs://localhost/data/file")]
pub(crate) struct Stat {
    /// Follow a symbolic link at the end of the path
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Files
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs cat --offset 1M --length 4K dafs://localhost/data/file | xxd")]
pub(crate) struct Cat {
    /// Start at this byte; K, M, G and T are powers of 1024
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size)]
    pub(crate) offset: u64,
    /// Print at most this many bytes; K, M, G and T are powers of 1024 [default: all]
    #[arg(long, value_name = "BYTES", value_parser = size)]
    pub(crate) length: Option<u64>,
    /// Files
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = CP_HELP, override_usage = "dafs cp [OPTIONS] SOURCE... DESTINATION")]
pub(crate) struct Cp {
    /// Copy directories with their content, and symbolic links as links
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Keep access control lists, extended attributes (user.*), and modes without regard to the umask. Keep owner, group and set-id bits if
    /// you may change owners at the destination. Also set the attributes of existing files and directories
    #[arg(short, long)]
    pub(crate) preserve: bool,
    /// The same as -r --preserve
    #[arg(short, long)]
    pub(crate) archive: bool,
    /// Do not keep owner, group and set-id bits; overrides --preserve
    #[arg(long)]
    pub(crate) no_owner: bool,
    /// Write files under their final names; an interrupted copy leaves incomplete files
    #[arg(long)]
    pub(crate) inplace: bool,
    /// Do not wait until the data is durable; a crash of the server may lose it
    #[arg(long)]
    pub(crate) no_sync: bool,
    #[command(flatten)]
    pub(crate) striping: CopyStriping,
    /// Copy this many files at the same time, 1 to 64 [default: 4; up to 32 where the server is far away]
    #[arg(long, value_name = "COUNT", value_parser = jobs)]
    pub(crate) jobs: Option<u16>,
    /// Print no progress and no summary
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Sources, then the destination: paths and URLs
    #[arg(required = true, num_args = 1.., value_name = "PATH")]
    pub(crate) operands: Vec<OsString>,
}

impl Cp {
    /// The same, with what `--archive` stands for.
    pub(crate) fn with_archive(mut self) -> Self {
        self.recursive |= self.archive;
        self.preserve |= self.archive;
        self
    }
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs mkdir -p dafs://localhost/data/a/b/c")]
pub(crate) struct Mkdir {
    /// Also make missing parent directories; an existing directory is not an error
    #[arg(short, long)]
    pub(crate) parents: bool,
    /// Set these permission bits, octal, except on parent directories [default: 777 less the umask]
    #[arg(short, long, value_parser = octal)]
    pub(crate) mode: Option<u32>,
    /// Directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(
    after_help = "dafs rm removes symbolic links and never follows them.\n\nExample: dafs rm -r dafs://localhost/data/tree"
)]
pub(crate) struct Rm {
    /// Remove directories with their content
    #[arg(short, long, visible_short_alias = 'R')]
    pub(crate) recursive: bool,
    /// Ignore files that do not exist
    #[arg(short, long)]
    pub(crate) force: bool,
    /// Files and directories
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(
    override_usage = "dafs mv [OPTIONS] SOURCE... DESTINATION",
    after_help = "dafs mv works within one export. Between exports, use `dafs cp -r`, then `dafs rm -r`.\n\n\
                  Example: dafs mv dafs://localhost/data/old dafs://localhost/data/new"
)]
pub(crate) struct Mv {
    /// Do not replace an existing file
    #[arg(short, long)]
    pub(crate) no_clobber: bool,
    /// Sources, then the destination
    #[arg(required = true, num_args = 1.., value_name = "URL")]
    pub(crate) operands: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dafs ln -s ../target dafs://localhost/data/link\n\
                  \x20 dafs ln dafs://localhost/data/file dafs://localhost/data/second-name")]
pub(crate) struct Ln {
    /// Make a symbolic link, whose TARGET is any text
    #[arg(short, long)]
    pub(crate) symbolic: bool,
    /// Replace an existing file
    #[arg(short, long)]
    pub(crate) force: bool,
    /// File to link to: a URL, or any text with -s
    pub(crate) target: OsString,
    /// New name
    #[arg(value_name = "URL")]
    pub(crate) link: OsString,
}

#[derive(Args, Debug)]
pub(crate) struct Urls {
    /// Files
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = "Example: dafs df -h dafs://localhost")]
pub(crate) struct Df {
    /// Show sizes with K, M, G (powers of 1024)
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::HelpLong)]
    pub(crate) help: Option<bool>,
    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
    /// Servers, exports or paths
    #[arg(required = true, value_name = "URL")]
    pub(crate) urls: Vec<OsString>,
}

#[derive(Args, Debug)]
pub(crate) struct Queries {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Server
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dafs info dafs://localhost\n  dafs info --devices")]
pub(crate) struct Info {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Show the RDMA devices of this machine, or what is missing to use them
    #[arg(long, conflicts_with = "url")]
    pub(crate) devices: bool,
    /// Server
    #[arg(value_name = "URL", required_unless_present = "devices")]
    pub(crate) url: Option<OsString>,
}

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs ping -c 1000 dafs://localhost")]
pub(crate) struct Ping {
    /// Measure this many round trips
    #[arg(short, long, default_value_t = 5, value_parser = count)]
    pub(crate) count: u32,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Server
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
}

#[derive(Args, Debug)]
#[command(after_help = LOCK_HELP)]
pub(crate) struct Lock {
    /// Take a shared lock, which others may hold too; the file must exist
    #[arg(short, long)]
    pub(crate) shared: bool,
    /// Fail instead of waiting if another client has the lock
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// Make the lock mandatory: other clients cannot read or write the file without a lock
    #[arg(short, long)]
    pub(crate) mandatory: bool,
    /// If the program fails, leave the lock broken: nobody else gets it until somebody repairs the data with --repair
    #[arg(short, long, conflicts_with = "shared")]
    pub(crate) persistent: bool,
    /// Take over a broken lock, so that the program can repair the data; implies --persistent
    #[arg(short, long, conflicts_with = "shared")]
    pub(crate) repair: bool,
    /// File to lock; created if it does not exist
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// Program to run, with its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

const LOCK_HELP: &str = "\
The lock covers the whole file. It is exclusive unless --shared is given, and ends with the program. dafs lock exits with the \
program's status, or with 127 if the program cannot be run. It passes SIGTERM and SIGHUP on to the program. Persistent locks \
need a server with --state-file.

If the server goes down, dafs lock waits for it without limit, unless --timeout is given. A server with --state-file keeps the \
lock for the program meanwhile.

Do not suspend dafs lock with Ctrl-Z: if it is stopped for longer than the server's lease, it loses the lock while the program \
continues.

Examples:
  dafs lock dafs://localhost/data/lock ./nightly-job
  dafs lock --no-wait dafs://localhost/data/lock sh -c 'echo I am alone'
  dafs lock --persistent dafs://localhost/data/lock ./move-money
  dafs lock --repair dafs://localhost/data/lock ./look-after-the-money";

#[derive(Args, Debug)]
#[command(after_help = FENCE_HELP)]
pub(crate) struct Fence {
    #[command(subcommand)]
    pub(crate) command: FenceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Show who is fenced off an export
    List {
        /// Print one JSON object
        #[arg(long)]
        json: bool,
        /// Export
        #[arg(value_name = "URL")]
        url: OsString,
    },
    /// Fence clients off an export; with --allow, fence off everybody else. A client that is fenced off by key or address cannot change the
    /// fence itself
    Add {
        #[command(flatten)]
        entries: FenceEntries,
        /// Fence off all clients that the list does not name
        #[arg(long)]
        allow: bool,
        /// Export
        #[arg(value_name = "URL")]
        url: OsString,
    },
    /// Remove clients from the list of an export
    Remove {
        #[command(flatten)]
        entries: FenceEntries,
        /// Export
        #[arg(value_name = "URL")]
        url: OsString,
    },
    /// Lift the fence of an export
    Clear {
        /// Export
        #[arg(value_name = "URL")]
        url: OsString,
    },
}

/// Whom a fence names.
#[derive(Args, Clone, Debug)]
pub(crate) struct FenceEntries {
    /// The client with this id, 32 hexadecimal digits, as the server's log and `dafs info` show it; may be repeated
    #[arg(long, value_name = "ID", value_parser = client_id)]
    pub(crate) client: Vec<[u8; 16]>,
    /// Clients that have proven the key of this name; may be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) key: Vec<String>,
    /// Clients at this address, in this network (10.0.0.0/8), or on the server's host (`local`); may be repeated
    #[arg(long, value_name = "RANGE")]
    pub(crate) address: Vec<String>,
}

/// `2.5`.
fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| format!("{text:?} is not a time; give seconds above 0, such as 2.5"))
}

fn jobs(text: &str) -> Result<u16, String> {
    let jobs = text.parse().ok().filter(|jobs| (1..=64).contains(jobs));
    jobs.ok_or_else(|| format!("{text:?} is not a number of files; give one from 1 to 64"))
}

fn count(text: &str) -> Result<u32, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| format!("{text:?} is not a count; give a number from 1 to {}", u32::MAX))
}

/// 32 hexadecimal digits.
fn client_id(text: &str) -> Result<[u8; 16], String> {
    let is_id = text.len() == 32 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    let id = u128::from_str_radix(text, 16).ok().filter(|_| is_id);
    id.map(u128::to_be_bytes)
        .ok_or_else(|| format!("{text:?} is not a client id; write 32 hexadecimal digits"))
}

/// `4096`, `4K`, `1M`.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write bytes, or a number with K, M, G or T, such as 64K");
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
        _ => Err(format!("{text:?} is not a mode; write permission bits in octal, such as 755")),
    }
}

const HELP: &str = "\
Addresses:
  dafs://HOST/EXPORT/PATH               the best transport available, as below
  dafs+tcp://HOST:PORT/EXPORT/PATH      TCP
  dafs+verbs://HOST:PORT/EXPORT/PATH    RDMA, in builds with it (see dafs info --devices)
  dafs+shm:///SOCKET/PATH:/EXPORT/PATH  shared memory: the server's socket, a colon, export and path

dafs:// uses shared memory if the server is on this host, else RDMA if client and server have it, else TCP. It looks for the \
server's socket at $DAFS_SHM_SOCKET or, for port 12049, at /run/dafs/dafs.sock and $XDG_RUNTIME_DIR/dafs.sock.

Examples:
  dafs exports dafs://localhost
  dafs ls -l dafs://localhost/data
  dafs cp -r ./tree dafs+tcp://192.0.2.7:12049/data/tree
  dafs cp -r 'dafs+shm:///tmp/dafs.sock:/data/tree' ./back
  dafs info dafs://localhost

Exit status:
  0    success
  1    something failed, as standard error says; the rest was done
  2    usage error
  130  interrupted";

const CP_HELP: &str = "\
As with cp(1), a source is copied into DESTINATION if that is a directory, and to that name otherwise.

A copy keeps times to the nanosecond, symbolic links, hard links within a tree, and holes. New files and directories get the \
permission bits of the source less the umask. An existing file that is replaced keeps its mode, owner, access control list and \
extended attributes. An existing directory keeps its mode and times. With --preserve, all of these come from the source.

A file is copied to a temporary name in the same directory, .dafs-cp-..., and renamed when it is complete. Until then an old \
file stays. Some files are written in place, as by cp(1): files with several names, files whose owner or access control list \
the copy cannot get, the target of a symbolic link that you named, devices and pipes such as /dev/stdout, and files in a \
directory where you may not create any. Symbolic links in a destination tree are replaced, never followed.

With -r, FIFOs, devices and sockets are skipped, and count as failures. Without -r, a FIFO or device of this machine is read \
to its end.

If a server goes down, dafs cp waits for it without limit, unless --timeout is given.

After Ctrl-C the command cleans up and exits. If the server does not reply, it exits within a few seconds. A second Ctrl-C \
ends it without waiting for the server: it removes temporary files on this machine, and prints the names of those that remain \
on a server.

Examples:
  dafs cp -r ./tree dafs://localhost/data/tree
  dafs cp dafs://localhost/data/a dafs://localhost/data/b .
  dafs cp -r dafs://one/data/tree dafs://two/backup/tree";

const FENCE_HELP: &str = "\
A fenced client can only close what it has open in the export. When `add` returns, none of its operations is in flight on the \
server. Only root and the server's user may change a fence. The server must be sure who they are: they connect by shared memory \
or loopback TCP, or prove a key with uid=.

All programs of a host share one client id unless they choose another. A program may return with another id; its key and \
address stay the same. `dafs fence` uses an id of its own, so it works even if its host is fenced off by id.

A fence outlives the server if the server has a --state-file.

Examples:
  dafs fence list dafs://localhost/data
  dafs fence add --client 0123456789abcdef0123456789abcdef dafs://localhost/data
  dafs fence add --key laptop --address 192.0.2.7 dafs://localhost/data
  dafs fence add --allow --address 10.0.0.0/8 dafs://localhost/data
  dafs fence clear dafs://localhost/data";

const DISSECTOR_HELP: &str = "\
Wireshark and tshark load the script from the folder of personal Lua plugins (in Wireshark: Help, About, Folders), or from the \
command line. They decode port 12049 as dafs (preference dafs.port). On other ports they recognize dafs by its first bytes.

Examples:
  mkdir -p ~/.local/lib/wireshark/plugins && dafs dissector > ~/.local/lib/wireshark/plugins/dafs.lua
  dafs dissector > dafs.lua; tshark -X lua_script:dafs.lua -r capture.pcap -Y dafs";

#[cfg(test)]
mod tests {
    use super::*;

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
    fn number_that_is_none_is_refused_in_plain_words() {
        assert_eq!(seconds("2.5"), Ok(Duration::from_millis(2500)));
        assert_eq!((jobs("64"), count("1")), (Ok(64), Ok(1)));
        for wrong in ["abc", "", "-1", "0", "nan", "inf", "1e400"] {
            for said in [seconds(wrong).err(), jobs(wrong).err(), count(wrong).err()] {
                let said = said.unwrap_or_else(|| panic!("{wrong} is taken"));
                assert!(
                    said.starts_with(&format!("{wrong:?} is not a ")) && !said.contains("literal"),
                    "{said}"
                );
            }
        }
        assert!(jobs("65").is_err());
    }

    #[test]
    fn client_id_of_another_length_or_other_digits_is_refused() {
        assert_eq!(client_id(&"0a".repeat(16)), Ok([10; 16]));
        assert_eq!(client_id(&"FF".repeat(16)), Ok([255; 16]));
        for wrong in
            ["".to_owned(), "0a".repeat(15), "0a".repeat(17), "0g".repeat(16), format!("+{}", "0".repeat(31))]
        {
            assert!(client_id(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn octal_mode_above_permission_bits_is_refused() {
        assert_eq!(octal("7777"), Ok(0o7777));
        assert!(octal("10000").is_err() && octal("8").is_err());
    }
}
