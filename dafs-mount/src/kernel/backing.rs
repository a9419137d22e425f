//! Files that the kernel reads and writes itself, in place of asking: FUSE passthrough.
#![allow(unsafe_code, reason = "two requests of the kernel's descriptor that no crate offers both")]

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// The letter of the descriptor's requests.
const GROUP: u8 = 229;

/// The request that gives the kernel a file. Its answer is a number.
#[repr(C)]
struct Give {
    descriptor: i32,
    flags: u32,
    padding: u64,
}

// SAFETY: the opcode is that of a request which reads these fields, and writes nothing.
unsafe impl Ioctl for Give {
    type Output = i32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        opcode::write::<Self>(GROUP, 1)
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::from_mut(self).cast()
    }

    unsafe fn output_from_ptr(answer: IoctlOutput, _: *mut c_void) -> rustix::io::Result<i32> {
        Ok(answer)
    }
}

/// A file that the kernel has been given. Programs that have it open keep it, also when this is dropped.
#[derive(Debug)]
pub(crate) struct Backing {
    device: OwnedFd,
    number: i32,
}

impl Backing {
    /// Gives the kernel a file, which it reads and writes as this thread may.
    pub(crate) fn new(device: BorrowedFd<'_>, file: BorrowedFd<'_>) -> io::Result<Self> {
        let device = device.try_clone_to_owned()?;
        let give = Give { descriptor: file.as_raw_fd(), flags: 0, padding: 0 };
        // SAFETY: the descriptor is open as long as the request lasts.
        let number = unsafe { ioctl(&device, give) }?;
        Ok(Self { device, number })
    }

    /// By which the kernel knows it.
    pub(crate) fn number(&self) -> i32 {
        self.number
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        const CLOSE: u32 = opcode::write::<u32>(GROUP, 2);
        // SAFETY: the request reads a number of 32 bits.
        let closed = unsafe { ioctl(&self.device, Setter::<CLOSE, i32>::new(self.number)) };
        // Nobody has it any more where the mount is gone.
        let _ = closed;
    }
}

/// The kernel writes the files that it is given as the thread that gives them. Takes from it what would let programs keep the set-user-id
/// bits of what they write, and write beyond a quota.
pub(crate) fn hold_back() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    sets.effective -= CapabilitySet::FSETID | CapabilitySet::SYS_RESOURCE;
    Ok(set_capabilities(None, sets)?)
}
