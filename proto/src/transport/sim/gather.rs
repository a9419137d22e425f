//! Copies between local segments and plain bytes.
#![allow(unsafe_code, reason = "memory that may fault is read by the kernel, from a raw address")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::transport::{LocalSegments, Span};

/// The bytes of the segments, in order. Fails only for memory that faults.
pub(super) fn gather(segments: &LocalSegments) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(segments.iter().map(|segment| segment.len()).sum());
    for segment in segments {
        match segment.memory().may_fault() {
            false => bytes.extend_from_slice(&segment.span().to_vec()),
            true => {
                bytes.extend_from_slice(&read_through_kernel(segment.span())?);
                if !segment.is_there() {
                    return Err(io::Error::from_raw_os_error(libc::EFAULT));
                }
            }
        }
    }
    Ok(bytes)
}

/// Spreads `bytes` over the segments, in order; the lengths agree.
pub(super) fn scatter(bytes: &[u8], segments: &LocalSegments) {
    let mut rest = bytes;
    for segment in segments {
        let (part, tail) = rest.split_at(segment.len());
        segment.span().write_from(0, part);
        rest = tail;
    }
}

/// Copies by way of a memory file: the kernel returns EFAULT where this process would get SIGBUS.
fn read_through_kernel(span: Span<'_>) -> io::Result<Vec<u8>> {
    // SAFETY: the name is a C string; the call has no other precondition.
    let fd = unsafe { libc::memfd_create(c"dafs-sim".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and owned by nobody else.
    let file = unsafe { File::from_raw_fd(fd) };
    let mut done = 0;
    while done < span.len() {
        let Some(rest) = span.slice(done, span.len() - done) else { break };
        // SAFETY: the kernel checks the address range itself; the span's owner keeps it mapped.
        let written = unsafe { libc::write(file.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
        match usize::try_from(written) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(_) => return Err(io::Error::last_os_error()),
        }
    }
    let mut bytes = vec![0; done];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::transport::{BorrowedMemory, HeapMemory, Memory, MemoryRef};

    /// A mapping of an empty file: every touch is a SIGBUS.
    struct Truncated(BorrowedMemory);

    // SAFETY: delegates to the mapping, which is never unmapped in these tests.
    unsafe impl Memory for Truncated {
        fn span(&self) -> Span<'_> {
            self.0.span()
        }
        fn may_fault(&self) -> bool {
            true
        }
    }

    #[test]
    fn gather_of_faulting_memory_answers_an_error() {
        let file = tempfile::tempfile().unwrap();
        // SAFETY: a fresh mapping chosen by the kernel.
        let pointer = unsafe {
            libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(pointer, libc::MAP_FAILED);
        // SAFETY: the mapping lives to the end of the process and has no references.
        let memory = Truncated(unsafe { BorrowedMemory::new(pointer.cast(), 4096) });
        let segments: LocalSegments = [MemoryRef::new(Arc::new(memory))].into_iter().collect();
        assert_eq!(gather(&segments).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        file.set_len(4096).unwrap();
        assert_eq!(gather(&segments).unwrap(), vec![0; 4096]);
    }

    #[test]
    fn scatter_then_gather_over_uneven_segments_gives_the_bytes_back() {
        let memory = MemoryRef::new(Arc::new(HeapMemory::allocate(100).unwrap()));
        let part = |offset, len| memory.slice(offset, len).unwrap();
        let segments: LocalSegments = [part(50, 7), part(0, 0), part(3, 1)].into_iter().collect();
        scatter(b"12345678", &segments);
        assert_eq!(gather(&segments).unwrap(), b"12345678");
        assert_eq!(memory.span().slice(3, 1).unwrap().to_vec(), b"8");
    }
}
