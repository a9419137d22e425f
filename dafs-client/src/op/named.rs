//! Operations of one request and one reply.

use std::sync::Arc;

use dafs_proto::transport::{Head, PostError, Span};
use dafs_proto::wire::{CopyReply, CopyRequest, HEADER_SIZE, Header, LockTurn, Opcode, Writer};
use smallvec::SmallVec;

use crate::error::Error;
use crate::handle::locks::PutBack;
use crate::handle::node::{Node, Reopen};
use crate::op::draft::{Draft, HEAD_ROOM, Outlet};

/// Bytes of a body that is kept with its operation.
pub(crate) const BODY_MAX: usize = 64;

/// A request about names or ranges.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) body: SmallVec<[u8; BODY_MAX]>,
    pub(crate) payload: Vec<u8>,
    /// Whose handle is written over the first 8 bytes of the body.
    pub(crate) second: Option<Arc<Node>>,
    /// For errors: the path below the target.
    pub(crate) path: Vec<u8>,
    /// It may make or cut a file: it is not sent again after a restart of the server.
    pub(crate) makes: bool,
    /// A handle of its own instead of the target's: closing.
    pub(crate) handle: Option<dafs_proto::wire::FileHandle>,
    pub(crate) sent: bool,
    /// The server has answered that the lock waits, and tells of this turn.
    pub(crate) waits: Option<LockTurn>,
    pub(crate) reply: Option<NamedReply>,
    /// It is answered with a handle, of something that is opened again like this.
    pub(crate) reopen: Option<Reopen>,
    /// What it renamed has its new name in this session.
    pub(crate) is_followed: bool,
    /// It puts back what a lock has changed that was given up.
    pub(crate) puts_back: Option<PutBack>,
}

impl Named {
    /// A request with this body.
    pub(crate) fn of(body: &[u8]) -> Self {
        Self { body: SmallVec::from_slice(body), ..Self::default() }
    }

    /// A request about a path below the target.
    pub(crate) fn about(self, path: Vec<u8>) -> Self {
        Self { payload: path.clone(), path, ..self }
    }

    /// Sends it.
    pub(crate) fn send(&self, outlet: &mut impl Outlet, mut header: Header) -> Result<(), PostError> {
        header.handle = self.handle.unwrap_or(header.handle);
        let mut head = HEAD_ROOM;
        let draft = Draft::new(&mut head, header, |body| {
            body[..self.body.len()].copy_from_slice(&self.body);
            if let Some(second) = &self.second {
                Writer::new(body).u64(second.handle().0);
            }
            HEADER_SIZE + self.body.len()
        });
        let payload = &self.payload;
        outlet.send(draft, payload.len(), |room| room.write_from(0, payload))
    }

    /// Notes what the server loses of it when it restarts before a commit. Here, so that a commit that is answered before the result is
    /// collected knows of it.
    pub(crate) fn note_unstable(&self, node: &Node, reply: &Reply<'_>) {
        match reply.header.opcode {
            // The size or the attributes of the target, and of no path below it.
            Opcode::Truncate | Opcode::Allocate | Opcode::Punch | Opcode::Setattr if self.path.is_empty() => {
                node.unstable().change(reply.server_epoch);
            }
            Opcode::CopyRange => {
                if let (Ok(CopyRequest { offset, .. }), Ok(CopyReply { count: count @ 1.., verifier, .. })) =
                    (CopyRequest::decode(&self.body), CopyReply::decode(reply.body))
                {
                    node.unstable().add(verifier, offset..offset.saturating_add(count));
                }
            }
            _ => {}
        }
    }
}

/// The reply to a [`Named`] request.
pub(crate) struct NamedReply {
    /// The session that answered (`Core::epoch`): a handle in the reply means nothing in another.
    pub(crate) epoch: u64,
    /// The server that answered: another after it was restarted.
    pub(crate) server_epoch: u64,
    pub(crate) header: Header,
    pub(crate) head: Head,
    pub(crate) payload: Vec<u8>,
    /// What the handle in it is of. Nodes have the handles of the present session, also where nobody has collected the reply yet.
    pub(crate) node: Option<Arc<Node>>,
}

/// A good reply, as it arrived.
pub(crate) struct Reply<'a> {
    /// The session, as in [`NamedReply`].
    pub(crate) epoch: u64,
    pub(crate) server_epoch: u64,
    pub(crate) header: &'a Header,
    pub(crate) head: &'a Head,
    pub(crate) body: &'a [u8],
    /// Bounded by `recv_payload_max`.
    pub(crate) payload: Span<'a>,
}

impl Reply<'_> {
    /// A copy that stays.
    pub(crate) fn kept(&self) -> NamedReply {
        let Self { epoch, server_epoch, header, head, payload, .. } = *self;
        let payload = payload.to_vec();
        NamedReply { epoch, server_epoch, header: *header, head: *head, payload, node: None }
    }
}

impl NamedReply {
    /// What it gave a handle of, if that is open still.
    pub(crate) fn into_node(self) -> crate::error::Result<Arc<Node>> {
        let operation = self.header.opcode;
        let node = self.node.ok_or(Error::InDoubt { operation })?;
        match node.stale_cause() {
            Some(cause) => Err(Error::Stale { path: node.present_path(), cause }),
            None => Ok(node),
        }
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.head.as_bytes().get(HEADER_SIZE..).unwrap_or(&[])
    }
}
