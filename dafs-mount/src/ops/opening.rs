//! Files: opened, created, released.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use dafs_client::{File, LAYOUT_XATTR, OpenOptions, may_be_striped};

use super::names::is_absent;
use crate::callers::Caller;
use crate::files::OpenFile;
use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::{Fields, open};
use crate::kernel::request::{Header, Mode, Name};
use crate::options::Cache;
use crate::volume::{Volume, path};

/// Flags of open(2).
#[derive(Clone, Copy, Debug)]
struct OpenFlags(u32);

impl OpenFlags {
    fn has(self, flag: i32) -> bool {
        self.0 & flag.cast_unsigned() != 0
    }

    fn reads(self) -> bool {
        self.0 & libc::O_ACCMODE.cast_unsigned() != libc::O_WRONLY.cast_unsigned()
    }

    fn writes(self) -> bool {
        self.0 & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned()
    }
}

/// What the kernel knows of a file before it is told that it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    /// Perhaps all of it.
    Known,
    /// Nothing: it was created, or is new to the kernel.
    New,
    /// Nothing, and it has no name.
    Unnamed,
}

impl Volume {
    /// How a file is opened for a program that opens it so.
    fn how(&self, flags: OpenFlags) -> OpenOptions {
        let mut options = OpenOptions::new();
        // The kernel reads what it writes a part of, where it gathers writes.
        let reads = flags.reads() || self.options.writeback;
        options.read(reads).write(flags.writes()).no_follow(true);
        options
    }

    pub(super) async fn open_file(&self, asks: &Header, flags: u32) -> Answer<Vec<u8>> {
        let flags = OpenFlags(flags);
        let caller = self.callers.of(asks).await?;
        let file = self.open_node(asks.node, &caller, &self.how(flags)).await?;
        if may_be_striped(file.attributes_at_open()) && self.has_layout(asks).await {
            return Err(Errno::NOT_SUPPORTED);
        }
        Ok(self.opened(asks.node, &caller, file, flags, Origin::Known).await.into_bytes())
    }

    async fn has_layout(&self, asks: &Header) -> bool {
        match self.directory(asks).await {
            Ok(node) => node.submit_xattr("", LAYOUT_XATTR).await.is_ok(),
            Err(_) => false,
        }
    }

