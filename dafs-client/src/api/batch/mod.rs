//! Many reads and writes in one request, or one by one if the server does not support batches.

pub(crate) mod io;
pub(crate) mod memory;
pub(crate) mod part;
pub(crate) mod plan;
pub(crate) mod raw;
pub(crate) mod singly;
