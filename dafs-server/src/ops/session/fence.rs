//! A change of a fence is answered when no worker has an operation of a fenced client in flight.

use std::sync::Arc;

use dafs_proto::transport::OpToken;
use dafs_proto::wire::Status;

use super::super::Worker;
use crate::shared::mail::Mail;
use crate::worker::flight::Call;
use crate::worker::flight::fencing::Then;
use crate::worker::operations::WaitsFor;
use crate::worker::sessions::Session;

impl Worker {
    /// Answers the call when no operation of a client that is fenced off the export is in flight.
    pub(crate) fn wait_for_drain(&mut self, call: &Call, export: usize) {
        let others = self.shared.others(self.id).count();
        self.operations.fencing().begin_wait();
        let kept = (!self.shared.fences.are_kept()).then_some(Status::OK);
        let waiter = self.park(*call, WaitsFor::FenceDrain { export, others, kept });
        if kept.is_none() {
            self.keep_fence(export, waiter);
        }
        for other in self.shared.others(self.id) {
            let (shared, from) = (Arc::clone(&self.shared), self.id);
            let then = Box::new(move || shared.send(from, Mail::Drained { waiter }));
            self.shared.send(other, Mail::Drain { export, then });
        }
    }

    /// Has the list of an export written to the store. Where that cannot be, it holds all the same.
    fn keep_fence(&self, export: usize, waiter: OpToken) {
        let (shared, id) = (Arc::downgrade(&self.shared), self.id);
        let tell = Box::new(move |status| {
            if let Some(shared) = shared.upgrade() {
                shared.send(id, Mail::FencesKept { waiter, status });
            }
        });
        self.shared.fences.keep(export, tell);
    }

    /// The list was written, or not.
    pub(crate) fn on_fences_kept(&mut self, waiter: OpToken, status: Status) {
        if let Some(index) = self.operations.index_of(waiter)
            && let WaitsFor::FenceDrain { kept, .. } = &mut self.operations[index].state
        {
            *kept = Some(status);
            self.resume_fence_drains();
        }
    }

    /// Somebody else waits for operations of fenced clients here.
    pub(crate) fn on_drain(&mut self, export: usize, then: Then) {
        self.operations.fencing().wait_for(export, then);
        self.operations.look_at_fences();
    }

    /// Another worker has drained.
    pub(crate) fn on_drained(&mut self, waiter: OpToken) {
        if let Some(index) = self.operations.index_of(waiter)
            && let WaitsFor::FenceDrain { others, .. } = &mut self.operations[index].state
        {
            *others = others.saturating_sub(1);
            self.resume_fence_drains();
        }
    }

    /// Ends what waits for fenced clients, and tells those who wait for it to end.
    pub(crate) fn drain_fenced(&mut self) {
        self.disconnect_fenced();
        self.resume_fence_drains();
    }

    /// A fenced client that does not serve the server's reads and writes would decide when its fence is complete. It asks again on its next
    /// connection, and meets the fence. What storage has begun for it is answered first.
    fn disconnect_fenced(&mut self) {
        let exports = self.operations.fenced_exports();
        let mut waiting = self.operations.waiting_for_clients();
        let is_fenced = |session| {
            self.sessions.find(session).is_some_and(|session| {
                exports.iter().any(|export| self.shared.fences.holds_off(*export, &session.subject()))
            })
        };
        waiting.retain(|(session, _)| is_fenced(*session));
        for (_, connection) in waiting {
            self.close(connection, &"its client was fenced off while an operation waited for it");
        }
    }

    /// Looks at who waits for operations of fenced clients.
    fn resume_fence_drains(&mut self) {
        for (export, then) in self.operations.fencing().take_foreign() {
            if self.fenced_in_flight(export) {
                self.operations.fencing().wait_for(export, then);
            } else {
                then();
            }
        }
        if !self.operations.fencing().has_waits() {
            return;
        }
        let drained = self.operations.places_of(|operation| match operation.state {
            WaitsFor::FenceDrain { export, others, kept } => {
                others == 0 && kept.is_some() && !self.fenced_in_flight(export)
            }
            _ => false,
        });
        for index in drained {
            self.operations.fencing().end_wait();
            let operation = self.unpark(index);
            self.connections.mark_dirty(operation.call.connection);
            let WaitsFor::FenceDrain { kept: Some(status), .. } = operation.state else { continue };
            self.reply_status(&operation.call, status);
        }
    }

    /// An operation of a client that is fenced off the export is still in flight. What has not begun meets the fence when it does.
    fn fenced_in_flight(&self, export: usize) -> bool {
        self.operations.iter().any(|(_, operation)| {
            let session = self.sessions.find(operation.call.session).map(Session::subject);
            let subject = session.or_else(|| operation.former.as_ref().map(|former| former.subject()));
            let is_idle = matches!(
                operation.state,
                WaitsFor::FenceDrain { .. }
                    | WaitsFor::Lock { .. }
                    | WaitsFor::ClusterLock { .. }
                    | WaitsFor::Cluster
                    | WaitsFor::Recall { .. }
                    | WaitsFor::CrossoversKept
                    | WaitsFor::Chain { .. }
            );
            !(is_idle || operation.state.is_answered())
                && subject.is_none_or(|subject| self.shared.fences.holds_off(export, &subject))
        })
    }
}
