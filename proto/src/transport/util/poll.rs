//! Waiting for descriptors.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{self, PollFd, PollFlags, Timespec};
use rustix::io::Errno;

/// Blocks until one of `fds` is as it is waited for, or the timeout has passed; how they are. A signal ends the wait.
pub fn poll<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    timeout: Option<Duration>,
) -> io::Result<[PollFlags; N]> {
    let mut entries = fds.each_ref().map(|(fd, events)| PollFd::new(fd, *events));
    // More seconds than a timeout holds are for ever.
    let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
    match event::poll(&mut entries, timeout.as_ref()) {
        Err(Errno::INTR) => Ok([PollFlags::empty(); N]),
        Err(errno) => Err(errno.into()),
        Ok(_) => Ok(entries.map(|entry| entry.revents())),
    }
}
