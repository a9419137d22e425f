//! A mounted export: what the kernel knows of it and has open, and how a node is found at the server again.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use dafs_client::{Attributes, Dir, Error, RegisteredBuf, Status};
use futures_channel::oneshot;
use lru::LruCache;

use crate::ahead::Ahead;
use crate::callers::{Caller, Callers};
use crate::files::Open;
use crate::held::Budget;
use crate::kernel::device::{DATA_SIZE_MAX, Device};
use crate::kernel::errno::{Answer, Errno};
use crate::local::Local;
use crate::nodes::{Nodes, ROOT};
use crate::options::{Cache, Options};
use crate::transfers::Transfers;

/// Handles of the server that are kept for nodes that nobody has open.
const HANDLES_MAX: NonZeroUsize = NonZeroUsize::new(16 * 1024).unwrap();

/// Buffers that are kept for the next request.
const BUFFERS_MAX: usize = 32;

/// What is mounted.
pub(crate) struct Volume {
    pub(crate) device: Device,
    pub(crate) callers: Callers,
    pub(crate) options: Options,
    pub(crate) nodes: RefCell<Nodes>,
    pub(crate) open: Open,
    /// Attributes that the kernel will ask for.
    pub(crate) ahead: Ahead,
    /// What the kernel reads and writes itself.
    pub(crate) local: Local,
    /// Reads and writes in flight.
    pub(crate) transfers: Transfers,
    /// Room for copies of what is not durable.
    pub(crate) copies: Budget,
    /// Handles of nodes, by session and node.
    handles: RefCell<LruCache<(u64, u64), Dir>>,
    buffers: RefCell<Vec<RegisteredBuf>>,
    /// Requests that can be interrupted.
    interrupts: RefCell<HashMap<u64, Interruptible>>,
    /// Requests that were interrupted, and are given up if the server turns out to be away: it may be so before that is noticed.
    interrupted: RefCell<Vec<u64>>,
}

/// A request that can be interrupted.
struct Interruptible {
    tell: oneshot::Sender<()>,
    /// Only while its server is away.
    when_away: bool,
}

/// A name as the client library takes it.
pub(crate) fn path(name: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(name))
}

impl Volume {
    pub(crate) fn new(
        device: Device,
        callers: Callers,
        options: Options,
        root: &Attributes,
        is_local: bool,
    ) -> Self {
        Self {
            device,
            callers,
            options,
            nodes: RefCell::new(Nodes::new(root)),
            open: Open::default(),
            ahead: Ahead::default(),
            local: Local::new(is_local),
            transfers: Transfers::default(),
            copies: Budget::default(),
            handles: RefCell::new(LruCache::new(HANDLES_MAX)),
            buffers: RefCell::default(),
            interrupts: RefCell::default(),
            interrupted: RefCell::default(),
        }
    }

    /// A registered buffer of [`DATA_SIZE_MAX`] bytes.
    pub(crate) fn take_buffer(&self) -> dafs_client::Result<RegisteredBuf> {
        match self.buffers.borrow_mut().pop() {
            Some(buffer) => Ok(buffer),
            None => self.callers.own().session.buffer(DATA_SIZE_MAX),
        }
    }

