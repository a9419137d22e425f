//! What a session and its server have agreed on.

use dafs_proto::wire::{Features, Welcome};

use crate::method::io_path::{Direction, IoPath};

/// What holds for the session that is there now.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) welcome: Welcome,
    /// Changes when what was done and not committed may be lost: that of the server, or of one that this server has taken over.
    pub(crate) loss_epoch: u64,
    /// Largest inline payloads: the server's limit and the posted buffers together.
    pub(crate) read_inline_max: u32,
    pub(crate) write_inline_max: u32,
    /// Largest payload of a request, bytes.
    pub(crate) send_payload_max: u32,
    pub(crate) registers_ordinary_memory: bool,
    /// Writes too large for a message are better cut than sent direct, where Inline is faster up to its limit.
    pub(crate) cuts_inline_writes: bool,
    /// The server has registered memory mapped: it works on one part while the next is copied there.
    pub(crate) bounce_overlaps: bool,
    pub(crate) segments_max: usize,
    /// The server is on another host.
    pub(crate) is_remote: bool,
}

impl Terms {
    /// Largest inline payload, bytes.
    #[inline]
    pub(crate) fn inline_max(&self, direction: Direction) -> u32 {
        match direction {
            Direction::Read => self.read_inline_max,
            Direction::Write => self.write_inline_max,
        }
    }

    /// Bytes that one request moves at most; `None` where a buffer of the library's or an eager buffer bounds that.
    pub(crate) fn request_max(&self, path: IoPath, direction: Direction) -> Option<usize> {
        match path {
            IoPath::Inline => Some(self.inline_max(direction) as usize),
            IoPath::Direct | IoPath::DirectRegister => Some(self.welcome.transfer_size_max as usize),
            IoPath::Bounced | IoPath::Eager | IoPath::ClientInitiated => None,
        }
    }

    /// The server knows locks.
    pub(crate) fn has_locks(&self) -> bool {
        self.has(Features::LOCKS)
    }

    /// The server knows this.
    pub(crate) fn has(&self, feature: Features) -> bool {
        self.welcome.features & feature.bits() != 0
    }

    /// Largest append that is atomic whatever memory it comes from, bytes.
    pub(crate) fn append_size_max(&self) -> usize {
        match self.registers_ordinary_memory {
            true => self.welcome.transfer_size_max as usize,
            false => self.write_inline_max as usize,
        }
    }
}
