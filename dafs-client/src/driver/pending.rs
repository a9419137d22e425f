use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dafs_proto::wire::{Opcode, Status};

use crate::driver::Owner;
use crate::driver::watch::{Watch, sleep_on};
use crate::engine::core::Core;
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::memory::{IoBuffer, Keep, KeepBox};
use crate::op::Op;
use crate::op::batch::BatchHints;
use crate::op::id::OperationId;
use crate::op::named::Named;
use crate::op::transfer::Transfer;

/// A submitted nonblocking operation. [`Pending::test`] says whether it has ended, and [`Pending::wait`] collects its result.
///
/// The operation advances while nobody asks: over shared memory and RDMA by the server alone, over TCP as far as the system's buffers
/// reach, or by a progress thread ([`crate::Background::Progress`]). Dropping a `Pending` lets the operation run on and drops its result.
/// Its buffers are freed when it has ended.
#[must_use = "a submitted operation is collected with `wait`"]
pub struct Pending<T> {
    state: Progress<T>,
}

enum Progress<T> {
    /// Running, or done and not collected.
    Op { owner: Arc<Owner>, index: usize, finish: Finish<T> },
    /// It ended before it was submitted.
    Ready(T),
    /// Collected.
    Taken,
}

/// How a finished operation becomes the caller's result.
pub(crate) enum Finish<T> {
    Plain(fn(Op) -> T),
    Moved(fn(Moved) -> T),
    Boxed(Box<dyn FnOnce(Op) -> T + Send>),
}

impl<T> Finish<T> {
    pub(crate) fn boxed(finish: impl FnOnce(Op) -> T + Send + 'static) -> Self {
        Self::Boxed(Box::new(finish))
    }

    fn run(self, op: Op) -> T {
        match self {
            Self::Plain(finish) => finish(op),
            Self::Moved(finish) => finish(Moved::of(op)),
            Self::Boxed(finish) => finish(op),
        }
    }
}

/// An operation that is ready to be run or submitted.
pub(crate) struct Call<T> {
    pub(crate) op: Op,
    pub(crate) finish: Finish<T>,
}

impl<T> Call<T> {
    pub(crate) fn plain(
        target: Option<&Arc<Node>>,
        opcode: Opcode,
        named: Named,
        finish: fn(Op) -> T,
    ) -> Self {
        Self { op: Op::named(opcode, target.cloned(), named), finish: Finish::Plain(finish) }
    }

    pub(crate) fn boxed(
        target: Option<&Arc<Node>>,
        opcode: Opcode,
        named: Named,
        finish: impl FnOnce(Op) -> T + Send + 'static,
    ) -> Self {
        Self { op: Op::named(opcode, target.cloned(), named), finish: Finish::boxed(finish) }
    }

    /// Runs it to its end. Blocks.
    pub(crate) fn run(self, owner: &Arc<Owner>) -> T {
        let core = owner.shared.lock();
        self.finish.run(owner.shared.run_locked(core, self.op))
    }

    /// Starts it. Does not block.
    pub(crate) fn submit(self, owner: &Arc<Owner>) -> Pending<T> {
        let index = owner.shared.submit_under(&mut owner.shared.lock(), self.op);
        Pending::new(owner, index, self.finish)
    }
}

impl<T> Pending<T> {
    pub(crate) fn new(owner: &Arc<Owner>, index: usize, finish: Finish<T>) -> Self {
        Self { state: Progress::Op { owner: Arc::clone(owner), index, finish } }
    }

    pub(crate) fn ready(result: T) -> Self {
        Self { state: Progress::Ready(result) }
    }

    /// Moves the session along, and returns whether the operation has ended. Never blocks: another thread of the library connects again
    /// ([`crate::Background`]), and the result is `false` while another thread holds the session. Over [`crate::Session::connect_with`]
    /// without a progress thread there is no other thread, and in a process that can start none either; there it blocks while it connects
    /// again.
    pub fn test(&mut self) -> bool {
        let Progress::Op { owner, index, .. } = &self.state else { return true };
        let Some(core) = owner.shared.lock_if_free() else { return false };
        if core.has_ended(*index) {
            return true;
        }
        let core = owner.shared.turn_at_once(core);
        core.has_ended(*index)
    }

