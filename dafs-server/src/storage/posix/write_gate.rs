//! Who changes a file's data now: any number of writers, or one who reads a window of it, changes parts of that, and writes all of it back.
//! No writer's bytes are lost to that one, whichever worker, session or export he came by.
//!
//! A writer that nobody keeps out takes two additions to one number. Processes besides this one are [`super::local_locks`]'.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};

use rustix::io::Errno;

use super::super::pool::lock;
use super::Node;
use super::busy::FileKey;
use super::local_locks::FileLocks;

/// Somebody rewrites a window, or waits for the writers there are: no others begin.
const REWRITING: u32 = 1 << 31;
/// The file is locked for the host's processes, or written by them. Nobody rewrites a window: the lock that this takes would be in the way
/// of those.
const SHOWN: u32 = 1 << 30;
/// Who rewrites a window is alone: he waits for no writer. One that finds him there is among [`WRITERS`] for a moment.
const ALONE: u32 = 1 << 29;
/// How many write.
const WRITERS: u32 = ALONE - 1;

/// The gates of all files that somebody may write: one for each, in all exports.
static GATES: Mutex<BTreeMap<FileKey, Weak<WriteGate>>> = Mutex::new(BTreeMap::new());

/// Files whose gates are looked through for those that nobody needs, when there are so many more.
const FORGET_EVERY: usize = 1024;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct WriteGate {
    /// Writers, [`REWRITING`], [`ALONE`], and [`SHOWN`].
    state: AtomicU32,
    /// Held to change what others wait for, and to look at it before waiting.
    turn: Mutex<()>,
    changed: Condvar,
    file: Mutex<Windows>,
}

/// What reads and writes windows.
#[derive(Debug, Default)]
enum Windows {
    /// It is not open: nobody has asked, or not with success.
    #[default]
    Closed,
    Open(Arc<FileLocks>),
    /// The file may not be opened so.
    Refused,
}

/// Somebody writes until this is dropped.
#[derive(Debug)]
pub(super) struct Writing<G: AsRef<WriteGate>>(G);

/// Nobody else writes until this is dropped.
#[derive(Debug)]
pub(super) struct Rewriting<'a>(&'a WriteGate);

impl WriteGate {
    /// The gate of a file, made where there is none.
    pub(super) fn of(file: FileKey) -> Arc<Self> {
        let mut gates = lock(&GATES);
        if let Some(found) = gates.get(&file).and_then(Weak::upgrade) {
            return found;
        }
        if gates.len() % FORGET_EVERY == FORGET_EVERY - 1 {
            gates.retain(|_, gate| gate.strong_count() > 0);
        }
        let made = Arc::new(Self::default());
        gates.insert(file, Arc::downgrade(&made));
        made
    }

    /// Begins to write, if nobody keeps writers out. Does not wait.
    #[inline]
    pub(super) fn begin<G: AsRef<Self>>(gate: G) -> Option<Writing<G>> {
        let before = gate.as_ref().state.fetch_add(1, Ordering::Acquire);
        let writing = Writing(gate);
        // Dropping it takes it back.
        (before & REWRITING == 0).then_some(writing)
    }

    /// Begins to write, when nobody keeps writers out any more. Blocks.
    pub(super) fn wait_and_begin(&self) -> Writing<&Self> {
        loop {
            if let Some(writing) = Self::begin(self) {
                return writing;
            }
            self.wait_while(|state| state & REWRITING != 0);
        }
    }

