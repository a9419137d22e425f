//! What becomes of requests in flight when the connection was made again.

use std::sync::Arc;

use dafs_proto::session::{ClientSession, Moment};
use dafs_proto::wire::{FileHandle, Opcode, Slot};

use crate::engine::core::Core;
use crate::engine::outcomes::{Fate, Outcomes};
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
    /// What became of the requests of the lost session, where the server knows.
    pub(crate) outcomes: Option<Outcomes>,
}

impl Core {
    /// There is a new connection: of the same session, which goes on where it was, or of a new one.
    pub(crate) fn reconnected(&mut self, mut terms: Terms, renewed: Option<Renewed>, now: Moment) {
        self.signs = Signs::new(&terms.welcome, now);
        let is_taken_over = renewed.as_ref().is_none_or(|renewed| renewed.outcomes.is_some());
        self.draining = false;
        for (_, op) in &mut self.ops {
            op.note_time(now);
        }
        self.lose_eager_buffers();
        let unanswered = self.unanswered();
        if let Some(Renewed { session, nodes, outcomes }) = renewed {
            let lapsed = terms.welcome.server_epoch == self.terms.welcome.server_epoch;
            let fate = |slot| {
                let sequence = self.session.sequence_of(slot);
                outcomes.as_ref().map_or(Fate::Untold, |outcomes| outcomes.fate(slot, sequence))
            };
            let unanswered: Vec<_> = unanswered.into_iter().map(|slot| (slot, fate(slot))).collect();
            self.session = session;
            self.ops.iter_mut().for_each(|(_, op)| op.on_terms(&terms));
            for (node, handle) in nodes {
                node.renew(self.epoch, handle);
            }
            self.resend.clear();
            self.forget_closes();
            self.forget_put_backs();
            let told = self.repeat(unanswered, lapsed);
            self.repeat_chains(lapsed, outcomes.is_some().then_some(&told));
        } else {
            self.session.on_resumed(&terms.welcome);
            self.resend = unanswered.into();
        }
        if is_taken_over {
            // Nothing that was acknowledged is lost with a server that another has taken over.
            terms.loss_epoch = self.terms.loss_epoch;
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

    /// In a new session: a chain of which a part was sent begins anew, or ends as in doubt. `told` are chains of which a link was carried
    /// out, or may have been; the others had none carried out of those that were not answered.
    fn repeat_chains(&mut self, lapsed: bool, told: Option<&Vec<usize>>) {
        for index in self.indices(|op| op.is_half_way()) {
            let Some(op) = self.ops.get_mut(index) else { continue };
            let may_begin = match told {
                Some(told) => !told.contains(&index) && op.can_begin_anew(),
                None => op.can_repeat(lapsed),
            };
            if may_begin && op.error.is_none() {
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

    /// In a new session: requests that were sent in the old one go back into the queue, or end with their replies, or as in doubt. Returns
    /// the chains of which a link had an effect, or may have had one.
    fn repeat(&mut self, unanswered: Vec<(Slot, Fate)>, lapsed: bool) -> Vec<usize> {
        let (mut again, mut chains) = (Vec::new(), Vec::new());
        for (slot, fate) in unanswered {
            let Some(request) = self.requests.get_mut(slot.0 as usize).and_then(Option::take) else {
                continue;
            };
            self.let_go(&request);
            let index = request.op;
            let Some(op) = self.ops.get_mut(index) else { continue };
            op.outstanding -= 1;
            if op.goes_whole() {
                chains.extend(matches!(fate, Fate::Done(_) | Fate::Unknown).then_some(index));
                continue;
            }
            // The new session has nothing of it: but for what was locked since, which would go with it, that was not taken again.
            let is_given_back = matches!(op.opcode, Opcode::Close | Opcode::Unlock);
            let repeats = match &fate {
                Fate::Untold => op.can_repeat(lapsed),
                Fate::Undone => op.can_follow_undone(lapsed),
                Fate::Done(_) | Fate::Unknown => false,
            };
            if repeats && op.error.is_none() && !op.is_withdrawn() && !is_given_back {
                op.redo(request.at, request.len);
                if !std::mem::replace(&mut op.queued, true) {
                    again.push(index);
                }
                continue;
            }
            let goes_again = match fate {
                _ if is_given_back => false,
                Fate::Done(outcome) => self.take_outcome(slot, &request, &outcome),
                _ => {
                    self.doubt(index);
                    false
                }
            };
            again.extend(goes_again.then_some(index));
            self.finish_if_ended(index);
        }
        for index in again.into_iter().rev() {
            self.queue.push_front(index);
        }
        chains
    }
}
