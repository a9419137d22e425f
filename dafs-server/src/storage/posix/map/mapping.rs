//! A part of a file mapped read-only: passed to system calls, or copied out of by code that survives a fault.
//!
//! Touching a page of a mapped file beyond its end raises SIGBUS, and anybody may cut a file short at any time. So two
//! functions of a few instructions do all the touching; the handler of SIGBUS knows where they are and lets the function
//! that it interrupted return instead. Every other SIGBUS goes to
//! the handler that was there before.
#![allow(unsafe_code, reason = "mmap, and touching mapped files")]

use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;

use dafs_proto::transport::{Memory, Span};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};

use super::locked::Locked;

/// A mapped part of a file.
pub(super) struct Mapping {
    pointer: *mut u8,
    len: usize,
    /// Locked into memory.
    lock: Option<Locked>,
}

// SAFETY: only an address of a mapping that lives as long as the value.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

// SAFETY: the mapping stays in place until drop.
unsafe impl Memory for Mapping {
    fn span(&self) -> Span<'_> {
        // SAFETY: mapped for this length while `self` lives; it may fault, so it is for the kernel only (see
        // `may_fault`), which answers writes with EFAULT.
        unsafe { Span::from_raw(self.pointer, self.len) }
    }

    fn may_fault(&self) -> bool {
        true
    }
}

/// A mapping to be sent from, and the file, by which it is known what was there.
pub(super) struct Window {
    mapping: Mapping,
    file: OwnedFd,
    /// Where it begins in the file, bytes.
    offset: u64,
}

// SAFETY: the span is the mapping's, which stays in place until drop.
unsafe impl Memory for Window {
    fn span(&self) -> Span<'_> {
        self.mapping.span()
    }

    fn may_fault(&self) -> bool {
        true
    }

    fn is_there(&self, offset: usize, len: usize) -> bool {
        let end = self.offset + (offset + len) as u64;
        // The kernel sets the size before it clears what lies beyond it.
        rustix::fs::fstat(&self.file)
            .is_ok_and(|now| u64::try_from(now.st_size).is_ok_and(|size| end <= size))
    }
}

impl Window {
    /// As [`Mapping::new`]; `None` also where no descriptor is left.
    pub(super) fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Option<Self> {
        let file = fd.try_clone_to_owned().ok()?;
        Some(Self { mapping: Mapping::new(fd, offset, len)?, file, offset })
    }
}

impl Mapping {
    /// Maps `len` bytes from `offset`, a multiple of the page size; they may reach beyond the end of the file.
    pub(super) fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Option<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let pointer = unsafe { mmap(null_mut(), len, ProtFlags::READ, MapFlags::SHARED, fd, offset) };
        Some(Self { pointer: pointer.ok()?.cast(), len, lock: None })
    }

    /// Enters all pages in the page table now. Only for speed: a kernel that cannot (before Linux 5.14) does it page by page later.
    pub(super) fn populate(&self) {
        // SAFETY: our own mapping; its contents stay as they are.
        let _ = unsafe { madvise(self.pointer.cast(), self.len, Advice::LinuxPopulateRead) };
    }

    /// Keeps all pages in memory until it is dropped; false where they are more than may be kept. Waits only for pages that are not there.
    pub(super) fn lock(&mut self) -> bool {
        let Some(locked) = Locked::take(self.len) else { return false };
        // SAFETY: our own mapping; its contents stay as they are. It is unlocked with `munmap`.
        let is_locked = unsafe { mlock(self.pointer.cast(), self.len) }.is_ok();
        self.lock = is_locked.then_some(locked);
        is_locked
    }

    /// Copies the bytes at `offset` out; `false` when they are not all there, in the file or in the mapping, and
    /// `to` is then filled in part. Always `false` where [`prepare`] is. `bulk`: it is a part of something large.
    #[inline]
    pub(super) fn copy_out(&self, offset: usize, to: Span<'_>, bulk: bool) -> bool {
        let Some(from) = self.span().slice(offset, to.len()) else { return false };
        touch::copy(from, to, bulk)
    }

    /// Has the CPU bring the first bytes at `offset`, at most `len`, into its cache. Does not wait, and touches no page.
    #[inline]
    pub(super) fn prefetch(&self, offset: usize, len: usize) {
        /// What follows comes by itself.
        const PREFETCHED_MAX: usize = 256;
        if let Some(bytes) = self.span().slice(offset, len.min(PREFETCHED_MAX)) {
            touch::prefetch(bytes);
        }
    }

    /// The file still has the byte at `offset`.
    #[inline]
    pub(super) fn has_byte(&self, offset: usize) -> bool {
        self.span().slice(offset, 1).is_some_and(touch::can_load)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length, unmapped once.
        let _ = unsafe { munmap(self.pointer.cast(), self.len) };
    }
}

