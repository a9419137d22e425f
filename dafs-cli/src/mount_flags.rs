//! Flags of `dafs mount` and `dafs umount`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

#[derive(Args, Debug)]
#[command(after_help = MOUNT_HELP)]
pub(crate) struct Mount {
    /// Stay in the foreground until the mount is taken away; Ctrl-C takes it away
    #[arg(short, long)]
    pub(crate) foreground: bool,
    /// Keep data, names and attributes in the kernel's cache
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    pub(crate) cache: Cache,
    /// With --cache close-to-open, believe names for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    pub(crate) name_time: Duration,
    /// With --cache close-to-open, believe attributes for so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds_or_none)]
    pub(crate) attribute_time: Duration,
    /// Allow no changes
    #[arg(short, long)]
    pub(crate) read_only: bool,
    /// Let no file be executed
    #[arg(long)]
    pub(crate) no_exec: bool,
    /// Let only root use the mount, when root mounts. By default every user may, as himself
    #[arg(long)]
    pub(crate) private: bool,
    /// Let the kernel gather writes: faster for small ones, and two clients must not write one file at the same time
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) writeback: bool,
    /// Read and write files through the server, also where a server on this host hands them over (its export option local_open)
    #[arg(long)]
    pub(crate) no_passthrough: bool,
    /// Where the parent of a daemon waits to hear that it has mounted
    #[arg(long, hide = true)]
    pub(crate) daemon: bool,
    /// What `mount -o remount` asks for
    #[arg(long, hide = true)]
    pub(crate) remount: bool,
    /// Export, or a directory in it
    #[arg(value_name = "URL")]
    pub(crate) url: OsString,
    /// Directory to mount at
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Cache {
    /// Nothing: each read asks the server
    None,
    /// Until somebody has changed a file: what another client closed is seen at the next open
    #[default]
    CloseToOpen,
    /// For an hour: for data that nobody changes
    Lasting,
}

const MOUNT_HELP: &str = "\
dafs mount returns when the export is mounted, and a process in the background serves it. Mounted by root, every user may use \
it, and the server decides what each may do. Mounted by another user, only that user may; fusermount3 must be installed (package fuse3).

If the server goes down, programs wait for it, 60 s unless --timeout says otherwise; then calls fail with EIO. Written data is durable \
after fsync.

Examples:
  dafs mount dafs://localhost/data /mnt/data
  dafs mount --read-only --cache lasting dafs://server/datasets/imagenet ~/imagenet
  dafs umount /mnt/data";

#[derive(Args, Debug)]
#[command(after_help = "Example: dafs umount /mnt/data")]
pub(crate) struct Umount {
    /// Take it away now, and let programs that use it finish
    #[arg(short, long)]
    pub(crate) lazy: bool,
    /// Mounted directory
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}

fn seconds_or_none(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| format!("{text:?} is not a time; give seconds, such as 0 or 2.5"))
}
