//! What is in flight: one operation of the caller, what is asked, what memory takes part, what has come of it. Only this file knows the
//! kinds of operations. It writes requests into an outlet, and sends nothing itself. Imports `handle`, `method` and `memory`.

pub(crate) mod batch;
pub(crate) mod body;
pub(crate) mod chain;
pub(crate) mod draft;
pub(crate) mod explain;
pub(crate) mod id;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod named;
pub(crate) mod part_request;
pub(crate) mod parts;
pub(crate) mod request;
pub(crate) mod terms;
pub(crate) mod transfer;

use std::sync::Arc;
use std::task::Waker;

use dafs_proto::session::Moment;
use dafs_proto::transport::{PostError, Span};
use dafs_proto::wire::{
    Attributes, BatchFlags, BatchNotice, BatchRequest, Class, Existing, FileHandle, Header, MountReply,
    Opcode, OpenFlags, OpenRequest, RenameRequest, TwoNames, decode_message_pack,
};
use smallvec::SmallVec;

use crate::error::{Error, Result, StaleCause};
use crate::handle::closings::Closing;
use crate::handle::node::{MAKING, Node, NodeParts, join};
use crate::memory::registration::Hold;
use crate::memory::{BounceBuffers, Keep};
use crate::method::io_path::{Direction, IoPath};
use crate::op::batch::{BatchWork, Bounds};
use crate::op::chain::ChainWork;
use crate::op::draft::Outlet;
use crate::op::id::OperationId;
use crate::op::named::{Named, NamedReply, Reply};
use crate::op::part_request::PartRequest;
use crate::op::parts::{Part, PartReply, next_part, on_data};
use crate::op::request::{Broken, Request};
use crate::op::terms::Terms;
use crate::op::transfer::{Transfer, TransferKind};

/// An operation, from submission until its result is collected.
pub(crate) struct Op {
    pub(crate) opcode: Opcode,
    /// Whose handle the requests carry.
    pub(crate) target: Option<Arc<Node>>,
    work: Work,
    /// When it ends with [`Error::TimedOut`].
    pub(crate) deadline: Option<Moment>,
    /// Its time is over, and the server may still be moving its memory: nobody needs to wake for it.
    pub(crate) is_overdue: bool,
    pub(crate) timeout_ms: u32,
    /// How much of that is left.
    pub(crate) left_ms: u32,
    /// In the queue of operations with something to send.
    pub(crate) queued: bool,
    /// Requests sent and not answered.
    pub(crate) outstanding: u16,
    pub(crate) done: bool,
    /// Nobody collects the result.
    pub(crate) detached: bool,
    pub(crate) error: Option<Box<Error>>,
    /// Of one that is collected later.
    pub(crate) id: Option<OperationId>,
    /// The task that waits for it.
    pub(crate) waker: Option<Waker>,
}

/// What a rename has done.
pub(crate) struct Renamed {
    pub(crate) export: String,
    /// The path in the export that was its, and the one that is.
    pub(crate) from: Vec<u8>,
    pub(crate) to: Vec<u8>,
    /// What had the second has the first now.
    pub(crate) exchanges: bool,
}

/// What an operation does.
#[allow(clippy::large_enum_variant, reason = "transfers are the fast path and are not allocated one by one")]
enum Work {
    /// One request, one reply.
    Named(Box<Named>),
    /// File data, or directory entries, in one or more requests.
    Data(Transfer),
    /// Requests that depend on each other.
    Chain(Box<ChainWork>),
    /// Reads and writes that do not depend on each other.
    Batch(Box<BatchWork>),
}

impl Op {
    fn new(opcode: Opcode, target: Option<Arc<Node>>, work: Work) -> Self {
        Self {
            opcode,
            target,
            work,
            deadline: None,
            is_overdue: false,
            timeout_ms: 0,
            left_ms: 0,
            queued: false,
            outstanding: 0,
            done: false,
            detached: false,
            error: None,
            id: None,
            waker: None,
        }
    }

    pub(crate) fn named(opcode: Opcode, target: Option<Arc<Node>>, named: Named) -> Self {
        Self::new(opcode, target, Work::Named(Box::new(named)))
    }

    pub(crate) fn moving(opcode: Opcode, target: Arc<Node>, transfer: Transfer) -> Self {
        Self::new(opcode, Some(target), Work::Data(transfer))
    }

