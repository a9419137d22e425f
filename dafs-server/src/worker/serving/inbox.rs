//! The mail between workers: connections that come and go, and who waits for whom.

use super::Worker;
use crate::shared::mail::{Mail, Resume};
use crate::worker::ids::ConnectionKey;

impl Worker {
    /// Nobody has written.
    pub fn has_no_mail(&self) -> bool {
        self.shared.inbox(self.id).is_empty()
    }

    /// Reads the mail of other workers. Returns the connections that came with it, for the loop to watch.
    pub fn read_mail(&mut self) -> Vec<ConnectionKey> {
        let mut came = Vec::new();
        while let Some(mail) = self.shared.inbox(self.id).take() {
            match mail {
                Mail::Accepted { listener, endpoint } => came.push(self.add_connection(listener, endpoint)),
                Mail::Resume(resume) => {
                    let Resume { listener, endpoint, introduction } = *resume;
                    let key = self.add_connection(listener, endpoint);
                    came.push(key);
                    self.welcome(key, introduction);
                    self.connections.mark_dirty(key);
                }
                Mail::SessionBefore { connection, before } => self.on_session_before(connection, before),
                Mail::ClusterLocked { told, status } => self.on_cluster_locked(told, status),
                Mail::ClusterLockTested { waiter, found } => self.on_cluster_lock_tested(waiter, found),
                Mail::Known { connection, is_known } => self.on_known(connection, is_known),
                Mail::Drain { export, then } => self.on_drain(export, then),
                Mail::FencesKept { waiter, status } => self.on_fences_kept(waiter, status),
                Mail::Drained { waiter } => self.on_drained(waiter),
                Mail::LocksKept { waiter, status } => self.on_locks_kept(waiter, status),
                Mail::CrossoversKept { waiter, status } => self.on_crossovers_kept(waiter, status),
                // They are found below.
                Mail::Parted => {}
                Mail::LockWaited { told, status } => self.on_lock_waited(told, status),
            }
        }
        self.flush_dirty();
        came
    }
}
