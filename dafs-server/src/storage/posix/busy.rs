//! Files that a thread works on for long while the kernel keeps others from them: the loop stays away meanwhile.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::super::pool::lock;

/// A file, by device and inode.
pub(super) type FileKey = (u64, u64);

/// The files of an export that are busy, for all loops.
#[derive(Default)]
pub(super) struct Busy {
    count: AtomicUsize,
    files: Mutex<HashMap<FileKey, usize>>,
}

/// A file is busy until this is dropped.
pub(super) struct Held {
    busy: Arc<Busy>,
    file: FileKey,
}

impl Busy {
    /// Some file is busy.
    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
    }

    /// This one is.
    #[inline]
    pub(super) fn is(&self, file: FileKey) -> bool {
        self.any() && lock(&self.files).contains_key(&file)
    }

    /// This one is from now on.
    pub(super) fn hold(self: &Arc<Self>, file: FileKey) -> Held {
        *lock(&self.files).entry(file).or_default() += 1;
        self.count.fetch_add(1, Ordering::AcqRel);
        Held { busy: Arc::clone(self), file }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut files = lock(&self.busy.files);
        if let Some(count) = files.get_mut(&self.file) {
            *count -= 1;
            if *count == 0 {
                files.remove(&self.file);
            }
        }
        self.busy.count.fetch_sub(1, Ordering::AcqRel);
    }
}