    pub(crate) fn chain(target: Arc<Node>, chain: ChainWork) -> Self {
        Self::new(Opcode::Open, Some(target), Work::Chain(Box::new(chain)))
    }

    pub(crate) fn batch(batch: BatchWork) -> Self {
        Self::new(Opcode::Batch, None, Work::Batch(Box::new(batch)))
    }

    /// The transfer that it is.
    pub(crate) fn transfer(&self) -> Option<&Transfer> {
        match &self.work {
            Work::Data(transfer) => Some(transfer),
            Work::Named(_) | Work::Chain(_) | Work::Batch(_) => None,
        }
    }

    /// A part is asked for again, in a new session or on a new connection.
    pub(crate) fn redo(&mut self, at: usize, len: usize) {
        match &mut self.work {
            Work::Named(named) => named.sent = false,
            Work::Data(transfer) => transfer.redo.push((at, len)),
            Work::Batch(batch) => batch.redo.push((at, len)),
            Work::Chain(_) => {}
        }
    }

    /// The batch that it is, while it runs.
    pub(crate) fn running_batch(&mut self) -> Option<&mut BatchWork> {
        match &mut self.work {
            Work::Batch(batch) if !self.done => Some(batch),
            _ => None,
        }
    }

    /// It is done, or a batch of which a notice told something.
    pub(crate) fn has_news(&self) -> bool {
        match &self.work {
            Work::Batch(batch) => self.done || !batch.told.is_empty(),
            Work::Named(_) | Work::Data(_) | Work::Chain(_) => true,
        }
    }

    /// What it was, or why it failed.
    fn ended(self) -> Result<Work> {
        self.error.map_or(Ok(self.work), |error| Err(*error))
    }

    /// What came of a transfer.
    pub(crate) fn into_transfer(self) -> Result<Transfer> {
        let Work::Data(transfer) = self.ended()? else { unreachable!("a transfer moves data") };
        Ok(transfer)
    }

    /// What came of a batch.
    pub(crate) fn into_batch(self) -> Result<Box<BatchWork>> {
        let Work::Batch(batch) = self.ended()? else { unreachable!("a batch stays one") };
        Ok(batch)
    }

    /// What came of a chain, link by link, and of all of it.
    pub(crate) fn into_chain(self) -> (ChainWork, Result<()>) {
        let Work::Chain(chain) = self.work else { unreachable!("a chain stays one") };
        (*chain, self.error.map_or(Ok(()), |error| Err(*error)))
    }

    /// The reply to an operation of one request.
    pub(crate) fn into_reply(self) -> Result<NamedReply> {
        let Work::Named(named) = self.ended()? else { unreachable!("only transfers move data") };
        named.reply.ok_or_else(|| Error::Invalid("the operation ended without a reply".into()))
    }

    /// What it kept of its caller's. Registrations made for the operation end before its memory goes back.
    pub(crate) fn take_keep(&mut self) -> Keep {
        let (keep, holds) = match &mut self.work {
            Work::Data(transfer) => (&mut transfer.keep, &mut transfer.holds),
            Work::Batch(batch) => (&mut batch.keep, &mut batch.holds),
            Work::Named(_) | Work::Chain(_) => return Keep::None,
        };
        holds.clear();
        std::mem::replace(keep, Keep::None)
    }

    /// Why it cannot be sent at all.
    pub(crate) fn refusal(&self, terms: &Terms) -> Option<Error> {
        let Work::Named(named) = &self.work else { return None };
        let (size, limit) = (named.payload.len(), terms.send_payload_max as usize);
        (size > limit).then(|| {
            Error::Invalid(format!(
                "{} with {size} bytes of names and values: a message carries {limit}",
                self.opcode.name()
            ))
        })
    }

    /// The next request, where eager buffers carry it with room for so many bytes and segments; `None` when there is no buffer to copy it
    /// to in now.
    pub(crate) fn next_part(
        &mut self,
        terms: &Terms,
        eager_buffer: Option<(usize, usize)>,
        bounce: &mut Option<BounceBuffers>,
    ) -> Option<Part> {
        let part = |at, len| Part { at, len, bounce: None, is_copied: false };
        match &mut self.work {
            Work::Named(_) => Some(part(0, 0)),
            Work::Chain(chain) => Some(part(chain.sent, 0)),
            Work::Batch(batch) => {
                let (from, count) = batch.next_part(&Bounds::of(terms));
                Some(Part { is_copied: batch.copy_written(from, count), ..part(from, count) })
            }
            Work::Data(transfer) => next_part(transfer, terms, eager_buffer, bounce),
        }
    }

