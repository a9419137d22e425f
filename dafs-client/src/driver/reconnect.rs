//! After the connection broke: connect again, take the session up, and send again what was not answered; or, when the
//! server forgot the session, build it anew.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dafs_proto::session::{ClientSession, HandshakeError, KeepAlive};
use dafs_proto::transport::{ConnectError, Endpoint};
use dafs_proto::wire::{
    Attributes, FileHandle, Header, MountReply, NameRequest, Opcode, OpenRequest, Resume, Slot, Status,
    decode_message_pack,
};

use crate::connect::{Answer, CallError, Established, call, establish};
use crate::driver::{Guard, Shared};
use crate::engine::core::Core;
use crate::engine::give_up::GIVE_UP_AFTER;
use crate::error::Error;
use crate::handle::node::{Node, Reopen};

/// Connects again, without the lock; others wait meanwhile or queue their work. When the attempts are used up the session ends. Blocks.
pub(crate) fn reconnect<'a>(shared: &'a Shared, mut core: Guard<'a>) -> Guard<'a> {
    if !core.is_broken() {
        return core;
    }
    let resume = begin(&mut core);
    drop(core);
    finish(shared, resume)
}

/// From now on a thread connects again, which then calls [`finish`] with what this answers.
pub(crate) fn begin(core: &mut Core) -> Resume {
    core.leader = true;
    core.reconnect_wanted = false;
    core.resume.clone()
}

/// Connects again and takes the new connection into use, or ends the session. Blocks.
pub(crate) fn finish(shared: &Shared, resume: Resume) -> Guard<'_> {
    let outcome = attempts(shared, resume);
    let mut core = shared.core.lock().unwrap_or_else(PoisonError::into_inner);
    core.leader = false;
    match outcome {
        // Closed meanwhile.
        _ if core.dead.is_some() => {}
        Ok(_) if core.gives_up() => {
            let cause = format!(
                "it broke {GIVE_UP_AFTER} times in a row before any request in flight was answered; the server may be unable to \
                 reach the memory of one, or to stand it: its log says why"
            );
            tracing::error!(server = %shared.server.name, "giving the session up: {cause}");
            core.die(Error::Connection { server: shared.server.name.clone(), cause });
        }
        Ok(fresh) => {
            core.install(fresh, shared);
            shared.push(&mut core, false);
        }
        Err(error) => {
            if !shared.stopping.load(Ordering::Acquire) {
                tracing::error!(server = %shared.server.name, "giving the session up: {error}");
            }
            core.die(error);
        }
    }
    shared.tell(&core);
    core
}

/// A new connection, and the nodes that were opened again on it.
struct Fresh {
    established: Established,
    session: ClientSession,
    nodes: Vec<Renewed>,
}

/// A node, and its new handle if its file is still there.
type Renewed = (Arc<Node>, Option<FileHandle>);

fn attempts(shared: &Shared, resume: Resume) -> Result<Fresh, Error> {
    let policy = &shared.config.reconnect;
    let began = shared.clock.now();
    let given_up = began.after(policy.time_max);
    let mut pause = policy.backoff_min;
    let mut attempt = 0;
    loop {
        attempt += 1;
        let left = given_up.since(shared.clock.now());
        let error = match attempt_once(shared, resume.clone(), shared.config.connect_timeout.min(left)) {
            Ok(fresh) => return Ok(fresh),
            Err(error) => error,
        };
        if is_final(&error) {
            return Err(error);
        }
        if shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        let now = shared.clock.now();
        if attempt >= policy.attempts_max || now.after(pause) >= given_up {
            let seconds = now.since(began).as_secs_f64();
            let cause = format!("{error} ({attempt} attempts to connect again in {seconds:.1} s)");
            return Err(Error::Connection { server: shared.server.name.clone(), cause });
        }
        shared.clock.sleep(pause);
        if shared.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        pause = (pause * 2).min(policy.backoff_max);
    }
}

/// Trying again cannot help.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Handshake(HandshakeError::Refused(status)) => {
            !matches!(*status, Status::DRAINING | Status::SERVER_FULL | Status::NO_SESSION | Status::AGAIN)
        }
        Error::Handshake(_) | Error::Peer(_) => true,
        Error::Connect(error) => matches!(**error, ConnectError::WrongAddress { .. }),
        _ => false,
    }
}

