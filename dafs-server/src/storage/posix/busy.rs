//! Files that a thread works on for long while the kernel blocks other accesses: the loops avoid them meanwhile. Two exports may have the
//! same file, so one table serves all exports.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::super::pool::lock;

/// A file, by device and inode.
pub(super) type FileKey = (u64, u64);

/// How many are busy, some several times.
static COUNT: AtomicUsize = AtomicUsize::new(0);
static FILES: Mutex<BTreeMap<FileKey, usize>> = Mutex::new(BTreeMap::new());

const CUTS: usize = 1024;

/// How often files were cut or punched: some share a number.
static CUT: [AtomicU64; CUTS] = [const { AtomicU64::new(0) }; CUTS];

/// A file is busy until this is dropped.
pub(super) struct Held {
    file: FileKey,
    cuts: bool,
}

/// Some file is busy.
#[inline]
pub(super) fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

/// This one is.
#[inline]
pub(super) fn is(file: FileKey) -> bool {
    any() && lock(&FILES).contains_key(&file)
}

/// This one is from now on.
pub(super) fn hold(file: FileKey) -> Held {
    hold_until(file, false)
}

/// The same, and it may have other holes afterwards.
pub(super) fn hold_to_cut(file: FileKey) -> Held {
    hold_until(file, true)
}

fn hold_until(file: FileKey, cuts: bool) -> Held {
    *lock(&FILES).entry(file).or_default() += 1;
    COUNT.fetch_add(1, Ordering::AcqRel);
    Held { file, cuts }
}

/// What is another number once the file was cut or punched through the server.
pub(super) fn cuts_of(file: FileKey) -> &'static AtomicU64 {
    let (dev, ino) = file;
    let place = (dev.rotate_left(32) ^ ino).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    // Less than CUTS.
    &CUT[usize::try_from(place % CUTS as u64).unwrap_or(0)]
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.cuts {
            cuts_of(self.file).fetch_add(1, Ordering::Release);
        }
        let mut files = lock(&FILES);
        if let Some(count) = files.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                files.remove(&self.file);
            }
        }
        COUNT.fetch_sub(1, Ordering::AcqRel);
    }
}