pub(super) use touch::prepare;

#[cfg(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
mod touch {
    use std::sync::OnceLock;

    use dafs_proto::transport::Span;

    /// Makes ready for copies out of mappings, once for the process; `false` where that cannot be.
    pub(in super::super) fn prepare() -> bool {
        static READY: OnceLock<bool> = OnceLock::new();
        *READY.get_or_init(|| install().is_some())
    }

    #[inline]
    pub(super) fn copy(from: Span<'_>, to: Span<'_>, bulk: bool) -> bool {
        // SAFETY: the target is valid for writes of its length; the source is mapped, and where the file has nothing
        // there the handler ends the copy: mappings are copied out of only after `prepare`.
        unsafe { copy_bytes(to.as_ptr(), from.as_ptr(), bulk.into(), to.len()) == 0 }
    }

    #[inline]
    pub(super) fn can_load(byte: Span<'_>) -> bool {
        // SAFETY: as in `copy`.
        unsafe { load_byte(0, byte.as_ptr(), 0, 1) == 0 }
    }

    #[inline]
    pub(super) fn prefetch(bytes: Span<'_>) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        const CACHE_LINE_SIZE: usize = 64;
        for at in (0..bytes.len()).step_by(CACHE_LINE_SIZE) {
            // SAFETY: a hint, which faults nowhere; x86-64 has the instruction.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().wrapping_add(at).cast()) };
        }
    }

    /// Bytes of code of [`copy_bytes`], padding included.
    const COPY_CODE_SIZE: i64 = 256;

