//! Chains: requests that depend on each other, sent together and executed in order; the first error aborts the rest
//! (DAFS 1.0, request chaining).
#![allow(unsafe_code, reason = "the documented unsafe form that borrows memory")]

use std::borrow::Cow;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use dafs_proto::wire::{
    AccessPattern, AllocateRequest, Attributes, CommitReply, HintRequest, Opcode, OpenFlags, Stability,
    UnlockRequest, decode_message_pack,
};
use smallvec::SmallVec;

use crate::api::dir::{Dir, commit_request, name_request, open_request};
use crate::api::file::{Covered, File};
use crate::api::options::OpenOptions;
use crate::api::verify::Expected;
use crate::driver::pending::{Call, Finish, Pending};
use crate::driver::transfer::check_extent;
use crate::driver::{Guard, Owner};
use crate::error::{Error, Result};
use crate::handle::closings::Closing;
use crate::handle::node::{Node, NodeParts, Reopen, join};
use crate::handle::unstable::{Unstable, joined, lost};
use crate::memory::RawMemory;
use crate::op::Op;
use crate::op::body::DataReply;
use crate::op::chain::{Answer, Ask, ChainWork, Link};
use crate::op::named::{Named, NamedReply};
use crate::op::terms::Terms;
use crate::op::transfer::TransferKind;

/// Requests that depend on each other, for one round trip: made by [`Dir::chain`] or [`File::chain`], run by [`Chain::run`].
///
/// ```no_run
/// # fn f(export: &dafs_client::Export) -> dafs_client::Result<()> {
/// use dafs_client::OpenOptions;
/// let mut head = [0; 512];
/// let done = export.chain().open("f", OpenOptions::new().read(true)).read_at(&mut head, 0).close().run()?;
/// println!("{} bytes of {}", done.counts[0], done.attributes.map_or(0, |attributes| attributes.size));
/// # Ok(())
/// # }
/// ```
///
/// Data travels in the messages: a read or write moves at most the inline limits ([`crate::Agreed::read_inline_max`]).
#[must_use = "a chain is sent by `run`"]
pub struct Chain<'a> {
    pub(crate) owner: &'a Arc<Owner>,
    pub(crate) node: &'a Arc<Node>,
    /// It begins at an open file.
    at_file: bool,
    links: Vec<Link>,
    pub(crate) options: OpenOptions,
    wrong: Option<Error>,
    /// What gives back what it locked, should it break off before it does so itself; and whether it does.
    pub(crate) unlocks: SmallVec<[(UnlockRequest, bool); 1]>,
    /// As whom it locks.
    pub(crate) lock_owner: Option<u64>,
    life: PhantomData<&'a mut [u8]>,
}

/// What a chain has done, when all of it succeeded.
#[derive(Debug)]
pub struct Chained {
    /// Bytes moved by each read and write, in order. A read is short only at the end of the file.
    pub counts: Vec<usize>,
    /// Attributes of what was last looked up or opened.
    pub attributes: Option<Attributes>,
    /// The file that was opened, where the chain did not close it.
    pub file: Option<File>,
}

impl Dir {
    /// Begins a chain of requests, the first of which names a path below this directory. Sends nothing yet.
    pub fn chain(&self) -> Chain<'_> {
        Chain::at(&self.owner, &self.node, None)
    }
}

impl File {
    /// Begins a chain of requests about this file. Sends nothing yet.
    pub fn chain(&self) -> Chain<'_> {
        Chain::at(&self.owner, &self.node, Some(self.stability))
    }
}

impl<'a> Chain<'a> {
    fn at(owner: &'a Arc<Owner>, node: &'a Arc<Node>, file: Option<Stability>) -> Self {
        let mut options = OpenOptions::new();
        options.stability = file.unwrap_or_default();
        Self {
            owner,
            node,
            at_file: file.is_some(),
            links: Vec::new(),
            options,
            wrong: None,
            unlocks: SmallVec::new(),
            lock_owner: None,
            life: PhantomData,
        }
    }

