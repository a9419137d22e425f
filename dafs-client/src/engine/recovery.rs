//! What becomes of requests in flight when the connection was made again.

use std::sync::Arc;

use dafs_proto::session::{ClientSession, Moment};
use dafs_proto::wire::{FileHandle, Opcode, Slot};

use crate::engine::core::Core;
use crate::engine::signs::Signs;
use crate::error::{Error, StaleCause};
use crate::handle::node::Node;
use crate::op::terms::Terms;

/// A node, and its new handle if its file is still there.
pub(crate) type RenewedNode = (Arc<Node>, Result<FileHandle, StaleCause>);

/// A new session, with the nodes that were opened again in it.
pub(crate) struct Renewed {
    pub(crate) session: ClientSession,
    pub(crate) nodes: Vec<RenewedNode>,
}

impl Core {
    /// There is a new connection: of the same session, which goes on where it was, or of a new one.
    pub(crate) fn reconnected(&mut self, terms: Terms, renewed: Option<Renewed>, now: Moment) {
        self.signs = Signs::new(&terms.welcome, now);
        self.draining = false;
        for (_, op) in &mut self.ops {
            op.note_time(now);
        }
        self.lose_eager_buffers();
        // The order in which requests were first sent.
        let sent = (0u32..).zip(&self.requests);
        let mut unanswered: Vec<(u64, Slot)> =
            sent.filter_map(|(slot, request)| Some((request.as_ref()?.order, Slot(slot)))).collect();
        unanswered.sort_unstable_by_key(|(order, _)| *order);
        let unanswered = unanswered.into_iter().map(|(_, slot)| slot);
        if let Some(Renewed { session, nodes }) = renewed {
            let lapsed = terms.welcome.server_epoch == self.terms.welcome.server_epoch;
            self.session = session;
            self.ops.iter_mut().for_each(|(_, op)| op.on_terms(&terms));
            for (node, handle) in nodes {
                node.renew(self.epoch, handle);
            }
            self.resend.clear();
            self.forget_closes();
            self.forget_put_backs();
            self.repeat(unanswered, lapsed);
            self.repeat_chains(lapsed);
        } else {
            self.session.on_resumed(&terms.welcome);
            self.resend = unanswered.collect();
        }
        self.terms = terms;
        self.ask_for_locks_again();
    }

    /// In a new session: handles of the old one need not be given back, and would name others now.
    fn forget_closes(&mut self) {
        for index in self.indices(|op| op.opcode == Opcode::Close && op.queued) {
            self.stop(index);
            self.finish_if_ended(index);
        }
    }

    /// In a new session: a chain of which a part was sent begins anew, or ends as in doubt.
    fn repeat_chains(&mut self, lapsed: bool) {
        for index in self.indices(|op| op.is_half_way()) {
            let Some(op) = self.ops.get_mut(index) else { continue };
            if op.can_repeat(lapsed) && op.error.is_none() {
                // Handles of the session that is gone need not be given back.
                op.begin_anew();
                if !std::mem::replace(&mut op.queued, true) {
                    self.queue.push_back(index);
                }
                continue;
            }
            let operation = op.opcode;
            self.fail(index, Error::InDoubt { operation });
        }
    }

    /// In a new session: requests that were sent in the old one go back into the queue, or end as in doubt.
    fn repeat(&mut self, unanswered: impl Iterator<Item = Slot>, lapsed: bool) {
        let mut again = Vec::new();
        for slot in unanswered {
            let Some(request) = self.requests.get_mut(slot.0 as usize).and_then(Option::take) else {
                continue;
            };
            self.let_go(&request);
            let index = request.op;
            let Some(op) = self.ops.get_mut(index) else { continue };
            op.outstanding -= 1;
            if op.goes_whole() {
                continue;
            }
            // The new session has nothing of it: but for what was locked since, which would go with it, that was not taken again.
            let is_given_back = matches!(op.opcode, Opcode::Close | Opcode::Unlock);
            if op.can_repeat(lapsed) && op.error.is_none() && !op.is_withdrawn() && !is_given_back {
                op.redo(request.at, request.len);
                if !std::mem::replace(&mut op.queued, true) {
                    again.push(index);
                }
                continue;
            }
            if op.error.is_none() && !is_given_back && !op.detached {
                op.error = Some(Box::new(Error::InDoubt { operation: op.opcode }));
                self.stop(index);
            }
            self.finish_if_ended(index);
        }
        for index in again.into_iter().rev() {
            self.queue.push_front(index);
        }
    }
}
