//! A chain among the operations of a session.

use std::sync::Arc;

use dafs_proto::transport::{PostError, Span};
use dafs_proto::wire::{CHAIN_HANDLE, Flags, HEADER_SIZE, Header, LockRequest, Opcode, Status};
use smallvec::SmallVec;

use crate::error::Error;
use crate::handle::closings::Closing;
use crate::handle::node::{Node, Reopen, join};
use crate::memory::RawMemory;
use crate::method::io_path::Direction;
use crate::op::body::{Body, DataReply};
use crate::op::draft::{Draft, HEAD_ROOM, Outlet};
use crate::op::named::{Named, NamedReply, Reply};
use crate::op::request::Broken;
use crate::op::transfer::TransferKind;

/// One request of a chain. Small, since it is moved until the chain is sent.
pub(crate) struct Link {
    pub(crate) opcode: Opcode,
    pub(crate) ask: Ask,
    /// The handle in its reply is saved for those behind it, and opened again like this.
    pub(crate) reopen: Option<Reopen>,
    pub(crate) answer: Option<Result<Answer, Box<Error>>>,
}

/// What a link says.
pub(crate) enum Ask {
    /// Data of the file that was opened moves in the messages, from this offset on.
    Data(TransferKind, u64, RawMemory),
    /// A few bytes.
    Few([u8; FEW_MAX], u8),
    /// Its reply is an [`Answer::Named`].
    Named(Box<Named>),
}

/// What a good reply said.
pub(crate) enum Answer {
    Nothing,
    Data(DataReply),
    Named(Box<NamedReply>),
}

/// Bytes of the longest body that goes without a box.
const FEW_MAX: usize = LockRequest::HEAD_SIZE - HEADER_SIZE;

/// A chain among the operations of a session.
pub(crate) struct ChainWork {
    pub(crate) links: Vec<Link>,
    pub(crate) sent: usize,
    /// Times that it was begun again because replies were lost.
    attempts: u32,
}

/// Replies lost that often are not an accident.
const ATTEMPTS_MAX: u32 = 16;

impl Link {
    fn of(opcode: Opcode, ask: Ask) -> Self {
        Self { opcode, ask, reopen: None, answer: None }
    }

    pub(crate) fn new(opcode: Opcode, request: Named) -> Self {
        Self::of(opcode, Ask::Named(Box::new(request)))
    }

    /// Moves data of the file that was opened, in the messages.
    pub(crate) fn data(kind: TransferKind, offset: u64, memory: RawMemory) -> Self {
        Self::of(kind.opcode(), Ask::Data(kind, offset, memory))
    }

    /// A request of a few bytes, `LEN` at most [`FEW_MAX`], to which a good reply says nothing.
    pub(crate) fn few<const LEN: usize>(opcode: Opcode, body: &[u8; LEN]) -> Self {
        const { assert!(LEN <= FEW_MAX) }
        let mut few = [0; FEW_MAX];
        few[..LEN].copy_from_slice(body);
        Self::of(opcode, Ask::Few(few, LEN.to_le_bytes()[0]))
    }

    /// The path that it names.
    pub(crate) fn path(&self) -> &[u8] {
        match &self.ask {
            Ask::Named(named) => &named.path,
            Ask::Data(..) | Ask::Few(..) => &[],
        }
    }

    fn send(&self, outlet: &mut impl Outlet, header: Header) -> Result<(), PostError> {
        let mut head = HEAD_ROOM;
        match &self.ask {
            Ask::Named(named) => named.send(outlet, header),
            Ask::Few(body, len) => {
                let draft = Draft::of(&mut head, header, &body[..usize::from(*len)]);
                outlet.send(draft, 0, |_| {})
            }
            Ask::Data(kind, offset, memory) => {
                let body = Body::inline(*kind, *offset, memory.len());
                let draft = Draft::new(&mut head, header, |head| body.encode(head));
                let payload = match kind.direction() {
                    Direction::Write => memory.span(),
                    Direction::Read => Span::EMPTY,
                };
                outlet.send(draft, payload.len(), |room| {
                    if let Some(room) = room.slice(0, payload.len()) {
                        room.copy_from(payload);
                    }
                })
            }
        }
    }

