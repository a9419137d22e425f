//! What every operation needs, whatever it means: whether it may use what it names ([`check`]), how it comes to wait ([`parking`]), how it
//! goes on in steps ([`work`]), and how it is answered ([`reply`]). What a request means is `ops`'. Imports the parts of a worker.

pub(crate) mod check;
mod parking;
pub(crate) mod reply;
pub(crate) mod work;
