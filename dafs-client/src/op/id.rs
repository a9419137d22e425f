use std::num::NonZeroU64;

/// Names a nonblocking operation of a session, for as long as the session lives: see [`crate::Pending::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperationId(pub(crate) NonZeroU64);
