//! The kernel's side of a mount: the device, its requests, and their replies. Knows no server.
//!
//! `fuser` mounts and agrees with the kernel on its features. The requests are read here, since that crate has no `TMPFILE`, does not
//! tell `flock` from `fcntl` locks, and cannot interrupt a request.

pub(crate) mod backing;
pub(crate) mod device;
pub(crate) mod errno;
pub(crate) mod mounting;
pub(crate) mod reply;
pub(crate) mod request;
