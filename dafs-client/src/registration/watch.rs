//! Learns from the kernel when watched memory is unmapped, moved or emptied: `userfaultfd` with its events for memory that others
//! manage (userfaultfd(2), `UFFD_FEATURE_EVENT_*`). Nothing is write-protected and no fault is handled.
//!
//! The thread that unmaps waits, in the kernel, until its event was read. The events are read by a thread of the
//! watch, without any lock: else one who holds the lock and waits for the allocator would stop one who holds the
//! allocator's and unmaps. So an event may have been read and not yet be acted upon; [`Watch::is_behind`] tells that.
#![allow(
    unsafe_code,
    reason = "a system call, ioctls and reads of a userfaultfd; none touches the memory it watches"
)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use super::Extent;

/// Watches extents, until dropped.
pub(crate) struct Watch {
    shared: Arc<Fds>,
    thread: Option<JoinHandle<()>>,
}

struct Fds {
    userfaults: OwnedFd,
    stop: OwnedFd,
    // From before an event is read until it was acted upon.
    behind: AtomicBool,
}

const API: u64 = 0xAA;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const USER_MODE_ONLY: i32 = 1;
const MODE_WRITE_PROTECT: u64 = 2;

const MESSAGE_REMAP: u8 = 0x14;
const MESSAGE_REMOVE: u8 = 0x15;
const MESSAGE_UNMAP: u8 = 0x16;
const MESSAGE_SIZE: usize = 32;
const MESSAGES_MAX: usize = 16;

const fn request(direction: u64, number: u64, size: u64) -> libc::Ioctl {
    (direction << 30 | size << 16 | 0xAA << 8 | number) as libc::Ioctl
}

const UFFDIO_API: libc::Ioctl = request(3, 0x3F, 24);
const UFFDIO_REGISTER: libc::Ioctl = request(3, 0x00, 32);
const UFFDIO_UNREGISTER: libc::Ioctl = request(2, 0x01, 16);

impl Watch {
    /// Starts watching nothing. `on_gone` is called, by a thread of the watch, with memory that is no longer what it
    /// was. Fails where the kernel has no such thing or forbids it.
    pub(crate) fn start(on_gone: impl Fn(Extent) + Send + 'static) -> io::Result<Self> {
        let userfaults = userfaultfd()?;
        let mut api = [API, EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP, 0];
        ioctl(&userfaults, UFFDIO_API, &mut api)?;
        // SAFETY: makes a descriptor.
        let stop = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if stop < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and is nobody else's.
        let stop = unsafe { OwnedFd::from_raw_fd(stop) };
        let shared = Arc::new(Fds { userfaults, stop, behind: AtomicBool::new(false) });
        let fds = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("dafs-watch".into()).spawn(move || {
            while fds.wait() {
                fds.take_events(&on_gone)
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Watches the pages of an extent too. Not every mapping can be watched.
    pub(crate) fn add(&self, extent: Extent) -> io::Result<()> {
        let pages = extent.to_pages();
        let mut register = [pages.start as u64, pages.len() as u64, MODE_WRITE_PROTECT, 0];
        ioctl(&self.shared.userfaults, UFFDIO_REGISTER, &mut register)
    }

    /// Stops watching the pages of an extent.
    pub(crate) fn remove(&self, extent: Extent) {
        let pages = extent.to_pages();
        let mut range = [pages.start as u64, pages.len() as u64];
        // Fails where it is not mapped any more: then there is nothing to watch.
        let _ = ioctl(&self.shared.userfaults, UFFDIO_UNREGISTER, &mut range);
    }

    /// Memory is gone, and `on_gone` has not been told yet.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.shared.behind.load(Ordering::SeqCst)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a local array.
        unsafe { libc::write(self.shared.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Fds {
    /// Waits for an event; `false` when it is over.
    fn wait(&self) -> bool {
        let fd = |fd: &OwnedFd| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let mut fds = [fd(&self.stop), fd(&self.userfaults)];
        loop {
            // SAFETY: two entries of a local array.
            let ready = unsafe { libc::poll(fds.as_mut_ptr(), 2, -1) };
            if ready > 0 {
                return fds[0].revents == 0 && fds[1].revents & libc::POLLIN != 0;
            }
            if ready < 0 && io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                return false;
            }
        }
    }

    fn take_events(&self, on_gone: &impl Fn(Extent)) {
        let mut messages = [0u8; MESSAGE_SIZE * MESSAGES_MAX];
        self.behind.store(true, Ordering::SeqCst);
        // SAFETY: reads into a local array, at most its length.
        let len =
            unsafe { libc::read(self.userfaults.as_raw_fd(), messages.as_mut_ptr().cast(), messages.len()) };
        let len = usize::try_from(len).unwrap_or(0);
        messages[..len].chunks_exact(MESSAGE_SIZE).filter_map(gone).for_each(on_gone);
        self.behind.store(false, Ordering::SeqCst);
    }
}

/// What a `struct uffd_msg` says is gone.
fn gone(message: &[u8]) -> Option<Extent> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_ne_bytes(bytes)).ok()
    };
    let (start, second) = (word(8)?, word(16)?);
    match message.first()? {
        &MESSAGE_REMAP => Some(Extent::new(start, word(24)?)),
        &MESSAGE_REMOVE | &MESSAGE_UNMAP => Some(Extent { start, end: second.max(start) }),
        _ => None,
    }
}

fn userfaultfd() -> io::Result<OwnedFd> {
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // Without privilege only faults of user mode can be had, which is more than is needed.
    for flags in [flags | USER_MODE_ONLY, flags] {
        // SAFETY: makes a descriptor.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if let Ok(fd) = i32::try_from(fd)
            && fd >= 0
        {
            // SAFETY: the descriptor was just made and is nobody else's.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    Err(io::Error::last_os_error())
}

fn ioctl<const WORDS: usize>(fd: &OwnedFd, request: libc::Ioctl, words: &mut [u64; WORDS]) -> io::Result<()> {
    // SAFETY: the requests above take structures of as many words as they are called with.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::registration::area::Area;

    const PAGE: usize = 4096;

    #[test]
    fn what_happens_to_watched_memory_is_told_and_nothing_else() {
        let (sender, gone) = mpsc::channel();
        let watch = match Watch::start(move |extent| sender.send(extent).unwrap()) {
            Ok(watch) => watch,
            Err(error) => return eprintln!("not tested: no userfaultfd: {error}"),
        };
        let area = Area::new(16 * PAGE);
        let part = |page: usize, pages: usize| Extent::new(area.address() + page * PAGE, pages * PAGE);
        watch.add(Extent::new(part(2, 1).start + 5, 4 * PAGE - 10)).unwrap();
        area.bytes(0, 16 * PAGE).fill(7);
        area.empty(0, PAGE);
        area.unmap(15 * PAGE, PAGE);
        area.empty(3 * PAGE, PAGE);
        assert_eq!(gone.recv().unwrap(), part(3, 1), "the first that was watched");
        area.unmap(4 * PAGE, 2 * PAGE);
        assert_eq!(gone.recv().unwrap(), part(4, 2));
        watch.remove(part(2, 1));
        area.empty(2 * PAGE, PAGE);
        drop(watch);
        assert!(gone.recv().is_err(), "nothing more, and the thread has ended");
    }

    #[test]
    fn messages_that_are_none_say_nothing() {
        assert_eq!(gone(&[0; MESSAGE_SIZE]), None);
        assert_eq!(gone(&[MESSAGE_UNMAP; 8]), None);
    }
}