    /// Copies `left` bytes (in rcx, counted down); returns how many are still left, at most 63 too many after a fault.
    /// By registers, since a string instruction takes a fifth longer into memory that another CPU has just read; `bulk` data by that,
    /// since it leaves out reading what it overwrites.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn copy_bytes(to: *mut u8, from: *const u8, bulk: usize, left: usize) -> usize {
        core::arch::naked_asm!(
            "2:",
            "test rdx, rdx",
            "jnz 9f",
            "cmp rcx, 64",
            "jb 4f",
            "3:",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + 16]",
            "movups xmm2, [rsi + 32]",
            "movups xmm3, [rsi + 48]",
            "movups [rdi], xmm0",
            "movups [rdi + 16], xmm1",
            "movups [rdi + 32], xmm2",
            "movups [rdi + 48], xmm3",
            "add rsi, 64",
            "add rdi, 64",
            "sub rcx, 64",
            "cmp rcx, 64",
            "jae 3b",
            // Even of no bytes a string instruction takes some ten nanoseconds. What is less than 64 bytes is moved from both of its ends,
            // and what lies in the middle twice.
            "4:",
            "cmp rcx, 16",
            "jb 5f",
            "movups xmm0, [rsi]",
            "movups xmm1, [rsi + rcx - 16]",
            "cmp rcx, 32",
            "jbe 44f",
            "movups xmm2, [rsi + 16]",
            "movups xmm3, [rsi + rcx - 32]",
            "movups [rdi + 16], xmm2",
            "movups [rdi + rcx - 32], xmm3",
            "44:",
            "movups [rdi], xmm0",
            "movups [rdi + rcx - 16], xmm1",
            "jmp 8f",
            "5:",
            "cmp rcx, 8",
            "jb 6f",
            "mov rax, [rsi]",
            "mov rdx, [rsi + rcx - 8]",
            "mov [rdi], rax",
            "mov [rdi + rcx - 8], rdx",
            "jmp 8f",
            "6:",
            "cmp rcx, 4",
            "jb 7f",
            "mov eax, [rsi]",
            "mov edx, [rsi + rcx - 4]",
            "mov [rdi], eax",
            "mov [rdi + rcx - 4], edx",
            "jmp 8f",
            "7:",
            "test rcx, rcx",
            "jz 8f",
            "movzx eax, byte ptr [rsi]",
            "mov [rdi], al",
            "inc rsi",
            "inc rdi",
            "dec rcx",
            "jmp 7b",
            "8:",
            "xor eax, eax",
            "ret",
            "9:",
            "rep movsb",
            "mov rax, rcx",
            "ret",
            // The handler takes every address up to here for this function's.
            ".org 2b + {size}, 0xcc",
            size = const COPY_CODE_SIZE,
        )
    }

    /// Loads a byte; returns 0, or `left` (1, in rcx) after a fault.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn load_byte(
        unused: usize,
        from: *const u8,
        unused2: usize,
        left: usize,
    ) -> usize {
        core::arch::naked_asm!("movzx eax, byte ptr [rsi]", "xor eax, eax", "ret")
    }

    /// Where the two go on after a fault: they return what is left.
    #[unsafe(naked)]
    unsafe extern "sysv64" fn after_fault() {
        core::arch::naked_asm!("mov rax, rcx", "ret")
    }

    static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

    fn install() -> Option<()> {
        // SAFETY: all zeroes is a valid sigaction.
        let (mut action, mut previous): (libc::sigaction, libc::sigaction) =
            unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        // SAFETY: asks only.
        let known = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } == 0;
        PREVIOUS.set(previous).ok().filter(|()| known)?;
        action.sa_sigaction = on_bus_error as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler is a function of the right type that does only what a handler may.
        let installed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        (installed == 0).then_some(())
    }

    extern "C" fn on_bus_error(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: with SA_SIGINFO the kernel passes the interrupted context, which is ours to change.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
        let at = &mut registers[libc::REG_RIP as usize];
        let copy = copy_bytes as *const () as i64;
        if (copy..copy + COPY_CODE_SIZE).contains(at) || *at == load_byte as *const () as i64 {
            *at = after_fault as *const () as i64;
            return;
        }
        hand_on(signal, info, context);
    }

    /// Not ours: as if this handler were not there.
    #[cold]
    fn hand_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid siginfo.
        let was_sent = unsafe { (*info).si_code } <= 0;
        let Some(previous) = PREVIOUS.get() else { return };
        match previous.sa_sigaction {
            libc::SIG_IGN if was_sent => {}
            libc::SIG_IGN | libc::SIG_DFL => {
                // SAFETY: all zeroes with SIG_DFL is a valid sigaction; both calls may be made in a handler. A fault comes
                // again when this returns, and ends the process; a signal that was sent is sent again.
                unsafe {
                    let action: libc::sigaction = std::mem::zeroed();
                    libc::sigaction(signal, &raw const action, std::ptr::null_mut());
                    if was_sent {
                        libc::raise(signal);
                    }
                }
            }
            handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the kernel was told that this is a function of this type.
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            handler => {
                // SAFETY: as above.
                let handler: extern "C" fn(i32) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
mod touch {
    //! Mapped files are not touched here: everything goes through system calls.
    use dafs_proto::transport::Span;

    pub(in super::super) fn prepare() -> bool {
        false
    }

    pub(super) fn copy(_from: Span<'_>, _to: Span<'_>, _bulk: bool) -> bool {
        false
    }

    pub(super) fn can_load(_byte: Span<'_>) -> bool {
        false
    }

    pub(super) fn prefetch(_bytes: Span<'_>) {}
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", target_env = "gnu"))]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    const PAGE: usize = 4096;

    fn file(pages: usize) -> std::fs::File {
        let file = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile()).unwrap();
        file.write_all_at(&vec![7; pages * PAGE], 0).unwrap();
        file
    }

    // [STOR-13]
    #[test]
    fn copy_from_a_truncated_file_reports_missing_data() {
        assert!(prepare());
        let file = file(3);
        let mapping = Mapping::new(file.as_fd(), 0, 4 * PAGE).unwrap();
        let mut bytes = vec![0; 2 * PAGE];
        let mut copies = |offset, len: usize| {
            let mut copies = |bulk| mapping.copy_out(offset, Span::from_mut(&mut bytes[..len]), bulk);
            let (whole, bulk) = (copies(false), copies(true));
            assert_eq!(whole, bulk);
            whole
        };
        assert!(copies(PAGE, 2 * PAGE) && mapping.has_byte(3 * PAGE - 1));
        assert!(!copies(2 * PAGE, PAGE + 1) && !mapping.has_byte(3 * PAGE));
        assert!(!copies(4 * PAGE, 1) && !mapping.has_byte(4 * PAGE), "beyond the mapping");
        // The end met by each of the instructions that load.
        for before in 1..=130 {
            for beyond in [1, 16, 63, 64, 65, 200] {
                assert!(
                    !copies(3 * PAGE - before, before + beyond),
                    "{before} before the end, {beyond} beyond"
                );
            }
            assert!(copies(3 * PAGE - before, before));
        }
        file.set_len(2 * PAGE as u64).unwrap();
        assert!(!copies(PAGE, PAGE + 1) && copies(PAGE, PAGE) && !mapping.has_byte(2 * PAGE));
        assert!(bytes[..PAGE].iter().all(|byte| *byte == 7));
    }

    // [STOR-13]
    #[test]
    fn copy_of_every_length_is_the_bytes_and_nothing_behind_them() {
        assert!(prepare());
        let file = file(1);
        let content: Vec<u8> = (1..=251).cycle().take(PAGE).collect();
        file.write_all_at(&content, 0).unwrap();
        let mapping = Mapping::new(file.as_fd(), 0, PAGE).unwrap();
        for len in (0..=200).chain([PAGE - 7]) {
            for (offset, bulk) in [(0, false), (7, false), (7, true)] {
                let mut bytes = vec![0; len + 64];
                assert!(mapping.copy_out(offset, Span::from_mut(&mut bytes[..len]), bulk));
                assert!(bytes[..len] == content[offset..offset + len], "{len} at {offset}");
                assert!(bytes[len..].iter().all(|byte| *byte == 0), "{len} at {offset}");
            }
        }
    }

    // [STOR-27]
    #[test]
    fn window_of_truncated_file_is_valid_up_to_the_cut() {
        let file = file(3);
        let begin = PAGE as u64;
        let window = Window::new(file.as_fd(), begin, 4 * PAGE).unwrap();
        for size in [3 * PAGE, 3 * PAGE - 5, 2 * PAGE + 1, PAGE, 0, 5 * PAGE] {
            file.set_len(size as u64).unwrap();
            let held = size.saturating_sub(PAGE);
            assert!(held == 0 || window.is_there(0, held), "{size}");
            assert!(held == 0 || window.is_there(held - 1, 1), "{size}");
            assert!(!window.is_there(0, held + 1) && !window.is_there(held, 1), "{size}");
        }
    }

    /// What ends a child that touches the memory itself.
    fn end_of_a_child_that_touches(mapping: &Mapping, at: usize) -> i32 {
        let pointer = mapping.span().as_ptr().wrapping_add(at);
        // SAFETY: the child only reads memory and ends; the parent waits for it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
                pointer.read_volatile();
                libc::_exit(0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            status
        }
    }

    #[test]
    fn bus_error_of_other_code_ends_the_process_as_before() {
        assert!(prepare());
        let file = file(1);
        let mapping = Mapping::new(file.as_fd(), 0, 2 * PAGE).unwrap();
        assert_eq!(end_of_a_child_that_touches(&mapping, 0), 0);
        assert_eq!(libc::WTERMSIG(end_of_a_child_that_touches(&mapping, PAGE)), libc::SIGBUS);
    }
}