    /// Looks a path up, below what was looked up before; a symbolic link at its end is followed.
    pub fn lookup(mut self, path: impl AsRef<Path>) -> Self {
        let request = self.checked(name_request(path.as_ref(), true, 0)).unwrap_or_default();
        let reopen = Some(Reopen::Lookup { follow: true });
        self.push(Link { reopen, ..Link::new(Opcode::Lookup, request) })
    }

    /// Opens or makes a file, below what was looked up before. What follows is done to it.
    pub fn open(mut self, path: impl AsRef<Path>, options: &OpenOptions) -> Self {
        let flags = self.checked(options.flags()).unwrap_or(OpenFlags::READ);
        let request = open_request(path.as_ref(), flags, options.mode_bits());
        let request = self.checked(request).unwrap_or_default();
        self.options = options.clone();
        self.push(Link { reopen: Some(Reopen::open(flags)), ..Link::new(Opcode::Open, request) })
    }

    /// Reads at `offset` of the file that was opened.
    pub fn read_at(mut self, buffer: &'a mut [u8], offset: u64) -> Self {
        self.checked(check_extent(offset, buffer.len()));
        self.push(Link::data(TransferKind::Read, offset, RawMemory::of_mut(buffer)))
    }

    /// Writes at `offset` of the file that was opened, as durable as that was opened for.
    pub fn write_at(mut self, data: &'a [u8], offset: u64) -> Self {
        self.checked(check_extent(offset, data.len()));
        let kind = TransferKind::Write(self.options.stability);
        self.push(Link::data(kind, offset, RawMemory::of(data)))
    }

