//! A new session in place of one that the server forgot: everything is opened again in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dafs_proto::session::ClientSession;
use dafs_proto::transport::Endpoint;
use dafs_proto::wire::{
    Attributes, FileHandle, FileIdentity, Header, LockFlags, LockRequest, MountReply, NameRequest, Opcode,
    OpenRequest, Resume, Status, Welcome, decode_message_pack,
};

use crate::clock::Clock;
use crate::connect::{Answer, Caller};
use crate::driver::driven::Driven;
use crate::engine::recovery::RenewedNode;
use crate::error::{Error, StaleCause};
use crate::handle::node::{Node, Reopen};
use crate::handle::view::{ViewNode, set_requests};
use crate::op::terms::Terms;

/// The root of an export in the new session, and what it is.
type Root = Result<(FileHandle, FileIdentity), StaleCause>;

/// A new session, and how far it has come. It outlives its connections: what was opened and locked in it keeps others out, and would keep
/// out a further session of this client too.
pub(super) struct Rebuild {
    resume: Resume,
    session: ClientSession,
    lost: Vec<Lost>,
    views: Vec<Arc<ViewNode>>,
    /// Most of a view's description in one request, bytes.
    part_max: usize,
    /// Answers so far. On a new connection the requests are gone through anew, which are the same, up to the first without an answer.
    answers: Vec<Answer>,
    has_locks: bool,
}

/// What the lost session had open, and what it had locked of that.
struct Lost {
    node: Arc<Node>,
    locks: Vec<LockRequest>,
}

impl Rebuild {
    /// From here on handles of the lost session are refused: none can slip in between this look and the new session.
    pub(super) fn new(core: &mut Driven, terms: &Terms) -> Self {
        core.epoch += 1;
        let nodes = core.nodes.iter().filter_map(|(_, node)| node.upgrade()).filter(|node| !node.is_stale());
        let with_locks = |node: Arc<Node>| {
            let locks = node.locks().reclaims();
            Lost { node, locks }
        };
        Self {
            resume: Resume { session: terms.welcome.session, secret: terms.welcome.secret },
            session: ClientSession::new(&terms.welcome),
            lost: nodes.map(with_locks).collect(),
            views: core.views.living(),
            part_max: terms.send_payload_max as usize,
            answers: Vec::new(),
            has_locks: false,
        }
    }

    /// The session, to be taken up again on another connection.
    pub(super) fn session(&self) -> &Resume {
        &self.resume
    }

    /// It holds a lock that the lost session held.
    pub(super) fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// It goes on over a new connection.
    pub(super) fn resumed(&mut self, welcome: &Welcome) -> &mut Self {
        self.session.on_resumed(welcome);
        self
    }

    /// Opens everything that the lost session had open, and describes its views. Blocks, for `time_max` at each request. Ends with
    /// [`Error::Closed`] where the session is closed meanwhile.
    pub(super) fn run(
        &mut self,
        endpoint: &mut dyn Endpoint,
        (server, clock, time_max): (&str, &dyn Clock, Duration),
        is_closed: &AtomicBool,
    ) -> Result<Vec<RenewedNode>, Error> {
        let Self { session, lost, views, part_max, answers, has_locks, .. } = self;
        let caller = Caller { endpoint, session: Some(session), server, clock, deadline: clock.now() };
        let reclaims_left = lost.iter().map(|lost| lost.locks.len()).sum();
        let mut steps = Steps { caller, time_max, is_closed, answers, asked: 0, has_locks, reclaims_left };
        let nodes = steps.reopen_all(lost)?;
        steps.describe_views(views, *part_max)?;
        Ok(nodes)
    }

    /// The session, which has nothing outstanding but what a connection broke.
    pub(super) fn into_session(self) -> ClientSession {
        self.session
    }
}

/// The requests of a [`Rebuild`], one after the other.
struct Steps<'a> {
    caller: Caller<'a>,
    /// For each answer.
    time_max: Duration,
    is_closed: &'a AtomicBool,
    answers: &'a mut Vec<Answer>,
    /// Of the answers, those that were asked for on this connection.
    asked: usize,
    has_locks: &'a mut bool,
    /// Locks of the nodes behind this one, which are still to be taken again.
    reclaims_left: usize,
}

