//! Chains: requests that depend on the one before, in order; the first error aborts the rest. Each link keeps its own
//! slot and reply (DAFS 1.0, request chaining).

use smallvec::SmallVec;

use crate::wire::{FileHandle, Flags, Header, Status};

use super::SessionFault;

/// A request's place in a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainLink {
    /// Which chain of the session.
    pub chain: u64,
    /// Its place, from 0.
    pub position: u16,
}

/// What to do with a link whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainStep {
    /// The link before is still being executed: keep the request until `Chains::on_reply` says so.
    Wait,
    /// Execute it, with the saved handle where the request names it.
    Execute(Option<FileHandle>),
    /// An earlier link failed: answer `CHAIN_ABORTED`.
    Abort,
}

/// The chains of one session that are not finished.
#[derive(Debug, Default)]
pub(super) struct Chains {
    next_id: u64,
    // The chain that the next request with CHAIN_BACK continues.
    open: Option<u64>,
    active: Vec<Chain>,
}

#[derive(Debug)]
struct Chain {
    id: u64,
    arrived: u16,
    answered: u16,
    closed: bool,
    // The first link that failed.
    failed: Option<u16>,
    // A link will never be answered.
    given_up: bool,
    // Which links saved which handle. One that is executed again goes by what was saved before it.
    saves: SmallVec<[(u16, FileHandle); 1]>,
}

impl Chain {
    /// Nothing more comes for it or of it.
    fn is_over(&self) -> bool {
        self.closed && (self.given_up || self.answered == self.arrived)
    }

    /// The handle that is saved for a link.
    fn saved_for(&self, position: u16) -> Option<FileHandle> {
        self.saves.iter().rev().find(|(saved_by, _)| *saved_by < position).map(|(_, handle)| *handle)
    }
}

impl Chains {
    /// Places an arriving request; `None` when it is of no chain.
    #[inline]
    pub(super) fn on_request(
        &mut self,
        header: &Header,
        length_max: u16,
    ) -> Result<Option<ChainLink>, SessionFault> {
        let forward = header.flags.contains(Flags::CHAIN_FORWARD);
        let back = header.flags.contains(Flags::CHAIN_BACK);
        if !forward && !back {
            return Ok(None);
        }
        let id = if back {
            self.open.ok_or(SessionFault::NoChain)?
        } else {
            self.end_open();
            self.next_id += 1;
            self.active.push(Chain {
                id: self.next_id,
                arrived: 0,
                answered: 0,
                closed: false,
                failed: None,
                given_up: false,
                saves: SmallVec::new(),
            });
            self.next_id
        };
        self.open = forward.then_some(id);
        let chain = self.active.iter_mut().find(|chain| chain.id == id).ok_or(SessionFault::NoChain)?;
        if chain.arrived >= length_max {
            return Err(SessionFault::ChainTooLong { limit: length_max });
        }
        let position = chain.arrived;
        chain.arrived += 1;
        chain.closed = !forward;
        Ok(Some(ChainLink { chain: id, position }))
    }

    /// A chain that was left open, and is not continued, has ended.
    fn end_open(&mut self) {
        let Some(left) = self.open.take() else { return };
        if let Some(chain) = self.active.iter_mut().find(|chain| chain.id == left) {
            chain.closed = true;
        }
        self.active.retain(|chain| !chain.is_over());
    }

    /// Whether the link may run now.
    pub(super) fn step(&self, link: ChainLink) -> ChainStep {
        match self.active.iter().find(|chain| chain.id == link.chain) {
            Some(chain) if chain.given_up => ChainStep::Abort,
            Some(chain) if chain.answered < link.position => ChainStep::Wait,
            Some(chain) if chain.failed.is_some_and(|failed| failed < link.position) => ChainStep::Abort,
            Some(chain) => ChainStep::Execute(chain.saved_for(link.position)),
            None => ChainStep::Abort,
        }
    }

