//! The kernel's descriptor: requests in, replies out.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno as SystemError, readv, writev};

use super::backing::Backing;
use super::errno::{Answer, Errno};
use super::reply::HEADER_SIZE as REPLY_HEADER_SIZE;
use super::request::{HEADER_SIZE, Header, Request, WRITE_HEAD_SIZE};

/// The kernel reads and writes at most so much with one request, bytes.
pub(crate) const DATA_SIZE_MAX: usize = 1 << 20;

/// The descriptor of a mount. Does not block.
#[derive(Debug)]
pub(crate) struct Device {
    descriptor: OwnedFd,
}

/// What the descriptor had.
pub(crate) enum Received {
    /// A request. The data of a write is in the buffer.
    Request(Header, Request),
    /// None now.
    Nothing,
    /// The mount is gone.
    Unmounted,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Device {
    pub(crate) fn new(descriptor: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        Ok(Self { descriptor })
    }

    /// Takes a request. `data` has room for the largest write.
    pub(crate) fn receive(&self, data: &mut [u8]) -> std::io::Result<Received> {
        let mut head = [0; WRITE_HEAD_SIZE];
        loop {
            let room = &mut [IoSliceMut::new(&mut head), IoSliceMut::new(data)];
            let len = match readv(&self.descriptor, room) {
                Ok(len) => len,
                Err(SystemError::AGAIN) => return Ok(Received::Nothing),
                Err(SystemError::NODEV | SystemError::CONNABORTED) => return Ok(Received::Unmounted),
                // A request was withdrawn before it was read.
                Err(SystemError::INTR | SystemError::NOENT) => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(request) = self.decode(&head, data, len) {
                return Ok(request);
            }
        }
    }

    /// `None` for a request that was answered here, since it cannot be read.
    fn decode(&self, head: &[u8; WRITE_HEAD_SIZE], data: &[u8], len: usize) -> Option<Received> {
        let (first, arguments) = head.split_first_chunk::<HEADER_SIZE>()?;
        if len < HEADER_SIZE {
            tracing::warn!("a request of the kernel has {len} bytes: fewer than a header");
            return None;
        }
        let header = Header::decode(first);
        let inside = arguments.get(..len - HEADER_SIZE);
        let decoded = match inside {
            Some(all) => Request::decode(&header, all),
            None if header.is_write() => Request::decode(&header, arguments),
            None => Request::decode(&header, &[arguments, data.get(..len - WRITE_HEAD_SIZE)?].concat()),
        };
        match decoded {
            Ok(request) => Some(Received::Request(header, request)),
            Err(error) => {
                tracing::warn!("{error}");
                self.fail(header.unique, Errno::INVALID);
                None
            }
        }
    }

    /// Replies with nothing but success, or an error.
    pub(crate) fn finish(&self, unique: u64, done: Answer<()>) {
        match done {
            Ok(()) => self.reply(unique, 0, &[]),
            Err(error) => self.fail(unique, error),
        }
    }

    /// Replies with bytes, or an error.
    pub(crate) fn answer(&self, unique: u64, answer: Answer<Vec<u8>>) {
        match answer {
            Ok(bytes) => self.reply(unique, 0, &bytes),
            Err(error) => self.fail(unique, error),
        }
    }

    pub(crate) fn fail(&self, unique: u64, error: Errno) {
        self.reply(unique, -error.0, &[]);
    }

    /// Replies with data.
    pub(crate) fn reply(&self, unique: u64, error: i32, data: &[u8]) {
        let mut header = [0; REPLY_HEADER_SIZE];
        let len = u32::try_from(REPLY_HEADER_SIZE + data.len()).unwrap_or(u32::MAX);
        header[..4].copy_from_slice(&len.to_ne_bytes());
        header[4..8].copy_from_slice(&error.to_ne_bytes());
        header[8..].copy_from_slice(&unique.to_ne_bytes());
        match writev(&self.descriptor, &[IoSlice::new(&header), IoSlice::new(data)]) {
            // Whoever asked has gone, or the mount has.
            Ok(_) | Err(SystemError::NOENT | SystemError::NODEV) => {}
            Err(error) => tracing::warn!("cannot answer request {unique} of the kernel: {error}"),
        }
    }

    /// Gives the kernel a file that it reads and writes itself.
    pub(crate) fn give(&self, file: &OwnedFd) -> std::io::Result<Backing> {
        Backing::new(self.as_fd(), file.as_fd())
    }

    /// Tells the kernel that what it has cached of a node is not true any more: of its attributes, and of its data from `offset` on where
    /// that is not negative, `len` bytes or all that follows (0).
    pub(crate) fn invalidate(&self, node: u64, offset: i64, len: i64) {
        const INVALIDATE_NODE: i32 = 2;
        let mut data = [0; 24];
        data[..8].copy_from_slice(&node.to_ne_bytes());
        data[8..16].copy_from_slice(&offset.to_ne_bytes());
        data[16..].copy_from_slice(&len.to_ne_bytes());
        // One that the kernel has forgotten is as good as told.
        self.reply(0, INVALIDATE_NODE, &data);
    }
}
