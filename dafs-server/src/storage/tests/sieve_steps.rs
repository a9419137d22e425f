//! A window that is rewritten, system call by system call: the process is killed before each in turn, and within each write; each fails;
//! and others write in between.
#![allow(clippy::cast_possible_truncation, reason = "offsets that the tests choose")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use dafs_proto::transport::Span;
use dafs_proto::wire::LockKind;
use rustix::io::Errno;

use super::harness::*;
use super::sieve::{Numbers, parts, window_of};
use crate::storage::file_system::{Attempt, FileSystem, Run};
use crate::storage::posix::open_for_tests;
use crate::storage::posix::steps::{Call, Course, watched};

use crate::storage::*;

type Parts = Vec<(u64, Vec<u8>)>;

/// Another worker of the server, and another process of the host.
struct Others {
    worker: Box<dyn FileSystem>,
    node: NodeId,
    locks: Box<dyn LocalLocks>,
    plain: std::fs::File,
    numbers: Numbers,
    /// What they have written, by offset, and how often they had to wait.
    written: BTreeMap<u64, u8>,
    refused: usize,
}

impl Others {
    /// One of them writes a byte, unless he would have to wait.
    fn write(&mut self, window: &Range<u64>) {
        let at = window.start + self.numbers.below(window.end - window.start);
        let byte = self.numbers.below(256) as u8;
        let is_written = if self.numbers.below(2) == 0 {
            match self.worker.write_now(self.node, at, &[Span::from_mut(&mut [byte])]) {
                Ok(count) => count == 1,
                Err(NowError::WouldBlock) => false,
                Err(error) => panic!("{error:?}"),
            }
        } else {
            let is_locked = self.locks.lock(&(at..at + 1), LockKind::Exclusive).unwrap();
            if is_locked {
                self.plain.write_all_at(&[byte], at).unwrap();
                self.locks.unlock(&(0..u64::MAX));
            }
            is_locked
        };
        match is_written {
            true => drop(self.written.insert(at, byte)),
            false => self.refused += 1,
        }
    }
}

/// A file, the server that writes windows of it, and the others.
struct Fixture {
    server: Box<dyn FileSystem>,
    node: NodeId,
    others: Rc<RefCell<Others>>,
    plain: std::fs::File,
    directory: tempfile::TempDir,
}

/// Does all of an operation on this thread.
pub(super) fn act(files: &mut dyn FileSystem, op: FsOp) -> FsResult {
    let identity = Identity { uid: 0, gid: 0, groups: Arc::new([]) };
    match files.attempt(&identity, op) {
        Attempt::Done(result) => result,
        Attempt::Job(job) | Attempt::Data(job) => match job.run() {
            Run::Done(outcome) => files.finish(outcome?),
            Run::Beyond(..) => panic!("nothing is mounted there"),
        },
    }
}

fn open(files: &mut dyn FileSystem) -> NodeId {
    let at = At { node: files.root(), path: b"f".to_vec() };
    match act(files, FsOp::Open { at, flags: RWC, mode: 0o644, admission: None }) {
        Ok(FsReply::Node(node, _)) => node,
        other => panic!("{other:?}"),
    }
}

/// A disk, and where there is one a file system in memory.
pub(super) fn directories() -> impl Iterator<Item = PathBuf> {
    [std::env::temp_dir(), PathBuf::from("/dev/shm")].into_iter().filter(|directory| directory.is_dir())
}

/// A server, and another worker of it.
pub(super) fn serve(directory: &Path) -> [(Box<dyn FileSystem>, NodeId); 2] {
    let server = open_for_tests(directory, false);
    let worker = server.another();
    [Box::new(server), worker].map(|mut files: Box<dyn FileSystem>| {
        let node = open(&mut *files);
        (files, node)
    })
}

impl Fixture {
    fn new(inside: &Path) -> Self {
        let directory = tempfile::tempdir_in(inside).unwrap();
        let [(server, node), (worker, other)] = serve(directory.path());
        let plain = || {
            let path = directory.path().join("f");
            std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
        };
        let others = Others {
            locks: worker.local_locks(other).unwrap(),
            worker,
            node: other,
            plain: plain(),
            numbers: Numbers(5),
            written: BTreeMap::new(),
            refused: 0,
        };
        Self { server, node, others: Rc::new(RefCell::new(others)), plain: plain(), directory }
    }