fn attempt_once(shared: &Shared, resume: Resume, timeout: Duration) -> Result<Fresh, Error> {
    let client_id = shared.server_client_id();
    let (config, clock) = (&shared.config, &*shared.clock);
    let mut established =
        establish(&*shared.domain, &shared.server, (config, timeout), client_id, Some(resume), clock)?;
    let welcome = &established.terms.welcome;
    let mut session = ClientSession::new(welcome);
    let mut nodes = Vec::new();
    if !welcome.resumed {
        tracing::warn!(server = %shared.server.name, "the server forgot the session: opening its files again");
        let endpoint = &mut *established.endpoint;
        let mut rebuild = Rebuild { shared, endpoint, session: &mut session };
        nodes = rebuild.reopen_all().map_err(|error| error.at(&shared.server.name))?;
    }
    Ok(Fresh { established, session, nodes })
}

/// A new session, on which everything is opened again.
struct Rebuild<'a> {
    shared: &'a Shared,
    endpoint: &'a mut dyn Endpoint,
    session: &'a mut ClientSession,
}

impl Rebuild<'_> {
    /// Opens everything that the lost session had open.
    fn reopen_all(&mut self) -> Result<Vec<Renewed>, CallError> {
        let open: Vec<Arc<Node>> = {
            let mut core = self.shared.core.lock().unwrap_or_else(PoisonError::into_inner);
            // From here on handles of the lost session are refused: none can slip in between this look and the new session.
            core.epoch += 1;
            let nodes = core.nodes.iter().filter_map(|(_, node)| node.upgrade());
            nodes.filter(|node| !node.is_stale()).collect()
        };
        let mut roots: Vec<(String, Option<FileHandle>)> = Vec::new();
        let mut renewed = Vec::with_capacity(open.len());
        for node in open {
            let root = match roots.iter().find(|(export, _)| *export == node.export) {
                Some((_, root)) => *root,
                None => {
                    let root = self.remount(&node.export)?;
                    roots.push((node.export.clone(), root));
                    root
                }
            };
            let mut body = [0; 8];
            let handle = match (root, node.reopen) {
                (None, _) => None,
                (Some(_), Reopen::Mount) => self.remount(&node.export)?,
                (Some(root), Reopen::Lookup { follow }) => {
                    NameRequest { follow, mode: 0 }.encode(&mut body);
                    self.reopen(Opcode::Lookup, root, &body, &node)?
                }
                (Some(root), Reopen::Open { flags }) => {
                    OpenRequest { flags, mode: 0 }.encode(&mut body);
                    self.reopen(Opcode::Open, root, &body, &node)?
                }
            };
            renewed.push((node, handle));
        }
        Ok(renewed)
    }

    fn remount(&mut self, export: &str) -> Result<Option<FileHandle>, CallError> {
        let answer = self.call(Opcode::Mount, FileHandle(0), &[], export.as_bytes())?;
        if answer.header.status != Status::OK {
            tracing::warn!(export, "the export cannot be mounted again: {}", answer.header.status);
            return Ok(None);
        }
        decode_message_pack::<MountReply>("mount reply", &answer.payload)
            .map_err(|error| CallError::Fault(error.into()))?;
        Ok(Some(answer.header.handle))
    }

    /// Opens one file again; `None` when its path names another file now, or none.
    fn reopen(
        &mut self,
        opcode: Opcode,
        root: FileHandle,
        body: &[u8],
        node: &Node,
    ) -> Result<Option<FileHandle>, CallError> {
        let answer = self.call(opcode, root, body, &node.path)?;
        if answer.header.status != Status::OK {
            return Ok(None);
        }
        let attributes = decode_message_pack::<Attributes>("attributes", &answer.payload)
            .map_err(|error| CallError::Fault(error.into()))?;
        if attributes.file_id == node.file_id {
            return Ok(Some(answer.header.handle));
        }
        self.call(Opcode::Close, answer.header.handle, &[], &[])?;
        Ok(None)
    }

    fn call(
        &mut self,
        opcode: Opcode,
        handle: FileHandle,
        body: &[u8],
        payload: &[u8],
    ) -> Result<Answer, CallError> {
        let Self { shared: Shared { clock, config, .. }, endpoint, session } = self;
        let mut header = Header::request(opcode, handle);
        // One after the other: a credit is always there.
        session.begin(&mut header, 1);
        let deadline = clock.now().after(config.connect_timeout);
        let answer = call(*endpoint, Some(session), header, body, payload, deadline, &**clock)?;
        session.on_reply(&answer.header).map_err(CallError::Fault)?;
        Ok(answer)
    }
}

