//! What a session has open on the server, what of it is not durable yet, and what is to be given back. It takes no action, and imports
//! nothing from the other rooms.

pub(crate) mod closings;
pub(crate) mod locks;
pub(crate) mod node;
pub(crate) mod unstable;
pub(crate) mod view;