    /// What a good reply says; data goes where it is to be.
    fn answered(&self, reply: &Reply<'_>) -> Result<Answer, Broken> {
        match self.ask {
            Ask::Named(_) => Ok(Answer::Named(Box::new(reply.kept()))),
            Ask::Few(..) => Ok(Answer::Nothing),
            Ask::Data(kind, _, memory) => {
                let data = DataReply::decode(kind, reply.body)?;
                data.check(kind, memory.len(), reply.payload.len(), true)?;
                if let (Direction::Read, Some(memory)) = (kind.direction(), memory.slice(0, data.count)) {
                    memory.span().copy_from(reply.payload);
                }
                Ok(Answer::Data(data))
            }
        }
    }
}

impl ChainWork {
    pub(crate) fn new(links: Vec<Link>) -> Self {
        Self { links, sent: 0, attempts: 0 }
    }

    /// Directories that links name beside what they are about.
    pub(crate) fn seconds(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.links.iter().filter_map(|link| match &link.ask {
            Ask::Named(named) => named.second.as_ref(),
            Ask::Data(..) | Ask::Few(..) => None,
        })
    }

    /// Sends a link. Those behind the first use the handle that was saved last.
    pub(crate) fn send(
        &self,
        outlet: &mut impl Outlet,
        mut header: Header,
        index: usize,
    ) -> Result<(), PostError> {
        let Some(link) = self.links.get(index) else {
            return Err(PostError::Invalid("a link that a chain does not have"));
        };
        header.flags.set(Flags::CHAIN_BACK, index > 0);
        header.flags.set(Flags::CHAIN_FORWARD, index + 1 < self.links.len());
        // The first may be about an open file, which those behind it are about too.
        header.flags.set(Flags::SAVE_HANDLE, index == 0 || link.reopen.is_some());
        if index > 0 {
            header.handle = CHAIN_HANDLE;
        }
        link.send(outlet, header)
    }

    /// A link was answered, and not with an error.
    pub(crate) fn on_reply(&mut self, index: usize, reply: &Reply<'_>) -> Result<(), Broken> {
        if let Some(link) = self.links.get_mut(index) {
            link.answer = Some(Ok(link.answered(reply)?));
        }
        Ok(())
    }

    /// A link was answered with an error.
    pub(crate) fn on_error(&mut self, index: usize, mut error: Error) {
        let Some(link) = self.links.get_mut(index) else { return };
        if let Error::Status { path, .. } = &mut error {
            *path = join(path, link.path());
        }
        link.answer = Some(Err(Box::new(error)));
    }

    /// Doing it all again does no harm. What it has changed itself, a comparison would take for the change of another; and what others have
    /// changed under the same lock since would be lost.
    pub(crate) fn repeats(&self) -> bool {
        let has = |check: fn(&Link) -> bool| self.links.iter().any(check);
        let makes = has(|link| matches!(&link.ask, Ask::Named(named) if named.makes));
        let compares = has(|link| link.opcode == Opcode::Verify) && has(|link| link.opcode.modifies());
        let has_changed = self.links.iter().take(self.sent).any(|link| link.opcode.modifies());
        let changes_locked = has_changed && has(|link| link.opcode == Opcode::Lock);
        !makes && !compares && !changes_locked && self.attempts < ATTEMPTS_MAX
    }

    /// Doing it all again does no harm, where none of its links that were not answered had an effect that it may not have again. One that
    /// was answered may have, and a write may have been carried out: what follows from that is as in [`ChainWork::repeats`].
    pub(crate) fn repeats_undone(&self) -> bool {
        let has = |opcode| self.links.iter().any(|link| link.opcode == opcode);
        let harms = |link: &Link| {
            let makes = matches!(&link.ask, Ask::Named(named) if named.makes);
            makes || link.opcode.modifies() && !link.opcode.is_idempotent()
        };
        let sent = || self.links.iter().take(self.sent);
        let has_harmed = sent().any(|link| matches!(link.answer, Some(Ok(_))) && harms(link));
        let may_have_changed = sent().any(|link| link.opcode.modifies() && link.opcode.is_idempotent());
        let is_compared = may_have_changed && (has(Opcode::Verify) || has(Opcode::Lock));
        !has_harmed && !is_compared && self.attempts < ATTEMPTS_MAX
    }

