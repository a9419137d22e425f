//! Byte-range locks of an open file.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_proto::wire::{
    HEADER_SIZE, LOCK_BROKEN_KIND, LockFlags, LockKind, LockRequest, LockTestReply, Opcode, Status,
    UnlockRequest,
};
use smallvec::SmallVec;

use crate::api::chain::Chain;
use crate::api::dir::forms;
use crate::api::file::File;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::handle::node::Node;
use crate::op::Op;
use crate::op::chain::Link;
use crate::op::named::Named;

/// Who locks, and how. The default is what most want.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockOptions {
    /// The program's name for whoever locks; `None`: this [`File`]. Locks of one owner do not conflict. Threads that are to keep each other
    /// out need owners, or files opened, of their own.
    pub owner: Option<u64>,
    /// Reads and writes of other sessions that conflict with it fail with the status [`Status::LOCKED`]. Else only those who lock notice.
    pub mandatory: bool,
    /// Of an exclusive lock: it ends with [`File::unlock`] alone. Where its owner goes without that, it stays, *broken*, also over a
    /// restart of the server, until somebody repairs what it guards ([`LockOptions::repair`]). Needs a server with a state file, and an
    /// export of a directory; else the status is [`Status::NOT_SUPPORTED`].
    pub persistent: bool,
    /// Takes broken locks of the range over, which others are refused with the status [`Status::LOCK_BROKEN`]. The lock is persistent:
    /// until it is given back, what it guards counts as not repaired.
    pub repair: bool,
}

/// A lock that is in the way of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockConflict {
    /// What it locks; its end is `u64::MAX` where that is all that follows.
    pub range: Range<u64>,
    /// Shared or exclusive.
    pub kind: LockKind,
    /// Its owner, as its client names it; the process of one that is local, 0 where several may hold it.
    pub owner: u64,
    /// Its client ([`crate::Config::client_id`]); 0 where it is local.
    pub client_id: [u8; 16],
    /// Its owner went without giving it back, and may have left half done what it guards: [`LockOptions::repair`].
    pub broken: bool,
}

impl LockConflict {
    /// No client has it, but a process of the server's host.
    pub fn is_local(&self) -> bool {
        self.client_id == [0; 16]
    }
}

/// Locks of a file, held until this is dropped: see [`File::hold`].
#[derive(Debug)]
#[must_use = "the lock ends where this is dropped"]
pub struct LockGuard<'a> {
    file: &'a File,
    range: Range<u64>,
    options: LockOptions,
}

impl LockGuard<'_> {
    /// Gives the lock back and waits for the server. Dropping it does not wait.
    pub fn unlock(self) -> Result<()> {
        let (file, range, owner) = (self.file, self.range.clone(), self.owner());
        std::mem::forget(self);
        file.unlock_with(range, owner)
    }

    fn owner(&self) -> u64 {
        self.options.owner.unwrap_or_else(|| own(&self.file.node))
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        if (self.options.persistent || self.options.repair) && std::thread::panicking() {
            // What it guards may be half done: others are to learn of that.
            return;
        }
        // Whatever becomes of it: the lock ends with the file at the latest.
        drop(self.file.submit_unlock_with(self.range.clone(), self.owner()));
    }
}

/// A request of which a good reply says nothing.
struct Plain {
    opcode: Opcode,
    body: SmallVec<[u8; REQUEST_SIZE]>,
    /// What is locked by it.
    locks: Option<LockRequest>,
}