impl Core {
    /// The connection is to be made again.
    pub(crate) fn is_broken(&self) -> bool {
        self.endpoint.is_none() && self.dead.is_none()
    }

    /// The connection that broke was one too many of those that brought no reply to what was sent.
    fn gives_up(&mut self) -> bool {
        self.give_up.on_broken(self.session.replies(), self.session.outstanding() > 0)
    }

    /// Takes a new connection into use.
    fn install(&mut self, fresh: Fresh, shared: &Shared) {
        let Fresh { established, session, nodes } = fresh;
        let Established { endpoint, terms } = established;
        let welcome = &terms.welcome;
        self.reconnects += 1;
        self.resume = Resume { session: welcome.session, secret: welcome.secret };
        self.alive = KeepAlive::new(
            Duration::from_millis(u64::from(welcome.keep_alive_ms.max(1))),
            Duration::from_millis(u64::from(welcome.lease_ms.max(1))),
            shared.clock.now(),
        );
        self.endpoint = Some(endpoint);
        self.draining = false;
        self.lose_lanes();
        // The order in which requests were first sent.
        let mut unanswered: Vec<(u64, u32)> = (0u32..)
            .zip(&self.requests)
            .filter_map(|(slot, request)| request.as_ref().map(|request| (request.order, slot)))
            .collect();
        unanswered.sort_unstable();
        if welcome.resumed {
            self.session.on_resumed(welcome);
            self.resend = unanswered.into_iter().map(|(_, slot)| Slot(slot)).collect();
        } else {
            self.session = session;
            for (node, handle) in nodes {
                node.renew(self.epoch, handle);
            }
            self.resend.clear();
            self.forget_closes();
            self.repeat(unanswered);
        }
        self.terms = terms;
        self.give_up.on_connected(self.session.replies());
        let config = &shared.config;
        shared.registrar.set_useful_min(self.registered_sizes_min(config), self.kept_sizes_min(config));
        self.ask_for_lanes(&shared.config);
    }

    /// In a new session: handles of the old one need not be given back, and would name others now.
    fn forget_closes(&mut self) {
        let closes = self.ops.iter().filter(|(_, op)| op.opcode == Opcode::Close && op.queued);
        let closes: Vec<usize> = closes.map(|(index, _)| index).collect();
        for index in closes {
            self.stop(index);
            self.finish_if_ended(index);
        }
    }

    /// In a new session: a chain of which a part was sent begins anew, or ends as in doubt.
    fn repeat_chains(&mut self) {
        let begun = self.ops.iter().filter(|(_, op)| op.is_half_way());
        let begun: Vec<usize> = begun.map(|(index, _)| index).collect();
        for index in begun {
            let Some(op) = self.ops.get_mut(index) else { continue };
            let repeats = op.can_repeat() && op.error.is_none();
            if repeats {
                // Handles of the session that is gone need not be given back.
                op.begin_anew();
                if !op.queued {
                    op.queued = true;
                    self.queue.push_back(index);
                }
                continue;
            }
            op.error.get_or_insert_with(|| Box::new(Error::InDoubt { operation: op.opcode }));
            self.stop(index);
            self.finish_if_ended(index);
        }
    }

    /// In a new session: requests that were sent in the old one go back into the queue, or end as in doubt.
    fn repeat(&mut self, unanswered: Vec<(u64, u32)>) {
        let mut again = Vec::new();
        for (_, slot) in unanswered {
            let Some(request) = self.requests.get_mut(slot as usize).and_then(Option::take) else { continue };
            if let (Some(chunk), Some(staging)) = (request.staging, self.staging.as_mut()) {
                staging.give_back(chunk);
            }
            let index = request.op;
            let Some(op) = self.ops.get_mut(index) else { continue };
            op.outstanding -= 1;
            if op.goes_whole() {
                continue;
            }
            let repeats = op.can_repeat() && op.error.is_none() && !op.is_withdrawn();
            if repeats && op.opcode != Opcode::Close {
                op.redo(request.at, request.len);
                if !op.queued {
                    op.queued = true;
                    again.push(index);
                }
                continue;
            }
            if op.error.is_none() && op.opcode != Opcode::Close && !op.detached {
                op.error = Some(Box::new(Error::InDoubt { operation: op.opcode }));
                self.stop(index);
            }
            self.finish_if_ended(index);
        }
        for index in again.into_iter().rev() {
            self.queue.push_front(index);
        }
        self.repeat_chains();
    }
}
