//! Cross-memory attach: copies between this process and the ordinary memory of another, by one system call and without its help.
#![allow(unsafe_code, reason = "process_vm_readv and process_vm_writev")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::super::util::poll;
use super::super::{LocalSegments, Span};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From this process into the other.
    Write,
    /// From the other process into this one.
    Read,
}

/// A process whose memory may be reached, held so that its id cannot come to mean another one unnoticed.
#[derive(Debug)]
pub(super) struct Process {
    pid: libc::pid_t,
    pidfd: OwnedFd,
}

impl Process {
    /// The process `pid`, if it can be held on to (Linux 5.3). Whether it is the peer is for [`Process::read_word`] to show.
    pub(super) fn open(pid: i32) -> io::Result<Self> {
        let named = Some(pid).filter(|pid| *pid > 0).and_then(Pid::from_raw).ok_or(Errno::INVAL)?;
        Ok(Self { pid, pidfd: pidfd_open(named, PidfdFlags::empty())? })
    }

    /// The 16 bytes at `address` of that process.
    pub(super) fn read_word(&self, address: u64) -> io::Result<[u8; 16]> {
        let mut word = [0; 16];
        let local = LocalParts::one(Span::from_mut(&mut word));
        match self.copy(Way::Read, None, &local, &[remote_part(address, word.len())?])? {
            16 => Ok(word),
            _ => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        }
    }

    /// Copies between local memory and at most [`REMOTE_PARTS_MAX`] pieces of that process's; returns how many bytes moved, which is less
    /// than there are when memory on either side is not there. `pipe`: whose other end that process closes when it executes another
    /// program, whose memory is not the peer's.
    pub(super) fn copy(
        &self,
        way: Way,
        pipe: Option<BorrowedFd<'_>>,
        local: &LocalParts,
        remote: &[RemotePart],
    ) -> io::Result<usize> {
        if !self.is_there(pipe)? {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let parts = libc::c_ulong::try_from(local.0.len()).unwrap_or(0);
        let remote_parts: smallvec::SmallVec<[libc::iovec; 4]> = remote.iter().map(|part| part.0).collect();
        let remote_count = libc::c_ulong::try_from(remote_parts.len()).unwrap_or(0);
        let (ours, theirs, pid) = (local.0.as_ptr(), remote_parts.as_ptr(), self.pid);
        // SAFETY: the local parts come from live spans; the remote parts are addresses in the other process, which the kernel checks.
        let moved = unsafe {
            match way {
                Way::Write => libc::process_vm_writev(pid, ours, parts, theirs, remote_count, 0),
                Way::Read => libc::process_vm_readv(pid, ours, parts, theirs, remote_count, 0),
            }
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }

    /// The process has not ended, and is the program that it was.
    fn is_there(&self, pipe: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let pidfd = self.pidfd.as_fd();
        let asked = [(pidfd, PollFlags::IN), (pipe.unwrap_or(pidfd), PollFlags::empty())];
        let found = poll(asked, Some(Duration::ZERO))?;
        Ok(found.iter().all(|found| found.is_empty()))
    }
}

/// Local memory of a copy, as the kernel wants it.
pub(super) struct LocalParts(smallvec::SmallVec<[libc::iovec; 4]>);

impl LocalParts {
    /// A gather or scatter list. The memory must stay until the copy is done: it is borrowed by whoever holds the segments.
    pub(super) fn of(segments: &LocalSegments) -> Self {
        Self(segments.iter().map(|segment| part(segment.span())).collect())
    }

    fn one(span: Span<'_>) -> Self {
        Self(smallvec::smallvec![part(span)])
    }
}

fn part(span: Span<'_>) -> libc::iovec {
    libc::iovec { iov_base: span.as_ptr().cast(), iov_len: span.len() }
}

/// Pieces of the other process's memory in one copy.
pub(super) const REMOTE_PARTS_MAX: usize = 256;

/// A piece of the other process's memory: an address there, which the kernel checks.
#[derive(Clone, Copy)]
pub(super) struct RemotePart(libc::iovec);

/// `len` bytes at `address` of the other process.
pub(super) fn remote_part(address: u64, len: usize) -> io::Result<RemotePart> {
    match usize::try_from(address) {
        Ok(address) => {
            let iov_base = std::ptr::without_provenance_mut(address);
            Ok(RemotePart(libc::iovec { iov_base, iov_len: len }))
        }
        Err(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::sock;
    use super::*;

    #[test]
    fn read_word_of_a_process_answers_its_bytes() {
        let me = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let word = Box::new(*b"sixteen bytes ok");
        assert_eq!(me.read_word(word.as_ptr() as u64).unwrap(), *word);
        assert!(me.read_word(1).is_err());
        assert!(me.read_word(u64::MAX - 3).is_err());
    }

    // [SHM-40]
    #[test]
    fn copy_to_a_dead_process_is_refused() {
        let mut child = std::process::Command::new("/bin/true").spawn().unwrap();
        let process = Process::open(i32::try_from(child.id()).unwrap()).unwrap();
        child.wait().unwrap();
        assert_eq!(process.read_word(4096).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        // The number may be another process's by then.
        let process = Process { pid: i32::try_from(std::process::id()).unwrap(), ..process };
        let word = Box::new(*b"sixteen bytes ok");
        let answer = process.read_word(word.as_ptr() as u64);
        assert_eq!(answer.unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    // [SHM-77] Executing a program closes the pipe.
    #[test]
    fn copy_to_a_process_that_has_closed_its_pipe_is_refused() {
        let me = Process::open(i32::try_from(std::process::id()).unwrap()).unwrap();
        let (sleeper, ringer) = sock::pipe().unwrap();
        let (mut into, from) = ([0; 16], Box::new(*b"sixteen bytes ok"));
        let mut copy = || {
            let local = LocalParts::one(Span::from_mut(&mut into));
            me.copy(
                Way::Read,
                Some(ringer.as_fd()),
                &local,
                &[remote_part(from.as_ptr() as u64, 16).unwrap()],
            )
        };
        assert_eq!(copy().unwrap(), 16);
        drop(sleeper);
        // A process that another test begins holds the end until it executes its program.
        let refused = loop {
            if let Err(error) = copy() {
                break error;
            }
        };
        assert_eq!(refused.raw_os_error(), Some(libc::ESRCH));
    }
}