/// The blocking form of such a request, which may take the fast path, and the other.
macro_rules! plain_forms {
    ($(
        $(#[$doc:meta])* $name:ident, $submit:ident, (&$self:ident $(, $arg:ident: $type:ty)*) $body:block
    )*) => { $(
        $(#[$doc])*
        pub fn $name(&$self, $($arg: $type),*) -> Result<()> {
            $self.run_plain($body?)
        }

        #[doc = concat!("Nonblocking form of [`Self::", stringify!($name), "`].")]
        pub fn $submit(&$self, $($arg: $type),*) -> Pending<Result<()>> {
            $body.map_or_else(|error| Pending::ready(Err(error)), |plain| $self.submit_plain(&plain))
        }
    )* };
}

impl File {
    plain_forms! {
        /// Locks a range, shared or exclusively, and waits for it: blocks until nobody else holds a lock that conflicts. An end of
        /// `u64::MAX` is all that follows, whatever the size of the file becomes; nothing of the range need exist. A shared lock needs a
        /// file that is open for reading, an exclusive one a file that is open for writing.
        ///
        /// Whoever waits is served in the order of coming. What the owner holds of the range already becomes of this kind, and ranges
        /// that touch become one: see `spec/protocol/locks.md`. A lock ends with [`File::unlock`], with the file, and with the session.
        /// After a restart of the server it is taken again, and where somebody was quicker, the file is of no use any more
        /// ([`Error::Stale`]). A server with a state file lets nobody be quicker.
        ///
        /// Fails with the status [`Status::DEADLOCK`] where whoever holds it waits for this owner, with [`Status::TOO_MANY_LOCKS`], and
        /// with [`Status::TIMED_OUT`] after [`crate::Config::operation_timeout`].
        lock, submit_lock, (&self, range: Range<u64>, kind: LockKind) {
            self.to_lock(range, kind, LockOptions::default(), LockFlags::WAIT | LockFlags::NOTIFY)
        }

        /// As [`File::lock`], for another owner or with effect on others.
        lock_with, submit_lock_with, (&self, range: Range<u64>, kind: LockKind, options: LockOptions) {
            self.to_lock(range, kind, options, LockFlags::WAIT | LockFlags::NOTIFY)
        }

        /// As [`File::lock_with`], without waiting for others: fails with the status [`Status::LOCKED`] where it would have to.
        try_lock_with, submit_try_lock_with, (&self, range: Range<u64>, kind: LockKind, options: LockOptions) {
            self.to_lock(range, kind, options, LockFlags::empty())
        }

        /// Gives back what this file holds of a range. No error where it holds nothing. Fails with [`Status::TOO_MANY_LOCKS`] where the
        /// range is a part of a lock, and what would be left of that is too many parts.
        unlock, submit_unlock, (&self, range: Range<u64>) {
            self.to_unlock(range, None)
        }

        /// As [`File::unlock`], for an owner of [`LockOptions`].
        unlock_with, submit_unlock_with, (&self, range: Range<u64>, owner: u64) {
            self.to_unlock(range, Some(owner))
        }
    }

    forms! {
        /// What would keep this file from locking a range now; `None` where nothing would. It may have changed when this returns.
        test_lock, submit_test_lock, test_lock_call,
        (&self, range: Range<u64>, kind: LockKind) -> Option<LockConflict> {
            self.lock_test(range, kind, LockOptions::default())
        }

        /// As [`File::test_lock`], for another owner.
        test_lock_with, submit_test_lock_with, test_lock_with_call,
        (&self, range: Range<u64>, kind: LockKind, options: LockOptions) -> Option<LockConflict> {
            self.lock_test(range, kind, options)
        }
    }

    fn lock_test(
        &self,
        range: Range<u64>,
        kind: LockKind,
        options: LockOptions,
    ) -> Result<Call<Result<Option<LockConflict>>>> {
        let request = self.request(range, kind, options, LockFlags::empty())?;
        Ok(Call::plain(Some(&self.node), Opcode::LockTest, Named::of(&request.bytes()), |op| {
            let found = LockTestReply::decode(op.into_reply()?.body())?;
            Ok(found.conflicts.then(|| LockConflict {
                range: found.offset..if found.len == 0 {
                    u64::MAX
                } else {
                    found.offset.saturating_add(found.len)
                },
                kind: if found.kind == LockKind::Shared as u32 {
                    LockKind::Shared
                } else {
                    LockKind::Exclusive
                },
                broken: found.kind == LOCK_BROKEN_KIND,
                owner: found.owner,
                client_id: found.client_id,
            }))
        }))
    }

    /// Locks a range without waiting for others; whether it could. As [`File::lock`] otherwise.
    pub fn try_lock(&self, range: Range<u64>, kind: LockKind) -> Result<bool> {
        match self.try_lock_with(range, kind, LockOptions::default()) {
            Err(Error::Status { status: Status::LOCKED, .. }) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// As [`File::lock`]; the lock is given back when the result is dropped. Blocks.
    pub fn hold(&self, range: Range<u64>, kind: LockKind) -> Result<LockGuard<'_>> {
        self.hold_with(range, kind, LockOptions::default())
    }

    /// As [`File::hold`], for another owner, or with effect on others. One that is persistent stays, broken, when the thread panics.
    /// Blocks.
    pub fn hold_with(
        &self,
        range: Range<u64>,
        kind: LockKind,
        options: LockOptions,
    ) -> Result<LockGuard<'_>> {
        self.lock_with(range.clone(), kind, options)?;
        Ok(LockGuard { file: self, range, options })
    }

    fn to_lock(
        &self,
        range: Range<u64>,
        kind: LockKind,
        options: LockOptions,
        flags: LockFlags,
    ) -> Result<Plain> {
        let request = self.request(range, kind, options, flags)?;
        let body = SmallVec::from_buf(request.bytes());
        Ok(Plain { opcode: Opcode::Lock, body, locks: Some(request) })
    }

    fn to_unlock(&self, range: Range<u64>, owner: Option<u64>) -> Result<Plain> {
        self.owner.shared.check_home()?;
        let (offset, len) = extent(&range)?;
        let owner = owner.unwrap_or_else(|| own(&self.node));
        // In a new session it is not to be locked again, whether the server hears of this or not.
        self.node.locks().unlock(&range, owner);
        let body = SmallVec::from_slice(&UnlockRequest { offset, len, owner }.bytes());
        Ok(Plain { opcode: Opcode::Unlock, body, locks: None })
    }

    fn run_plain(&self, plain: Plain) -> Result<()> {
        let asked = (&*plain.body, plain.locks.as_ref());
        self.owner.shared.run_plain(plain.opcode, &self.node, asked).map_or(Ok(()), Op::into_locked)
    }

    fn submit_plain(&self, plain: &Plain) -> Pending<Result<()>> {
        let named = Named::of(&plain.body);
        Call::plain(Some(&self.node), plain.opcode, named, Op::into_locked).submit(&self.owner)
    }

    fn request(
        &self,
        range: Range<u64>,
        kind: LockKind,
        options: LockOptions,
        mut flags: LockFlags,
    ) -> Result<LockRequest> {
        if !self.owner.shared.has_locks.load(Ordering::Relaxed) {
            return Err(Error::Status {
                status: Status::NOT_SUPPORTED,
                operation: Opcode::Lock,
                path: self.node.path.clone(),
                explanation: "the server does not support locks".into(),
            });
        }
        let (offset, len) = extent(&range)?;
        flags.set(LockFlags::MANDATORY, options.mandatory);
        flags.set(LockFlags::PERSISTENT, options.persistent || options.repair);
        flags.set(LockFlags::REPAIR, options.repair);
        if flags.contains(LockFlags::PERSISTENT) && kind == LockKind::Shared {
            return Err(Error::Invalid(
                "a shared lock cannot be persistent: its holder changes nothing".into(),
            ));
        }
        Ok(LockRequest { offset, len, owner: options.owner.unwrap_or_else(|| own(&self.node)), kind, flags })
    }
}

impl Chain<'_> {
    /// Locks a range of the file that was opened and waits for it, as [`File::lock`], for this chain: what follows is done under the lock,
    /// until [`Chain::unlock`]. It is given back where the chain breaks off, and by a request behind it where the chain does not. A lock,
    /// what is done under it and the unlock are one round trip:
    ///
    /// ```no_run
    /// # fn f(file: &dafs_client::File) -> dafs_client::Result<()> {
    /// use dafs_client::LockKind;
    /// file.chain().lock(0..8, LockKind::Exclusive).write_at(&[1; 8], 0).unlock(0..8).run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// While it waits, the chain keeps a slot of the session for each of its requests. Where another owner of this session may have the
    /// lock, that one needs a slot to give it back: [`Chain::try_lock`] leaves it one, and [`File::lock`] waits without a slot.
    pub fn lock(self, range: Range<u64>, kind: LockKind) -> Self {
        self.push_lock(&range, kind, LockFlags::WAIT)
    }

    /// As [`Chain::lock`], without waiting for others: where it would have to, the chain fails with the status [`Status::LOCKED`], and with
    /// [`Status::GRACE`] where the server was restarted and still waits for its clients to take their locks again.
    pub fn try_lock(self, range: Range<u64>, kind: LockKind) -> Self {
        self.push_lock(&range, kind, LockFlags::empty())
    }

    fn push_lock(mut self, range: &Range<u64>, kind: LockKind, flags: LockFlags) -> Self {
        let Some((offset, len)) = self.checked(extent(range)) else { return self };
        let owner = match self.lock_owner {
            Some(owner) => owner,
            None => CHAIN_OWNERS.fetch_add(1, Ordering::Relaxed),
        };
        self.lock_owner = Some(owner);
        self.unlocks.push((UnlockRequest { offset, len, owner }, false));
        let request = LockRequest { offset, len, owner, kind, flags };
        self.push(Link::few(Opcode::Lock, &request.bytes()))
    }

    /// Gives back what this chain has locked of a range.
    pub fn unlock(mut self, range: Range<u64>) -> Self {
        let Some((offset, len)) = self.checked(extent(&range)) else { return self };
        let owner = self.lock_owner.unwrap_or_default();
        for (locked, is_given_back) in &mut self.unlocks {
            let own = locked.range();
            *is_given_back |= range.start <= own.start && own.end <= range.end;
        }
        self.push(Link::few(Opcode::Unlock, &UnlockRequest { offset, len, owner }.bytes()))
    }
}

/// Owners that chains stand for have the second highest bit.
static CHAIN_OWNERS: AtomicU64 = AtomicU64::new(1 << 62);

const REQUEST_SIZE: usize = LockRequest::HEAD_SIZE - HEADER_SIZE;

/// Owners that files stand for are told from those of programs by their highest bit.
fn own(node: &Node) -> u64 {
    node.number() | 1 << 63
}

fn extent(range: &Range<u64>) -> Result<(u64, u64)> {
    match range.end.checked_sub(range.start) {
        Some(1..) if range.end == u64::MAX => Ok((range.start, 0)),
        Some(len @ 1..) => Ok((range.start, len)),
        _ => Err(Error::Invalid(format!("cannot lock {range:?}: the range is empty"))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::testing::{World, config};
    use crate::{Config, OpenOptions, Session};

    const TIMEOUT: Duration = Duration::from_secs(3);

    fn open(session: &Session) -> File {
        let mut options = OpenOptions::new();
        session.mount("data").unwrap().open_with("f", options.read(true).write(true).create(true)).unwrap()
    }

    /// A session that gives up after [`TIMEOUT`], and one of another client.
    fn sessions(world: &World) -> (Session, Session) {
        let hasty = world.connect(&Config { operation_timeout: Some(TIMEOUT), ..config() }).unwrap();
        (hasty, world.connect(&Config { client_id: Some([8; 16]), ..config() }).unwrap())
    }

    // [CLI-149]
    #[test]
    fn expired_unlock_is_sent_all_the_same() {
        let world = World::new(1);
        let (hasty, session) = sessions(&world);
        let (file, other) = (open(&hasty), open(&session));
        file.lock(0..2, LockKind::Exclusive).unwrap();
        let shared = &hasty.owner.shared;
        shared.lock().disconnect();
        let mut unlock = file.submit_unlock(0..1);
        drop(file.submit_unlock(1..2));
        world.net().advance(TIMEOUT);
        shared.lock().expire(shared.clock.now());
        assert!(unlock.has_ended() && unlock.test());
        assert!(matches!(unlock.wait(), Err(Error::TimedOut { operation: Opcode::Unlock, .. })));
        hasty.ping().unwrap();
        assert_eq!(hasty.reconnects(), 1);
        assert!(other.try_lock(0..2, LockKind::Exclusive).unwrap());
    }

    // [LOCK-69]
    #[test]
    fn expired_waiting_lock_is_cancelled_at_the_server_at_once() {
        let world = World::new(2);
        let (hasty, session) = sessions(&world);
        let (file, held) = (open(&hasty), open(&session));
        held.lock(0..1, LockKind::Exclusive).unwrap();
        assert!(matches!(file.lock(0..1, LockKind::Exclusive), Err(Error::TimedOut { .. })));
        let core = hasty.owner.shared.lock();
        assert!(core.queue.is_empty() && !core.unflushed && core.session.outstanding() > 0);
    }

    // What nobody collects would stay for ever.
    #[test]
    fn lock_given_up_after_the_session_ended_leaves_no_operation() {
        let world = World::new(3);
        let (session, _) = sessions(&world);
        let file = open(&session);
        let lock = file.submit_lock(0..1, LockKind::Exclusive);
        session.ping().unwrap();
        let shared = Arc::clone(&session.owner.shared);
        shared.lock().die(Error::Closed);
        drop(lock);
        let core = shared.lock();
        assert!(core.ops.is_empty() && core.uncollected == 0);
    }
}