    /// Tells how a range of the file that was opened is used ([`File::hint`]), in one round trip with the read or write that it is about:
    ///
    /// ```no_run
    /// # fn f(file: &dafs_client::File) -> dafs_client::Result<()> {
    /// use dafs_client::AccessPattern;
    /// let mut part = [0; 4096];
    /// file.chain().read_at(&mut part, 0).hint(0, 4096, AccessPattern::WillNotNeed).run()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn hint(self, offset: u64, len: u64, pattern: AccessPattern) -> Self {
        let request = HintRequest { offset, len, pattern: pattern as u32, likelihood: 0 };
        self.push(Link::few(Opcode::Hint, &request.bytes()))
    }

    /// Goes on only where the file, or what was looked up, has the expected attributes. Else the chain fails with the status `NOT_SAME`.
    ///
    /// So a file is written only if nobody has changed it, in one round trip:
    ///
    /// ```no_run
    /// # fn f(file: &dafs_client::File) -> dafs_client::Result<()> {
    /// use dafs_client::Expected;
    /// let seen = file.metadata()?;
    /// let mut counter = [0; 8];
    /// file.read_exact_at(&mut counter, 0)?;
    /// let next = (u64::from_le_bytes(counter) + 1).to_le_bytes();
    /// file.chain().verify(&Expected::unchanged(&seen)).write_at(&next, 0).run()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Nothing keeps others from changing the file between this request and the next one of the chain. A chain with it that also changes
    /// something is not sent again when its outcome is not known: it ends as [`Error::InDoubt`].
    pub fn verify(self, expected: &Expected) -> Self {
        self.push_verify(expected, false)
    }

    /// Goes on only where one at least of the expected attributes is another. Else the chain fails with the status `SAME`.
    pub fn verify_differs(self, expected: &Expected) -> Self {
        self.push_verify(expected, true)
    }

    fn push_verify(mut self, expected: &Expected, differ: bool) -> Self {
        let request = self.checked(expected.named(Path::new(""), true, differ)).unwrap_or_default();
        self.push(Link::new(Opcode::Verify, request))
    }

    /// Sets the size of the file that was opened: truncates it, or extends it by a hole. Behind [`Chain::verify`] with the size that the
    /// file is to have, it cuts nothing that others have written before that is verified; what they write between the two it does cut.
    pub fn truncate(self, size: u64) -> Self {
        let request = AllocateRequest { offset: size, len: 0 };
        self.push(Link::new(Opcode::Truncate, Named::of(&request.bytes())))
    }

    /// Makes all that was written before durable; the chain fails with [`Error::WritesLost`] where the server may have lost some of it.
    pub fn commit(self) -> Self {
        self.push(Link::new(Opcode::Commit, commit_request(0, 0, Stability::FileSync)))
    }

    /// Closes the file.
    pub fn close(self) -> Self {
        self.push(Link::new(Opcode::Close, Named::default()))
    }

    /// Sends the chain and waits until all of it is answered. Blocks; one round trip, whatever the number of requests.
    ///
    /// Fails with the error of the first request that failed, which aborts those behind it; what was opened is closed again. After a
    /// broken connection the chain is repeated as a whole where that does no harm, else it ends as [`Error::InDoubt`].
    pub fn run(mut self) -> Result<Chained> {
        let (core, work, covered) = self.begin()?;
        let (work, outcome) = self.owner.shared.run_chain(core, self.node, work);
        let end = self.end();
        let (result, unlocks) = end.result(work, covered, outcome);
        for unlock in unlocks {
            // Whatever becomes of it: the lock ends with the file at the latest.
            let _ = unlock.run(self.owner);
        }
        result
    }

    /// Nonblocking form of [`Chain::run`]. What it locked and did not give back itself is given back once it is collected.
    ///
    /// # Safety
    /// The buffers of its reads must be valid for writes and not be used otherwise, those of its writes not be written, until the operation
    /// has ended: until [`Pending::wait`] or [`Pending::cancel`] has returned, or the session has ended. Dropping the `Pending` does not
    /// end the operation.
    pub unsafe fn submit(mut self) -> Pending<Result<Chained>> {
        let (mut core, work, covered) = match self.begin() {
            Ok(begun) => begun,
            Err(error) => return Pending::ready(Err(error)),
        };
        let index = self.owner.shared.submit_under(&mut core, Op::chain(Arc::clone(self.node), work));
        drop(core);
        let (owner, node) = (Arc::clone(self.owner), Arc::clone(self.node));
        let Self { at_file, options, unlocks, .. } = self;
        let finish = Finish::boxed(move |op: Op| {
            let (work, outcome) = op.into_chain();
            let end = End { owner: &owner, node: &node, at_file, options: &options, unlocks: &unlocks };
            let (result, unlocks) = end.result(work, covered, outcome);
            // Nobody waits for what they say.
            unlocks.into_iter().for_each(|unlock| drop(unlock.submit(&owner)));
            result
        });
        Pending::new(self.owner, index, finish)
    }

    /// Checks the chain; what is sent then, and what a commit in it covers beside its own writes.
    fn begin(&mut self) -> Result<(Guard<'a>, ChainWork, Option<Covered>)> {
        if let Some(error) = self.wrong.take() {
            return Err(error);
        }
        self.owner.shared.check_home()?;
        // What was written to the file before the chain too.
        let commits = self.links.iter().any(|link| link.opcode == Opcode::Commit);
        let covered = (self.at_file && commits).then(|| Covered::begin(self.node, &(0..u64::MAX), true));
        let core = self.owner.shared.lock();
        self.check(&core.terms)?;
        Ok((core, ChainWork::new(std::mem::take(&mut self.links)), covered))
    }

    fn end(&self) -> End<'_> {
        let Self { owner, node, at_file, options, unlocks, .. } = self;
        End { owner, node, at_file: *at_file, options, unlocks }
    }

    #[cfg(test)]
    pub(crate) fn into_links(self) -> Vec<Link> {
        self.links
    }

    pub(crate) fn push(mut self, link: Link) -> Self {
        self.links.push(link);
        self
    }

    /// Keeps the first error for [`Chain::run`].
    pub(crate) fn checked<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.wrong.get_or_insert(error);
                None
            }
        }
    }

    fn check(&self, terms: &Terms) -> Result<()> {
        let invalid = |what: String| Err(Error::Invalid(what));
        let (count, slots) = (self.links.len(), usize::from(terms.welcome.slots));
        if count > slots {
            return invalid(format!(
                "a chain of {count} requests: the limit is {slots}, the slots of the session"
            ));
        }
        let mut is_open = self.at_file;
        let mut is_known = self.at_file;
        for link in &self.links {
            match link.opcode {
                Opcode::Open | Opcode::Lookup | Opcode::Close if self.at_file => {
                    return invalid(format!("{} in a chain of an open file", link.opcode.name()));
                }
                Opcode::Open | Opcode::Lookup => (is_open, is_known) = (link.opcode == Opcode::Open, true),
                Opcode::Verify if is_known => {}
                _ if !is_open => {
                    return invalid(format!("{} in a chain before it opened a file", link.opcode.name()));
                }
                Opcode::Close => (is_open, is_known) = (false, false),
                _ => {}
            }
            link_fits(link, terms)?;
        }
        if self.links.is_empty() { invalid("a chain of nothing".to_owned()) } else { Ok(()) }
    }
}

