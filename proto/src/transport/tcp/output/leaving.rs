//! The queue's way into the socket: what one system call is given, and what it took.

use std::io;
use std::os::fd::AsFd;

use super::super::super::{Access, Span, TransportError};
use super::super::frame::HEADER_SIZE;
use super::super::link::Link;
use super::super::sys::{self, Gather};
use super::{Item, Output, Reach, Write, faulted};

/// Offered to the kernel in one call, bytes.
const GATHER_MAX: usize = 1 << 20;

/// Where system calls fault: a piece of memory that may be gone is sent in parts that end on this boundary.
pub(super) const PAGE_SIZE: usize = 4096;

static ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

impl Output {
    /// One system call for as much of the queue as fits: its result, the bytes offered, and whether some of them may fault.
    pub(super) fn send_gathered(
        &self,
        link: &mut Link,
        reach: Reach,
    ) -> Result<(io::Result<usize>, usize, bool), TransportError> {
        // Held over the call: no region is dropped while the kernel reads it.
        let access = self.response_frame.is_some().then(|| link.shared.regions.access());
        let mut gather = Gather::new();
        let mut skip = self.front_sent;
        let (mut may_fault, mut more) = (false, false);
        for item in &self.queue {
            match item {
                // It waits until the memory is known to have been there.
                Item::Message { whole: Some(_), .. } if may_fault => {
                    more = true;
                    break;
                }
                Item::Message { buffer, start, len, .. } => {
                    let message = buffer.span().slice(*start, *len).unwrap_or(Span::EMPTY);
                    gather.vectors().push_after(&mut skip, message);
                }
                Item::Write(key) => {
                    let write = &self.writes[*key];
                    if write.may_fault && reach == Reach::BeforeMayFault {
                        break;
                    }
                    may_fault |= write.may_fault;
                    gather.push_bytes_after(&mut skip, &write.front);
                    for segment in &write.segments {
                        gather.vectors().push_after(&mut skip, segment.span());
                    }
                }
                Item::Read { front, .. } => gather.push_bytes_after(&mut skip, front),
                Item::Response => {
                    let (Some(frame), Some(access)) = (&self.response_frame, &access) else { break };
                    gather.push_bytes_after(&mut skip, &frame.header);
                    let ranges = frame.ranges.iter().copied();
                    let resolved = access.resolve_each(ranges, Access::REMOTE_READ, |data| {
                        gather.vectors().push_after(&mut skip, data);
                        true
                    });
                    // Its owner ended it: the peer did nothing wrong.
                    resolved.map_err(|fault| {
                        TransportError::system("answer a read of the peer", io::Error::other(fault))
                    })?;
                }
            }
            if gather.total() >= GATHER_MAX.min(self.turn_max) || gather.vectors().is_full() {
                break;
            }
        }
        gather.vectors().truncate(self.turn_max);
        link.counters.sends += 1;
        Ok((sys::send(link.socket.as_fd(), &gather, more), gather.total(), may_fault))
    }

    /// Sends a part of the front write that ends with a page; zeros in its place when it is gone: the file was
    /// truncated, and the frame must have its length. Returns the bytes sent, and whether they are zeros.
    #[cold]
    pub(super) fn send_page(&self, link: &mut Link, write: &Write) -> io::Result<(usize, bool)> {
        let mut skip = self.front_sent;
        let mut gather = Gather::new();
        gather.push_bytes_after(&mut skip, &write.front);
        for segment in &write.segments {
            if gather.total() > 0 {
                break;
            }
            let span = segment.span();
            let skipped = skip.min(span.len());
            skip -= skipped;
            let rest_of_page = PAGE_SIZE - (span.as_ptr() as usize + skipped) % PAGE_SIZE;
            let part = span.slice(skipped, rest_of_page.min(span.len() - skipped));
            gather.vectors().push(part.unwrap_or(Span::EMPTY));
        }
        let more = self.front_sent + gather.total() < write.frame_len();
        link.counters.sends += 1;
        match sys::send(link.socket.as_fd(), &gather, more) {
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                let mut zeros = Gather::new();
                zeros.push_bytes_after(&mut 0, &ZEROS[..gather.total().min(PAGE_SIZE)]);
                link.counters.sends += 1;
                sys::send(link.socket.as_fd(), &zeros, more).map(|sent| (sent, true))
            }
            result => result.map(|sent| (sent, false)),
        }
    }

    /// The kernel took `sent` bytes.
    pub(super) fn advance(&mut self, link: &mut Link, sent: usize) {
        link.counters.bytes_sent += sent as u64;
        let mut sent_before = self.front_sent;
        self.front_sent += sent;
        while let Some(front) = self.queue.front() {
            let (len, is_data) = match front {
                Item::Message { len, .. } => (*len, false),
                Item::Write(key) => (self.writes[*key].frame_len(), true),
                Item::Read { front, .. } => (front.len(), false),
                Item::Response => {
                    (HEADER_SIZE + self.response_frame.as_ref().map_or(0, |frame| frame.len), true)
                }
            };
            if is_data {
                link.counters.bytes_of_rdma += (self.front_sent.min(len) - sent_before) as u64;
            }
            sent_before = 0;
            if self.front_sent < len {
                return;
            }
            self.front_sent -= len;
            match self.queue.pop_front() {
                Some(Item::Message { buffer, whole, .. }) => {
                    self.queued_bytes -= len;
                    self.free_message(link, buffer);
                    whole.into_iter().for_each(|token| link.complete(token, Ok(())));
                }
                Some(Item::Write(key)) => {
                    let write = self.writes.remove(key);
                    if write.faulted || (write.may_fault && !write.is_there()) {
                        link.complete(write.token, Err(faulted()));
                        self.take_back(link);
                    } else {
                        link.complete(write.token, Ok(()));
                    }
                }
                Some(Item::Response) => {
                    self.response_frame = None;
                    self.queue_response();
                }
                Some(Item::Read { .. }) | None => {}
            }
        }
    }

    /// Memory of a write was gone: the messages that were to leave only if it was there do not.
    #[cold]
    fn take_back(&mut self, link: &mut Link) {
        let mut kept = 0;
        while let Some(item) = self.queue.get(kept) {
            // Of the first, some has left if there is something that counts as sent.
            let is_whole = matches!(item, Item::Message { whole: Some(_), .. });
            if !is_whole || (kept == 0 && self.front_sent > 0) {
                kept += 1;
                continue;
            }
            if let Some(Item::Message { buffer, len, whole, .. }) = self.queue.remove(kept) {
                self.queued_bytes -= len;
                self.free_message(link, buffer);
                whole.into_iter().for_each(|token| link.complete(token, Err(faulted())));
            }
        }
    }
}
