//! Who waits for operations of clients that were fenced off an export.

/// Called when no operation of a fenced client is in flight. It must not block.
pub(crate) type Then = Box<dyn FnOnce() + Send>;

/// Who waits for operations of fenced clients to end.
#[derive(Default)]
pub(crate) struct Fencing {
    /// Operations of this worker in the state `FenceDrain`.
    waits: usize,
    /// Others that wait: for which export, and how to tell them.
    foreign: Vec<(usize, Then)>,
}

impl Fencing {
    /// The end of an operation may be what somebody waits for.
    #[inline]
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits > 0 || !self.foreign.is_empty()
    }

    /// An operation of this worker waits.
    pub(crate) fn begin_wait(&mut self) {
        self.waits += 1;
    }

    /// An operation waits no more.
    pub(crate) fn end_wait(&mut self) {
        self.waits -= 1;
    }

    /// Operations of this worker wait.
    pub(crate) fn has_waits(&self) -> bool {
        self.waits > 0
    }

    /// Somebody else waits for operations of clients that are fenced off the export.
    pub(crate) fn wait_for(&mut self, export: usize, then: Then) {
        self.foreign.push((export, then));
    }

    /// The exports for which others wait.
    pub(crate) fn foreign(&self) -> impl Iterator<Item = usize> {
        self.foreign.iter().map(|(export, ..)| *export)
    }

    /// Takes the others, each to be told or put back.
    pub(crate) fn take_foreign(&mut self) -> Vec<(usize, Then)> {
        std::mem::take(&mut self.foreign)
    }
}