    /// Keeps writers out, if there are none. Does not wait.
    pub(super) fn keep_out(&self) -> Option<Rewriting<'_>> {
        let none = self.state.compare_exchange(0, REWRITING | ALONE, Ordering::Acquire, Ordering::Relaxed);
        none.ok().map(|_| Rewriting(self))
    }

    /// Keeps writers out, and waits for those there are. `None` where no window is to be rewritten. Blocks.
    pub(super) fn wait_and_keep_out(&self) -> Option<Rewriting<'_>> {
        if self.shows_locks() {
            return None;
        }
        while self.state.fetch_or(REWRITING, Ordering::Acquire) & REWRITING != 0 {
            self.wait_while(|state| state & REWRITING != 0);
        }
        let alone = Rewriting(self);
        self.wait_while(|state| state & WRITERS != 0);
        // That may have begun meanwhile.
        let before = self.state.fetch_or(ALONE, Ordering::AcqRel);
        (before & SHOWN == 0).then_some(alone)
    }

    /// The file's locks are shown to the host's processes from now on, as long as somebody has it open.
    pub(super) fn show_locks(&self) {
        self.state.fetch_or(SHOWN, Ordering::AcqRel);
        *lock(&self.file) = Windows::Closed;
    }

    /// Others than this process write the file from now on, as long as somebody has it open: nobody rewrites a window of it any more.
    pub(super) fn leave_to_others(&self) {
        self.show_locks();
    }

    /// That is so.
    pub(super) fn shows_locks(&self) -> bool {
        self.state.load(Ordering::Acquire) & SHOWN != 0
    }

    /// Waits for a window that was begun before [`WriteGate::show_locks`], by an export that shows none. Blocks for one window: whoever
    /// waits for writers yet will begin none.
    pub(super) fn wait_for_window(&self) {
        if self.shows_locks() {
            self.wait_while(|state| state & ALONE != 0);
        }
    }

    fn wait_while(&self, is_so: impl Fn(u32) -> bool) {
        let mut turn = lock(&self.turn);
        while is_so(self.state.load(Ordering::Acquire)) {
            turn = self.changed.wait(turn).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell(&self) {
        drop(lock(&self.turn));
        self.changed.notify_all();
    }

    /// What reads and writes windows of the file through the page cache, and locks them for other processes; `None` where it cannot be
    /// opened to read and write, now or at all.
    pub(super) fn file(&self, node: &Node) -> Option<Arc<FileLocks>> {
        let mut file = lock(&self.file);
        if matches!(*file, Windows::Closed) && !self.shows_locks() {
            *file = match FileLocks::open_to_write(node) {
                Ok(opened) => Windows::Open(Arc::new(opened)),
                Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Windows::Refused,
                // There may be a descriptor for it again, or nobody who has leased it.
                Err(_) => Windows::Closed,
            };
        }
        match &*file {
            Windows::Open(file) => Some(Arc::clone(file)),
            Windows::Closed | Windows::Refused => None,
        }
    }
}

impl AsRef<Self> for WriteGate {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl<G: AsRef<WriteGate>> Drop for Writing<G> {
    fn drop(&mut self) {
        let gate = self.0.as_ref();
        // Who is alone waits for nobody.
        if gate.state.fetch_sub(1, Ordering::Release) & !SHOWN == REWRITING | 1 {
            gate.tell();
        }
    }
}

impl Drop for Rewriting<'_> {
    fn drop(&mut self) {
        self.0.state.fetch_and(!(REWRITING | ALONE), Ordering::Release);
        self.0.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    // [LIST-40]
    #[test]
    fn writers_and_one_who_rewrites_keep_each_other_out() {
        let gate = WriteGate::default();
        let writing = WriteGate::begin(&gate).unwrap();
        let another = WriteGate::begin(&gate).unwrap();
        assert!(gate.keep_out().is_none());
        drop(writing);
        assert!(gate.keep_out().is_none());
        drop(another);
        let alone = gate.keep_out().unwrap();
        assert!(WriteGate::begin(&gate).is_none() && gate.keep_out().is_none());
        assert!(WriteGate::begin(&gate).is_none(), "asking changes nothing");
        drop(alone);
        assert!(WriteGate::begin(&gate).is_some() && gate.keep_out().is_some());
    }

    // [LOCK-57]
    #[test]
    fn nobody_rewrites_what_is_locked_for_processes_and_writers_go_on() {
        let gate = WriteGate::default();
        let alone = gate.keep_out().unwrap();
        gate.show_locks();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.wait_and_begin());
            let shown = scope.spawn(|| gate.wait_for_window());
            drop(alone);
            shown.join().unwrap();
            drop(waits.join().unwrap());
        });
        assert!(gate.keep_out().is_none() && gate.wait_and_keep_out().is_none());
        drop(WriteGate::begin(&gate).unwrap());
        gate.wait_for_window();
        // One who finds that he may not write is in nobody's way.
        let (gate, begun) = (WriteGate::default(), AtomicU64::new(0));
        let alone = gate.keep_out().unwrap();
        gate.show_locks();
        gate.state.fetch_add(1, Ordering::Acquire);
        std::thread::scope(|scope| {
            let shown = scope.spawn(|| {
                begun.store(1, Ordering::Release);
                gate.wait_for_window();
                gate.state.load(Ordering::Acquire)
            });
            while begun.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            (0..1000).for_each(|_| std::thread::yield_now());
            assert!(!shown.is_finished(), "the window is not written yet");
            drop(alone);
            assert_eq!(shown.join().unwrap() & ALONE, 0);
        });
        drop(Writing(&gate));
        // Whoever waits to be alone is told so when it begins to be shown.
        let gate = WriteGate::default();
        let writing = WriteGate::begin(&gate).unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| gate.wait_and_keep_out().is_none());
            while WriteGate::begin(&gate).is_some() {
                std::thread::yield_now();
            }
            gate.show_locks();
            drop(writing);
            assert!(waits.join().unwrap());
        });
    }

    #[test]
    fn file_has_one_gate_while_somebody_has_it() {
        let gate = WriteGate::of((u64::MAX, 1));
        assert!(Arc::ptr_eq(&gate, &WriteGate::of((u64::MAX, 1))));
        assert!(!Arc::ptr_eq(&gate, &WriteGate::of((u64::MAX, 2))));
        let writing = WriteGate::begin(Arc::clone(&gate)).unwrap();
        drop(gate);
        assert!(WriteGate::of((u64::MAX, 1)).keep_out().is_none());
        drop(writing);
    }

    // [LIST-40] Nobody is forgotten, and nobody's change is lost.
    #[test]
    fn threads_that_write_and_rewrite_take_turns() {
        const ROUNDS: u64 = 2000;
        let (gate, counter, small) = (WriteGate::default(), Mutex::new(0u64), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let _writing = gate.wait_and_begin();
                        small.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let _alone = if round % 3 == 0 { gate.keep_out() } else { None };
                        if _alone.is_some() {
                            continue;
                        }
                        let _alone = gate.wait_and_keep_out();
                        // Read, changed and written apart.
                        let seen = small.load(Ordering::Relaxed);
                        *counter.lock().unwrap() += 1;
                        std::thread::yield_now();
                        small.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(small.load(Ordering::Relaxed), 3 * ROUNDS + *counter.lock().unwrap());
    }
}
