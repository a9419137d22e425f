//! What an operation that waited is given when it goes on.

use dafs_proto::transport::{Access, MemoryRef, OpToken, RemoteRange};
use dafs_proto::wire::Status;

use super::Worker;
use crate::storage::Identity;
use crate::worker::buffers::Owner;
use crate::worker::connection::Connection;
use crate::worker::flight::list::List;
use crate::worker::flight::transfer::Transfer;
use crate::worker::flight::{Call, State, token};

/// The worker, and the operation's own place there, from which it was taken to be worked on.
pub(super) struct Context<'w> {
    pub(super) worker: &'w mut Worker,
    pub(super) index: usize,
    pub(super) token: OpToken,
    pub(super) call: Call,
}

impl Context<'_> {
    /// Whose buffers it takes.
    pub(super) fn owner(&self) -> Owner {
        Owner { session: self.call.session, operation: self.token }
    }

    /// As whom storage works for it; an error where its handle is gone.
    pub(super) fn identity(&self) -> Result<Identity, Status> {
        self.worker.handle(&self.call).map(|open| open.rights.identity.clone())
    }

    /// The client's own memory, where the provider maps it.
    pub(super) fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, Status> {
        self.worker.remote_memory(&self.call, remote, access).map_err(|_| Status::REMOTE_ACCESS)
    }

    /// RDMA operations posted for it and not completed.
    pub(super) fn rdma_pending(&self) -> u32 {
        self.worker.operations[self.index].rdma_pending
    }

    /// The connection that it works for.
    pub(super) fn connection(&mut self) -> Option<&mut Connection> {
        self.worker.connection(self.call.connection)
    }

    /// Answers with a status alone.
    pub(super) fn refuse(&mut self, status: Status) -> Fate {
        self.worker.reply_status(&self.call, status);
        Fate::Answered
    }
}

/// What becomes of an operation that was worked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It waits for something that was begun, or for its turn.
    Waits,
    /// It was answered: it stays only while RDMA holds its memory.
    Answered,
    /// It had no effect, and its client asks again.
    Abandoned,
}

/// An operation that can be taken out of its place.
pub(super) trait Owned: Sized {
    /// It, where it is one of these.
    fn from_state(state: State) -> Result<Box<Self>, State>;
    /// For its place.
    fn into_state(self: Box<Self>) -> State;
}

impl Owned for Transfer {
    fn from_state(state: State) -> Result<Box<Self>, State> {
        if let State::Transfer(transfer) = state { Ok(transfer) } else { Err(state) }
    }

    fn into_state(self: Box<Self>) -> State {
        State::Transfer(self)
    }
}

impl Owned for List {
    fn from_state(state: State) -> Result<Box<Self>, State> {
        if let State::List(list) = state { Ok(list) } else { Err(state) }
    }

    fn into_state(self: Box<Self>) -> State {
        State::List(self)
    }
}

impl Worker {
    /// Works on an operation: takes it out of its place, and puts it back unless it is over. Nothing happens where there is none of this
    /// kind.
    pub(super) fn work_on<T: Owned>(
        &mut self,
        index: usize,
        work: impl FnOnce(&mut T, &mut Context<'_>) -> Fate,
    ) {
        let Some(operation) = self.operations.get_mut(index) else { return };
        let (call, generation) = (operation.call, operation.generation);
        let mut own = match T::from_state(std::mem::replace(&mut operation.state, State::Taken)) {
            Ok(own) => own,
            Err(other) => return operation.state = other,
        };
        let token = token(index, generation);
        let fate = work(&mut own, &mut Context { worker: self, index, token, call });
        match self.operations.get_mut(index).filter(|operation| operation.generation == generation) {
            Some(operation) => operation.state = own.into_state(),
            None => return self.release_buffers(own.into_state().into_buffers()),
        }
        match fate {
            Fate::Waits => {}
            Fate::Answered => self.retire(index),
            Fate::Abandoned => {
                let operation = self.unpark(index);
                self.abandon(operation);
            }
        }
    }
}