    /// The server was killed: another takes its place.
    fn restart(&mut self) {
        let [server, (worker, node)] = serve(self.directory.path());
        (self.server, self.node) = server;
        let others = &mut *self.others.borrow_mut();
        (others.worker, others.node) = (worker, node);
        others.locks = others.worker.local_locks(node).unwrap();
        others.written.clear();
    }

    fn content(&self) -> Vec<u8> {
        let mut content = vec![0; self.plain.metadata().unwrap().len() as usize];
        self.plain.read_exact_at(&mut content, 0).unwrap();
        content
    }

    /// The file anew.
    fn lay(&self, (size, pieces): &(u64, Parts)) {
        self.plain.set_len(0).unwrap();
        self.plain.set_len(*size).unwrap();
        pieces.iter().for_each(|(at, bytes)| self.plain.write_all_at(bytes, *at).unwrap());
        self.others.borrow_mut().written.clear();
    }

    /// Writes the parts as the server does: at once, else on a thread; or on a thread alone.
    fn sieve(&mut self, at_once: bool, parts: &Parts) -> Result<usize, Status> {
        let (offset, len) = window_of(parts);
        if at_once {
            let window = memory(len);
            let mut change = || {
                for (at, bytes) in parts {
                    let place = window.span().slice((at - offset) as usize, bytes.len()).unwrap();
                    place.write_from(0, bytes);
                }
            };
            match self.server.sieve_now(self.node, offset, window.span(), &mut change) {
                Ok(Some(count)) => return Ok(count),
                Ok(None) | Err(NowError::WouldBlock) => {}
                Err(NowError::Failed(status)) => return Err(status),
            }
        }
        let parts = parts.iter().map(|(at, bytes)| (*at, memory_of(bytes))).collect();
        count(act(&mut *self.server, FsOp::Sieve { node: self.node, offset, len, parts }))
    }

    /// The same, where `course` decides about each call by its number; with the others, or alone. Then checks the file. `None` where the
    /// process was killed. Returns the calls as well.
    fn run(
        &mut self,
        (at_once, beside): (bool, bool),
        parts: &Parts,
        mut course: impl FnMut(usize, Call) -> Course + 'static,
    ) -> (Option<Result<usize, Status>>, Vec<Call>) {
        let before = self.content();
        let (offset, len) = window_of(parts);
        let (others, window) = (Rc::clone(&self.others), offset..offset + len as u64);
        let calls = Rc::new(RefCell::new(Vec::new()));
        let made = Rc::clone(&calls);
        let watch = move |call| {
            if beside {
                others.borrow_mut().write(&window);
            }
            made.borrow_mut().push(call);
            course(made.borrow().len() - 1, call)
        };
        let result = watched(watch, || self.sieve(at_once, parts));
        self.check(&before, parts, result.map_or(0, |result| result.unwrap_or(0)), &calls.borrow());
        (result, calls.take())
    }

    /// Outside the parts is what was there, or what somebody else wrote; within either that or what the part has, and of the first `done`
    /// bytes of the window nothing that was there.
    fn check(&self, before: &[u8], parts: &Parts, done: usize, calls: &[Call]) {
        let (offset, _) = window_of(parts);
        let found = self.content();
        let done = if done == 0 { 0 } else { offset as usize + done };
        // What is told may end between two parts, where nothing is written.
        let ends = parts.iter().filter(|(at, _)| (*at as usize) < done);
        let told = ends.map(|(at, bytes)| done.min(*at as usize + bytes.len())).max().unwrap_or(0);
        let mut new = vec![None; found.len().max(before.len()).max(done)];
        for (at, bytes) in parts {
            let places = new.iter_mut().skip(*at as usize);
            places.zip(bytes).for_each(|(place, byte)| *place = Some(*byte));
        }
        let written = &self.others.borrow().written;
        assert!(found.len() >= before.len().max(told), "{calls:?}: it is shorter");
        for (at, (found, new)) in found.iter().zip(&new).enumerate() {
            let old = before.get(at).copied().unwrap_or(0);
            let other = written.get(&(at as u64)).copied();
            let is_right = match (new, other) {
                (None, other) => *found == other.unwrap_or(old),
                (Some(new), Some(other)) => [*new, other].contains(found),
                (Some(new), None) => found == new || at >= done && *found == old,
            };
            assert!(is_right, "{calls:?}: byte {at} is {found}, was {old}, part {new:?}, others {other:?}");
        }
    }
}

