//! The few system facilities that the standard library does not offer, each as an owned or checked call.
#![allow(
    unsafe_code,
    reason = "affinity, signals, namespaces and cross-memory attach are plain system calls"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::thread::{LinkNameSpaceType, gettid, move_into_link_name_space};

/// The CPUs that this process may run on, in order.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    // SAFETY: all zeroes is a valid, empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is a writable cpu_set_t of the size given; 0 names the calling thread.
    check(unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) })?;
    // SAFETY: CPU_ISSET only reads `set`, and every index is below CPU_SETSIZE.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    Ok((0..CPU_COUNT_MAX).filter(allowed).collect())
}

/// Lets the calling thread run on `cpus` only; threads and processes that it starts inherit this.
pub fn pin_thread(cpus: &[usize]) -> io::Result<()> {
    // SAFETY: all zeroes is a valid, empty cpu_set_t.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in cpus.iter().filter(|cpu| **cpu < CPU_COUNT_MAX) {
        // SAFETY: the index is below CPU_SETSIZE and `set` is ours.
        unsafe { libc::CPU_SET(*cpu, &mut set) };
    }
    // SAFETY: `set` is a readable cpu_set_t of the size given; 0 names the calling thread.
    check(unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) })
}

const CPU_COUNT_MAX: usize = 1024;

/// Prepares `command` so that its process runs on `cpus` (anywhere when empty), stands in a process group of its own
/// (a Ctrl-C reaches only the benchmark, which then ends its children in order) and is killed when the thread that
/// starts it ends, however it ends.
pub fn tether(command: &mut Command, cpus: &[usize]) {
    let cpus = cpus.to_vec();
    let parent = std::process::id();
    command.process_group(0);
    // SAFETY: between fork and exec the closure makes only async-signal-safe system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
            // The parent may have died before the call above took effect.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::ErrorKind::NotConnected.into());
            }
            if cpus.is_empty() { Ok(()) } else { pin_thread(&cpus) }
        });
    }
}

/// Sends `signal` to the process `pid`, which must be a child not yet waited for, so that the id cannot be another's.
pub fn signal_child(pid: u32, signal: libc::c_int) -> io::Result<()> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: kill has no memory preconditions.
    check(unsafe { libc::kill(pid, signal) })
}

/// Puts a file out of the page cache; what was not written back stays.
pub fn evict(file: &std::fs::File) -> io::Result<()> {
    // SAFETY: a plain system call on a descriptor that is open.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Pages of a file that are in the page cache, those that are being read included where the kernel tells (Linux 6.5).
pub fn cached_pages(file: &std::fs::File) -> io::Result<usize> {
    // `cachestat`: its range, which is all of the file, and its five counters.
    const SYS_CACHESTAT: libc::c_long = 451;
    let (all, mut counters) = ([0u64; 2], [0u64; 5]);
    // SAFETY: both buffers have the layout that the call wants, and live.
    let told = unsafe {
        libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), all.as_ptr(), counters.as_mut_ptr(), 0 as libc::c_long)
    };
    match told {
        0 => Ok(usize::try_from(counters[0]).unwrap_or(usize::MAX)),
        _ => pages_at_hand(file),
    }
}

