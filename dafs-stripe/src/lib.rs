//! Files that lie over several dafs servers: *striped* files. Their names and attributes are on one server, their data in pieces on
//! others, and the client moves the pieces itself, at once (PVFS, "PVFS over InfiniBand" §3).
//!
//! ```no_run
//! # fn main() -> dafs_stripe::Result<()> {
//! use dafs_client::{Config, OpenOptions};
//! use dafs_stripe::{Striping, Volume};
//! let volume = Volume::connect("dafs://meta/data", &Config::default())?;
//! let options = OpenOptions::new().read(true).write(true).create(true).clone();
//! let file = volume.create("big", &options, &Striping::default())?;
//! file.write_all_at(&vec![7; 64 << 20], 0)?;
//! file.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Volume`] is an export whose files may be striped. Files that are not are opened as they are, and cost nothing more.
//! - [`Striping`] says how a new file is laid out, [`Layout`] how one is.
//! - [`File`] reads and writes, blocking or not; lists and views too.
//!
//! A volume replicates nothing: where a server is lost, so are the pieces that it has, and nothing else.
//!
//! The rules are in `spec/protocol/striping.md`. From the top: `volume` names files, `file` moves data, `data_server` connects,
//! `servers` and `layout` read what is written down, `names` names things, `geometry` is arithmetic.
#![deny(unsafe_code)]

mod check;
mod data_server;
mod error;
mod file;
mod geometry;
mod layout;
mod names;
mod servers;
mod volume;

pub use check::{Finding, Report};
pub use error::{Error, Result};
pub use file::File;
pub use file::pending::PendingTransfer;
pub use file::raw::PendingList;
pub use file::view::View;
pub use geometry::{FACTOR_MAX, UNIT_MIN};
pub use layout::{Layout, Striping};
pub use servers::{SERVERS_FILE, ServerRow};
pub use volume::{Doomed, Volume};
