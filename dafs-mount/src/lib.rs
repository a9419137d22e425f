//! Mounts an export of a dafs server, so that every program can use it.
//!
//! ```no_run
//! # fn main() -> Result<(), dafs_mount::Error> {
//! use dafs_client::{Config, Url};
//! use dafs_mount::{Mount, Options};
//! let url = Url::parse("dafs://localhost/data".as_ref()).map_err(dafs_client::Error::from)?;
//! let mount = Mount::new(&url, "/mnt".as_ref(), &Config::default(), Options::default())?;
//! mount.serve()?;
//! # Ok(())
//! # }
//! ```
//!
//! The rooms, from the top: `event_loop` waits, `ops` carries requests out, `local` has what the kernel reads and writes itself, `volume`
//! knows what is mounted, `transfers` has reads and writes in flight, `callers` has the sessions, `first` lets one do something while
//! others wait, `ahead` asks for attributes before the kernel does, `nodes` and `files` have what the kernel knows and has open, `held`
//! copies of what is not durable, `kernel` the descriptor, its requests and their replies.
#![deny(unsafe_code)]

mod ahead;
mod callers;
mod event_loop;
mod files;
mod first;
mod held;
mod kernel;
mod local;
mod mount;
mod nodes;
mod ops;
mod options;
mod transfers;
mod volume;

pub use kernel::mounting::{remount, unmount};
pub use mount::{Error, Mount, Unmounter};
pub use options::{Cache, Options};
