//! Views: the data of a datatype, wherever it lies in a file, read and written by requests of constant size.

use std::io::{IoSlice, IoSliceMut};
use std::sync::{Arc, PoisonError};

use dafs_proto::view::{Datatype, View as Compiled, ViewError};
use dafs_proto::wire::{Features, Opcode, Status, VIEW_DESCRIPTION_SIZE_MAX, encode_datatype};
use smallvec::SmallVec;

use crate::api::file::File;
use crate::api::file::list::ListRead;
use crate::api::session::Session;
use crate::driver::Owner;
use crate::driver::pending::{Call, Moved, Pending, Transferred};
use crate::driver::transfer::Memory;
use crate::error::{Error, Result};
use crate::handle::view::{ViewNode, set_requests};
use crate::memory::{IoBuffer, Keep, RawMemory, RegisteredBuf};
use crate::op::Op;
use crate::op::list::{FilePart, Shown};
use crate::op::named::Named;
use crate::op::transfer::{Transfer, TransferKind};

/// A view that the server knows: where the data of a [`Datatype`] lies in a file. A clone is the same view, which the server forgets when
/// the last clone, and the last transfer that uses it, is gone. It is for all files of its session.
#[derive(Clone)]
pub struct View {
    node: Arc<ViewNode>,
    owner: Arc<Owner>,
}

/// A place in what a view shows of a file: where a transfer begins.
#[derive(Clone, Debug)]
#[must_use = "it only says where a transfer is to begin"]
pub struct ViewPlace<'a> {
    view: &'a View,
    displacement: u64,
    place: u64,
    group: u64,
    group_size: u32,
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "View({}, {:?})", self.node.number, self.node.view)
    }
}

impl View {
    /// Bytes of data in a tile.
    pub fn size(&self) -> u64 {
        self.node.view.size()
    }

    /// From one tile to the next, bytes.
    pub fn extent(&self) -> i64 {
        self.node.view.extent()
    }

    /// The byte `place` of the view's data, where the first tile begins at byte `displacement` of the file. Tiles follow each other without
    /// end. Asks nobody.
    pub fn at(&self, displacement: u64, place: u64) -> ViewPlace<'_> {
        ViewPlace { view: self, displacement, place, group: 0, group_size: 0 }
    }
}

impl ViewPlace<'_> {
    /// Says that this transfer is one of `size` with the same `group`, of this and other sessions, which mesh in one file: the server
    /// may wait a little for the others, and move what lies side by side together. `group` is a number that these transfers alone have;
    /// 0 is none.
    pub fn in_group(self, group: u64, size: u32) -> Self {
        Self { group, group_size: size, ..self }
    }

    /// What a transfer of a session is about that begins here.
    fn part(&self, owner: &Owner) -> Result<FilePart> {
        let Self { view, displacement, place, group, group_size } = *self;
        if !Arc::ptr_eq(&view.owner.shared, &owner.shared) {
            return Err(Error::Invalid("the view belongs to another session".into()));
        }
        let view = Arc::clone(&view.node);
        Ok(FilePart::Shown(Shown { view, displacement, place, group, group_size }))
    }
}

impl Session {
    /// Describes a view to the server. Blocks.
    ///
    /// Fails with [`Error::Invalid`] where the description contradicts itself or is beyond a bound (4,096 nodes, 65,536 entries of
    /// lists, 64 levels), and with the status [`Status::NOT_SUPPORTED`] where the server knows no views: then a list does the same
    /// ([`File::read_list`]). [`Status::TOO_MANY_VIEWS`] says that the server has no room for it.
    ///
    /// ```no_run
    /// # fn f(session: &dafs_client::Session, file: &dafs_client::File) -> dafs_client::Result<()> {
    /// use dafs_client::Datatype;
    /// // A column of a matrix with rows of 4,096 bytes, 16 bytes wide: a million rows cost the request no more than one.
    /// let column = session.view(&Datatype::bytes(16).resized(0, 4096))?;
    /// let mut bytes = vec![0; 16 * 1000];
    /// let read = file.read_view(&column.at(64, 0), &mut bytes)?;
    /// assert_eq!(read.count, 16_000);
    /// # Ok(())
    /// # }
    /// ```
    pub fn view(&self, datatype: &Datatype) -> Result<View> {
        let invalid = |error: ViewError| Error::Invalid(error.to_string());
        let view = Compiled::new(datatype).map_err(invalid)?;
        let shared = &self.owner.shared;
        shared.check_home()?;
        let refused = |status, explanation: &str| Error::Status {
            status,
            operation: Opcode::ViewSet,
            path: Vec::new(),
            explanation: explanation.to_owned(),
        };
        let (has_views, number) = {
            let mut core = shared.lock();
            (core.terms.has(Features::VIEWS), core.views.next_number())
        };
        if !has_views {
            return Err(refused(Status::NOT_SUPPORTED, "the server does not support views; use lists"));
        }
        let description = encode_datatype(datatype);
        if description.len() > VIEW_DESCRIPTION_SIZE_MAX as usize {
            let len = description.len();
            return Err(Error::Invalid(format!(
                "a description of {len} bytes: the limit is {VIEW_DESCRIPTION_SIZE_MAX}; use a list instead"
            )));
        }
        let describing = shared.describing.lock().unwrap_or_else(PoisonError::into_inner);
        let node = Arc::new(ViewNode::new(number, view, description, Arc::clone(&shared.closings)));
        let mut attempts_left = ATTEMPTS_MAX;
        loop {
            let error = match self.describe(&node) {
                // A server that was restarted behind the answer has forgotten it.
                Ok(epoch) if shared.keep_view(&node, epoch) => break,
                Ok(_) => Error::InDoubt { operation: Opcode::ViewSet },
                Err(error) => error,
            };
            // One that was restarted meanwhile has forgotten the parts before.
            let is_lost =
                matches!(&error, Error::InDoubt { .. } | Error::Status { status: Status::INVALID, .. });
            attempts_left -= 1;
            if !is_lost || attempts_left == 0 {
                return Err(error);
            }
        }
        drop(describing);
        Ok(View { node, owner: Arc::clone(&self.owner) })
    }