/// A file with holes and an end that windows reach, and the parts of a window.
fn case(numbers: &mut Numbers, round: u64) -> ((u64, Parts), Parts) {
    const SIZE: u64 = 20_000;
    let piece = |numbers: &mut Numbers| {
        let bytes = vec![numbers.below(256) as u8; 1 + numbers.below(10_000) as usize];
        (numbers.below(SIZE), bytes)
    };
    let layout = match round % 3 {
        // One that is all data, most windows of which are rewritten.
        0 => (SIZE, vec![(0, (0..SIZE).map(|at| (at / 7) as u8).collect())]),
        _ => (SIZE - numbers.below(8_000), (0..1 + numbers.below(4)).map(|_| piece(numbers)).collect()),
    };
    let (start, count) = (numbers.below(SIZE * 2 / 3), 2 + numbers.below(30));
    let parts = parts(numbers, start, count, 1 << (round % 8));
    // One that ends within the window: what lies between its last parts is not there.
    let layout =
        if round % 6 == 5 { (start + numbers.below(window_of(&parts).1 as u64), vec![]) } else { layout };
    (layout, parts)
}

const WAYS: [(bool, bool); 4] = [(true, false), (false, false), (true, true), (false, true)];

// [LIST-40] [LIST-43]
#[test]
fn process_killed_at_any_call_leaves_the_gaps_unchanged() {
    for directory in directories() {
        let mut place = Fixture::new(&directory);
        let (mut numbers, mut kills, mut torn) = (Numbers(11), 0, 0);
        for round in 0..40 {
            let (layout, parts) = case(&mut numbers, round);
            let whole = window_of(&parts).1;
            for way in WAYS {
                place.lay(&layout);
                let (result, calls) = place.run(way, &parts, |_, _| Course::Go);
                assert_eq!(result, Some(Ok(whole)));
                for (last, call) in calls.iter().enumerate() {
                    place.lay(&layout);
                    let (result, made) =
                        place.run(
                            way,
                            &parts,
                            move |number, _| {
                                if number == last { Course::Die } else { Course::Go }
                            },
                        );
                    // Those beside it, or a disk that is slow now, may have changed its way.
                    assert!(result.is_none() || made.len() <= last, "{calls:?}, then {made:?}");
                    kills += usize::from(result.is_none());
                    if matches!(call, Call::Write | Call::WriteNow) {
                        place.lay(&layout);
                        let len = numbers.below(whole as u64) as usize;
                        let (result, _) = place.run(way, &parts, move |number, call| match (number, call) {
                            (number, Call::Write | Call::WriteNow) if number == last => Course::Cut(len),
                            (number, _) if number > last => Course::Die,
                            _ => Course::Go,
                        });
                        torn += usize::from(result.is_none());
                    }
                    // Its client sends it again.
                    place.restart();
                    assert_eq!(place.run(way, &parts, |_, _| Course::Go).0, Some(Ok(whole)));
                }
            }
        }
        let others = place.others.borrow();
        assert!(kills > 1000 && torn > 100 && others.refused > 100, "{kills}, {torn}, {}", others.refused);
    }
}

