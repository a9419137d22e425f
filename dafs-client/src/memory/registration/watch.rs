//! Learns from the kernel when watched memory is unmapped, moved or emptied: `userfaultfd` with its events for memory that others
//! manage (userfaultfd(2), `UFFD_FEATURE_EVENT_*`). Nothing is write-protected and no fault is handled.
//!
//! The thread that unmaps waits, in the kernel, until its event was read, whatever locks it holds: its own, those of this library, the
//! allocator's. So the *reader* waits for nothing but events: it takes no lock but that of the queue, under which nobody allocates, frees
//! or unmaps, and does neither itself. A second thread, or whichever thread looks first, handles the queue. It may take locks and free
//! memory, even watched memory. Until then [`Watched::is_behind`] says so.
#![allow(unsafe_code, reason = "a userfaultfd and its ioctls, none of which touches the memory it watches")]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use dafs_proto::transport::util::Home;
use rustix::event::{self, EventfdFlags, PollFd, PollFlags};
use rustix::io::retry_on_intr;
use rustix::mm::UserfaultfdFlags;

use super::ranges::Ranges;
use super::{Extent, holes};

/// Watches memory, until dropped.
pub(crate) struct Watch {
    watched: Arc<Watched>,
    reader: Option<JoinHandle<()>>,
    teller: Option<JoinHandle<()>>,
}

/// What is watched, and what has become of it.
pub(crate) struct Watched {
    // Whose memory it is. After a fork the child has a copy of this, no threads, and descriptors that are about the parent's memory.
    home: Home,
    userfaults: OwnedFd,
    stop: OwnedFd,
    // `READING` and `QUEUED`: from before an event is read until it is acted upon, one of them is set.
    behind: AtomicU8,
    queue: Mutex<Queue>,
    queue_changed: Condvar,
    ranges: Mutex<Ranges>,
}

struct Queue {
    // Never grows, for that would allocate under the lock.
    gone: Vec<Gone>,
    /// More has happened than the queue had room for.
    overflowed: bool,
    /// The reader has begun.
    is_read: bool,
    /// The teller is to end.
    over: bool,
}

/// Memory that is no longer what it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) extent: Extent,
    pub(crate) change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has other pages. The kernel goes on watching it.
    Emptied,
    Unmapped,
    /// The kernel goes on watching it, where it is now.
    Moved(Extent),
}

const READING: u8 = 1;
const QUEUED: u8 = 2;

/// Events that wait to be acted upon. When there are more, everything counts as gone.
const QUEUE_MAX: usize = 256;

const EVERYTHING: Extent = Extent { start: 0, end: usize::MAX };

const API: u64 = 0xAA;
const EVENT_REMAP: u64 = 1 << 2;
const EVENT_REMOVE: u64 = 1 << 3;
const EVENT_UNMAP: u64 = 1 << 6;
const USER_MODE_ONLY: u32 = 1;
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
const UFFDIO_WRITEPROTECT: libc::Ioctl = request(3, 0x06, 24);

impl Watch {
    /// Starts watching nothing. `on_gone` is called, by a thread of the watch, when there is something to
    /// [`Watched::take`], which it must do unless somebody else did meanwhile. Fails where the kernel has no such thing or forbids it.
    pub(crate) fn start(on_gone: impl Fn(&Watched) + Send + 'static) -> io::Result<Self> {
        let userfaults = userfaultfd()?;
        let mut api = [API, EVENT_REMAP | EVENT_REMOVE | EVENT_UNMAP, 0];
        ioctl(&userfaults, UFFDIO_API, &mut api)?;
        let stop = event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let queue =
            Queue { gone: Vec::with_capacity(QUEUE_MAX), overflowed: false, is_read: false, over: false };
        let watched = Arc::new(Watched {
            home: Home::here(),
            userfaults,
            stop,
            behind: AtomicU8::new(0),
            queue: Mutex::new(queue),
            queue_changed: Condvar::new(),
            ranges: Mutex::default(),
        });
        let mut watch = Self { watched: Arc::clone(&watched), reader: None, teller: None };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let reads = Arc::clone(&watched);
        watch.reader = Some(thread("dafs-watch").spawn(move || reads.read_until_stopped())?);
        // A thread that begins allocates, which the reader may not while anything is watched.
        drop(watched.wait_for_queue(|queue| queue.is_read));
        watch.teller = Some(thread("dafs-unmapped").spawn(move || watched.tell_until_over(&on_gone))?);
        Ok(watch)
    }
}

impl Deref for Watch {
    type Target = Watched;

