//! Names: looked up, made, removed, renamed.

use dafs_client::{Attributes, Dir, Error, NodeKind, OpenOptions};

use crate::kernel::errno::{Answer, Errno};
use crate::kernel::reply::{ENTRY_SIZE, Fields};
use crate::kernel::request::{Header, Mode, Name};
use crate::volume::{Volume, path};

/// Permission bits of a mode.
pub(super) const PERMISSIONS: u32 = 0o7777;

/// What files that are made in a directory may begin with.
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Flags of renameat2(2).
const NO_REPLACE: u32 = 1;
const EXCHANGE: u32 = 2;

impl Volume {
    /// The directory that a request is about, as whoever asks has it.
    pub(super) async fn directory(&self, asks: &Header) -> Answer<Dir> {
        let caller = self.callers.of(asks).await?;
        self.handle(asks.node, &caller).await
    }

    /// The reply that tells of a file under a name.
    pub(super) fn entry(&self, parent: u64, name: &[u8], attributes: &Attributes) -> Fields {
        let node = self.nodes.borrow_mut().look_up(parent, name, attributes);
        Fields::with_capacity(ENTRY_SIZE + 16).entry(
            node,
            attributes,
            self.name_valid(),
            self.attributes_valid(),
        )
    }

    pub(super) async fn look_up(&self, asks: &Header, name: &Name) -> Answer<Vec<u8>> {
        let directory = self.directory(asks).await?;
        let attributes = directory.submit_symlink_metadata(path(name)).await?;
        Ok(self.entry(asks.node, name, &attributes).into_bytes())
    }

    pub(super) async fn read_link(&self, asks: &Header) -> Answer<Vec<u8>> {
        Ok(self.directory(asks).await?.submit_read_link("").await?)
    }

    pub(super) async fn symlink(&self, asks: &Header, name: &Name, target: &Name) -> Answer<Vec<u8>> {
        let directory = self.directory(asks).await?;
        let attributes = directory.submit_symlink(path(target), path(name)).await?;
        self.changed_names(asks.node, &directory);
        Ok(self.entry(asks.node, name, &attributes).into_bytes())
    }

    pub(super) async fn make_directory(&self, asks: &Header, name: &Name, mode: Mode) -> Answer<Vec<u8>> {
        let directory = self.directory(asks).await?;
        let mode = self.masked(asks.node, &directory, mode).await;
        let attributes = directory.submit_create_dir(path(name), mode).await?;
        self.changed_names(asks.node, &directory);
        Ok(self.entry(asks.node, name, &attributes).into_bytes())
    }

    pub(super) async fn make_node(
        &self,
        asks: &Header,
        name: &Name,
        mode: Mode,
        device: u32,
    ) -> Answer<Vec<u8>> {
        let directory = self.directory(asks).await?;
        let kind = mode.asked & libc::S_IFMT;
        let mode = self.masked(asks.node, &directory, mode).await;
        let kind = match kind {
            libc::S_IFREG | 0 => None,
            libc::S_IFIFO => Some(NodeKind::Fifo),
            libc::S_IFSOCK => Some(NodeKind::Socket),
            libc::S_IFCHR => Some(NodeKind::CharDevice),
            libc::S_IFBLK => Some(NodeKind::BlockDevice),
            _ => return Err(Errno::INVALID),
        };
        if let Some(kind) = kind {
            let is_device = matches!(kind, NodeKind::CharDevice | NodeKind::BlockDevice);
            let device = if is_device { u64::from(device) } else { 0 };
            let attributes = directory.submit_make_node(path(name), kind, mode, device).await?;
            self.changed_names(asks.node, &directory);
            return Ok(self.entry(asks.node, name, &attributes).into_bytes());
        }
        let mut options = OpenOptions::new();
        options.read(true).create_new(true).mode(mode);
        let made = self.with_room_for_file(|| directory.submit_open_with(path(name), &options)).await?;
        self.changed_names(asks.node, &directory);
        Ok(self.entry(asks.node, name, made.attributes_at_open()).into_bytes())
    }

    /// Something was made, taken away or renamed in a directory.
    pub(super) fn changed_names(&self, node: u64, directory: &Dir) {
        self.ahead.changed(node, directory, self.attributes_valid());
    }

    /// The permission bits of what is made in a directory: less the umask, unless the directory has a default access control list, which
    /// the server heeds.
    pub(super) async fn masked(&self, node: u64, directory: &Dir, mode: Mode) -> u32 {
        let asked = mode.asked & PERMISSIONS;
        if asked & mode.umask == 0 {
            return asked;
        }
        let known = self.nodes.borrow().has_default_list(node);
        let has = match known {
            Some(has) => has,
            None => {
                let has = directory.submit_xattr("", DEFAULT_LIST).await.is_ok();
                self.nodes.borrow_mut().note_default_list(node, has, self.attributes_valid());
                has
            }
        };
        if has { asked } else { asked & !mode.umask }
    }

    pub(super) async fn remove(&self, asks: &Header, name: &Name, is_directory: bool) -> Answer<()> {
        let directory = self.directory(asks).await?;
        match is_directory {
            true => directory.submit_remove_dir(path(name)).await?,
            false => directory.submit_remove_file(path(name)).await?,
        }
        self.changed_names(asks.node, &directory);
        Ok(())
    }

    pub(super) async fn rename(
        &self,
        asks: &Header,
        from: &Name,
        (target, to): (u64, &Name),
        flags: u32,
    ) -> Answer<()> {
        if !matches!(flags, 0 | NO_REPLACE | EXCHANGE) {
            return Err(Errno::INVALID);
        }
        let caller = self.callers.of(asks).await?;
        let source = self.handle(asks.node, &caller).await?;
        let directory = self.handle(target, &caller).await?;
        if flags == EXCHANGE {
            source.submit_exchange(path(from), &directory, path(to)).await?;
            self.nodes.borrow_mut().exchanged((asks.node, from), (target, to));
        } else {
            source.submit_rename(path(from), &directory, path(to), flags != NO_REPLACE).await?;
            self.nodes.borrow_mut().renamed((asks.node, from), (target, to));
        }
        self.changed_names(asks.node, &source);
        if target != asks.node {
            self.changed_names(target, &directory);
        }
        Ok(())
    }

    pub(super) async fn link(&self, asks: &Header, of: u64, name: &Name) -> Answer<Vec<u8>> {
        let caller = self.callers.of(asks).await?;
        let directory = self.handle(asks.node, &caller).await?;
        let unnamed = self
            .open
            .all_of(of)
            .into_iter()
            .find(|open| open.is_unnamed && open.caller.number == caller.number);
        let linked = match unnamed {
            Some(open) => open.file.submit_link_to(&directory, path(name), false).await,
            None => {
                let file = self.handle(of, &caller).await?;
                file.submit_link("", &directory, path(name)).await
            }
        };
        let attributes = linked?;
        if !self.nodes.borrow().is(of, &attributes) {
            return Err(Errno::STALE);
        }
        self.changed_names(asks.node, &directory);
        Ok(self.entry(asks.node, name, &attributes).into_bytes())
    }
}

/// A name that is not there.
pub(super) fn is_absent(error: &Error) -> bool {
    error.is_not_found()
}