    /// The same operation, with what `map` makes of its result. Does not block.
    pub fn map<U>(mut self, map: impl FnOnce(T) -> U + Send + 'static) -> Pending<U>
    where
        T: 'static,
    {
        let state = match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Op { owner, index, finish } => {
                Progress::Op { owner, index, finish: Finish::boxed(move |op| map(finish.run(op))) }
            }
            Progress::Ready(result) => Progress::Ready(map(result)),
            Progress::Taken => Progress::Taken,
        };
        Pending { state }
    }

    /// Its place among the operations of its session, while it is not collected.
    pub(crate) fn index(&self) -> Option<usize> {
        match &self.state {
            Progress::Op { index, .. } => Some(*index),
            _ => None,
        }
    }

    /// What names it in [`Completions::next`](crate::Completions::next); `None` when it has ended before it was submitted: it is not told
    /// there.
    #[must_use]
    pub fn id(&self) -> Option<OperationId> {
        let Progress::Op { owner, index, .. } = &self.state else { return None };
        owner.shared.lock().ops.get(*index).and_then(|op| op.id)
    }

    /// Whether the operation has ended, as far as this side has heard. Does not move the session along. Never blocks: the result is `false`
    /// while another thread holds the session.
    pub fn has_ended(&self) -> bool {
        let Progress::Op { owner, index, .. } = &self.state else { return true };
        owner.shared.lock_if_free().is_some_and(|core| core.has_ended(*index))
    }

    /// As [`Pending::has_ended`], for callers who may wait for the lock.
    pub(crate) fn is_done(&self) -> bool {
        let Progress::Op { owner, index, .. } = &self.state else { return true };
        owner.shared.lock().has_ended(*index)
    }

    /// Waits for the end and returns the result. Blocks.
    pub fn wait(mut self) -> T {
        match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Op { owner, index, finish } => {
                let core = owner.shared.lock();
                let mut core = owner.shared.wait_until(core, |core| core.has_ended(index));
                let op = core.collect(index);
                drop(core);
                finish.run(op)
            }
            Progress::Ready(result) => result,
            Progress::Taken => unreachable!("`wait` takes the operation by value"),
        }
    }

    /// Cancels the operation. One that was not sent has no effect, but that a lock is given back all the same; one that was sent may have
    /// been executed. Returns what became of it: usually [`Error::Cancelled`], and always the buffer. Blocks only while the server may be
    /// moving data of the buffer.
    pub fn cancel(mut self) -> T {
        if let Progress::Op { owner, index, .. } = &self.state {
            owner.shared.give_up(*index, |core| {
                core.withdraw(*index, Error::Cancelled);
            });
        }
        match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Taken => unreachable!("`cancel` takes the operation by value"),
            state => Self { state }.wait(),
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let Progress::Op { owner, index, .. } = &self.state {
            // A waker runs what it likes when it is dropped.
            let mut waker = None;
            owner.shared.give_up(*index, |core| {
                waker = core.ops.get_mut(*index).and_then(|op| op.waker.take());
                core.detach(*index);
            });
        }
    }
}

impl<T> std::fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.state {
            Progress::Op { index, .. } => write!(f, "Pending({index})"),
            _ => f.write_str("Pending(ready)"),
        }
    }
}

/// Whoever moves the session along wakes the task that waits for it: [`Completions::turn`](crate::Completions::turn). Somebody must do so;
/// with the feature `tokio` that is a task, `Session::drive`.
impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if let Progress::Op { owner, index, .. } = &self.state {
            let mut core = owner.shared.lock();
            let op = core.ops.get_mut(*index).filter(|op| !op.done);
            // A waker runs what it likes when it is dropped.
            let kept = op.map(|op| match &op.waker {
                Some(waker) if waker.will_wake(context.waker()) => None,
                _ => op.waker.replace(context.waker().clone()),
            });
            drop(core);
            if kept.is_some() {
                return Poll::Pending;
            }
        }
        match std::mem::replace(&mut self.state, Progress::Taken) {
            Progress::Taken => panic!("the operation was collected before"),
            state => Poll::Ready(Self { state }.wait()),
        }
    }
}

/// No part of it is pinned.
impl<T> Unpin for Pending<T> {}

/// A session that operations are of, and whether there are others.
fn owners_of<T>(pendings: &[Pending<T>]) -> (Option<Arc<Owner>>, bool) {
    let mut owners = pendings.iter().filter_map(|pending| match &pending.state {
        Progress::Op { owner, .. } => Some(owner),
        _ => None,
    });
    let Some(first) = owners.next() else { return (None, false) };
    (Some(Arc::clone(first)), owners.any(|other| !Arc::ptr_eq(first, other)))
}

