//! Files that a server on this host has handed over: the kernel reads and writes them itself.
//!
//! The kernel wants all opens of a file to be of one kind at a time. So a file is handed over at its first open, and stays so until its
//! last is gone; and while it is open otherwise, it is not handed over.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use dafs_client::{Error, File, OpenOptions, Status};

use crate::first::{First, OnceAtATime};
use crate::kernel::backing::Backing;
use crate::kernel::errno::Answer;
use crate::volume::{Volume, path};

/// All of them.
#[derive(Default)]
pub(crate) struct Local {
    /// Files are asked for: nothing has said yet that none is to be had.
    is_on: Cell<bool>,
    files: RefCell<HashMap<u64, Rc<LocalFile>>>,
    /// The session of root that has them open.
    session: Cell<u64>,
    /// Nodes that are being opened.
    opening: OnceAtATime<u64>,
}

/// A file that was handed over, as long as a program has it open.
pub(crate) struct LocalFile {
    backing: Backing,
    /// As root has it open: closing it gives the descriptor back.
    file: RefCell<File>,
    /// A new session could not get it.
    is_lost: Cell<bool>,
    opens: Cell<u64>,
}

/// How a file is opened. No other open of it is decided on until this is dropped.
pub(crate) struct Way<'a> {
    _turn: Option<First<'a, u64>>,
    pub(crate) local: Option<Rc<LocalFile>>,
}

impl LocalFile {
    /// By which the kernel knows it.
    pub(crate) fn number(&self) -> i32 {
        self.backing.number()
    }

    /// The server wants it back: those who open it from now on read and write through the server.
    pub(crate) fn is_recalled(&self) -> bool {
        self.is_lost.get() || self.file.borrow().is_recalled()
    }
}

impl Local {
    pub(crate) fn new(is_on: bool) -> Self {
        Self { is_on: Cell::new(is_on), ..Self::default() }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.get()
    }

    pub(crate) fn turn_off(&self) {
        self.is_on.set(false);
    }

    /// Root has another session than the one that has the files: true once for each.
    pub(crate) fn is_behind(&self, session: u64) -> bool {
        self.session.replace(session) != session && !self.files.borrow().is_empty()
    }

    /// An open of a node is gone. With the last one the file goes back.
    pub(crate) fn release(&self, node: u64) {
        let mut files = self.files.borrow_mut();
        if let Some(file) = files.get(&node) {
            file.opens.set(file.opens.get() - 1);
            if file.opens.get() == 0 {
                files.remove(&node);
            }
        }
    }

    /// Counts one more open of a node.
    fn open(&self, node: u64) -> Option<Rc<LocalFile>> {
        let file = self.files.borrow().get(&node).cloned()?;
        file.opens.set(file.opens.get() + 1);
        Some(file)
    }
}

impl Volume {
    /// How a node is to be opened, of which a file of the server is open by now.
    pub(crate) async fn way_to_open(&self, node: u64, is_unnamed: bool) -> Way<'_> {
        if is_unnamed || !self.local.is_on.get() && self.local.files.borrow().is_empty() {
            return Way { _turn: None, local: None };
        }
        let turn = loop {
            if let Some(turn) = self.local.opening.first(&node).await {
                break turn;
            }
        };
        let local = match self.local.open(node) {
            Some(file) => Some(file),
            None if self.local.is_on.get() && self.open.any_of(node).is_none() => self.hand_over(node).await,
            None => None,
        };
        Way { _turn: Some(turn), local }
    }

    /// Asks for a file, in the session of root. Whatever is in the way, there is the ordinary one.
    async fn hand_over(&self, node: u64) -> Option<Rc<LocalFile>> {
        let own = self.callers.own();
        // By its name, so that no handle is kept for it.
        let (parent, name) = self.parent(node, &own).await.ok()?;
        let how = OpenOptions::new().read(true).write(true).no_follow(true).clone();
        let file = self.with_room(|| parent.submit_open_with(path(&name), &how)).await.ok()?;
        if !self.nodes.borrow().is(node, file.attributes_at_open()) {
            return None;
        }
        let backing = match file.submit_hand_over().await {
            Ok(descriptor) => self.device.give(&descriptor),
            Err(error) => {
                if is_for_good(&error) {
                    tracing::debug!("files are read and written through the server: {error}");
                    self.local.turn_off();
                }
                return None;
            }
        };
        let backing = backing.inspect_err(|error| {
            tracing::info!("the kernel does not read and write files itself: {error}");
            self.local.turn_off();
        });
        let local = LocalFile {
            backing: backing.ok()?,
            file: RefCell::new(file),
            is_lost: Cell::new(false),
            opens: Cell::new(1),
        };
        let local = Rc::new(local);
        self.local.files.borrow_mut().insert(node, Rc::clone(&local));
        Some(local)
    }
}

impl Volume {
    /// Root's session has ended for good, and another has begun, which is to know what the kernel reads and writes itself.
    pub(crate) async fn hand_over_again(&self) {
        let files: Vec<_> =
            self.local.files.borrow().iter().map(|(node, file)| (*node, Rc::clone(file))).collect();
        for (node, local) in files {
            match self.asked_again(node).await {
                Ok(file) => drop(local.file.replace(file)),
                Err(error) => {
                    tracing::warn!("a file that programs read and write is not handed over again: {error:?}");
                    local.is_lost.set(true);
                }
            }
        }
    }

    async fn asked_again(&self, node: u64) -> Answer<File> {
        let handle = self.handle(node, &self.callers.own()).await?;
        let how = OpenOptions::new().read(true).write(true).clone();
        let file = self.with_room(|| handle.submit_open_with("", &how)).await?;
        // The kernel has a descriptor already.
        drop(file.submit_hand_over().await?);
        Ok(file)
    }
}

/// What the server says of one file holds for all.
fn is_for_good(error: &Error) -> bool {
    let is_so = [Status::NOT_SUPPORTED, Status::PERMISSION, Status::READ_ONLY];
    matches!(error, Error::Status { status, .. } if is_so.contains(status))
}