// [LIST-40] [LIST-6]
#[test]
fn failed_call_changes_no_gap_and_reports_what_was_written() {
    const ERRORS: [Errno; 4] = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG, Errno::IO];
    for directory in directories() {
        let mut place = Fixture::new(&directory);
        let (mut numbers, mut short, mut failed) = (Numbers(12), 0, 0);
        for round in 0..40 {
            let (layout, parts) = case(&mut numbers, round);
            let whole = window_of(&parts).1;
            let errno = ERRORS[round as usize / 3 % ERRORS.len()];
            for way in WAYS {
                place.lay(&layout);
                let (_, calls) = place.run(way, &parts, |_, _| Course::Go);
                for (at, call) in calls.iter().enumerate().filter(|(_, call)| **call != Call::Unlock) {
                    // Once: a window that is not written so is written part by part.
                    place.lay(&layout);
                    let (result, made) =
                        place.run(
                            way,
                            &parts,
                            move |number, _| {
                                if number == at { Course::Fail(errno) } else { Course::Go }
                            },
                        );
                    // A disk that is slow now, or others beside it, may have changed its way. A window is written behind its reading.
                    let is_part = made.get(at) == Some(&Call::Write)
                        && !made[..at].last().is_some_and(|call| matches!(call, Call::Read | Call::WriteNow));
                    let is_told = match result {
                        Some(Ok(count)) => count == whole || is_part && count < whole,
                        Some(Err(status)) => is_part && status == errno.into(),
                        None => false,
                    };
                    assert!(is_told, "{result:?}: {made:?} {at}");
                    if !matches!(call, Call::Write | Call::WriteNow) {
                        continue;
                    }
                    // From then on, and some of the first.
                    place.lay(&layout);
                    let len = numbers.below(whole as u64) as usize;
                    let (result, made) = place.run(way, &parts, move |number, call| match (number, call) {
                        (number, Call::Write | Call::WriteNow) if number == at && len > 0 => Course::Cut(len),
                        (number, Call::Write | Call::WriteNow) if number >= at => Course::Fail(errno),
                        _ => Course::Go,
                    });
                    match result {
                        Some(Ok(count)) => short += usize::from(count < whole),
                        Some(Err(status)) => {
                            assert_eq!(status, errno.into(), "{made:?}");
                            failed += 1;
                        }
                        None => panic!("nobody is killed"),
                    }
                }
            }
        }
        assert!(short > 100 && failed > 10, "{short} short, {failed} failed");
    }
}

/// The calls of a list's window that is to be written at once, where `course` decides about each, and what is said of it.
fn at_once(
    place: &mut Fixture,
    mut course: impl FnMut(Call) -> Course + 'static,
) -> (Result<Option<usize>, NowError>, Vec<Call>) {
    let calls = Rc::new(RefCell::new(Vec::new()));
    let made = Rc::clone(&calls);
    let watch = move |call| {
        made.borrow_mut().push(call);
        course(call)
    };
    let window = memory(4096);
    let result =
        watched(watch, || place.server.sieve_now(place.node, 100, window.span(), &mut || ())).unwrap();
    (result, calls.take())
}

/// Whether these calls wrote.
fn writes(calls: &[Call]) -> [bool; 2] {
    [Call::WriteNow, Call::Write].map(|call| calls.contains(&call))
}

#[test]
fn window_at_once_is_written_without_waiting_where_the_kernel_promises_that() {
    for directory in directories() {
        let mut place = Fixture::new(&directory);
        place.lay(&(20_000, vec![(0, vec![1; 20_000])]));
        let fails = |errno| move |call| if call == Call::WriteNow { Course::Fail(errno) } else { Course::Go };
        let (result, calls) = at_once(&mut place, fails(Errno::AGAIN));
        if result == Ok(Some(4096)) {
            // Nothing waits in a file system in memory.
            assert_eq!(writes(&calls), [false, true], "{calls:?}");
            continue;
        }
        assert_eq!(result, Err(NowError::WouldBlock), "{calls:?}");
        assert_eq!(writes(&calls), [true, false], "a thread writes it: {calls:?}");
        let (result, calls) = at_once(&mut place, fails(Errno::OPNOTSUPP));
        assert_eq!((result, writes(&calls)), (Ok(Some(4096)), [true; 2]), "{calls:?}");
        let (result, calls) = at_once(&mut place, |_| Course::Go);
        assert_eq!((result, writes(&calls)), (Ok(Some(4096)), [false, true]), "{calls:?}");
    }
}

// [LIST-44]
#[test]
fn file_that_cannot_be_opened_for_the_moment_is_sieved_later() {
    for directory in directories() {
        for (errno, is_later) in
            [(Errno::MFILE, true), (Errno::NFILE, true), (Errno::AGAIN, true), (Errno::ROFS, false)]
        {
            let mut place = Fixture::new(&directory);
            place.lay(&(20_000, vec![(0, vec![1; 20_000])]));
            let (result, calls) = at_once(&mut place, move |call| match call {
                Call::Open => Course::Fail(errno),
                _ => Course::Go,
            });
            assert_eq!((result, calls), (Ok(None), vec![Call::Open]));
            let (result, calls) = at_once(&mut place, |_| Course::Go);
            assert_eq!(result, Ok(is_later.then_some(4096)), "{errno:?}: {calls:?}");
            assert_eq!(calls.contains(&Call::Open), is_later);
        }
    }
}