/// Several sessions that one thread waits for.
struct Sessions(Vec<(Arc<Owner>, Arc<Watch>)>);

impl Sessions {
    fn of<T>(pendings: &[Pending<T>]) -> Self {
        let mut sessions: Vec<(Arc<Owner>, Arc<Watch>)> = Vec::new();
        for pending in pendings {
            let Progress::Op { owner, .. } = &pending.state else { continue };
            if sessions.iter().any(|(other, _)| Arc::ptr_eq(owner, other)) {
                continue;
            }
            match owner.shared.add_watch(false) {
                Ok(watch) => sessions.push((Arc::clone(owner), watch)),
                // It is looked at as often as the others.
                Err(error) => tracing::warn!("cannot make a descriptor to wait for a session: {error}"),
            }
        }
        Self(sessions)
    }

    /// Sleeps until one of them needs a turn, for so long at most, if none does.
    fn wait(&self, limit: Option<Duration>) {
        let mut moved = false;
        for (owner, watch) in &self.0 {
            moved |= owner.shared.take_turn(watch);
        }
        let may_sleep = |(owner, watch): &(Arc<Owner>, Arc<Watch>)| {
            owner
                .shared
                .arm_watch(watch)
                .inspect_err(|error| tracing::warn!("cannot watch a session: {error}"))
        };
        // One that could not be made or watched is looked at soon.
        let blind = self.0.is_empty().then_some(LOOK_AGAIN);
        let mut limit = limit.into_iter().chain(blind).min();
        for session in &self.0 {
            match may_sleep(session) {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => limit = Some(limit.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)),
            }
        }
        if !moved && let Err(error) = sleep_on(self.0.iter().map(|(_, watch)| &**watch), limit) {
            tracing::warn!("cannot wait for several sessions: {error}");
        }
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.0.iter().for_each(|(owner, watch)| owner.shared.remove_watch(watch));
    }
}

/// Pause between looks at a session that cannot be waited for: no descriptor is free.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until one of the operations has ended and returns its place; `None` when there are none. Collect it with
/// `pendings.swap_remove(place).wait()`. Blocks.
pub fn wait_any<T>(pendings: &mut [Pending<T>]) -> Option<usize> {
    if let Some(place) = pendings.iter().position(|pending| !matches!(pending.state, Progress::Op { .. })) {
        return Some(place);
    }
    let (owner, several) = owners_of(pendings);
    let owner = owner?;
    if several {
        let sessions = Sessions::of(pendings);
        loop {
            if let Some(place) = pendings.iter_mut().position(Pending::test) {
                return Some(place);
            }
            sessions.wait(None);
        }
    }
    let found_in = |core: &Core| {
        if core.uncollected == 0 {
            return None;
        }
        pendings.iter().position(|pending| match &pending.state {
            Progress::Op { index, .. } => core.has_ended(*index),
            _ => true,
        })
    };
    let core = owner.shared.lock();
    let cell = std::cell::Cell::new(None);
    drop(owner.shared.wait_until(core, |core| {
        cell.set(found_in(core));
        cell.get().is_some()
    }));
    cell.get()
}

/// Waits until at least one of the operations has ended, takes out all that have, and returns their results in order. The others stay, in
/// order. Returns none when there are none. Blocks.
pub fn wait_some<T>(pendings: &mut Vec<Pending<T>>) -> Vec<T> {
    wait_some_with(pendings, &BatchHints { completions: 1, window: Duration::ZERO })
}

/// As [`wait_some`], but waits until as many operations have ended as the hints say, or all, or until the window is over. At least one has
/// ended then. [`crate::Session::flush`] sends what a [`crate::Cork`] holds back. Blocks.
pub fn wait_some_with<T>(pendings: &mut Vec<Pending<T>>, hints: &BatchHints) -> Vec<T> {
    if wait_any(pendings).is_none() {
        return Vec::new();
    }
    let wanted = hints.completions.min(pendings.len());
    // One has ended.
    let (owner, several) = owners_of(pendings);
    if let Some(owner) = owner.filter(|_| wanted > 1) {
        let until = owner.shared.clock.now().after(hints.window);
        let sessions = several.then(|| Sessions::of(pendings));
        let has_ended = |pending: &mut Pending<T>| if several { pending.test() } else { pending.is_done() };
        while pendings.iter_mut().filter_map(|pending| has_ended(pending).then_some(())).count() < wanted {
            let left = until.since(owner.shared.clock.now());
            match &sessions {
                _ if left.is_zero() => break,
                Some(sessions) => sessions.wait(Some(left)),
                None => owner.shared.wait_within(left),
            }
        }
    }
    pendings.extract_if(.., |pending| pending.is_done()).map(Pending::wait).collect()
}