    /// Sends a request for a part.
    pub(crate) fn send(
        &self,
        outlet: &mut impl Outlet,
        header: Header,
        request: &Request,
        bounce: Option<&BounceBuffers>,
    ) -> std::result::Result<(), PostError> {
        let handle = self.target.as_ref().map_or(FileHandle(0), |node| node.handle());
        let header = Header { handle, ..header };
        match &self.work {
            Work::Named(named) => named.send(outlet, header),
            Work::Data(transfer) => PartRequest { header, transfer, request, bounce }.send(outlet),
            Work::Chain(chain) => chain.send(outlet, header, request.at),
            Work::Batch(batch) => batch.send(outlet, header, request),
        }
    }

    /// Its requests go one after the other.
    pub(crate) fn is_in_order(&self) -> bool {
        self.transfer().is_some_and(|transfer| transfer.in_order)
    }

    /// What is left of it waits until the request in flight is answered.
    pub(crate) fn is_held_back(&self) -> bool {
        self.outstanding > 0 && self.is_in_order()
    }

    /// The request for a part is on its way.
    pub(crate) fn on_sent(&mut self, at: usize, len: usize) {
        match &mut self.work {
            Work::Named(named) => named.sent = true,
            Work::Data(transfer) => transfer.on_part_sent(at, len),
            Work::Chain(chain) => chain.sent = at + 1,
            Work::Batch(batch) => batch.on_part_sent(at, len),
        }
    }

    /// Requests that would follow the next one at once, where a message takes `inline_max` bytes of data.
    pub(crate) fn requests_left(&self, inline_max: usize) -> usize {
        match &self.work {
            Work::Data(transfer) => transfer.len.saturating_sub(transfer.cut) / inline_max.max(1),
            Work::Batch(batch) => batch.inline_left / inline_max.max(1),
            Work::Chain(chain) => chain.links.len().saturating_sub(chain.sent + 1),
            Work::Named(_) => 0,
        }
    }

    /// A request was answered, and not with an error.
    pub(crate) fn on_reply(
        &mut self,
        reply: &Reply<'_>,
        request: &Request,
        bounce: Option<&BounceBuffers>,
    ) -> std::result::Result<(), Broken> {
        match &mut self.work {
            Work::Chain(chain) => return chain.on_reply(request.at, reply),
            Work::Named(named) => {
                if let Some(node) = &self.target {
                    named.note_unstable(node, reply);
                }
                named.reply = Some(reply.kept());
            }
            Work::Batch(batch) => return batch.on_reply(request, reply.body, reply.payload),
            Work::Data(transfer) => {
                let bounced = request.bounce.zip(bounce);
                let bounced = bounced.map(|(chunk, pool)| pool.span(chunk, transfer.asked_len(request.len)));
                let answer = PartReply { body: reply.body, payload: reply.payload, request, bounced };
                return on_data(transfer, answer, self.target.as_deref());
            }
        }
        Ok(())
    }

    /// A request was answered with an error; whether nothing more is sent for that.
    pub(crate) fn on_error(&mut self, at: usize, error: Error) -> bool {
        match &mut self.work {
            Work::Chain(chain) => chain.on_error(at, error),
            Work::Data(transfer) if at > 0 && transfer.direction() == Direction::Write => {
                transfer.on_failed(at, error);
                return true;
            }
            Work::Named(_) | Work::Data(_) | Work::Batch(_) => {
                self.error.get_or_insert_with(|| Box::new(error));
                return true;
            }
        }
        false
    }

    /// It was to read a list with its gaps, and from now on reads the extents alone; false for all else.
    pub(crate) fn leaves_gaps_out(&mut self) -> bool {
        match &mut self.work {
            Work::Data(transfer) if !transfer.discard => std::mem::take(&mut transfer.sieved) > 0,
            _ => false,
        }
    }

    /// Some operations of a batch have ended.
    pub(crate) fn on_notice(
        &mut self,
        request: &Request,
        notice: &BatchNotice,
        payload: Span<'_>,
    ) -> std::result::Result<(), Broken> {
        match &mut self.work {
            Work::Batch(batch) => batch.on_notice(request, notice, payload),
            Work::Named(_) | Work::Data(_) | Work::Chain(_) => Ok(()),
        }
    }

