//! Learns from the kernel when watched memory is unmapped, moved or emptied: `userfaultfd` with its events for memory that others
//! manage (userfaultfd(2), `UFFD_FEATURE_EVENT_*`). Nothing is write-protected and no fault is handled.
//!
//! The thread that unmaps waits, in the kernel, until its event was read, whatever locks it holds: its own, those of this library, the
//! allocator's. So the *reader* waits for nothing but events: it takes no lock but that of the queue, under which nobody allocates,
//! frees or unmaps, and does neither itself. What is queued is acted upon by a second thread, or by whoever looks first, who may
//! take locks and free memory, watched memory too. Until then [`Watched::is_behind`] says so.
#![allow(
    unsafe_code,
    reason = "a system call, ioctls and reads of a userfaultfd; none touches the memory it watches"
)]

use std::io;
use std::ops::Deref;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::ranges::Ranges;
use super::{Extent, holes};

/// Watches memory, until dropped.
pub(crate) struct Watch {
    watched: Arc<Watched>,
    reader: Option<JoinHandle<()>>,
    teller: Option<JoinHandle<()>>,
    // The process that the threads are in: after a fork the child has a copy of this, and no threads.
    process: u32,
}

/// What is watched, and what has become of it.
pub(crate) struct Watched {
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
    /// Starts watching nothing. `on_gone` is called, by a thread of the watch, when there is something to
    /// [`Watched::take`], which it must do unless somebody else did meanwhile. Fails where the kernel has no such thing or forbids it.
    pub(crate) fn start(on_gone: impl Fn(&Watched) + Send + 'static) -> io::Result<Self> {
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
        let queue =
            Queue { gone: Vec::with_capacity(QUEUE_MAX), overflowed: false, is_read: false, over: false };
        let watched = Arc::new(Watched {
            userfaults,
            stop,
            behind: AtomicU8::new(0),
            queue: Mutex::new(queue),
            queue_changed: Condvar::new(),
            ranges: Mutex::default(),
        });
        let mut watch =
            Self { watched: Arc::clone(&watched), reader: None, teller: None, process: std::process::id() };
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
        if std::process::id() != self.process {
            // The threads are the parent's, and so is what they watch and the event that stops them.
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
        forget_moved();
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of a local array.
        unsafe { libc::write(self.stop.as_raw_fd(), one.as_ptr().cast(), one.len()) };
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

    /// Stops watching memory that was moved, there where it is now; `users` answers who needs an extent.
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
        if unregister(pages).is_err() {
            for mapping in holes::mappings(pages).unwrap_or_default() {
                let start = mapping.start.max(pages.start);
                // Fails where nothing can be watched.
                let _ = unregister(Extent { start, end: mapping.end.min(pages.end).max(start) });
            }
        }
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

    fn queue_events(&self) {
        let mut messages = [0u8; MESSAGE_SIZE * MESSAGES_MAX];
        self.behind.fetch_or(READING, Ordering::SeqCst);
        // SAFETY: reads into a local array, at most its length.
        let len =
            unsafe { libc::read(self.userfaults.as_raw_fd(), messages.as_mut_ptr().cast(), messages.len()) };
        let len = usize::try_from(len).unwrap_or(0);
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
    match message.first()? {
        &MESSAGE_REMAP => {
            let len = word(24)?;
            Some(Gone { extent: Extent::new(start, len), change: Change::Moved(Extent::new(second, len)) })
        }
        &MESSAGE_REMOVE => Some(Gone { extent: until_second, change: Change::Emptied }),
        &MESSAGE_UNMAP => Some(Gone { extent: until_second, change: Change::Unmapped }),
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
    use std::time::Duration;

    use super::*;
    use crate::registration::area::Area;

    const PAGE: usize = 4096;

    /// Nothing takes as long that does not hang.
    const HANGS: Duration = Duration::from_secs(60);

    /// Tells what is gone; `None`, and a word about it, where the kernel tells nobody.
    fn start() -> Option<(Watch, mpsc::Receiver<Gone>)> {
        let (sender, gone) = mpsc::channel();
        let started = Watch::start(move |watched| {
            watched.take().into_iter().for_each(|gone| sender.send(gone).unwrap());
        });
        match started {
            Ok(watch) => Some((watch, gone)),
            Err(error) => {
                eprintln!("not tested: no userfaultfd: {error}");
                None
            }
        }
    }

    fn part(area: &Area, page: usize, pages: usize) -> Extent {
        Extent::new(area.address() + page * PAGE, pages * PAGE)
    }

    fn emptied(extent: Extent) -> Gone {
        Gone { extent, change: Change::Emptied }
    }

    /// Does something in a thread of its own; `false` when it hangs.
    #[must_use]
    fn ends(what: impl FnOnce() + Send + 'static) -> bool {
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            what();
            let _ = sender.send(());
        });
        ended.recv_timeout(HANGS).is_ok()
    }

    #[test]
    fn what_happens_to_watched_memory_is_told_and_nothing_else() {
        let Some((watch, gone)) = start() else { return };
        let area = Area::new(16 * PAGE);
        watch.add(Extent::new(part(&area, 2, 1).start + 5, 4 * PAGE - 10)).unwrap();
        area.bytes(0, 16 * PAGE).fill(7);
        area.empty(0, PAGE);
        area.unmap(15 * PAGE, PAGE);
        area.empty(3 * PAGE, PAGE);
        assert_eq!(gone.recv().unwrap(), emptied(part(&area, 3, 1)), "the first that was watched");
        area.unmap(4 * PAGE, 2 * PAGE);
        let unmapped = Gone { extent: part(&area, 4, 2), change: Change::Unmapped };
        assert_eq!(gone.recv().unwrap(), unmapped);
        assert_eq!(watch.watched(), [part(&area, 2, 2)]);
        watch.remove(part(&area, 2, 1), &[]);
        area.empty(2 * PAGE, PAGE);
        drop(watch);
        assert!(gone.recv().is_err(), "nothing more, and the thread has ended");
    }

    // [CLI-14]
    #[test]
    fn pages_that_others_need_stay_watched() {
        let Some((watch, gone)) = start() else { return };
        let area = Area::new(8 * PAGE);
        watch.add(part(&area, 0, 8)).unwrap();
        let user = Extent::new(part(&area, 4, 1).start + 100, PAGE);
        watch.remove(part(&area, 0, 8), &[user]);
        assert_eq!(watch.watched(), [part(&area, 4, 2)]);
        area.empty(3 * PAGE, PAGE);
        area.empty(6 * PAGE, PAGE);
        area.empty(5 * PAGE, PAGE);
        assert_eq!(gone.recv().unwrap(), emptied(part(&area, 5, 1)));
    }

    // [CLI-14]
    #[test]
    fn moved_memory_is_told_and_can_be_forgotten_where_it_is_now() {
        let Some((watch, gone)) = start() else { return };
        let (area, place) = (Area::new(4 * PAGE), Area::new(16 * PAGE));
        watch.add(part(&area, 0, 4)).unwrap();
        let from = part(&area, 0, 4);
        area.move_to(&place, 8 * PAGE);
        let to = part(&place, 0, 4);
        assert_eq!(gone.recv().unwrap(), Gone { extent: from, change: Change::Moved(to) });
        watch.forget_moved(to, |mapping| {
            assert_eq!(mapping, part(&place, 0, 8), "all that it is now");
            Vec::new()
        });
        place.empty(0, 8 * PAGE);
        // Whatever else was told is about where it was.
        drop(watch);
        assert!(gone.iter().all(|gone| gone.extent == from));
    }

    #[test]
    fn unmapping_does_not_wait_for_whoever_acts_upon_it() {
        let (begin, begun) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let started = Watch::start(move |watched| {
            begin.send(watched.take().len()).unwrap();
            let _ = released.recv();
        });
        let Ok(watch) = started else { return };
        // Dropped before the watch, which waits for its threads.
        let release = release;
        let area = Area::new(1024 * PAGE);
        watch.add(part(&area, 0, 1024)).unwrap();
        area.empty(0, PAGE);
        assert_eq!(begun.recv().unwrap(), 1);
        // More than the queue has room for, while the one who acts waits for something.
        assert!(ends(move || (1..1024).for_each(|page| area.empty(page * PAGE, PAGE))), "it waits");
        assert!(watch.is_behind());
        let mut gone = Vec::new();
        while watch.is_behind() {
            gone.extend(watch.take());
        }
        assert!(gone.iter().any(|gone| gone.extent == EVERYTHING), "more than was noted");
        assert_eq!(watch.watched(), []);
        drop(release);
    }

    #[test]
    fn whoever_acts_upon_it_may_unmap_watched_memory() {
        let areas = [Area::new(PAGE), Area::new(PAGE)];
        let extents = areas.each_ref().map(|area| part(area, 0, 1));
        let [first, second] = areas;
        let second = Mutex::new(Some(second));
        let (told, tells) = mpsc::channel();
        let started = Watch::start(move |watched| {
            for gone in watched.take() {
                drop(second.lock().unwrap().take());
                told.send(gone.extent).unwrap();
            }
        });
        let Ok(watch) = started else { return };
        extents.iter().for_each(|extent| watch.add(*extent).unwrap());
        drop(first);
        for extent in extents {
            assert_eq!(tells.recv_timeout(HANGS), Ok(extent));
        }
    }

    #[test]
    fn unmapping_does_not_hang_after_the_watch_ended_while_a_child_has_its_descriptor() {
        let Some((watch, _gone)) = start() else { return };
        let (area, moved, mut grown) = (Area::new(8 * PAGE), Area::new(4 * PAGE), Area::new(4 * PAGE));
        watch.add(part(&area, 0, 2)).unwrap();
        watch.add(part(&area, 4, 1)).unwrap();
        watch.add(part(&moved, 0, 4)).unwrap();
        let place = Area::new(8 * PAGE);
        moved.move_to(&place, 8 * PAGE);
        // The kernel makes the mapping longer, watched as it is.
        grown.truncate(2 * PAGE);
        watch.add(part(&grown, 0, 2)).unwrap();
        assert!(grown.grow(4 * PAGE), "something took the place");
        // SAFETY: the child waits for its end, and does nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        }
        drop(watch);
        let ended = ends(move || {
            drop(area);
            drop(place);
            drop(grown);
        });
        // SAFETY: ends the child made above, and waits for that.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        assert!(ended, "somebody who unmapped memory waits for nobody");
    }

    #[test]
    fn messages_that_are_none_say_nothing() {
        assert_eq!(gone(&[0; MESSAGE_SIZE]), None);
        assert_eq!(gone(&[MESSAGE_UNMAP; 8]), None);
        assert_eq!(gone(&[MESSAGE_REMAP; 24]), None);
    }
}