/// What is needed of a chain once it has been answered.
struct End<'c> {
    owner: &'c Arc<Owner>,
    node: &'c Arc<Node>,
    at_file: bool,
    options: &'c OpenOptions,
    unlocks: &'c [(UnlockRequest, bool)],
}

impl End<'_> {
    /// From the answers to the caller's result, and the requests that give back what the chain has left locked.
    fn result(
        &self,
        work: ChainWork,
        covered: Option<Covered>,
        outcome: Result<()>,
    ) -> (Result<Chained>, Vec<Call<Result<()>>>) {
        let result = self.finish(work, covered, outcome);
        let opened = result.as_ref().ok().and_then(|done| done.file.as_ref()).map(|file| &file.node);
        let Some(node) = opened.or(self.at_file.then_some(self.node)) else { return (result, Vec::new()) };
        // Of a lock that was refused, and is the only one, nothing is to be given back.
        let is_refused = matches!(&result, Err(Error::Status { operation: Opcode::Lock, .. }));
        let unlocks = if is_refused && self.unlocks.len() == 1 { &[][..] } else { self.unlocks };
        let left = unlocks.iter().filter(|(_, is_given_back)| result.is_err() || !is_given_back);
        let unlock = |(unlock, _): &(UnlockRequest, bool)| {
            Call::plain(Some(node), Opcode::Unlock, Named::of(&unlock.bytes()), Op::into_locked)
        };
        let calls = left.map(unlock).collect();
        (result, calls)
    }

    fn finish(&self, work: ChainWork, covered: Option<Covered>, outcome: Result<()>) -> Result<Chained> {
        let mut unclosed = work.unclosed();
        let outcome = check_commits(self.node, &work, covered).and(outcome);
        if self.at_file {
            // Whatever became of the others.
            note_written(self.node, work.unstable_writes());
        }
        let result = outcome.and_then(|()| collect(self, work, &mut unclosed));
        if !unclosed.is_empty() {
            let shared = &self.owner.shared;
            let mut core = shared.lock();
            for closing in unclosed {
                core.close(closing);
            }
            shared.push(&mut core, false);
        }
        result
    }
}

