//! Whether a file may be opened beside those who have it open at any server, asked when it is known which file it is. What others have
//! open at this server is among that: while the store is asked for an open, that is in the way of no other.

use std::sync::{Arc, Mutex};

use dafs_proto::transport::util::lock;
use dafs_proto::wire::{Attributes, OpenFlags, SessionId, Status};

use super::OpenGuard;
use crate::cluster::core::Core;
use crate::storage::{Admission, FileName};

/// Of one open.
pub(crate) struct OpenAdmission {
    core: Arc<Core>,
    pub(crate) session: SessionId,
    pub(crate) flags: OpenFlags,
    /// That of a server alone: what keeps the open here.
    inner: Arc<dyn Admission>,
    standing: Mutex<Standing>,
}

#[derive(Debug, Default)]
struct Standing {
    /// It counts as an open of this file.
    held: Option<FileName>,
    /// The store is to be asked whether it may.
    wanted: Option<FileName>,
}

impl std::fmt::Debug for OpenAdmission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenAdmission").field("inner", &self.inner).field("standing", &self.standing).finish()
    }
}

impl OpenAdmission {
    pub(crate) fn new(
        core: &Arc<Core>,
        session: SessionId,
        flags: OpenFlags,
        inner: Arc<dyn Admission>,
    ) -> Self {
        Self { core: Arc::clone(core), session, flags, inner, standing: Mutex::default() }
    }

    /// The file of which the store is to be asked.
    pub(crate) fn take_wanted(&self) -> Option<FileName> {
        lock(&self.standing).wanted.take()
    }

    /// The store has granted it.
    pub(crate) fn grant(&self, file: FileName, guard: OpenGuard) {
        self.hold(&mut lock(&self.standing), file, guard);
    }

    fn hold(&self, standing: &mut Standing, file: FileName, guard: OpenGuard) {
        standing.held = Some(file);
        self.inner.keep(Some(Box::new(guard)));
    }

    /// Whether the open is one of this file already; otherwise the store is to be asked.
    fn is_held(&self, found: &Attributes) -> bool {
        let mut standing = lock(&self.standing);
        standing.wanted = None;
        let file = FileName { file: found.file_id, generation: found.generation };
        if standing.held == Some(file) {
            return true;
        }
        standing.held = None;
        self.inner.keep(None);
        match self.core.try_open(file, self.session, self.flags) {
            Some(guard) => {
                self.hold(&mut standing, file, guard);
                true
            }
            None => {
                standing.wanted = Some(file);
                false
            }
        }
    }
}

impl Admission for OpenAdmission {
    /// The file is not open yet: where the store is to be asked, it is not opened before that.
    fn admit(&self, found: &Attributes) -> Result<(), Status> {
        if self.is_held(found) { Ok(()) } else { Err(Status::SHARE_DENIED) }
    }

    fn admit_open(&self, found: &Attributes) -> Result<(), Status> {
        self.is_held(found);
        Ok(())
    }
}
