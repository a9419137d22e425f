//! Requests: admitted and begun in their turn ([`dispatch`]), in flight while they wait ([`inflight`]), and how what moves data in steps
//! goes on ([`work`]). What a request means is `ops`'. Imports connections, sessions and `flight`.

pub(crate) mod dispatch;
mod inflight;
pub(crate) mod work;
