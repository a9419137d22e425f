//! The system calls that rewrite a window or make something durable, one by one, for tests: who watches this thread decides what becomes of
//! each.

use std::cell::RefCell;

use rustix::io::Errno;

/// A call that is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Call {
    Lock,
    Unlock,
    /// For holes, or for what the page cache has.
    Look,
    Read,
    Write,
    /// The same, unless it would have to wait.
    WriteNow,
    /// A file is opened to rewrite its windows.
    Open,
    /// The directory of a file is opened by its path, to be made durable.
    OpenDirectory,
    /// What has this number in its file system is made durable.
    Sync(u64),
    /// All of a file system is.
    SyncAll,
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::storage) enum Course {
    Go,
    /// It moves so many bytes at most.
    Cut(usize),
    Fail(Errno),
    /// The process is killed before it.
    Die,
}

type Watch = Box<dyn FnMut(Call) -> Course>;

thread_local! {
    static WATCH: RefCell<Option<Watch>> = const { RefCell::new(None) };
}

/// What a thread unwinds with when its process is killed.
struct Killed;

/// Does `work`, and asks `watch` before each call of it; nobody watches the calls of `watch` itself. `None` where the process was killed:
/// what it held is let go, as the kernel does.
pub(in crate::storage) fn watched<T>(
    watch: impl FnMut(Call) -> Course + 'static,
    work: impl FnOnce() -> T,
) -> Option<T> {
    WATCH.set(Some(Box::new(watch)));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
    WATCH.set(None);
    match result {
        Ok(result) => Some(result),
        Err(panic) if panic.is::<Killed>() => None,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A call is about to be made: how many bytes it may move.
pub(super) fn before(call: Call) -> Result<usize, Errno> {
    let Some(mut watch) = WATCH.take() else { return Ok(usize::MAX) };
    let course = watch(call);
    if course == Course::Die {
        std::panic::resume_unwind(Box::new(Killed));
    }
    WATCH.set(Some(watch));
    match course {
        Course::Cut(len) => Ok(len),
        Course::Fail(errno) => Err(errno),
        Course::Go | Course::Die => Ok(usize::MAX),
    }
}

/// The same, and the segments that it may move.
pub(super) fn before_moving(call: Call, segments: &[libc::iovec]) -> Result<Vec<libc::iovec>, Errno> {
    let mut left = before(call)?.min(segments.iter().map(|segment| segment.iov_len).sum());
    let cut = segments.iter().map(|segment| {
        let len = segment.iov_len.min(left);
        left -= len;
        libc::iovec { iov_len: len, ..*segment }
    });
    Ok(cut.filter(|segment| segment.iov_len > 0).collect())
}