/// Pages of a file that can be read at once.
fn pages_at_hand(file: &std::fs::File) -> io::Result<usize> {
    let len = usize::try_from(file.metadata()?.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: sysconf has no preconditions.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let mut pages = vec![0u8; len.div_ceil(page)];
    let (fd, null) = (file.as_raw_fd(), std::ptr::null_mut());
    // SAFETY: a new mapping at a place that the kernel chooses; nobody reads or writes through it.
    let start = unsafe { libc::mmap(null, len, libc::PROT_READ, libc::MAP_SHARED, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `pages` has a byte for each page of the mapping.
    let told = check(unsafe { libc::mincore(start, len, pages.as_mut_ptr()) });
    // SAFETY: the mapping made above, which nobody uses.
    unsafe { libc::munmap(start, len) };
    told.map(|()| pages.iter().filter(|page| **page & 1 == 1).count())
}

/// The file system that holds `path`: whether it lives in memory, and the bytes free on it for this user.
pub fn room(path: &std::path::Path) -> io::Result<(bool, u64)> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all zeroes is a valid statfs.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is null-terminated, and `found` is a writable statfs.
    check(unsafe { libc::statfs(path.as_ptr(), &raw mut found) })?;
    let in_memory = [libc::TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type);
    let block = u64::try_from(found.f_bsize).unwrap_or(0);
    // Some have no size, and say so.
    let free = if found.f_blocks == 0 { u64::MAX } else { block.saturating_mul(found.f_bavail) };
    Ok((in_memory, free))
}

const RAMFS_MAGIC: libc::c_long = 0x8584_58f6;

/// An io_uring for reads that are submitted together.
pub struct IoRing(io_uring::IoUring);

impl IoRing {
    /// For so many at once.
    pub fn new(reads: usize) -> io::Result<Self> {
        let entries = u32::try_from(reads.next_power_of_two()).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self(io_uring::IoUring::new(entries)?))
    }

    /// Reads all pieces, each whole, and waits for them: where each begins in the file, and its memory.
    pub fn read_all<'a>(
        &mut self,
        file: &std::fs::File,
        pieces: impl Iterator<Item = (u64, &'a mut [u8])>,
    ) -> io::Result<()> {
        use io_uring::opcode::Read;
        self.move_all(file, pieces, |fd, piece, len, at| Read::new(fd, piece, len).offset(at).build())
    }

    /// Writes all pieces, as [`IoRing::read_all`] reads them.
    pub fn write_all<'a>(
        &mut self,
        file: &std::fs::File,
        pieces: impl Iterator<Item = (u64, &'a mut [u8])>,
    ) -> io::Result<()> {
        use io_uring::opcode::Write;
        self.move_all(file, pieces, |fd, piece, len, at| Write::new(fd, piece, len).offset(at).build())
    }

    fn move_all<'a>(
        &mut self,
        file: &std::fs::File,
        pieces: impl Iterator<Item = (u64, &'a mut [u8])>,
        entry: impl Fn(io_uring::types::Fd, *mut u8, u32, u64) -> io_uring::squeue::Entry,
    ) -> io::Result<()> {
        let fd = io_uring::types::Fd(file.as_raw_fd());
        let mut count = 0;
        for (offset, piece) in pieces {
            let len = u32::try_from(piece.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
            let moved = entry(fd, piece.as_mut_ptr(), len, offset).user_data(len.into());
            // SAFETY: file and memory are borrowed until all were waited for, below.
            let pushed = unsafe { self.0.submission().push(&moved) };
            pushed.map_err(|_| io::ErrorKind::InvalidInput)?;
            count += 1;
        }
        let mut short = false;
        while count > 0 {
            // Whatever it says: the memory is the kernel's until all have ended.
            let waited = self.0.submit_and_wait(count);
            if let Err(error) = waited
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                // Nothing else keeps the kernel from memory that is about to be used again.
                std::process::abort();
            }
            for completion in self.0.completion() {
                count -= 1;
                short |= u64::try_from(completion.result()).ok() != Some(completion.user_data());
            }
        }
        if short { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    }
}

/// Reads or writes pieces that lie `gap` apart in one call after the other of 1,024 segments. A write needs an empty gap.
pub fn move_with_gaps<'a>(
    file: &std::fs::File,
    writes: bool,
    mut offset: u64,
    pieces: impl Iterator<Item = &'a mut [u8]>,
    gap: &mut [u8],
) -> io::Result<()> {
    assert!(!writes || gap.is_empty(), "a write keeps what lies between");
    let call = if writes { libc::pwritev } else { libc::preadv };
    let gap = libc::iovec { iov_base: gap.as_mut_ptr().cast(), iov_len: gap.len() };
    let segment =
        |piece: &mut [u8]| libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() };
    let segments: Vec<libc::iovec> = pieces.flat_map(|piece| [segment(piece), gap]).collect();
    // Nothing is wanted behind the last piece.
    let segments = &segments[..segments.len().saturating_sub(1)];
    for part in segments.chunks(1024) {
        let wanted: usize = part.iter().map(|segment| segment.iov_len).sum();
        let count = libc::c_int::try_from(part.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let at = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the pieces and the gap are borrowed for the time of the call; nobody looks at what overlaps in the gap.
        let moved = unsafe { call(file.as_raw_fd(), part.as_ptr(), count, at) };
        if usize::try_from(moved).map_err(|_| io::Error::last_os_error())? != wanted {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        offset += wanted as u64;
    }
    Ok(())
}

/// What a process has used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Time that its threads, of those still there, have run on CPUs, in nanoseconds.
    pub cpu_ns: u64,
    /// Resident memory that is its own or shared (not pages of files), and the queues of its RDMA devices, in KiB.
    pub memory_kib: u64,
}

/// What the process `id` (`self` or a number) has used, from `/proc`.
pub fn usage(id: &str) -> io::Result<Usage> {
    let process = std::path::Path::new("/proc").join(id);
    let cpu_ns = cpu_ns(id)?;
    let status = std::fs::read_to_string(process.join("status"))?;
    let memory_kib = |name: &str| -> u64 {
        let value = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        value.trim().trim_end_matches(" kB").parse().unwrap_or(0)
    };
    let queues_kib = device_queues_kib(&process)?;
    Ok(Usage { cpu_ns, memory_kib: memory_kib("RssAnon:") + memory_kib("RssShmem:") + queues_kib })
}

/// Time that the threads of the process `id`, of those still there, have run on CPUs, in nanoseconds.
pub fn cpu_ns(id: &str) -> io::Result<u64> {
    let mut cpu_ns = 0;
    for task in std::fs::read_dir(std::path::Path::new("/proc").join(id).join("task"))? {
        // A thread may end between the listing and the look at it.
        let Ok(text) = std::fs::read_to_string(task?.path().join("schedstat")) else { continue };
        cpu_ns += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    Ok(cpu_ns)
}

/// Time that the process `id` has run on CPUs, with threads that have ended, in nanoseconds; of a thread that runs as of the last tick.
pub fn cpu_ns_of(id: u32) -> io::Result<u64> {
    let id = libc::pid_t::try_from(id).map_err(io::Error::other)?;
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: both write what they are given, and keep no pointer to it.
    let failed = unsafe {
        libc::clock_getcpuclockid(id, &raw mut clock) != 0 || libc::clock_gettime(clock, &raw mut time) != 0
    };
    if failed {
        return Err(io::Error::from(io::ErrorKind::NotFound));
    }
    let [seconds, rest] = [time.tv_sec, time.tv_nsec].map(|part| u64::try_from(part).unwrap_or(0));
    Ok(seconds * 1_000_000_000 + rest)
}

/// Time that this process has run on CPUs, with threads that have ended, in nanoseconds.
pub fn process_cpu_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// Queues of RDMA devices that a process has mapped, in KiB.
fn device_queues_kib(process: &std::path::Path) -> io::Result<u64> {
    const DEVICES: &str = "/dev/infiniband/";
    if !std::fs::read_to_string(process.join("maps"))?.contains(DEVICES) {
        return Ok(0);
    }
    let (mut kib, mut is_device) = (0, false);
    for line in std::fs::read_to_string(process.join("smaps"))?.lines() {
        let first = line.split(' ').next().unwrap_or_default();
        if !first.ends_with(':') {
            // A mapping; the lines that follow are about it.
            is_device = line.contains(DEVICES);
        } else if is_device && first == "Rss:" {
            kib += line[first.len()..].trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    Ok(kib)
}

/// Moves the calling thread, and all that it starts from now on, into network and mount namespaces of its own: a
/// loopback device that is up and nothing else, and an empty `/run`. Needs privilege.
pub fn enter_private_namespaces() -> io::Result<()> {
    let step = |what: &str, result: io::Result<()>| {
        result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
    };
    // SAFETY: unshare has no memory preconditions; only the calling thread is moved.
    step("unshare", check(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_NEWNET) }))?;
    let mount = |source, target: &std::ffi::CStr, kind: &std::ffi::CStr, flags| {
        // SAFETY: all strings are null-terminated and live across the call; no data argument is passed.
        check(unsafe { libc::mount(source, target.as_ptr(), kind.as_ptr(), flags, std::ptr::null()) })
    };
    // Mounts made here must not show outside.
    step("make / private", mount(std::ptr::null(), c"/", c"none", libc::MS_REC | libc::MS_PRIVATE))?;
    step("mount /run", mount(c"tmpfs".as_ptr(), c"/run", c"tmpfs", libc::MS_NOSUID | libc::MS_NODEV))?;
    step("loopback up", loopback_up())
}

/// A network namespace with a loopback device that is up and nothing else. Needs privilege.
pub fn new_network() -> io::Result<OwnedFd> {
    // A thread goes there, and takes hold of it.
    let made = std::thread::spawn(|| {
        // SAFETY: unshare has no memory preconditions; only the calling thread is moved.
        check(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        loopback_up()?;
        Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
    });
    made.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

/// Moves the calling thread, and all that it starts from now on, into a network namespace.
pub fn enter_network(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Has the process that `command` starts begin in a network namespace.
pub fn start_in_network(command: &mut Command, namespace: Arc<OwnedFd>) {
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(move || enter_network(namespace.as_fd())) };
}

/// The calling thread's id, by which others name its namespaces.
pub fn thread_id() -> u32 {
    gettid().as_raw_nonzero().get().cast_unsigned()
}

fn loopback_up() -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)?;
    // SAFETY: all zeroes is a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(up).map_err(|_| io::ErrorKind::InvalidInput)?;
    let fd = socket.as_raw_fd();
    // SAFETY: SIOCSIFFLAGS reads an ifreq, which `request` is, and the descriptor is open.
    check(unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &raw const request) })
}

