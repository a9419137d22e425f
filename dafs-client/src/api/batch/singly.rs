//! The operations of a batch one by one, if the server does not support batches or none of the memory can be registered. Each is a separate
//! transfer, at worst inline.

use std::sync::Arc;

use dafs_proto::wire::Sieve;
use smallvec::smallvec;

use crate::api::batch::part::{BatchOutcome, Part};
use crate::driver::pending::{Pending, wait_any};
use crate::driver::transfer::{Memory, TransferParts, submit_transfer};
use crate::driver::{EndOnUnwind, Owner};
use crate::error::{Error, Result};
use crate::memory::registration::RegistrationPolicy;
use crate::memory::{Keep, RegisteredBuf};
use crate::op::list::FilePart;
use crate::op::transfer::TransferKind;

/// Operations of one batch, each in flight or ended.
pub(crate) struct Singles {
    pending: Vec<Pending<Single>>,
    /// Their places among the operations of the batch.
    places: Vec<usize>,
    /// By place: what has ended.
    ended: Vec<Option<Single>>,
    /// Ended and not told.
    untold: Vec<usize>,
}

/// The end of one operation.
pub(crate) struct Single {
    keep: Keep,
    result: Result<BatchOutcome>,
}

impl Singles {
    /// Starts the operations; `keep` has the memory of each, or nothing where the caller waits. Does not block.
    pub(crate) fn submit(owner: &Arc<Owner>, operations: Vec<Part>, keep: Keep) -> Self {
        let mut keeps = match keep {
            Keep::Many(keeps) => keeps,
            _ => Vec::new(),
        }
        .into_iter();
        owner.shared.lock().corks += 1;
        let pending: Vec<_> = operations
            .into_iter()
            .map(|part| submit_single(owner, part, keeps.next().unwrap_or(Keep::None)))
            .collect();
        let mut core = owner.shared.lock();
        core.corks -= 1;
        owner.shared.push(&mut core, false);
        drop(core);
        let (places, ended) =
            ((0..pending.len()).collect(), std::iter::repeat_with(|| None).take(pending.len()));
        Self { places, ended: ended.collect(), pending, untold: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.ended.len()
    }

    /// Whether all have ended; moves the session along. Does not block.
    pub(crate) fn test(&mut self) -> bool {
        if let Some(first) = self.pending.first_mut() {
            first.test();
        }
        self.collect(Pending::has_ended);
        self.pending.is_empty()
    }

    /// Waits until some have ended that were not told, and returns their places; none when all are told. Blocks.
    pub(crate) fn wait_some(&mut self) -> Vec<usize> {
        if self.untold.is_empty() && wait_any(&mut self.pending).is_some() {
            self.collect(Pending::is_done);
        }
        std::mem::take(&mut self.untold)
    }

    /// Waits for all: their memory and their results, in order. Fails as a whole where the session ended. Blocks.
    pub(crate) fn wait(mut self) -> (Keep, Result<Vec<Result<BatchOutcome>>>) {
        while wait_any(&mut self.pending).is_some() {
            self.collect(Pending::is_done);
        }
        let (mut keeps, mut results) = (Vec::with_capacity(self.len()), Ok(Vec::with_capacity(self.len())));
        for Single { keep, result } in self.ended.into_iter().flatten() {
            keeps.push(keep);
            match (&mut results, result) {
                (Ok(results), result @ (Ok(_) | Err(Error::Status { .. }))) => results.push(result),
                (Ok(_), Err(error)) => results = Err(error),
                (Err(_), _) => {}
            }
        }
        (Keep::Many(keeps), results)
    }

    /// Takes what has ended out of what is in flight.
    fn collect(&mut self, has_ended: fn(&Pending<Single>) -> bool) {
        for at in (0..self.pending.len()).rev() {
            if has_ended(&self.pending[at]) {
                let (pending, place) = (self.pending.swap_remove(at), self.places.swap_remove(at));
                self.ended[place] = Some(pending.wait());
                self.untold.push(place);
            }
        }
    }
}

/// Runs operations of memory that the caller lends. When the session ends meanwhile, so do the registrations of its buffers. Blocks.
pub(crate) fn run_singly(
    owner: &Arc<Owner>,
    operations: Vec<Part>,
    lent: &[(usize, RegisteredBuf)],
) -> Result<Vec<Result<BatchOutcome>>> {
    let unwinding = EndOnUnwind { shared: &owner.shared };
    let was_alive = owner.shared.lock().dead.is_none();
    let (_, results) = Singles::submit(owner, operations, Keep::None).wait();
    std::mem::forget(unwinding);
    if was_alive && results.is_err() && owner.shared.lock().dead.is_some() {
        lent.iter().for_each(|(_, buffer)| buffer.revoke());
    }
    results
}

fn submit_single(owner: &Arc<Owner>, part: Part, keep: Keep) -> Pending<Single> {
    let kind = match part.write {
        true => TransferKind::Write(part.stability),
        false => TransferKind::Read,
    };
    let memory = match part.range {
        Some(range) => Memory::RegisteredParts(part.memory, Some(smallvec![range])),
        None => Memory::Raw(part.memory),
    };
    let (extents, policy) = (FilePart::of(&part.extents), RegistrationPolicy::Library);
    // As the server does it with a batch.
    let sieve = if matches!(kind, TransferKind::Write(_)) { Sieve::Off } else { Sieve::default() };
    let parts = TransferParts { kind, part: extents, memory, keep, policy, sieve, explanations: None };
    submit_transfer(owner, part.node, parts, |moved| Single {
        keep: moved.keep,
        result: moved.result.map(BatchOutcome::from),
    })
}