    /// All of it was answered. If it begins again, it returns the handles that it had gained, for closing.
    pub(crate) fn on_end(&mut self) -> Option<Vec<Closing>> {
        if let (Work::Data(transfer), None) = (&mut self.work, &self.error)
            && transfer.count() == 0
        {
            self.error = transfer.failure.take();
        }
        if let (Work::Chain(chain), None) = (&mut self.work, &self.error) {
            if chain.lost_replies() && chain.repeats() {
                return Some(chain.restart());
            }
            self.error = chain.failure().map(Box::new);
        }
        None
    }

    /// A handle that it opened, when nobody will use that.
    pub(crate) fn unclaimed(self) -> Option<Closing> {
        let opens = matches!(self.opcode, Opcode::Open | Opcode::OpenToken | Opcode::Lookup | Opcode::Mount);
        match self.work {
            Work::Named(named) if opens => {
                // A node gives its handle back itself.
                let reply = named.reply.filter(|reply| reply.node.is_none())?;
                Some(Closing::Handle { index: None, epoch: reply.epoch, handle: reply.header.handle })
            }
            _ => None,
        }
    }

    /// What it was answered with a handle of; `None` where nobody will use that.
    pub(crate) fn gained(&self) -> Option<NodeParts> {
        let Work::Named(named) = &self.work else { return None };
        let Named { reopen: Some(reopen), reply: Some(reply), path, .. } = &**named else { return None };
        let (attributes, export) = match &self.target {
            Some(target) => (decode_message_pack("attributes", &reply.payload).ok()?, target.export.clone()),
            None => {
                let mounted: MountReply = decode_message_pack("mount reply", &reply.payload).ok()?;
                (mounted.attributes, String::from_utf8_lossy(path).into_owned())
            }
        };
        let path = if self.target.is_some() { self.present_path() } else { Vec::new() };
        let (handle, epoch) = (reply.header.handle, reply.epoch);
        let identity = Attributes::identity(&attributes);
        (!self.detached).then_some(NodeParts { export, path, reopen: *reopen, identity, handle, epoch })
    }

    /// Its reply has the handle of this.
    pub(crate) fn gain(&mut self, node: Arc<Node>) {
        if let Work::Named(named) = &mut self.work
            && let Some(reply) = &mut named.reply
        {
            reply.node = Some(node);
        }
    }

    /// It goes whole, or not at all: a chain.
    pub(crate) fn goes_whole(&self) -> bool {
        matches!(self.work, Work::Chain(_))
    }

    /// It goes whole, and a part of it was sent.
    pub(crate) fn is_half_way(&self) -> bool {
        matches!(&self.work, Work::Chain(chain) if chain.sent > 0 && !self.done)
    }

    /// Nothing of it has been sent: of what goes whole.
    pub(crate) fn begin_anew(&mut self) {
        if let Work::Chain(chain) = &mut self.work {
            chain.reset();
        }
    }

