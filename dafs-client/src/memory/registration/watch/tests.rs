use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::Duration;

use super::*;
use crate::memory::registration::area::Area;

const PAGE: usize = 4096;

/// Nothing takes as long that does not hang.
const HANGS: Duration = Duration::from_secs(60);

/// Tells what is gone.
fn start() -> (Watch, mpsc::Receiver<Gone>) {
    let (sender, gone) = mpsc::channel();
    let started = Watch::start(move |watched| {
        watched.take().into_iter().for_each(|gone| sender.send(gone).unwrap());
    });
    (started.unwrap(), gone)
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
#[ignore = "needs userfaultfd"]
fn what_happens_to_watched_memory_is_told_and_nothing_else() {
    let (watch, gone) = start();
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

// [CLI-86]
#[test]
#[ignore = "needs userfaultfd"]
fn pages_that_others_need_stay_watched() {
    let (watch, gone) = start();
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

#[test]
#[ignore = "needs userfaultfd"]
fn child_that_ends_its_copy_leaves_the_watch_of_its_parent_alone() {
    let (watch, gone) = start();
    let area = Area::new(2 * PAGE);
    watch.add(part(&area, 0, 2)).unwrap();
    // SAFETY: the child frees what it has, of which nothing is in use at the fork, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        watch.remove(part(&area, 0, 1), &[]);
        drop(watch);
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    area.empty(0, PAGE);
    assert_eq!(gone.recv().unwrap(), emptied(part(&area, 0, 1)));
}

// [CLI-82]
#[test]
#[ignore = "needs userfaultfd"]
fn moved_memory_is_told_and_can_be_forgotten_where_it_is_now() {
    let (watch, gone) = start();
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

// [CLI-87]
#[test]
#[ignore = "needs userfaultfd"]
fn unmapping_does_not_wait_for_whoever_acts_upon_it() {
    let (begin, begun) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let started = Watch::start(move |watched| {
        begin.send(watched.take().len()).unwrap();
        let _ = released.recv();
    });
    let watch = started.unwrap();
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
#[ignore = "needs userfaultfd"]
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
    let watch = started.unwrap();
    extents.iter().for_each(|extent| watch.add(*extent).unwrap());
    drop(first);
    for extent in extents {
        assert_eq!(tells.recv_timeout(HANGS), Ok(extent));
    }
}

#[test]
#[ignore = "needs userfaultfd"]
fn unmapping_does_not_hang_after_watch_ended_beside_a_child() {
    let started = Watch::start(|watched| {
        for gone in watched.take() {
            if let Change::Moved(to) = gone.change {
                watched.forget_moved(to, |_| Vec::new());
            }
        }
    });
    let watch = started.unwrap();
    let (area, moved) = (Area::new(8 * PAGE), Area::new(4 * PAGE));
    watch.add(part(&area, 0, 2)).unwrap();
    watch.add(part(&area, 4, 1)).unwrap();
    watch.add(part(&moved, 0, 4)).unwrap();
    let place = Area::new(8 * PAGE);
    moved.move_to(&place, 8 * PAGE);
    let grown = loop {
        let mut area = Area::new(4 * PAGE);
        area.truncate(2 * PAGE);
        // It may be where the moved memory was: what was told of that comes first, as it does for a registrar.
        while watch.is_behind() {
            std::thread::yield_now();
        }
        watch.add(part(&area, 0, 2)).unwrap();
        // The kernel makes the mapping longer, watched as it is, unless another thread took the place meanwhile.
        if area.grow(4 * PAGE) {
            break area;
        }
    };
    let child = Child::start();
    drop(watch);
    let ended = ends(move || {
        drop(area);
        drop(place);
        drop(grown);
    });
    drop(child);
    assert!(ended, "somebody who unmapped memory waits for nobody");
}

// Of what began before the end somebody must hear: the child keeps the kernel from noticing that nobody is left.
#[test]
#[ignore = "needs userfaultfd"]
fn emptying_does_not_hang_while_watch_ends_beside_a_child() {
    for _ in 0..50 {
        let (watch, gone) = start();
        let area = Area::new(4 * PAGE);
        watch.add(part(&area, 0, 4)).unwrap();
        let child = Child::start();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                area.empty(PAGE, PAGE);
            }
            let _ = sender.send(());
        });
        gone.recv().unwrap();
        drop(watch);
        over.store(true, Ordering::SeqCst);
        let ended = ended.recv_timeout(HANGS);
        drop(child);
        assert!(ended.is_ok(), "who empties memory waits for nobody");
    }
}

/// A process that has what this one has open, until dropped.
struct Child(libc::pid_t);

impl Child {
    fn start() -> Self {
        // SAFETY: the child waits for its end, and does nothing else.
        let child = unsafe { libc::fork() };
        if child == 0 {
            loop {
                // SAFETY: waits.
                unsafe { libc::pause() };
            }
        }
        Self(child)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: ends the child made above, and waits for that.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn messages_that_are_none_say_nothing() {
    assert_eq!(gone(&[0; MESSAGE_SIZE]), None);
    assert_eq!(gone(&[MESSAGE_UNMAP; 8]), None);
    assert_eq!(gone(&[MESSAGE_REMAP; 24]), None);
}