/// Memory of this process that may have holes.
#[derive(Debug)]
pub struct Mapping {
    start: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// `len` bytes, all touched; a multiple of the page size.
    pub fn new(len: usize) -> io::Result<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the whole mapping is writable and nobody else's.
        unsafe { start.cast::<u8>().write_bytes(0x5a, len) };
        Ok(Self { start, len })
    }

    /// Unmaps whole pages of it.
    pub fn make_hole(&mut self, offset: usize, len: usize) -> io::Result<()> {
        assert!(offset + len <= self.len, "the hole lies within the mapping");
        // SAFETY: a part of this mapping, which is borrowed exclusively: nobody holds a reference into it.
        check(unsafe { libc::munmap(self.start.byte_add(offset), len) })
    }

    /// `count` rows of `len` bytes, `stride` bytes from each other. Panics unless all lie within it and outside of `holes`.
    pub fn rows(&self, count: usize, stride: usize, len: usize, holes: &[(usize, usize)]) -> Vec<&[u8]> {
        let row = |index: usize| {
            let (start, end) = (index * stride, index * stride + len);
            assert!(end <= self.len && holes.iter().all(|(from, to)| end <= *from || *to <= start));
            // SAFETY: inside the mapping and outside of its holes, initialised, and only read while it is borrowed.
            unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().add(start), len) }
        };
        (0..count).map(row).collect()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping's own pages; holes in it do no harm.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// A child process that holds a buffer and sleeps, so that its memory can be read by cross-memory attach.