    /// Its caller has gone, with its memory.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.transfer().is_some_and(|transfer| transfer.discard)
    }

    /// Why a file that it names is not open any more, where that is so.
    pub(crate) fn stale_cause(&self) -> Option<StaleCause> {
        let second = match &self.work {
            Work::Named(named) => named.second.as_ref(),
            Work::Batch(batch) => batch.entries.iter().map(|entry| &entry.node).find(|node| node.is_stale()),
            Work::Chain(chain) => chain.seconds().find(|node| node.is_stale()),
            Work::Data(_) => None,
        };
        self.target.iter().chain(second).find_map(|node| node.stale_cause())
    }

    /// What a request for a part of it asks.
    #[inline]
    pub(crate) fn request_opcode(&self, at: usize, len: usize) -> Opcode {
        match &self.work {
            Work::Data(Transfer { sieved: 1.., .. }) => Opcode::Read,
            Work::Data(Transfer { list: Some(list), kind, .. }) => match (kind, list.is_plain(at, len)) {
                (TransferKind::Write(_), true) => Opcode::Write,
                (_, true) => Opcode::Read,
                (kind, false) => list.opcode(*kind),
            },
            Work::Chain(chain) => chain.links.get(at).map_or(self.opcode, |link| link.opcode),
            _ => self.opcode,
        }
    }

    /// It has more to send.
    pub(crate) fn has_more(&self) -> bool {
        match &self.work {
            Work::Named(named) => !named.sent,
            Work::Data(transfer) => transfer.has_more(),
            Work::Chain(chain) => chain.sent < chain.links.len(),
            Work::Batch(batch) => batch.has_more(),
        }
    }

    /// Nothing more is sent for it.
    pub(crate) fn stop(&mut self) {
        match &mut self.work {
            Work::Named(named) => named.sent = true,
            Work::Data(transfer) => transfer.stop(),
            Work::Chain(chain) => chain.sent = chain.links.len(),
            Work::Batch(batch) => batch.stop(),
        }
    }

    /// A peer may be reading or writing its memory now, or it cannot be given up for another reason.
    pub(crate) fn peer_holds_memory(&self) -> bool {
        match &self.work {
            Work::Named(_) => false,
            Work::Batch(_) => self.outstanding > 0,
            // Nor is a chain left half sent: the server would wait for its end.
            Work::Chain(chain) => self.outstanding > 0 || chain.sent > 0,
            Work::Data(transfer) => {
                let by_rdma = matches!(
                    transfer.path,
                    IoPath::Direct | IoPath::DirectRegister | IoPath::Eager | IoPath::ClientInitiated
                );
                self.outstanding > 0 && by_rdma
            }
        }
    }

    /// What takes the replies when it is given up, in its place; nobody collects that.
    pub(crate) fn stand_in(&mut self) -> Op {
        let work = match &mut self.work {
            // It may be needed again after a reconnect.
            Work::Named(named) => {
                let path = named.path.clone();
                Work::Named(Box::new(std::mem::replace(&mut **named, Named { path, ..Named::default() })))
            }
            Work::Data(transfer) => Work::Data(Transfer::discarding(transfer.kind)),
            Work::Chain(_) | Work::Batch(_) => Work::Data(Transfer::discarding(TransferKind::Read)),
        };
        let mut stand_in = Op::new(self.opcode, self.target.clone(), work);
        stand_in.detached = true;
        stand_in.outstanding = std::mem::take(&mut self.outstanding);
        stand_in
    }

    /// Ends remote access to its memory: the session is over.
    pub(crate) fn revoke_memory(&mut self) {
        if let Work::Data(transfer) = &mut self.work {
            transfer.holds.drain(..).for_each(Hold::revoke);
            if transfer.path == IoPath::Direct {
                transfer.keep.revoke();
            }
        }
        if let Work::Batch(batch) = &mut self.work {
            batch.revoke();
        }
    }

    /// It goes on in a new session, on these terms.
    pub(crate) fn on_terms(&mut self, terms: &Terms) {
        if let Work::Data(transfer) = &mut self.work {
            transfer.on_terms(terms);
        }
    }

    /// It is so late: what is sent from now on has the less time.
    pub(crate) fn note_time(&mut self, now: Moment) {
        if let Some(deadline) = self.deadline {
            self.left_ms = u32::try_from(deadline.since(now).as_millis()).unwrap_or(u32::MAX).max(1);
        }
    }

    /// A file was renamed. Answers that once.
    pub(crate) fn take_renamed(&mut self) -> Option<Renamed> {
        let (Work::Named(named), Some(target), Opcode::Rename) = (&mut self.work, &self.target, self.opcode)
        else {
            return None;
        };
        if std::mem::replace(&mut named.is_followed, true) {
            return None;
        }
        let names = TwoNames::decode(&named.payload).ok()?;
        let second = named.second.as_ref().unwrap_or(target);
        let (from, to) =
            (join(&target.present_path(), names.first), join(&second.present_path(), names.second));
        let exchanges = RenameRequest::decode(&named.body).ok()?.replace == Existing::Exchanged;
        Some(Renamed { export: target.export.clone(), from, to, exchanges })
    }

    /// Where what it is about is now, as far as this session knows.
    pub(crate) fn present_path(&self) -> Vec<u8> {
        let base = self.target.as_ref().map(|node| node.present_path()).unwrap_or_default();
        match &self.work {
            Work::Named(named) => join(&base, &named.path),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => base,
        }
    }

    /// The path it is about, below its export.
    pub(crate) fn path(&self) -> Vec<u8> {
        let base = self.target.as_ref().map_or(&[][..], |node| &node.path);
        match &self.work {
            Work::Named(named) => join(base, &named.path),
            Work::Data(_) | Work::Chain(_) | Work::Batch(_) => base.to_vec(),
        }
    }

    /// It may be sent again in a new session although it had been sent in the old one: executing it twice does no harm, or its only effect
    /// was on the session that is gone. Where the server has been there all the time (`lapsed`), others may have changed since what it
    /// has changed, and to change that again does harm.
    pub(crate) fn can_repeat(&self, lapsed: bool) -> bool {
        if lapsed && self.modifies() {
            return false;
        }
        match (self.opcode, &self.work) {
            (_, Work::Chain(chain)) => chain.repeats(),
            (Opcode::Mount | Opcode::Lookup | Opcode::Close | Opcode::Share | Opcode::OpenToken, _) => true,
            (Opcode::Open, Work::Named(named)) => !named.makes,
            _ => self.opcode.is_idempotent(),
        }
    }

    /// As [`Op::can_repeat`], of one of which a request had no effect in the lost session, or one that it may have again, whatever has
    /// changed since. Not a part of a description, whose other parts are gone.
    pub(crate) fn can_follow_undone(&self, lapsed: bool) -> bool {
        self.opcode != Opcode::ViewSet || self.can_repeat(lapsed)
    }

    /// A chain, of which no link that was not answered had an effect that it may not have again.
    pub(crate) fn can_begin_anew(&self) -> bool {
        matches!(&self.work, Work::Chain(chain) if chain.repeats_undone())
    }

    /// What a request of it gained is gone with the session, although it was carried out; or what it said is not known, and it can be asked
    /// again.
    pub(crate) fn has_lost_its_reply(&self, opcode: Opcode) -> bool {
        opcode.class() == Class::Handle || opcode.is_idempotent()
    }

    /// What it opens, it has made already.
    pub(crate) fn begin_as_made(&mut self) {
        let (Opcode::Open, Work::Named(named)) = (self.opcode, &mut self.work) else { return };
        let Ok(request) = OpenRequest::decode(&named.body) else { return };
        // A file without a name went with its session.
        if !request.flags.contains(OpenFlags::UNNAMED) {
            named.body =
                SmallVec::from_slice(&OpenRequest { flags: request.flags - MAKING, ..request }.bytes());
            named.makes = false;
        }
    }

    /// It changes files.
    fn modifies(&self) -> bool {
        match &self.work {
            Work::Chain(chain) => chain.links.iter().any(|link| link.opcode.modifies()),
            Work::Batch(batch) => batch.entries.iter().any(|entry| entry.write),
            Work::Named(_) | Work::Data(_) => self.opcode.modifies(),
        }
    }

    /// An operation that nobody collects.
    pub(crate) fn detached(opcode: Opcode, named: Named) -> Self {
        Self { detached: true, ..Self::named(opcode, None, named) }
    }

    /// One that asks the server to gather no ends of the session's batches any more. Nobody collects it.
    pub(crate) fn expediting() -> Op {
        let request = BatchRequest { flags: BatchFlags::EXPEDITE, ..BatchRequest::default() };
        Self::detached(Opcode::Batch, Named::of(&request.bytes()))
    }
}