/// What a commit of the chain covers and another verifier vouched for is lost: of its own writes, and of those before it.
fn check_commits(node: &Node, work: &ChainWork, mut covered: Option<Covered>) -> Result<()> {
    let (mut own, mut ranges, mut attributes) = (Unstable::default(), Vec::new(), false);
    let mut path = Cow::Borrowed(&node.path);
    for link in &work.links {
        match (&link.ask, &link.answer) {
            (Ask::Data(TransferKind::Write(_), offset, _), Some(Ok(Answer::Data(reply)))) => {
                if let Some(verifier) = reply.unstable {
                    own.add(verifier, *offset..offset.saturating_add(reply.count as u64));
                }
            }
            (_, Some(Ok(Answer::Named(reply)))) if link.opcode == Opcode::Commit => {
                let (committed, epoch) = (CommitReply::decode(reply.body())?.verifier, reply.server_epoch);
                let taken = own.take(&(0..u64::MAX), true);
                own.end(&taken);
                let before =
                    covered.as_mut().map(|covered| covered.end(committed, epoch)).unwrap_or_default();
                ranges.extend(lost(&taken, committed, epoch).0.into_iter().chain(before.0));
                attributes |= before.1;
            }
            _ if matches!(link.opcode, Opcode::Open | Opcode::Lookup) => {
                path = Cow::Owned(join(&path, link.path()));
            }
            _ => {}
        }
    }
    if ranges.is_empty() && !attributes {
        return Ok(());
    }
    Err(Error::WritesLost { path: path.into_owned(), ranges: joined(ranges), attributes })
}

fn collect(chain: &End<'_>, work: ChainWork, unclosed: &mut Vec<Closing>) -> Result<Chained> {
    let End { owner, node: begin, options, .. } = chain;
    let mut done = Chained { counts: Vec::new(), attributes: None, file: None };
    let mut path = begin.present_path();
    let mut last: Option<(Reopen, Box<NamedReply>)> = None;
    let written = work.unstable_writes();
    for mut link in work.links {
        let answer = match link.answer.take() {
            Some(answer) => answer.map_err(|error| *error)?,
            None => return Err(Error::InDoubt { operation: link.opcode }),
        };
        match (link.opcode, answer) {
            (Opcode::Open | Opcode::Lookup, Answer::Named(reply)) => {
                path = join(&path, link.path());
                done.attributes = Some(decode_message_pack("attributes", &reply.payload)?);
                last = link.reopen.filter(|_| link.opcode == Opcode::Open).map(|reopen| (reopen, reply));
            }
            (_, Answer::Data(reply)) => done.counts.push(reply.count),
            (Opcode::Close, _) => last = None,
            _ => {}
        }
    }
    if let (Some((reopen, reply)), Some(attributes)) = (last, &done.attributes) {
        unclosed.retain(|closing| !closing.is_of(reply.header.handle));
        let (export, handle, epoch) = (begin.export.clone(), reply.header.handle, reply.epoch);
        let identity = attributes.identity();
        let node = owner.shared.node(NodeParts { export, path, reopen, identity, handle, epoch });
        let node = node.ok_or(Error::InDoubt { operation: reply.header.opcode })?;
        note_written(&node, written);
        done.file = Some(File::new(Arc::clone(owner), node, attributes.clone(), options));
    }
    Ok(done)
}

/// The data or the names of a link go in one message.
fn link_fits(link: &Link, terms: &Terms) -> Result<()> {
    let invalid = |what: String| Err(Error::Invalid(what));
    match &link.ask {
        Ask::Data(TransferKind::Read, _, memory) if memory.len() > terms.read_inline_max as usize => {
            let limit = terms.read_inline_max;
            invalid(format!("a read of {} bytes in a chain: the limit is {limit}", memory.len()))
        }
        Ask::Data(TransferKind::Write(_), _, memory) if memory.len() > terms.write_inline_max as usize => {
            let limit = terms.write_inline_max;
            invalid(format!("{} bytes in one request of a chain: the limit is {limit}", memory.len()))
        }
        Ask::Named(named) if named.payload.len() > terms.send_payload_max as usize => {
            let limit = terms.send_payload_max;
            invalid(format!("{} bytes in one request of a chain: the limit is {limit}", named.payload.len()))
        }
        _ => Ok(()),
    }
}

/// Remembers what a file has to commit.
fn note_written(node: &Node, written: impl IntoIterator<Item = (DataReply, u64)>) {
    for (reply, offset) in written {
        if let Some(verifier) = reply.unstable {
            node.wrote(verifier, offset, reply.count);
        }
    }
}
