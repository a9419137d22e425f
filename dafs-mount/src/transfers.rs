//! Reads and writes that the server has been asked for and that have nothing in the way: each is one operation of one session, and needs
//! no task. Its session tells when it has ended.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use dafs_client::{Pending, RegisteredBuf, Transferred};

use crate::callers::Ended;
use crate::files::OpenFile;

/// A read or a write that the server has been asked for.
pub(crate) struct Transfer {
    /// The request of the kernel.
    pub(crate) unique: u64,
    pub(crate) open: Rc<OpenFile>,
    pub(crate) pending: Pending<Transferred<RegisteredBuf>>,
    /// What is left of the buffer.
    pub(crate) rest: RegisteredBuf,
    pub(crate) kind: Kind,
}

/// Which way the data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write { offset: u64 },
}

/// All that are in flight without a task.
#[derive(Default)]
pub(crate) struct Transfers {
    in_flight: RefCell<HashMap<Ended, Transfer>>,
    count: Cell<usize>,
}

impl Transfers {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.get() == 0
    }

    /// Gives it back where it has ended already.
    pub(crate) fn add(&self, transfer: Transfer) -> Option<Transfer> {
        let Some(id) = transfer.pending.id() else { return Some(transfer) };
        let mut in_flight = self.in_flight.borrow_mut();
        in_flight.insert((transfer.open.caller.number, id), transfer);
        self.count.set(in_flight.len());
        None
    }

    /// Takes one out that has ended; `None` for an operation that a task waits for.
    pub(crate) fn take(&self, ended: &Ended) -> Option<Transfer> {
        let mut in_flight = self.in_flight.borrow_mut();
        let transfer = in_flight.remove(ended);
        self.count.set(in_flight.len());
        transfer
    }

    /// The request is a read that is in flight.
    pub(crate) fn is_read(&self, unique: u64) -> bool {
        self.in_flight.borrow().values().any(|one| one.unique == unique && one.kind == Kind::Read)
    }

    /// Gives a read up that its program does not wait for any more; whether there was one.
    pub(crate) fn give_up_read(&self, unique: u64) -> bool {
        let is_it = |transfer: &Transfer| transfer.unique == unique && transfer.kind == Kind::Read;
        let known = self.in_flight.borrow().iter().find(|(_, transfer)| is_it(transfer)).map(|(id, _)| *id);
        known.and_then(|id| self.take(&id)).is_some()
    }
}
