//! A chain among the operations of a session.

use dafs_proto::transport::PostError;
use dafs_proto::wire::{CHAIN_HANDLE, Flags, HEADER_SIZE, Header, Opcode, Status};

use crate::error::Error;
use crate::handle::closings::Closing;
use crate::handle::node::{Reopen, join};
use crate::op::body::Body;
use crate::op::draft::Outlet;
use crate::op::named::{BODY_MAX, Named, NamedReply};
use crate::op::transfer::TransferKind;

/// One request of a chain.
pub(crate) struct Link {
    pub(crate) opcode: Opcode,
    /// Its reply is in `answer`.
    pub(crate) request: Named,
    /// The handle in its reply is saved for those behind it, and opened again like this.
    pub(crate) reopen: Option<Reopen>,
    pub(crate) answer: Option<Result<NamedReply, Error>>,
}

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
    pub(crate) fn new(opcode: Opcode, request: Named) -> Self {
        Self { opcode, request, reopen: None, answer: None }
    }

    /// Moves data of the file that was opened, in the messages.
    pub(crate) fn data(kind: TransferKind, offset: u64, len: usize) -> Self {
        let mut request = Named::of(BODY_MAX, |_| {});
        let head_len = Body::inline(kind, offset, len).encode(&mut request.body);
        request.body.truncate(head_len - HEADER_SIZE);
        Self::new(kind.opcode(), request)
    }
}

impl ChainWork {
    pub(crate) fn new(links: Vec<Link>) -> Self {
        Self { links, sent: 0, attempts: 0 }
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
        link.request.send(outlet, header)
    }

    /// A link was answered.
    pub(crate) fn on_answer(&mut self, index: usize, answer: Result<NamedReply, Error>) {
        let Some(link) = self.links.get_mut(index) else { return };
        link.answer = Some(answer.map_err(|mut error| {
            if let Error::Status { path, .. } = &mut error {
                *path = join(path, &link.request.path);
            }
            error
        }));
    }

    /// Doing it all again does no harm. What it has changed itself, a comparison would take for the change of another.
    pub(crate) fn repeats(&self) -> bool {
        let makes = self.links.iter().any(|link| link.request.makes);
        let has = |check: fn(&Link) -> bool| self.links.iter().any(check);
        let compares = has(|link| link.opcode == Opcode::Verify) && has(|link| link.opcode.modifies());
        !makes && !compares && self.attempts < ATTEMPTS_MAX
    }

    /// Aborted, and no link before has failed: the reply of one that succeeded was lost, and the chain is over on the server.
    pub(crate) fn lost_replies(&self) -> bool {
        let failed = self.links.iter().find_map(|link| match &link.answer {
            Some(Err(Error::Status { status, .. })) => Some(*status),
            Some(Err(_)) => Some(Status::OK),
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
            Some(Err(error)) => Some(error.clone()),
            _ => None,
        })
    }

    /// Handles that were gained and not closed by the chain.
    pub(crate) fn unclosed(&self) -> Vec<Closing> {
        let mut gained: Vec<Closing> = Vec::new();
        for link in &self.links {
            match (&link.answer, link.opcode) {
                (Some(Ok(reply)), _) if link.reopen.is_some() => {
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

    // [CLI-160] [CLI-39]
    #[test]
    fn chain_that_compares_and_changes_is_not_repeated_and_one_that_does_either_is() {
        let link = |opcode| Link::new(opcode, Named::default());
        let repeats =
            |opcodes: &[Opcode]| ChainWork::new(opcodes.iter().copied().map(link).collect()).repeats();
        assert!(repeats(&[Opcode::Open, Opcode::Verify, Opcode::Read, Opcode::Close]));
        assert!(repeats(&[Opcode::Open, Opcode::Write, Opcode::Commit, Opcode::Close]));
        assert!(!repeats(&[Opcode::Open, Opcode::Verify, Opcode::Write]));
        assert!(!repeats(&[Opcode::Truncate, Opcode::Verify]));
        let mut makes = ChainWork::new(vec![link(Opcode::Open), link(Opcode::Read)]);
        makes.links[0].request.makes = true;
        assert!(!makes.repeats());
    }
}