    /// Returns the session in which it was answered.
    fn describe(&self, node: &ViewNode) -> Result<u64> {
        let (mut epoch, part_max) = {
            let core = self.owner.shared.lock();
            (core.epoch, core.terms.send_payload_max as usize)
        };
        for (body, part) in set_requests(node.number, &node.description, part_max) {
            let named =
                Named { body: SmallVec::from_slice(&body), payload: part.to_vec(), ..Named::default() };
            let answered = |op: Op| op.into_reply().map(|reply| reply.epoch);
            epoch = Call::plain(None, Opcode::ViewSet, named, answered).run(&self.owner)?;
        }
        Ok(epoch)
    }
}

/// How often a view is described before that fails: each attempt after the first takes a restart of the server.
const ATTEMPTS_MAX: u32 = 4;

/// Transfers of what a view shows. Byte `n` of the memory is byte `n` of the view's data from the place on. A transfer is not atomic.
/// Errors are those of lists; [`Error::Invalid`] also where a byte would lie before the file or beyond the end of any, and where the view
/// belongs to another session.
impl File {
    /// Reads what a view shows into a slice. Blocks.
    pub fn read_view(&self, from: &ViewPlace<'_>, buffer: &mut [u8]) -> Result<ListRead> {
        self.read_view_vectored(from, &mut [IoSliceMut::new(buffer)])
    }

    /// As [`File::read_view`], into several slices.
    pub fn read_view_vectored(
        &self,
        from: &ViewPlace<'_>,
        buffers: &mut [IoSliceMut<'_>],
    ) -> Result<ListRead> {
        let memory = Memory::Raw(RawMemory::all_of_mut(buffers));
        self.run_view(TransferKind::Read, from, memory)?.outcome()
    }

    /// Writes a slice to what a view shows, as durable as the file was opened for; returns the bytes written without a gap from the
    /// beginning. Blocks.
    pub fn write_view(&self, to: &ViewPlace<'_>, data: &[u8]) -> Result<usize> {
        self.write_view_vectored(to, &[IoSlice::new(data)])
    }

    /// As [`File::write_view`], from several slices.
    pub fn write_view_vectored(&self, to: &ViewPlace<'_>, buffers: &[IoSlice<'_>]) -> Result<usize> {
        let kind = TransferKind::Write(self.stability);
        self.run_view(kind, to, Memory::Raw(RawMemory::all_of(buffers)))?.outcome()
    }

    /// Nonblocking form of [`File::read_view`], into a `Vec<u8>` (all `len` bytes of it) or a [`RegisteredBuf`], which the operation owns
    /// until it is collected; the count is that of [`ListRead`].
    pub fn submit_read_view<B: IoBuffer>(&self, from: &ViewPlace<'_>, buffer: B) -> Pending<Transferred<B>> {
        self.submit_view(TransferKind::Read, from, buffer)
    }

    /// Nonblocking form of [`File::write_view`].
    pub fn submit_write_view<B: IoBuffer>(&self, to: &ViewPlace<'_>, buffer: B) -> Pending<Transferred<B>> {
        self.submit_view(TransferKind::Write(self.stability), to, buffer)
    }

    /// Reads what a view shows into a registered buffer: no copy, no registration. Blocks.
    pub fn read_view_buf(&self, from: &ViewPlace<'_>, buffer: &mut RegisteredBuf) -> Result<ListRead> {
        self.run_view_buf(TransferKind::Read, from, buffer)?.outcome()
    }

    /// Writes a registered buffer to what a view shows: no copy, no registration. Blocks.
    pub fn write_view_buf(&self, to: &ViewPlace<'_>, buffer: &RegisteredBuf) -> Result<usize> {
        self.run_view_buf(TransferKind::Write(self.stability), to, buffer)?.outcome()
    }

    pub(crate) fn run_view(
        &self,
        kind: TransferKind,
        place: &ViewPlace<'_>,
        memory: Memory,
    ) -> Result<Moved> {
        self.run_part(kind, place.part(&self.owner)?, memory)
    }

    pub(crate) fn submit_view_raw<T: From<Transfer>>(
        &self,
        kind: TransferKind,
        place: &ViewPlace<'_>,
        memory: SmallVec<[RawMemory; 1]>,
    ) -> Pending<Result<T>> {
        match place.part(&self.owner) {
            Ok(part) => self.submit(self.parts(kind, part, Memory::Raw(memory), Keep::None), Moved::outcome),
            Err(error) => Pending::ready(Err(error)),
        }
    }

    fn run_view_buf(
        &self,
        kind: TransferKind,
        place: &ViewPlace<'_>,
        buffer: &RegisteredBuf,
    ) -> Result<Moved> {
        let all = 0..buffer.len();
        self.run_part_buf(kind, place.part(&self.owner)?, buffer, std::slice::from_ref(&all))
    }

    fn submit_view<B: IoBuffer>(
        &self,
        kind: TransferKind,
        place: &ViewPlace<'_>,
        buffer: B,
    ) -> Pending<Transferred<B>> {
        let keep = buffer.into_keep().0;
        match place.part(&self.owner) {
            Ok(part) => self.submit(self.parts(kind, part, Memory::Kept, keep), Moved::transferred),
            Err(error) => Pending::ready(Moved::refused(keep, error).transferred()),
        }
    }
}
