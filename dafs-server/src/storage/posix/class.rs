//! What kind of file system a file lives on: whether it can wait.

use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::super::pool::lock;
use super::sys;

/// A file system's ways, learnt once per device.
#[derive(Debug)]
pub(super) struct FsClass {
    /// Lives in memory: nothing on it waits.
    pub(super) memory: bool,
    /// On this host: metadata in the kernel's caches is answered without asking elsewhere.
    pub(super) local: bool,
    /// Appending is left to the kernel. Overlays lose the flag on the way to the layer below (seen in Linux 6.1): such a
    /// write would replace the file's beginning.
    pub(super) appends: bool,
    /// Reads that must not wait are taken (`RWF_NOWAIT`), until one is refused: then all may wait.
    pub(super) nowait_read: AtomicBool,
    /// The same of writes through the page cache.
    pub(super) nowait_write: AtomicBool,
}

/// File systems seen, by device number.
#[derive(Default)]
pub(super) struct Classes {
    seen: Mutex<Vec<(u64, Arc<FsClass>)>>,
}

/// Devices remembered; more than one export ever spans.
const CLASSES_MAX: usize = 64;

impl Classes {
    /// The class of the file system that `fd` lives on.
    pub(super) fn of(&self, fd: BorrowedFd<'_>, dev: u64) -> Arc<FsClass> {
        let mut seen = lock(&self.seen);
        if let Some((_, class)) = seen.iter().find(|(d, _)| *d == dev) {
            return Arc::clone(class);
        }
        let magic = sys::statfs(fd).map_or(0, |(magic, _)| magic);
        let class = Arc::new(FsClass {
            memory: matches!(magic, libc::TMPFS_MAGIC | 0x8584_58f6),
            local: is_local(magic),
            appends: magic != OVERLAY_MAGIC,
            nowait_read: AtomicBool::new(true),
            nowait_write: AtomicBool::new(true),
        });
        if seen.len() >= CLASSES_MAX {
            seen.remove(0);
        }
        seen.push((dev, Arc::clone(&class)));
        class
    }
}

const OVERLAY_MAGIC: i64 = 0x794c_7630;

/// tmpfs, ramfs, ext2–4, XFS, Btrfs, F2FS, ZFS, bcachefs, overlay.
fn is_local(magic: i64) -> bool {
    const MAGICS: [i64; 9] = [
        libc::TMPFS_MAGIC,
        0x8584_58f6,
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0x2fc1_2fc1,
        0xca45_1a4e,
        OVERLAY_MAGIC,
    ];
    MAGICS.contains(&magic)
}
