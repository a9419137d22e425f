//! A mount from its beginning to its end.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use dafs_client::{Config, Url};
use rustix::event::{EventfdFlags, eventfd};

use crate::callers::{self, Callers};
use crate::event_loop::EventLoop;
use crate::kernel::backing;
use crate::kernel::mounting::{Mounted, Terms, unmount};
use crate::options::Options;
use crate::volume::Volume;

/// Why something cannot be mounted, or a mount ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server, or the way to it.
    #[error("{0}")]
    Server(#[from] dafs_client::Error),
    /// The URL names no export.
    #[error("cannot mount {url}: it names no export; write it as dafs://host/export")]
    NoExport {
        /// As it was given.
        url: String,
    },
    /// The kernel, or `fusermount3`, does not mount.
    #[error("cannot mount at {}: {cause}", directory.display())]
    Mount {
        /// Where.
        directory: PathBuf,
        /// What they say, and what to do.
        cause: String,
    },
    /// The kernel's descriptor failed.
    #[error("the mount at {} ends: {source}", directory.display())]
    Device {
        /// Where.
        directory: PathBuf,
        /// What it says.
        source: std::io::Error,
    },
}

/// An export that is mounted. Dropping it unmounts.
pub struct Mount {
    mounted: Mounted,
    volume: Rc<Volume>,
    directory: PathBuf,
    stop: Arc<OwnedFd>,
}

/// Takes a mount away, from another thread or a handler of signals.
#[derive(Clone, Debug)]
pub struct Unmounter {
    stop: Arc<OwnedFd>,
}

impl Unmounter {
    /// Asks the mount to go. It serves programs that use it until they are done. Does not block.
    pub fn unmount(&self) {
        // Full is as good: it was asked for already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
    }
}

impl Mount {
    /// Connects to the server, and mounts what the URL names at a directory. Blocks until it is mounted. Nothing is answered before
    /// [`Mount::serve`] is called.
    pub fn new(url: &Url, directory: &Path, config: &Config, options: Options) -> Result<Self, Error> {
        if url.export.is_none() {
            return Err(Error::NoExport { url: url.to_string() });
        }
        if options.allow_other && !rustix::process::geteuid().is_root() {
            let cause = "only root may mount for other users".to_owned();
            return Err(Error::Mount { directory: directory.to_owned(), cause });
        }
        if !directory.is_dir() {
            let cause = match directory.exists() {
                true => "it is not a directory".to_owned(),
                false => "there is no directory of that name; make it first".to_owned(),
            };
            return Err(Error::Mount { directory: directory.to_owned(), cause });
        }
        let own = callers::connect(url, config)?;
        let root = own.1.symlink_metadata("")?;
        let callers = Callers::new(url.clone(), options.allow_other, own)?;
        let failed =
            |source: std::io::Error| Error::Mount { directory: directory.to_owned(), cause: reason(&source) };
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|error| failed(error.into()))?;
        let terms = Terms {
            source: url.to_string(),
            read_only: options.read_only,
            no_exec: options.no_exec,
            for_all: options.allow_other,
            writeback: options.writeback,
            // With gathered writes the kernel has data of its own.
            local: options.local && !options.writeback && rustix::process::geteuid().is_root(),
        };
        let mounted = Mounted::new(directory, &terms).map_err(failed)?;
        let device = mounted.device().map_err(failed)?;
        let is_local = mounted.is_local();
        let volume = Rc::new(Volume::new(device, callers, options, &root, is_local));
        Ok(Self { mounted, volume, directory: directory.to_owned(), stop: Arc::new(stop) })
    }

    /// What takes the mount away while another thread serves it.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter { stop: Arc::clone(&self.stop) }
    }

    /// Serves programs until the mount is taken away and none uses it. Blocks.
    pub fn serve(self) -> Result<(), Error> {
        let Self { mounted, volume, directory, stop } = self;
        let failed = |source| Error::Device { directory: directory.clone(), source };
        let stop = stop.try_clone().map_err(failed)?;
        let mut is_away = false;
        let take_away = || {
            // Who is impatient asks again.
            if std::mem::replace(&mut is_away, true) {
                return;
            }
            if let Err(error) = unmount(&directory, true) {
                tracing::warn!("cannot unmount {}: {error}", directory.display());
            }
        };
        if volume.local.is_on()
            && let Err(error) = backing::hold_back()
        {
            tracing::warn!(
                "cannot give privileges up: {error}; files are read and written through the server"
            );
            volume.local.turn_off();
        }
        EventLoop::new(volume, stop).run(take_away).map_err(failed)?;
        mounted.gone();
        Ok(())
    }
}

/// Why the kernel does not mount, in words.
fn reason(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::NotFound => {
            "fusermount3 is not installed, and only root mounts without it; install the package fuse3"
                .to_owned()
        }
        // What fusermount3 says ends its line.
        _ => source.to_string().trim().to_owned(),
    }
}
