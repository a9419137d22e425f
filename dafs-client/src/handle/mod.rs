//! What a session has open on the server, what of it is not durable yet, and what is to be given back. Does nothing by itself; imports
//! nothing of the other rooms.

pub(crate) mod closings;
pub(crate) mod locks;
pub(crate) mod node;
pub(crate) mod unstable;
pub(crate) mod view;