    fn deref(&self) -> &Watched {
        &self.watched
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.is_own() {
            // The threads are the parent's, and so is the event that stops them.
            std::mem::forget((self.reader.take(), self.teller.take()));
            return;
        }
        self.queue().over = true;
        self.queue_changed.notify_all();
        if let Some(teller) = self.teller.take() {
            let _ = teller.join();
        }
        // Closing does not suffice: a child of this process may have the descriptor too, and whoever unmapped what
        // is watched would wait for a reader that is no more.
        let forget_moved = || {
            for gone in self.take() {
                if let Change::Moved(to) = gone.change {
                    self.forget_moved(to, |_| Vec::new());
                }
            }
        };
        forget_moved();
        self.remove_all();
        while self.has_unread() || self.is_behind() {
            forget_moved();
            std::thread::yield_now();
        }
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

impl Watched {
    /// Memory is gone, and nobody has acted upon it yet.
    #[inline]
    pub(crate) fn is_behind(&self) -> bool {
        self.behind.load(Ordering::SeqCst) != 0
    }

    /// Watches the pages of an extent too. Not every mapping can be watched.
    pub(crate) fn add(&self, extent: Extent) -> io::Result<()> {
        let pages = extent.to_pages();
        let mut ranges = self.ranges();
        if !self.is_own() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if ranges.contains(pages) {
            return Ok(());
        }
        let mut register = [pages.start as u64, pages.len() as u64, MODE_WRITE_PROTECT, 0];
        ioctl(&self.userfaults, UFFDIO_REGISTER, &mut register)?;
        ranges.insert(pages);
        Ok(())
    }

    /// Stops watching the pages of an extent, except those of others that `users` need.
    pub(crate) fn remove(&self, extent: Extent, users: &[Extent]) {
        let mut ranges = self.ranges();
        for part in without(extent.to_pages(), users).iter() {
            if ranges.overlaps(part) {
                self.unregister(part);
                ranges.remove(part);
            }
        }
    }

    /// Stops watching memory that was moved, there where it is now; `users` returns who needs an extent.
    pub(crate) fn forget_moved(&self, to: Extent, users: impl Fn(Extent) -> Vec<Extent>) {
        // Where it grew as well, the kernel watches all of what it is now.
        for mapping in holes::mappings(to).unwrap_or_else(|_| vec![to]) {
            for part in without(mapping, &users(mapping)).iter() {
                self.unregister(part);
                self.ranges().remove(part);
            }
        }
    }

    /// What is watched, apart from each other.
    pub(crate) fn watched(&self) -> Vec<Extent> {
        self.ranges().iter().collect()
    }

    pub(crate) fn watched_count(&self) -> usize {
        self.ranges().len()
    }

    /// What happened since the last call, for the caller to act upon: under a lock that whoever asks [`Watched::is_behind`] holds too.
    pub(crate) fn take(&self) -> Vec<Gone> {
        if self.behind.load(Ordering::SeqCst) & QUEUED == 0 {
            return Vec::new();
        }
        let empty = Vec::with_capacity(QUEUE_MAX);
        let mut queue = self.queue();
        self.behind.fetch_and(!QUEUED, Ordering::SeqCst);
        let mut taken = std::mem::replace(&mut queue.gone, empty);
        let overflowed = std::mem::take(&mut queue.overflowed);
        drop(queue);
        if overflowed {
            self.remove_all();
            taken.push(Gone { extent: EVERYTHING, change: Change::Unmapped });
        }
        let mut ranges = self.ranges();
        for gone in &taken {
            if gone.change != Change::Emptied {
                ranges.remove(gone.extent);
            }
        }
        drop(ranges);
        taken
    }

    fn remove_all(&self) {
        let mut ranges = self.ranges();
        let known = std::mem::take(&mut *ranges);
        let (Some(first), Some(last)) = (known.iter().next(), known.iter().last()) else { return };
        // Of a mapping that has grown in place the kernel watches all.
        let all = Extent { start: first.start, end: last.end };
        for mapping in holes::mappings(all).unwrap_or_default() {
            if known.overlaps(mapping) {
                self.unregister(mapping);
            }
        }
        known.iter().for_each(|range| self.unregister(range));
    }

    /// Where some of it cannot be watched, and so was not, the kernel refuses the whole: then one mapping after the other.
    fn unregister(&self, pages: Extent) {
        let unregister = |pages: Extent| {
            let mut range = [pages.start as u64, pages.len() as u64];
            ioctl(&self.userfaults, UFFDIO_UNREGISTER, &mut range)
        };
        if self.is_own() && unregister(pages).is_err() {
            for mapping in holes::mappings(pages).unwrap_or_default() {
                let start = mapping.start.max(pages.start);
                // Fails where nothing can be watched.
                let _ = unregister(Extent { start, end: mapping.end.min(pages.end).max(start) });
            }
        }
    }

    /// Somebody changes watched memory and waits, or will in a moment, until that is read. Of what is no longer watched nothing follows.
    fn has_unread(&self) -> bool {
        // While that is so every request to write-protect is refused alike; at other times this one is, for its mode is none.
        let mut protect = [0, 1, u64::MAX];
        let refused = ioctl(&self.userfaults, UFFDIO_WRITEPROTECT, &mut protect);
        refused.is_err_and(|error| error.raw_os_error() == Some(libc::EAGAIN))
    }

    fn is_own(&self) -> bool {
        self.home.is_here()
    }

    fn read_until_stopped(&self) {
        self.queue().is_read = true;
        self.queue_changed.notify_all();
        while self.wait_for_event() {
            self.queue_events();
        }
    }

    /// Waits for an event; `false` when it is over.
    fn wait_for_event(&self) -> bool {
        let mut fds = [&self.stop, &self.userfaults].map(|fd| PollFd::new(fd, PollFlags::IN));
        retry_on_intr(|| event::poll(&mut fds, None)).is_ok()
            && fds[0].revents().is_empty()
            && fds[1].revents().contains(PollFlags::IN)
    }

    fn queue_events(&self) {
        let mut messages = [0u8; MESSAGE_SIZE * MESSAGES_MAX];
        self.behind.fetch_or(READING, Ordering::SeqCst);
        let len = rustix::io::read(&self.userfaults, &mut messages).unwrap_or(0);
        let mut queue = self.queue();
        for gone in messages[..len].chunks_exact(MESSAGE_SIZE).filter_map(gone) {
            if queue.gone.len() < queue.gone.capacity() {
                queue.gone.push(gone);
            } else {
                queue.overflowed = true;
            }
            self.behind.fetch_or(QUEUED, Ordering::SeqCst);
        }
        drop(queue);
        self.behind.fetch_and(!READING, Ordering::SeqCst);
        self.queue_changed.notify_all();
    }

    fn tell_until_over(&self, on_gone: &impl Fn(&Self)) {
        loop {
            let queue = self.wait_for_queue(|queue| queue.over || !queue.gone.is_empty());
            if queue.over {
                return;
            }
            drop(queue);
            on_gone(self);
        }
    }

    fn wait_for_queue(&self, until: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        let queue = self.queue_changed.wait_while(self.queue(), |queue| !until(queue));
        queue.unwrap_or_else(PoisonError::into_inner)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ranges(&self) -> MutexGuard<'_, Ranges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The extent without the pages of others.
fn without(pages: Extent, others: &[Extent]) -> Ranges {
    let mut parts = Ranges::default();
    parts.insert(pages);
    others.iter().for_each(|other| parts.remove(other.to_pages()));
    parts
}

/// What a `struct uffd_msg` says is gone.
fn gone(message: &[u8]) -> Option<Gone> {
    let word = |at: usize| {
        let bytes = message.get(at..at + 8)?.try_into().ok()?;
        usize::try_from(u64::from_ne_bytes(bytes)).ok()
    };
    let (start, second) = (word(8)?, word(16)?);
    let until_second = Extent { start, end: second.max(start) };
    match *message.first()? {
        MESSAGE_REMAP => {
            let len = word(24)?;
            Some(Gone { extent: Extent::new(start, len), change: Change::Moved(Extent::new(second, len)) })
        }
        MESSAGE_REMOVE => Some(Gone { extent: until_second, change: Change::Emptied }),
        MESSAGE_UNMAP => Some(Gone { extent: until_second, change: Change::Unmapped }),
        _ => None,
    }
}

fn userfaultfd() -> io::Result<OwnedFd> {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // Without privilege only faults of user mode can be had, which is more than is needed.
    let only = UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: makes a descriptor, which watches nothing yet.
    let make = |flags| unsafe { rustix::mm::userfaultfd(flags) };
    Ok(make(flags | only).or_else(|_| make(flags))?)
}

fn ioctl<const WORDS: usize>(fd: &OwnedFd, request: libc::Ioctl, words: &mut [u64; WORDS]) -> io::Result<()> {
    // SAFETY: the requests above take structures of as many words as they are called with.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests;