    /// Keeps a buffer for another request. One with which something went wrong is not given back: its registration may have ended.
    pub(crate) fn give_back(&self, buffer: RegisteredBuf) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < BUFFERS_MAX && buffer.len() == DATA_SIZE_MAX {
            buffers.push(buffer);
        }
    }

    /// A request may be told that whoever asks has been interrupted; `when_away`: while the server is away, and else it ends by itself.
    pub(crate) fn interruptible(&self, unique: u64, when_away: bool) -> oneshot::Receiver<()> {
        let (tell, told) = oneshot::channel();
        self.interrupts.borrow_mut().insert(unique, Interruptible { tell, when_away });
        told
    }

    /// A request has ended that could be interrupted.
    pub(crate) fn not_interruptible(&self, unique: u64) {
        self.interrupts.borrow_mut().remove(&unique);
    }

    /// Whoever asks has been interrupted. The kernel tells once.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut interrupts = self.interrupts.borrow_mut();
        match interrupts.get(&unique) {
            Some(request) if !request.when_away => {
                if let Some(request) = interrupts.remove(&unique) {
                    let _ = request.tell.send(());
                }
            }
            Some(_) => self.interrupted.borrow_mut().push(unique),
            None if self.transfers.is_read(unique) => self.interrupted.borrow_mut().push(unique),
            // It has ended, or changes something.
            None => {}
        }
    }

    /// While the server is away, requests are given up that were interrupted; whether there were any.
    pub(crate) fn give_up_interrupted(&self) -> bool {
        if self.interrupted.borrow().is_empty() {
            return false;
        }
        let mut interrupts = self.interrupts.borrow_mut();
        let mut interrupted = self.interrupted.borrow_mut();
        interrupted.retain(|unique| interrupts.contains_key(unique) || self.transfers.is_read(*unique));
        if self.callers.all().iter().all(|caller| caller.session.is_connected()) {
            return false;
        }
        let any = !interrupted.is_empty();
        for unique in interrupted.drain(..) {
            match interrupts.remove(&unique) {
                Some(request) => drop(request.tell.send(())),
                None if self.transfers.give_up_read(unique) => {
                    self.device.fail(unique, Errno::INTERRUPTED);
                }
                None => {}
            }
        }
        any
    }

    /// How long the kernel may believe a name, and attributes.
    pub(crate) fn name_valid(&self) -> Duration {
        match self.options.cache {
            Cache::None => Duration::ZERO,
            Cache::CloseToOpen => self.options.name_time,
            Cache::Lasting => LASTING,
        }
    }

    pub(crate) fn attributes_valid(&self) -> Duration {
        match self.options.cache {
            Cache::None => Duration::ZERO,
            Cache::CloseToOpen => self.options.attribute_time,
            Cache::Lasting => LASTING,
        }
    }

    /// A handle of a node in the session of a caller. One that is not open there is looked up again by the names that led to it, as that
    /// caller: who may not search a directory on the way may not use what is below.
    pub(crate) async fn handle(&self, node: u64, caller: &Rc<Caller>) -> Answer<Dir> {
        let mut way = Vec::new();
        let mut at = node;
        let mut handle = loop {
            if at == ROOT {
                break caller.root.clone();
            }
            if let Some(known) = self.known_handle(at, caller) {
                break known;
            }
            way.push(at);
            at = self.nodes.borrow().place(at)?.parent;
            if way.len() > DEPTH_MAX {
                return Err(Errno::STALE);
            }
        };
        while let Some(next) = way.pop() {
            let name = self.nodes.borrow().place(next)?.name;
            let found = self.with_room(|| handle.submit_lookup(path(&name), false)).await;
            let (found, attributes) = match found {
                Err(error) if error.is_not_found() => return Err(Errno::STALE),
                found => found?,
            };
            if !self.nodes.borrow().is(next, &attributes) {
                return Err(Errno::STALE);
            }
            self.handles.borrow_mut().put((caller.number, next), found.clone());
            handle = found;
        }
        Ok(handle)
    }

    fn known_handle(&self, node: u64, caller: &Caller) -> Option<Dir> {
        let mut handles = self.handles.borrow_mut();
        let key = (caller.number, node);
        let known = handles.get(&key)?;
        if known.is_stale() {
            handles.pop(&key);
            return None;
        }
        Some(known.clone())
    }

    /// Opens something. While the server has no room for it, gives half of the handles back that are kept for nodes, and tries again.
    pub(crate) async fn with_room<T, P>(&self, begin: impl Fn() -> P) -> dafs_client::Result<T>
    where
        P: Future<Output = dafs_client::Result<T>>,
    {
        loop {
            match begin().await {
                Err(Error::Status { status: Status::TOO_MANY_OPEN, .. }) if self.forget_handles() => {}
                done => return done,
            }
        }
    }

    /// Gives half of the handles back; whether there were any.
    fn forget_handles(&self) -> bool {
        let mut handles = self.handles.borrow_mut();
        let some = handles.len().div_ceil(2);
        for _ in 0..some {
            handles.pop_lru();
        }
        some > 0
    }

    /// The handle of the directory where a node was seen last, and its name there.
    pub(crate) async fn parent(&self, node: u64, caller: &Rc<Caller>) -> Answer<(Dir, Rc<[u8]>)> {
        let place = self.nodes.borrow().place(node)?;
        Ok((self.handle(place.parent, caller).await?, place.name))
    }

    /// Attributes of a node now.
    pub(crate) async fn attributes(&self, node: u64, caller: &Rc<Caller>) -> Answer<Attributes> {
        if node == ROOT {
            return Ok(caller.root.submit_symlink_metadata("").await?);
        }
        // Whoever has it open has asked for it already.
        if let Some(open) = self.open.any_of(node) {
            return Ok(open.file.submit_metadata().await?);
        }
        if let Some(handle) = self.known_handle(node, caller) {
            return Ok(handle.submit_symlink_metadata("").await?);
        }
        let (parent, name) = self.parent(node, caller).await?;
        let attributes = match parent.submit_symlink_metadata(path(&name)).await {
            Err(error) if error.is_not_found() => return Err(Errno::STALE),
            found => found?,
        };
        match self.nodes.borrow().is(node, &attributes) {
            true => Ok(attributes),
            false => Err(Errno::STALE),
        }
    }

    /// The kernel forgets nodes.
    pub(crate) fn forget(&self, of: &[(u64, u64)]) {
        for (node, times) in of {
            if self.nodes.borrow_mut().forget(*node, *times) {
                self.ahead.forget(*node);
                let callers = self.callers.all();
                let mut handles = self.handles.borrow_mut();
                callers.iter().for_each(|caller| drop(handles.pop(&(caller.number, *node))));
                for file in self.open.forget(*node) {
                    file.held.borrow_mut().release(&self.copies);
                }
            }
        }
    }
}

/// No tree is deeper: a path has 4,096 bytes at most where it was made by a path.
const DEPTH_MAX: usize = 64 * 1024;

/// Data that nobody changes is believed for so long.
const LASTING: Duration = Duration::from_secs(3600);
