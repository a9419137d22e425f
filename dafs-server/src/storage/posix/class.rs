//! What kind of file system a file lives on: whether it can wait.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::super::pool::lock;
use super::sys::{self, Errno};

/// A file system's ways, learnt once per device.
#[derive(Debug)]
pub(super) struct FsClass {
    /// The kernel speaks through it, and what is written there acts on the machine: it is not served.
    pub(super) kernel: bool,
    /// Lives in memory: nothing on it waits for a device, and nothing small takes long.
    pub(super) memory: bool,
    /// On a disk, with a page cache that mappings share: what is in memory stays there while it is mapped and locked.
    pub(super) lockable: bool,
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

impl FsClass {
    /// With which flags `preadv2` does not wait for a device; `None` where it might with any.
    #[inline]
    pub(super) fn read_now_flags(&self) -> Option<i32> {
        match self.memory {
            true => Some(0),
            false => self.nowait_read.load(Ordering::Relaxed).then_some(libc::RWF_NOWAIT),
        }
    }

    /// Whether a read with those flags failed only because it would have waited, or they are not known here, which is remembered.
    #[cold]
    pub(super) fn on_read_error(&self, errno: Errno, flags: i32) -> bool {
        match errno {
            Errno::AGAIN => true,
            // Where the call is missing, or a filter forbids it, it is so for good.
            Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM if flags != 0 => {
                self.nowait_read.store(false, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }
}

/// File systems that something is open on, by device number: another may have the number afterwards.
#[derive(Default)]
pub(super) struct Classes {
    seen: Mutex<Vec<(u64, Weak<FsClass>)>>,
}

impl Classes {
    /// The class of the file system that `fd` lives on. Asks it where nothing of it is open, which may wait where it is not on this host.
    pub(super) fn of(&self, fd: BorrowedFd<'_>, dev: u64) -> Arc<FsClass> {
        if let Some(class) = self.known(dev) {
            return class;
        }
        // Without the lock: a file system that hangs keeps nobody else from theirs.
        let magic = sys::statfs(fd).map_or(0, |(magic, _)| magic);
        let class = Arc::new(FsClass {
            kernel: KERNEL_MAGICS.contains(&magic),
            memory: matches!(magic, libc::TMPFS_MAGIC | 0x8584_58f6),
            lockable: LOCKABLE_MAGICS.contains(&magic),
            local: is_local(magic),
            appends: magic != OVERLAY_MAGIC,
            nowait_read: AtomicBool::new(true),
            nowait_write: AtomicBool::new(true),
        });
        let mut seen = lock(&self.seen);
        seen.retain(|(other, class)| *other != dev && class.strong_count() > 0);
        seen.push((dev, Arc::downgrade(&class)));
        class
    }

    fn known(&self, dev: u64) -> Option<Arc<FsClass>> {
        let seen = lock(&self.seen);
        seen.iter().find(|(other, _)| *other == dev).and_then(|(_, class)| class.upgrade())
    }
}

/// proc, sysfs, debugfs, tracefs, securityfs, selinuxfs, smackfs, configfs, efivarfs, pstore, bpf, cgroup and cgroup2, binfmt_misc, nsfs,
/// resctrl, nfsd, fusectl, mqueue, rpc_pipefs, devpts.
const KERNEL_MAGICS: [i64; 21] = [
    libc::PROC_SUPER_MAGIC,
    0x6265_6572,
    0x6462_6720,
    0x7472_6163,
    0x7363_6673,
    0xf97c_ff8c,
    0x4341_5d53,
    0x6265_6570,
    0xde5e_81e4,
    0x6165_676c,
    0xcafe_4a11,
    0x0027_e0eb,
    0x6367_7270,
    0x4249_4e4d,
    0x6e73_6673,
    0x0765_5821,
    0x6e66_7364,
    0x6573_5543,
    0x1980_0202,
    0x6759_6969,
    0x1cd1,
];

/// ext2–4, XFS, Btrfs.
const LOCKABLE_MAGICS: [i64; 3] = [0xef53, 0x5846_5342, 0x9123_683e];

const OVERLAY_MAGIC: i64 = 0x794c_7630;

/// tmpfs, ramfs, ext2–4, XFS, Btrfs, F2FS, ZFS, bcachefs, overlay; FAT, exFAT, NTFS, JFS, NILFS, ISO 9660, squashfs, EROFS.
pub(super) fn is_local(magic: i64) -> bool {
    const MAGICS: [i64; 17] = [
        libc::TMPFS_MAGIC,
        0x8584_58f6,
        0xef53,
        0x5846_5342,
        0x9123_683e,
        0xf2f5_2010,
        0x2fc1_2fc1,
        0xca45_1a4e,
        OVERLAY_MAGIC,
        libc::MSDOS_SUPER_MAGIC,
        0x2011_bab0,
        0x7366_746e,
        0x3153_464a,
        libc::NILFS_SUPER_MAGIC,
        libc::ISOFS_SUPER_MAGIC,
        0x7371_7368,
        0xe0f5_e1e2,
    ];
    MAGICS.contains(&magic)
}