    /// Opens a node by the name that it was seen under last, so that what has been put in its place is noticed: the kernel then looks the
    /// name up again. One without that name any more is opened by its handle.
    async fn open_node(&self, node: u64, caller: &Rc<Caller>, how: &OpenOptions) -> Answer<File> {
        let (parent, name) = self.parent(node, caller).await?;
        let opened = self.with_room_for_file(|| parent.submit_open_with(path(&name), how)).await;
        let found = match opened {
            Ok(file) if self.nodes.borrow().is(node, file.attributes_at_open()) => Some(file),
            Ok(_) => None,
            Err(error) if is_absent(&error) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(file) = found {
            return Ok(file);
        }
        if !self.nodes.borrow_mut().is_meant(node) {
            return Err(Errno::STALE);
        }
        let file = self.handle(node, caller).await?;
        Ok(self.with_room_for_file(|| file.submit_open_with("", how)).await?)
    }

    /// The reply that tells of an open file.
    async fn opened(
        &self,
        node: u64,
        caller: &Rc<Caller>,
        file: File,
        flags: OpenFlags,
        origin: Origin,
    ) -> Fields {
        let is_unnamed = origin == Origin::Unnamed;
        let way = self.way_to_open(node, is_unnamed).await;
        let change = file.attributes_at_open().change;
        let unchanged = self.nodes.borrow_mut().opened(node, change);
        // Appends go to the end that the server knows, and the kernel's guess of it would be cached.
        let appends = flags.has(libc::O_APPEND) && !self.options.writeback;
        let how = match self.options.cache {
            _ if way.local.is_some() => {
                // The kernel does not tell of what it writes.
                self.nodes.borrow_mut().changed_here(node);
                // What another has written changed the size too, which the kernel believes for a time.
                self.device.invalidate(node, -1, 0);
                let recalled = way.local.as_ref().is_some_and(|local| local.is_recalled());
                open::PASSTHROUGH | if recalled { open::DIRECT_IO } else { 0 }
            }
            Cache::None => open::DIRECT_IO,
            _ if appends || flags.has(libc::O_DIRECT) => open::DIRECT_IO,
            Cache::Lasting => open::KEEP_CACHE,
            Cache::CloseToOpen if unchanged => open::KEEP_CACHE,
            Cache::CloseToOpen if origin != Origin::Known => 0,
            Cache::CloseToOpen => {
                // Also the size, by which reads end.
                self.device.invalidate(node, -1, 0);
                0
            }
        };
        let file = OpenFile {
            file: Rc::new(file),
            node,
            caller: Rc::clone(caller),
            how: self.how(flags),
            writes: flags.writes(),
            is_local: way.local.is_some(),
            is_direct: how & open::DIRECT_IO != 0,
            is_unnamed,
            owners: RefCell::new(HashSet::new()),
            held: RefCell::default(),
            writable: RefCell::new(None),
        };
        let backing = way.local.as_ref().map_or(0, |local| local.number());
        Fields::new().open(self.open.add_file(file), how, backing)
    }

    /// An open file, unless its session has ended for good.
    pub(super) fn usable_file(&self, number: u64) -> Option<Rc<OpenFile>> {
        self.open.file(number).ok().filter(|open| !open.caller.has_ended())
    }

    /// An open file. One whose session has ended for good, since the server was away for too long, is opened again in a new one: unless it
    /// was locked, or written and not made durable. What became of that nobody can tell.
    pub(super) async fn opened_file(&self, number: u64) -> Answer<Rc<OpenFile>> {
        let open = self.open.file(number)?;
        if !open.caller.has_ended() {
            return Ok(open);
        }
        let caller = self.callers.again(&open.caller).await?;
        if open.is_unnamed || open.held.borrow().any || !open.owners.borrow().is_empty() {
            return Err(Errno::IO);
        }
        let handle = self.handle(open.node, &caller).await?;
        let file = Rc::new(self.with_room_for_file(|| handle.submit_open_with("", &open.how)).await?);
        if !self.nodes.borrow().is(open.node, file.attributes_at_open()) {
            return Err(Errno::STALE);
        }
        let again = OpenFile {
            file,
            node: open.node,
            caller,
            how: open.how.clone(),
            writes: open.writes,
            is_local: open.is_local,
            is_direct: open.is_direct,
            is_unnamed: false,
            owners: RefCell::default(),
            held: RefCell::default(),
            writable: RefCell::default(),
        };
        self.open.replace(number, again)
    }

    pub(super) async fn create(&self, asks: &Header, name: &Name, flags: u32, mode: Mode) -> Answer<Vec<u8>> {
        let flags = OpenFlags(flags);
        let caller = self.callers.of(asks).await?;
        let directory = self.handle(asks.node, &caller).await?;
        let mut how = self.how(flags);
        how.mode(self.masked(asks.node, &directory, mode).await);
        match flags.has(libc::O_EXCL) {
            true => how.create_new(true),
            false => how.create(true),
        };
        how.truncate(flags.has(libc::O_TRUNC) && flags.writes());
        let file = self.with_room_for_file(|| directory.submit_open_with(path(name), &how)).await?;
        self.changed_names(asks.node, &directory);
        let attributes = file.attributes_at_open().clone();
        let mut entry = self.entry(asks.node, name, &attributes).into_bytes();
        let node = self.nodes.borrow_mut().number_of(&attributes)?;
        let origin = if self.nodes.borrow().is_new(node) { Origin::New } else { Origin::Known };
        entry.extend(self.opened(node, &caller, file, flags, origin).await.into_bytes());
        Ok(entry)
    }

    /// A file without a name in a directory.
    pub(super) async fn create_unnamed(&self, asks: &Header, mode: Mode) -> Answer<Vec<u8>> {
        let caller = self.callers.of(asks).await?;
        let directory = self.handle(asks.node, &caller).await?;
        let mode = self.masked(asks.node, &directory, mode).await;
        let file = self.with_room_for_file(|| directory.submit_open_unnamed("", mode)).await?;
        let attributes = file.attributes_at_open().clone();
        let mut entry = self.entry(asks.node, b"", &attributes).into_bytes();
        let node = self.nodes.borrow_mut().number_of(&attributes)?;
        let flags = OpenFlags(libc::O_RDWR.cast_unsigned());
        entry.extend(self.opened(node, &caller, file, flags, Origin::Unnamed).await.into_bytes());
        Ok(entry)
    }

    /// The last descriptor of an open file is gone.
    pub(super) fn release(&self, file: u64) -> Answer<()> {
        let gone = |file: &OpenFile| {
            if file.is_local {
                self.local.release(file.node);
            }
        };
        if let Some(too_much) = self.open.remove_file(file, gone) {
            too_much.held.borrow_mut().release(&self.copies);
        }
        Ok(())
    }
}