/// Waits for all operations, which may be of several sessions, and returns their results in order. Blocks.
pub fn wait_all<T>(pendings: impl IntoIterator<Item = Pending<T>>) -> Vec<T> {
    let mut pendings: Vec<_> = pendings.into_iter().collect();
    wait_ended(&mut pendings);
    pendings.into_iter().map(Pending::wait).collect()
}

/// Waits until all operations have ended, which may be of several sessions, and collects none. Blocks.
pub fn wait_ended<T>(pendings: &mut [Pending<T>]) {
    if !owners_of(pendings).1 {
        // They end in some order: whoever waits for one moves all along.
        for pending in pendings {
            if let Progress::Op { owner, index, .. } = &pending.state {
                drop(owner.shared.wait_until(owner.shared.lock(), |core| core.has_ended(*index)));
            }
        }
        return;
    }
    // While one session was waited for, the peers of the others would stall.
    let sessions = Sessions::of(pendings);
    while pendings.iter_mut().filter_map(|pending| (!pending.test()).then_some(())).count() > 0 {
        sessions.wait(None);
    }
}

/// The end of a nonblocking transfer. The buffer comes back whatever became of it.
#[derive(Debug)]
#[must_use = "the result tells whether data was moved"]
pub struct Transferred<B> {
    /// The buffer. After a read its first `result` bytes are the data; the rest, and all of it after an error, is undefined.
    pub buffer: B,
    /// Bytes moved. Reads: fewer than the buffer's only at the end of the file.
    pub result: Result<usize>,
}

impl<B> Transferred<B> {
    /// Bytes and buffer, or the error; the buffer is dropped with it.
    pub fn into_result(self) -> Result<(usize, B)> {
        self.result.map(|count| (count, self.buffer))
    }
}

/// The end of a transfer: what it kept of its caller's, and what came of it.
pub(crate) struct Moved {
    pub(crate) keep: Keep,
    pub(crate) result: Result<Transfer>,
    target: Option<Arc<Node>>,
}

impl Moved {
    pub(crate) fn of(mut op: Op) -> Self {
        let (keep, target) = (op.take_keep(), op.target.take());
        Self { keep, result: op.into_transfer(), target }
    }

    /// It was not begun.
    pub(crate) fn refused(keep: Keep, error: Error) -> Self {
        Self { keep, result: Err(error), target: None }
    }

    /// What it moved.
    pub(crate) fn outcome<T: From<Transfer>>(self) -> Result<T> {
        self.result.map(T::from)
    }

    /// Where an append went.
    pub(crate) fn position(self) -> Result<u64> {
        let transfer = self.result?;
        let (count, len) = (transfer.count(), transfer.len);
        match count == len {
            true => Ok(transfer.position),
            false => Err(Error::Status {
                status: Status::NO_SPACE,
                operation: Opcode::Append,
                path: self.target.map_or_else(Vec::new, |node| node.path.clone()),
                explanation: format!("only {count} of {len} bytes were written"),
            }),
        }
    }

    /// For who gave a buffer.
    pub(crate) fn transferred<B: IoBuffer>(self) -> Transferred<B> {
        Transferred {
            buffer: B::from_keep(KeepBox(self.keep)),
            result: self.result.map(|moved| moved.count()),
        }
    }
}

/// Bytes moved.
impl From<Transfer> for usize {
    fn from(moved: Transfer) -> Self {
        moved.count()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::testing::World;

    #[test]
    fn operation_refused_before_it_was_submitted_has_ended_among_others() {
        let world = World::new(1);
        let session = world.session();
        let mut pendings =
            vec![session.submit_ping(), Pending::ready(Err(Error::Closed)), session.submit_ping()];
        let ended = wait_some(&mut pendings);
        assert!(matches!(ended[..], [Err(Error::Closed)]), "{ended:?}");
        assert_eq!(pendings.len(), 2);
        pendings.push(Pending::ready(Err(Error::Closed)));
        let (began, window) = (world.net().now(), Duration::from_secs(60));
        let ended = wait_some_with(&mut pendings, &BatchHints { completions: 3, window });
        assert!(matches!(ended[..], [Ok(()), Ok(()), Err(Error::Closed)]), "{ended:?}");
        assert!(pendings.is_empty() && world.net().now() - began < window);
    }
}