#[cfg(test)]
mod tests {
    use dafs_proto::wire::{Stability, Status};

    use super::*;
    use crate::memory::RawMemory;

    // [CLI-165]
    #[test]
    fn partly_failed_write_errs_only_when_nothing_was_written() {
        let failed = || Error::Status {
            status: Status::NO_SPACE,
            operation: Opcode::Write,
            path: Vec::new(),
            explanation: String::new(),
        };
        let bytes = [0; 40];
        // Parts that are to be sent again, the one that fails, and what counts.
        for (unsent, at, count) in [(None, 20, 20), (Some(10), 20, 10), (Some(30), 20, 20), (Some(0), 20, 0)]
        {
            let memory = SmallVec::from_iter([RawMemory::of(&bytes)]);
            let kind = TransferKind::Write(Stability::Unstable);
            let mut transfer = Transfer::new(kind, IoPath::Inline, 0, memory, SmallVec::new());
            transfer.redo.extend(unsent.map(|at| (at, 10)));
            let mut op = Op::new(Opcode::Write, None, Work::Data(transfer));
            assert!(op.on_error(at, failed()), "nothing more is sent");
            op.on_end();
            assert_eq!(op.error.is_some(), count == 0, "{unsent:?}: {:?}", op.error);
            assert_eq!(op.transfer().map(Transfer::count), Some(count), "{unsent:?}");
        }
    }
}
