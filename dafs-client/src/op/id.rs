use std::num::NonZeroU64;

/// Names a nonblocking operation of a session, for as long as the session lives: see [`crate::Pending::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub(crate) NonZeroU64);

impl OperationId {
    /// The number itself, for programs that keep it as one: never 0, and never twice in a session.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0.get()
    }
}