    /// A link was answered. `handle` is what its reply carries, where the request asked to save it.
    pub(super) fn on_reply(&mut self, link: ChainLink, status: Status, handle: Option<FileHandle>) {
        let Some(chain) = self.active.iter_mut().find(|chain| chain.id == link.chain) else { return };
        // What is executed again, for its reply was lost, was counted: those behind it are not to overtake each other.
        if chain.answered == link.position {
            chain.answered += 1;
            if status != Status::OK {
                chain.failed.get_or_insert(link.position);
            }
            chain.saves.extend(handle.map(|handle| (link.position, handle)));
        }
        // The answer to a link behind one that was given up may be the last.
        if chain.is_over() {
            self.forget_ended();
        }
    }

    /// A link that was abandoned does not come again. Returns the chain that ends with it, whose links need not wait any more.
    #[cold]
    pub(super) fn on_given_up(&mut self, link: ChainLink) -> Option<u64> {
        let unanswered = |chain: &&mut Chain| chain.id == link.chain && chain.answered <= link.position;
        self.active.iter_mut().find(unanswered)?.given_up = true;
        self.forget_ended();
        Some(link.chain)
    }

    /// Chains that are not finished.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.active.len()
    }

    fn forget_ended(&mut self) {
        let open = self.open;
        self.active.retain(|chain| !chain.is_over() || open == Some(chain.id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Opcode;

    fn header(flags: Flags) -> Header {
        Header { flags, ..Header::request(Opcode::Null, FileHandle(0)) }
    }

    // [SESS-30] [SESS-31] [SESS-91] links run in order, the saved handle travels, the first error aborts the rest
    #[test]
    fn chain_with_failing_link_aborts_the_rest() {
        let mut chains = Chains::default();
        let first = chains.on_request(&header(Flags::CHAIN_FORWARD), 8).unwrap().unwrap();
        let second =
            chains.on_request(&header(Flags::CHAIN_FORWARD | Flags::CHAIN_BACK), 8).unwrap().unwrap();
        let third = chains.on_request(&header(Flags::CHAIN_BACK), 8).unwrap().unwrap();
        assert_eq!(chains.step(first), ChainStep::Execute(None));
        assert_eq!(chains.step(second), ChainStep::Wait);
        chains.on_reply(first, Status::OK, Some(FileHandle(5)));
        assert_eq!(chains.step(second), ChainStep::Execute(Some(FileHandle(5))));
        assert_eq!(chains.step(third), ChainStep::Wait);
        chains.on_reply(second, Status::NOT_FOUND, None);
        assert_eq!(chains.step(third), ChainStep::Abort);
        chains.on_reply(third, Status::CHAIN_ABORTED, None);
        assert!(chains.active.is_empty());
    }

    // [SESS-92]
    #[test]
    fn chain_whose_links_are_answered_again_goes_no_further_for_it() {
        let mut chains = Chains::default();
        let flags = [Flags::CHAIN_FORWARD, Flags::CHAIN_FORWARD | Flags::CHAIN_BACK, Flags::CHAIN_BACK];
        let links = flags.map(|flags| chains.on_request(&header(flags), 8).unwrap().unwrap());
        for _ in 0..3 {
            chains.on_reply(links[0], Status::OK, None);
            assert_eq!(chains.step(links[2]), ChainStep::Wait, "the second is under way");
        }
        chains.on_reply(links[1], Status::OK, None);
        assert_eq!(chains.step(links[2]), ChainStep::Execute(None));
        chains.on_reply(links[2], Status::OK, None);
        assert!(chains.active.is_empty());
    }

    // [SESS-31] [SESS-124]
    #[test]
    fn link_executed_again_goes_by_what_was_saved_and_failed_before_it() {
        let mut chains = Chains::default();
        let between = Flags::CHAIN_FORWARD | Flags::CHAIN_BACK;
        let flags = [Flags::CHAIN_FORWARD, between, between, between, Flags::CHAIN_BACK];
        let links = flags.map(|flags| chains.on_request(&header(flags), 8).unwrap().unwrap());
        let (first, second) = (Some(FileHandle(1)), Some(FileHandle(2)));
        for (link, saves) in links.iter().zip([first, None, second]) {
            chains.on_reply(*link, Status::OK, saves);
        }
        let steps = |chains: &Chains| links.map(|link| chains.step(link));
        let execute = ChainStep::Execute;
        let before = [execute(None), execute(first), execute(first), execute(second)];
        assert_eq!(steps(&chains)[..4], before);
        assert_eq!(steps(&chains)[4], ChainStep::Wait);
        chains.on_reply(links[1], Status::OK, None);
        chains.on_reply(links[3], Status::IO, None);
        assert_eq!(steps(&chains)[..4], before, "and none saved anything twice");
        assert_eq!(steps(&chains)[4], ChainStep::Abort);
        chains.on_reply(links[4], Status::CHAIN_ABORTED, None);
        assert!(chains.active.is_empty());
    }

    // [SESS-94]
    #[test]
    fn chain_continued_but_not_begun_is_a_fault() {
        assert_eq!(Chains::default().on_request(&header(Flags::CHAIN_BACK), 8), Err(SessionFault::NoChain));
    }

    // [SESS-33] a client that ends none of its chains keeps none alive
    #[test]
    fn chain_begun_behind_one_left_open_ends_that() {
        let mut chains = Chains::default();
        for _ in 0..100 {
            let link = chains.on_request(&header(Flags::CHAIN_FORWARD), 8).unwrap().unwrap();
            chains.on_reply(link, Status::OK, None);
            assert_eq!(chains.active.len(), 1);
        }
        let last = chains.on_request(&header(Flags::CHAIN_FORWARD), 8).unwrap().unwrap();
        let behind = chains.on_request(&header(Flags::CHAIN_FORWARD), 8).unwrap().unwrap();
        assert_eq!(chains.active.len(), 2, "what is unanswered stays");
        chains.on_reply(last, Status::OK, None);
        chains.on_reply(behind, Status::OK, None);
        assert_eq!(chains.active.len(), 1);
    }

    // [SESS-127]
    #[test]
    fn chain_with_abandoned_link_aborts_waiting_links_and_is_forgotten() {
        let mut chains = Chains::default();
        let flags = [Flags::CHAIN_FORWARD, Flags::CHAIN_FORWARD | Flags::CHAIN_BACK, Flags::CHAIN_BACK];
        let links = flags.map(|flags| chains.on_request(&header(flags), 8).unwrap().unwrap());
        chains.on_reply(links[0], Status::OK, None);
        assert_eq!(chains.on_given_up(links[0]), None, "it was answered, and abandoned when it came again");
        assert_eq!(chains.step(links[2]), ChainStep::Wait);
        assert_eq!(chains.on_given_up(links[1]), Some(links[1].chain));
        assert_eq!(chains.step(links[2]), ChainStep::Abort);
        assert!(chains.active.is_empty());
        chains.on_reply(links[2], Status::CHAIN_ABORTED, None);

        // One that is open stays until it is continued, or another begins.
        let first = chains.on_request(&header(Flags::CHAIN_FORWARD), 8).unwrap().unwrap();
        chains.on_given_up(first);
        let last = chains.on_request(&header(Flags::CHAIN_BACK), 8).unwrap().unwrap();
        assert_eq!(chains.step(last), ChainStep::Abort);
        chains.on_reply(last, Status::CHAIN_ABORTED, None);
        assert!(chains.active.is_empty());
    }

    // [SESS-32]
    #[test]
    fn chain_of_length_limit_is_accepted_and_one_more_is_a_fault() {
        let mut chains = Chains::default();
        chains.on_request(&header(Flags::CHAIN_FORWARD), 2).unwrap();
        chains.on_request(&header(Flags::CHAIN_FORWARD | Flags::CHAIN_BACK), 2).unwrap();
        assert_eq!(
            chains.on_request(&header(Flags::CHAIN_BACK), 2),
            Err(SessionFault::ChainTooLong { limit: 2 })
        );
    }
}
