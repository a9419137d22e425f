//! Who has a say when files are opened.

use std::sync::Arc;

use dafs_proto::wire::{Attributes, FileKind, Status};

/// Who decides whether a file may be opened beside those who have it open: asked on any thread, before the file is cut. It may be asked
/// again about the same open.
pub trait Admission: std::fmt::Debug + Send + Sync {
    /// The open may go on.
    fn admit(&self, file: &Attributes) -> Result<(), Status>;

    /// The same, where the file is open, and was not there before or is not cut.
    fn admit_open(&self, file: &Attributes) -> Result<(), Status> {
        self.admit(file)
    }

    /// Keeps this, in place of what was kept before, as long as the open counts.
    fn keep(&self, what: Option<Kept>) {
        drop(what);
    }
}

/// What is kept until it is dropped.
pub type Kept = Box<dyn std::fmt::Debug + Send + Sync>;

/// Asks, where somebody is to be asked; only files are shared.
pub(super) fn admit(admission: Option<&Arc<dyn Admission>>, found: &Attributes) -> Result<(), Status> {
    match admission {
        Some(admission) if found.kind == FileKind::File => admission.admit(found),
        _ => Ok(()),
    }
}

/// The same of what is open.
pub(super) fn admit_open(admission: Option<&Arc<dyn Admission>>, found: &Attributes) -> Result<(), Status> {
    match admission {
        Some(admission) if found.kind == FileKind::File => admission.admit_open(found),
        _ => Ok(()),
    }
}