    /// Aborted, and no link before has failed: the reply of one that succeeded was lost, and the chain is over on the server.
    pub(crate) fn lost_replies(&self) -> bool {
        let failed = self.links.iter().find_map(|link| match &link.answer {
            Some(Err(error)) => Some(error.status().unwrap_or(Status::OK)),
            _ => None,
        });
        failed == Some(Status::CHAIN_ABORTED)
    }

    /// Begins again on the same session, in new slots; returns the handles that it had gained, for closing.
    pub(crate) fn restart(&mut self) -> Vec<Closing> {
        let gained = self.unclosed();
        self.attempts += 1;
        self.reset();
        gained
    }

    /// Nothing of it has been sent.
    pub(crate) fn reset(&mut self) {
        self.sent = 0;
        self.links.iter_mut().for_each(|link| link.answer = None);
    }

    /// Why it failed, when all of it is answered.
    pub(crate) fn failure(&self) -> Option<Error> {
        if self.lost_replies() {
            return Some(Error::InDoubt { operation: self.links.first()?.opcode });
        }
        self.links.iter().find_map(|link| match &link.answer {
            Some(Err(error)) => Some(Error::clone(error)),
            _ => None,
        })
    }

    /// What the writes that succeeded behind the last commit did, and where.
    pub(crate) fn unstable_writes(&self) -> SmallVec<[(DataReply, u64); 1]> {
        let mut written = SmallVec::new();
        for link in &self.links {
            match (&link.ask, &link.answer) {
                (Ask::Data(TransferKind::Write(_), offset, _), Some(Ok(Answer::Data(reply)))) => {
                    written.push((*reply, *offset));
                }
                (_, Some(Ok(_))) if link.opcode == Opcode::Commit => written.clear(),
                _ => {}
            }
        }
        written
    }

    /// Handles that were gained and not closed by the chain.
    pub(crate) fn unclosed(&self) -> Vec<Closing> {
        let mut gained: Vec<Closing> = Vec::new();
        for link in &self.links {
            match (&link.answer, link.opcode) {
                (Some(Ok(Answer::Named(reply))), _) if link.reopen.is_some() => {
                    gained.push(Closing::Handle {
                        index: None,
                        epoch: reply.epoch,
                        handle: reply.header.handle,
                    });
                }
                // It closes what was saved last.
                (Some(Ok(_)), Opcode::Close) => drop(gained.pop()),
                _ => {}
            }
        }
        gained
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-160] [SESS-139]
    #[test]
    fn chain_that_both_compares_and_changes_is_not_repeated() {
        let link = |opcode| Link::new(opcode, Named::default());
        let repeats =
            |opcodes: &[Opcode]| ChainWork::new(opcodes.iter().copied().map(link).collect()).repeats();
        assert!(repeats(&[Opcode::Open, Opcode::Verify, Opcode::Read, Opcode::Close]));
        assert!(repeats(&[Opcode::Open, Opcode::Write, Opcode::Commit, Opcode::Close]));
        assert!(!repeats(&[Opcode::Open, Opcode::Verify, Opcode::Write]));
        assert!(!repeats(&[Opcode::Truncate, Opcode::Verify]));
        // [SESS-140]
        let mut locked = ChainWork::new([Opcode::Lock, Opcode::Read, Opcode::Write].map(link).into());
        for (sent, repeats) in [(0, true), (1, true), (2, true), (3, false)] {
            locked.sent = sent;
            assert_eq!(locked.repeats(), repeats, "{sent}");
        }
        let mut reads = ChainWork::new([Opcode::Lock, Opcode::Read, Opcode::Unlock].map(link).into());
        reads.sent = 3;
        assert!(reads.repeats());
        let mut makes = ChainWork::new(vec![link(Opcode::Open), link(Opcode::Read)]);
        makes.links[0] = Link::new(Opcode::Open, Named { makes: true, ..Named::default() });
        assert!(!makes.repeats());
    }
}
