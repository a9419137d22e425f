use std::collections::VecDeque;
use std::sync::Arc;

use dafs_proto::wire::{Attributes, DirEntry, Sieve, decode_dir_entries};

use crate::api::dir::Dir;
use crate::driver::pending::{Moved, Pending};
use crate::driver::transfer::{Memory, TransferParts, submit_transfer};
use crate::error::{Error, Result};
use crate::memory::registration::RegistrationPolicy;
use crate::memory::{Keep, RegisteredBuf};
use crate::op::Op;
use crate::op::list::FilePart;
use crate::op::transfer::TransferKind;

/// Bytes of entries that one request asks for, once the first did not answer all.
const BATCH_SIZE: usize = 64 * 1024;

/// The entries of a directory, in the server's order, without `.` and `..`. Entries that are there throughout are answered exactly once.
///
/// `next` blocks while it fetches, several entries with one request. After an error it returns `None`; to go on, call
/// [`Dir::read_dir_from`] with [`ReadDir::cookie`].
#[derive(Debug)]
pub struct ReadDir {
    dir: Dir,
    attributes: bool,
    cookie: u64,
    // Of the last entry fetched.
    fetched: u64,
    entries: VecDeque<DirEntry>,
    end: bool,
    first: bool,
    turns: Turns,
    buffer: Option<RegisteredBuf>,
}

/// Notices cookies that come round: of the pages fetched it remembers one, twice as late each time.
#[derive(Debug)]
struct Turns {
    known: u64,
    pages: u64,
    next: u64,
}

impl Turns {
    fn new(cookie: u64) -> Self {
        Self { known: cookie, pages: 0, next: 1 }
    }

    /// A page ended with this cookie. Returns whether one before it did so too.
    fn comes_round(&mut self, cookie: u64) -> bool {
        if cookie == self.known {
            return true;
        }
        self.pages += 1;
        if self.pages == self.next {
            self.known = cookie;
            self.next = self.next.saturating_mul(2);
        }
        false
    }
}

impl ReadDir {
    pub(crate) fn new(dir: Dir, attributes: bool, cookie: u64) -> Self {
        Self {
            dir,
            attributes,
            cookie,
            fetched: cookie,
            entries: VecDeque::new(),
            end: false,
            first: true,
            turns: Turns::new(cookie),
            buffer: None,
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Where to resume after the entry that `next` answered last.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    fn fetch(&mut self) -> Result<()> {
        // Most directories fit one message; what does not comes by RDMA in larger pages, where that pays.
        let shared = &self.dir.owner.shared;
        let inline = shared.lock().terms.read_inline_max as usize;
        let buffer = match self.buffer.take() {
            None if !self.first && inline < BATCH_SIZE => {
                RegisteredBuf::allocate(&shared.domain, BATCH_SIZE).ok()
            }
            buffer => buffer,
        };
        let keep = match buffer {
            Some(buffer) => Keep::Registered(buffer),
            None => Keep::Vec(vec![0; inline.min(BATCH_SIZE)]),
        };
        let kind = TransferKind::Readdir { cookie: self.fetched, attributes: self.attributes };
        let (memory, policy) = (Memory::Kept, RegistrationPolicy::Library);
        let parts = TransferParts {
            kind,
            part: FilePart::At(0),
            memory,
            keep,
            policy,
            sieve: Sieve::default(),
            explanations: None,
        };
        let op = shared.run_transfer(Arc::clone(&self.dir.node), parts)?;
        self.first = false;
        self.take(op)
    }

    fn take(&mut self, op: Op) -> Result<()> {
        let transfer = op.into_transfer()?;
        let count = transfer.count();
        let entries = match transfer.keep {
            Keep::Registered(buffer) => {
                // A private copy: the server could write the buffer while it is decoded.
                let bytes = buffer.span().slice(0, count).map(|span| span.to_vec()).unwrap_or_default();
                self.buffer = Some(buffer);
                decode_dir_entries(&bytes)?
            }
            Keep::Vec(bytes) => decode_dir_entries(&bytes[..count])?,
            Keep::None | Keep::Many(_) => Vec::new(),
        };
        self.end = transfer.end;
        match entries.last() {
            Some(last) if !self.end && self.turns.comes_round(last.cookie) => {
                return Err(Error::Endless { path: self.dir.path().to_vec() });
            }
            Some(last) => self.fetched = last.cookie,
            // Without entries and without an end this would go on for ever.
            None => self.end = true,
        }
        self.entries = entries.into();
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.entries.is_empty()
            && !self.end
            && let Err(error) = self.fetch()
        {
            self.end = true;
            return Some(Err(error));
        }
        let entry = self.entries.pop_front()?;
        self.cookie = entry.cookie;
        Some(Ok(entry))
    }
}

/// Entries of a directory, as one request answers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirPage {
    /// The entries, in the server's order.
    pub entries: Vec<DirEntry>,
    /// Nothing follows them.
    pub end: bool,
}

impl Dir {
    /// Nonblocking form of [`Dir::entries_from`], page by page: the entries behind the one with this cookie, as many as fit `size_max`
    /// bytes of the server's encoding. Fails with the status `RANGE` where not even one fits.
    pub fn submit_page(&self, attributes: bool, cookie: u64, size_max: usize) -> Pending<Result<DirPage>> {
        let parts = TransferParts {
            kind: TransferKind::Readdir { cookie, attributes },
            part: FilePart::At(0),
            memory: Memory::Kept,
            keep: Keep::Vec(vec![0; size_max]),
            policy: RegistrationPolicy::Library,
            sieve: Sieve::default(),
            explanations: None,
        };
        submit_transfer(&self.owner, Arc::clone(&self.node), parts, page)
    }
}

fn page(moved: Moved) -> Result<DirPage> {
    let transfer = moved.result?;
    let bytes = match &moved.keep {
        Keep::Vec(bytes) => bytes.get(..transfer.count()).unwrap_or_default(),
        Keep::None | Keep::Many(_) | Keep::Registered(_) => &[],
    };
    let entries = decode_dir_entries(bytes)?;
    // Without entries and without an end a listing would go on for ever.
    Ok(DirPage { end: transfer.end || entries.is_empty(), entries })
}

/// Attributes of an entry, asked for when the listing did not carry them.
impl Dir {
    /// The attributes of an entry of this directory: those it carries, else asked of the server. Blocks in that case.
    pub fn entry_metadata(&self, entry: &DirEntry) -> Result<Attributes> {
        use std::os::unix::ffi::OsStrExt;
        match &entry.attributes {
            Some(attributes) => Ok(attributes.clone()),
            None => self.symlink_metadata(std::ffi::OsStr::from_bytes(&entry.name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-64]
    #[test]
    fn cookies_that_come_round_are_noticed_wherever_the_round_begins() {
        for (before, round) in [(0, 1), (0, 7), (5, 1), (100, 33)] {
            let mut turns = Turns::new(0);
            let cookies = (1..=before).chain((0..).map(|step| 1000 + step % round));
            let noticed = cookies.take(10_000).position(|cookie| turns.comes_round(cookie));
            assert!(noticed.is_some_and(|at| at as u64 >= before + round), "{before} {round}: {noticed:?}");
        }
        let mut turns = Turns::new(0);
        assert!((1..10_000).all(|cookie| !turns.comes_round(cookie)));
    }
}
