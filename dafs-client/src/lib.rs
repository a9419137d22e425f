//! The dafs client library: file I/O in user space, over shared memory on one host, RDMA where there is a device, and TCP between hosts.
//!
//! ```no_run
//! # fn main() -> dafs_client::Result<()> {
//! use dafs_client::{Config, Session};
//! let session = Session::connect("dafs://localhost", &Config::default())?;
//! let export = session.mount("data")?;
//! let file = export.create("hello.txt")?;
//! file.write_all_at(b"hello", 0)?;
//! file.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! - [`Session`] is a session with a server. It reconnects by itself, and ends when its last handle is dropped.
//! - [`Export`] and [`Dir`] name files; [`File`] reads and writes them, blocking, or with `submit_` methods nonblocking.
//! - [`File::read_list`] and [`File::write_list`] move many [`Extent`]s of a file, to and from many pieces of memory, in one request.
//! - [`File::share`] makes a [`Token`] of a file, by which other sessions open it.
//! - [`Chain`] sends requests that depend on each other together: open, read and close in one round trip.
//! - [`Session::batch_io`] and [`Session::owned_batch`] do many independent reads and writes, on any files, in one request.
//! - [`Pending`] is a nonblocking operation: test, wait, cancel, [`wait_any`], [`wait_some`]; many are submitted under one [`Cork`].
//! - [`Session::completions`] gives a descriptor for event loops that tells when operations have ended. A [`Pending`] is a `Future`, too.
//! - [`RegisteredBuf`] is memory that the server reaches without copies. Ordinary slices work everywhere too. [`RegistrationConfig`] sets
//!   how they are registered, and a [`RegistrationPolicy`] sets it for one file; [`Session::pin`] keeps them registered, and
//!   [`Session::registration_counters`] counts. [`Noncontiguous`] sets how data in many pieces travels.
//!
//! - [`File::lock`] and [`File::hold`] lock ranges of a file. They bind only those who lock too, unless
//!   [`LockOptions::mandatory`] is set.
//!
//! The rules are in `spec/design/client.md`. The library does not cache file data or attributes.
#![deny(unsafe_code)]

mod api;
mod clock;
mod config;
mod connect;
mod driver;
mod engine;
mod error;
mod handle;
mod memory;
mod method;
mod op;

#[cfg(test)]
mod testing;

pub use api::batch::io::{BatchDone, BatchIo, OwnedBatch, PendingBatch};
pub use api::batch::part::BatchOutcome;
pub use api::chain::{Chain, Chained};
pub use api::completions::Completions;
pub use api::dir::{Dir, Export};
pub use api::file::File;
pub use api::file::copy::Copied;
pub use api::file::durable::DurableWriter;
pub use api::file::list::{ListRead, ListTransferred};
pub use api::key_file::load_key;
pub use api::lock::{LockConflict, LockGuard, LockOptions};
pub use api::options::OpenOptions;
pub use api::pin::{Pin, PinnedBuf};
pub use api::read_dir::{DirPage, ReadDir};
pub use api::session::{Agreed, Cork, Session};
pub use api::striped::{LAYOUT_XATTR, STRIPED_BIT, may_be_striped};
pub use api::verify::Expected;
pub use api::view::{View, ViewPlace};
pub use clock::{Clock, SystemClock};
pub use config::{Background, Config, Identity, ReconnectPolicy};
pub use connect::devices::{RdmaDevice, rdma_devices};
pub use dafs_proto::address::{Address, Url};
pub use dafs_proto::extent::Extent;
pub use dafs_proto::session::{Key, Moment};
pub use dafs_proto::transport::{Provider, WaitPolicy};
pub use dafs_proto::view::{
    ArrayOrder, Block, DarrayDimension, Datatype, Distribution, SubarrayDimension, VIEW_NODES_MAX, ViewError,
};
pub use dafs_proto::wire::{
    AccessMode, AccessPattern, Attributes, Crossovers, DirEntry, Fence, FenceList, FenceMode, FileIdentity,
    FileKind, FsStatistics, GatherSwitches, LimitsReply, LockKind, NodeKind, Opcode, SetAttributes, SetTime,
    Sieve, Stability, Statistics, Status, Thresholds, Timestamp, Token, XattrSetMode,
};
pub use driver::pending::{Pending, Transferred, wait_all, wait_any, wait_ended, wait_some, wait_some_with};
pub use error::{Error, Result, StaleCause};
pub use memory::registration::{
    RegistrationConfig, RegistrationCost, RegistrationCounters, RegistrationPolicy,
};
pub use memory::{IoBuffer, Lent, RegisteredBuf};
pub use method::io_path;
pub use method::io_path::{Direction, IoPath, MethodOverride, Registration};
pub use method::noncontiguous::Noncontiguous;
pub use method::refined::Refinement;
pub use op::batch::BatchHints;
pub use op::explain::Explanation;
pub use op::id::OperationId;