#[derive(Debug)]
pub struct MemoryHolder {
    pid: libc::pid_t,
    // The child has a copy of it at the same address.
    buffer: Vec<u8>,
}

impl MemoryHolder {
    /// Forks a process that holds `bytes` bytes, all touched.
    pub fn start(bytes: usize) -> io::Result<Self> {
        let mut buffer = vec![1u8; bytes];
        // SAFETY: the child makes only async-signal-safe calls, touches memory that it owns, and never returns.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                // Writing gives the child pages of its own.
                buffer.iter_mut().step_by(4096).for_each(|byte| *byte = 2);
                loop {
                    // SAFETY: no preconditions; the child ends with its parent or by SIGKILL.
                    unsafe {
                        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                        libc::pause();
                    }
                }
            }
            pid => Ok(Self { pid, buffer }),
        }
    }

    /// Reads the child's buffer into `to`, which must not be longer; the number of bytes read.
    pub fn read(&self, to: &mut [u8]) -> io::Result<usize> {
        let length = to.len().min(self.buffer.len());
        let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: length };
        let remote = libc::iovec { iov_base: self.buffer.as_ptr().cast_mut().cast(), iov_len: length };
        // SAFETY: `local` covers `length` writable bytes of `to`; the kernel checks the remote side.
        let count = unsafe { libc::process_vm_readv(self.pid, &raw const local, 1, &raw const remote, 1, 0) };
        usize::try_from(count).map_err(|_| io::Error::last_os_error())
    }
}

impl Drop for MemoryHolder {
    fn drop(&mut self) {
        // SAFETY: the child is ours and not yet waited for, so the id is its own; a null status is allowed.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Sleeps while `*word == value`, until a [`futex_wake`] on it; may return early.
pub fn futex_wait(word: &std::sync::atomic::AtomicU32, value: u32) {
    // SAFETY: the word lives across the call; no timeout is passed. Errors (EAGAIN, EINTR) mean "look again".
    unsafe {
        let none = std::ptr::null::<libc::timespec>();
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
            value,
            none,
        );
    }
}

/// Wakes one sleeper on `word`.
pub fn futex_wake(word: &std::sync::atomic::AtomicU32) {
    // SAFETY: the word lives across the call, which does not write to it.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1);
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_of_this_process_grows_with_what_it_does() {
        let before = usage("self").unwrap();
        let memory = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = usage("self").unwrap();
        assert!(after.memory_kib >= before.memory_kib + (30 << 10), "{before:?} {after:?}");
        assert!(after.cpu_ns > 0);
        drop(memory);
    }

    #[test]
    fn cached_pages_are_those_that_were_written_until_they_are_evicted() {
        // A temporary directory may be in memory, where nothing can be evicted.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert_eq!(cached_pages(&file).unwrap(), 0);
        io::Write::write_all(&mut file, &[1; 3 * 4096 + 1]).unwrap();
        assert!(cached_pages(&file).unwrap() > 0);
        file.sync_all().unwrap();
        assert_eq!(cached_pages(&file).unwrap(), pages_at_hand(&file).unwrap());
        evict(&file).unwrap();
        assert_eq!((cached_pages(&file).unwrap(), pages_at_hand(&file).unwrap()), (0, 0));
    }

    #[test]
    fn room_tells_memory_from_a_disk_and_what_is_missing() {
        let place = |path: &str| room(std::path::Path::new(path));
        assert!(place("/dev/shm").unwrap().0);
        let (in_memory, free) = place(env!("CARGO_MANIFEST_DIR")).unwrap();
        assert!(!in_memory && free > 0);
        assert!(place("/nonexistent").is_err());
    }

    #[test]
    fn usage_of_a_process_that_is_not_there_is_an_error() {
        assert!(usage("0").is_err());
    }
}