impl Steps<'_> {
    fn reopen_all(&mut self, all: &[Lost]) -> Result<Vec<RenewedNode>, Error> {
        let mut roots: Vec<(String, Root)> = Vec::new();
        let mut renewed = Vec::with_capacity(all.len());
        for lost in all {
            let node = &lost.node;
            self.reclaims_left -= lost.locks.len();
            let root = match roots.iter().find(|(export, _)| *export == node.export) {
                Some((_, root)) => *root,
                None => {
                    let root = self.remount(&node.export)?;
                    roots.push((node.export.clone(), root));
                    root
                }
            };
            let handle = match (root, node.reopen) {
                (Err(cause), _) => Err(cause),
                (Ok(_), Reopen::Mount) => {
                    let again = self.remount(&node.export)?;
                    self.check(again, lost)?
                }
                (Ok((root, _)), Reopen::Lookup { follow }) => {
                    self.reopen(Opcode::Lookup, root, &NameRequest { follow, mode: 0 }.bytes(), lost)?
                }
                (Ok((root, _)), Reopen::Open { flags }) => {
                    self.reopen(Opcode::Open, root, &OpenRequest { flags, mode: 0 }.bytes(), lost)?
                }
            };
            if let Err(cause) = handle {
                let path = String::from_utf8_lossy(&node.path);
                tracing::warn!(export = node.export, ?path, "cannot open a file again: {cause}");
            }
            renewed.push((Arc::clone(node), handle));
        }
        Ok(renewed)
    }

    /// Describes all views again, under their old numbers. A transfer that uses one which is refused fails.
    fn describe_views(&mut self, views: &[Arc<ViewNode>], part_max: usize) -> Result<(), Error> {
        for view in views {
            for (body, part) in set_requests(view.number, &view.description, part_max) {
                let status = self.call(Opcode::ViewSet, FileHandle(0), &body, part)?.header.status;
                if status != Status::OK {
                    tracing::warn!(view = view.number, "cannot describe a view again: {status}");
                    break;
                }
            }
        }
        Ok(())
    }

    fn remount(&mut self, export: &str) -> Result<Root, Error> {
        let answer = self.call(Opcode::Mount, FileHandle(0), &[], export.as_bytes())?;
        if answer.header.status != Status::OK {
            return Ok(Err(StaleCause::Export(answer.header.status)));
        }
        let mounted = decode_message_pack::<MountReply>("mount reply", &answer.payload)?;
        Ok(Ok((answer.header.handle, mounted.attributes.identity())))
    }

    /// Opens one file again.
    fn reopen(
        &mut self,
        opcode: Opcode,
        root: FileHandle,
        body: &[u8],
        lost: &Lost,
    ) -> Result<Result<FileHandle, StaleCause>, Error> {
        let answer = self.call(opcode, root, body, &lost.node.present_path())?;
        if answer.header.status != Status::OK {
            return Ok(Err(StaleCause::Path(answer.header.status)));
        }
        let attributes = decode_message_pack::<Attributes>("attributes", &answer.payload)?;
        let handle = answer.header.handle;
        self.check(Ok((handle, attributes.identity())), lost)
    }

    /// The handle, if it is of the very file that the node is of; else that is given back.
    fn check(&mut self, opened: Root, lost: &Lost) -> Result<Result<FileHandle, StaleCause>, Error> {
        let (handle, identity) = match opened {
            Ok(opened) => opened,
            Err(cause) => return Ok(Err(cause)),
        };
        let wanted = &lost.node.identity;
        if identity.is_same(wanted) {
            return match self.lock_again(handle, &lost.locks)? {
                Status::OK => {
                    self.hand_over_again(handle, &lost.node)?;
                    Ok(Ok(handle))
                }
                status => {
                    self.call(Opcode::Close, handle, &[], &[])?;
                    Ok(Err(StaleCause::Locks(status)))
                }
            };
        }
        self.call(Opcode::Close, handle, &[], &[])?;
        let is_known = identity.generation != 0 && wanted.generation != 0;
        let other = !is_known && identity.file_id == wanted.file_id;
        Ok(Err(if other { StaleCause::Unnamed } else { StaleCause::Replaced }))
    }

    /// The program goes on with a descriptor that another session was given: this one is to know of it.
    fn hand_over_again(&mut self, handle: FileHandle, node: &Node) -> Result<(), Error> {
        if !node.is_handed_over() {
            return Ok(());
        }
        if let Some(descriptors) = self.caller.endpoint.descriptors() {
            descriptors.expect(handle.0);
        }
        let status = self.call(Opcode::HandOver, handle, &[], &[])?.header.status;
        if let Some(descriptors) = self.caller.endpoint.descriptors() {
            drop(descriptors.take(handle.0));
        }
        if status != Status::OK {
            let path = String::from_utf8_lossy(&node.path);
            tracing::warn!(
                export = node.export,
                ?path,
                "the server does not hand a file over again: {status}"
            );
        }
        node.handed_over_again(status == Status::OK);
        Ok(())
    }

    /// Takes the locks of a node again. Without one of them what its program does next would be wrong.
    fn lock_again(&mut self, handle: FileHandle, locks: &[LockRequest]) -> Result<Status, Error> {
        for (number, lock) in locks.iter().enumerate() {
            let mut request = *lock;
            request.flags.set(LockFlags::LAST, self.reclaims_left == 0 && number + 1 == locks.len());
            let status = self.call(Opcode::Lock, handle, &request.bytes(), &[])?.header.status;
            if status != Status::OK {
                return Ok(status);
            }
            *self.has_locks = true;
        }
        Ok(Status::OK)
    }

    /// The answer to the next request, which may be known already.
    fn call(
        &mut self,
        opcode: Opcode,
        handle: FileHandle,
        body: &[u8],
        payload: &[u8],
    ) -> Result<&Answer, Error> {
        if self.is_closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        if self.asked == self.answers.len() {
            self.caller.deadline = self.caller.clock.now().after(self.time_max);
            let answer = self.caller.call(Header::request(opcode, handle), body, payload)?;
            self.answers.push(answer);
        }
        self.asked += 1;
        Ok(&self.answers[self.asked - 1])
    }
}
