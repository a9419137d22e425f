//! Address space for tests: mapped, with holes where a test makes them. Compiled into the client's own tests too.
#![allow(unsafe_code, reason = "maps and unmaps memory of its own")]

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Anonymous memory, unmapped when dropped.
#[derive(Debug)]
pub struct Area {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: it is its owner's alone.
unsafe impl Send for Area {}

impl Area {
    /// New memory anywhere.
    pub fn new(len: usize) -> Self {
        Self::mapped(std::ptr::null_mut(), len, 0)
    }

    /// New memory in place of this; in one step, for another thread might take the place in between.
    pub fn mapped_again(self) -> Self {
        let (start, len) = (self.start, self.len);
        std::mem::forget(self);
        Self::mapped(start, len, libc::MAP_FIXED)
    }

    fn mapped(at: *mut libc::c_void, len: usize, flags: i32) -> Self {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, where the kernel likes, or in place of an area that is given up for it.
        let start = unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        assert!(at.is_null() || start == at, "something else took the place");
        Self { start, len }
    }

    /// Where it begins.
    pub fn pointer(&self) -> *mut u8 {
        self.start.cast()
    }

    /// The address of that.
    pub fn address(&self) -> usize {
        self.start as usize
    }

    /// The bytes of a part that is mapped.
    #[allow(clippy::mut_from_ref, reason = "parts are different memory; the tests use each once at a time")]
    pub fn bytes(&self, offset: usize, len: usize) -> &mut [u8] {
        assert!(offset + len <= self.len);
        // SAFETY: inside this area, mapped as the test knows, and used by nobody else meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.pointer().add(offset), len) }
    }

    /// Makes a hole.
    pub fn unmap(&self, offset: usize, len: usize) {
        // SAFETY: a part of this area, to which nobody holds a reference.
        assert_eq!(unsafe { libc::munmap(self.part(offset, len), len) }, 0);
    }

    /// Changes what may be done with pages.
    pub fn protect(&self, offset: usize, len: usize, protection: i32) {
        // SAFETY: as for `unmap`.
        assert_eq!(unsafe { libc::mprotect(self.part(offset, len), len, protection) }, 0);
    }

    /// Gives the pages back: they read as zeros then.
    pub fn empty(&self, offset: usize, len: usize) {
        // SAFETY: as for `unmap`.
        assert_eq!(unsafe { libc::madvise(self.part(offset, len), len, libc::MADV_DONTNEED) }, 0);
    }

    /// Moves all of it to the beginning of another, in place of that part, and makes it longer. The other's owner owns it then; where
    /// it was there is a hole.
    pub fn move_to(self, place: &Self, len: usize) {
        assert!(self.len <= len && len <= place.len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both areas are the caller's, who holds no reference to either.
        let moved = unsafe { libc::mremap(self.start, self.len, len, flags, place.start) };
        assert_eq!(moved, place.start, "{}", std::io::Error::last_os_error());
        std::mem::forget(self);
    }

    /// Moves its pages to the beginning of another, in place of those there, and has new ones itself.
    pub fn move_pages_to(&self, place: &Self) {
        const DONT_UNMAP: i32 = 4;
        assert!(self.len <= place.len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | DONT_UNMAP;
        // SAFETY: as for `move_to`.
        let moved = unsafe { libc::mremap(self.start, self.len, self.len, flags, place.start) };
        assert_eq!(moved, place.start, "{}", std::io::Error::last_os_error());
    }

    /// Makes it longer where it is; `false` where the system does not, as when something is in the way.
    pub fn grow(&mut self, len: usize) -> bool {
        // SAFETY: nothing moves, and nothing else is replaced.
        let grown = unsafe { libc::mremap(self.start, self.len, len, 0) == self.start };
        if grown {
            self.len = len;
        }
        grown
    }

    /// Gives its end back.
    pub fn truncate(&mut self, len: usize) {
        self.unmap(len, self.len - len);
        self.len = len;
    }

    fn part(&self, offset: usize, len: usize) -> *mut libc::c_void {
        assert!(offset.is_multiple_of(page_size()) && offset + len <= self.len);
        self.start.wrapping_byte_add(offset)
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: this area's own; holes in it do no harm.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
