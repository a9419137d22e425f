//! After the connection broke: connect again, take the session up, and send again what was not answered; or, when the
//! server forgot the session, build it anew.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use dafs_proto::session::{ClientSession, HandshakeError};
use dafs_proto::transport::ConnectError;
use dafs_proto::wire::{
    Attributes, FileHandle, FileIdentity, Header, LockFlags, MountReply, NameRequest, Opcode, OpenRequest,
    Resume, Status, decode_message_pack,
};

use crate::connect::{Answer, Caller, Established, establish};
use crate::driver::driven::Driven;
use crate::driver::give_up::GIVE_UP_AFTER;
use crate::driver::{Guard, Shared};
use crate::engine::recovery::Renewed;
use crate::error::{Error, StaleCause};
use crate::handle::node::{Node, Reopen};
use crate::handle::view::set_requests;

/// Connects again, without the lock; others wait meanwhile or queue their work. When the attempts are used up the session ends. Blocks.
pub(crate) fn reconnect<'a>(shared: &'a Shared, mut core: Guard<'a>) -> Guard<'a> {
    if !core.is_broken() {
        return core;
    }
    let resume = begin(&mut core);
    drop(core);
    finish(shared, resume)
}

/// From now on a thread connects again, which then calls [`finish`] with what this returns.
pub(crate) fn begin(core: &mut Driven) -> Resume {
    core.leader = true;
    core.reconnect_wanted = false;
    let welcome = &core.terms.welcome;
    Resume { session: welcome.session, secret: welcome.secret }
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
                 reach the memory of a request, or fail on one; look at its log"
            );
            tracing::error!(server = %shared.server.name, "cannot continue the session: {cause}");
            core.die(Error::Connection { server: shared.server.name.clone(), cause });
        }
        Ok(fresh) => {
            core.install(fresh, shared);
            shared.push(&mut core, false);
        }
        Err(error) => {
            if !shared.stopping.load(Ordering::Acquire) {
                tracing::error!(server = %shared.server.name, "cannot continue the session: {error}");
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
    let client_id = shared.config.client_id.unwrap_or_default();
    let (config, clock) = (&shared.config, &*shared.clock);
    let mut established =
        establish(&*shared.domain, &shared.server, (config, timeout), client_id, Some(resume), clock)?;
    let welcome = &established.terms.welcome;
    let mut session = ClientSession::new(welcome);
    let mut nodes = Vec::new();
    if !welcome.resumed {
        tracing::warn!(server = %shared.server.name, "the server forgot the session; opening its files again");
        let (endpoint, session) = (&mut *established.endpoint, Some(&mut session));
        let (server, deadline) = (&*shared.server.name, clock.now());
        let caller = Caller { endpoint, session, server, clock, deadline };
        let part_max = established.terms.send_payload_max as usize;
        let mut rebuild = Rebuild { shared, caller, reclaims_left: 0 };
        nodes = rebuild.reopen_all()?;
        rebuild.describe_views(part_max)?;
    }
    Ok(Fresh { established, session, nodes })
}

/// The root of an export in the new session, and what it is.
type Root = Result<(FileHandle, FileIdentity), StaleCause>;

/// A new session, on which everything is opened again.
struct Rebuild<'a> {
    shared: &'a Shared,
    caller: Caller<'a>,
    /// Locks of the nodes behind this one, which are still to be taken again.
    reclaims_left: usize,
}

impl Rebuild<'_> {
    /// Opens everything that the lost session had open.
    fn reopen_all(&mut self) -> Result<Vec<Renewed>, Error> {
        let open: Vec<Arc<Node>> = {
            let mut core = self.shared.core.lock().unwrap_or_else(PoisonError::into_inner);
            // From here on handles of the lost session are refused: none can slip in between this look and the new session.
            core.epoch += 1;
            let nodes = core.nodes.iter().filter_map(|(_, node)| node.upgrade());
            nodes.filter(|node| !node.is_stale()).collect()
        };
        self.reclaims_left = open.iter().map(|node| node.locks().reclaims().len()).sum();
        let mut roots: Vec<(String, Root)> = Vec::new();
        let mut renewed = Vec::with_capacity(open.len());
        for node in open {
            self.reclaims_left -= node.locks().reclaims().len().min(self.reclaims_left);
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
                    self.check(again, &node)?
                }
                (Ok((root, _)), Reopen::Lookup { follow }) => {
                    self.reopen(Opcode::Lookup, root, &NameRequest { follow, mode: 0 }.bytes(), &node)?
                }
                (Ok((root, _)), Reopen::Open { flags }) => {
                    self.reopen(Opcode::Open, root, &OpenRequest { flags, mode: 0 }.bytes(), &node)?
                }
            };
            if let Err(cause) = handle {
                let path = String::from_utf8_lossy(&node.path);
                tracing::warn!(export = node.export, ?path, "cannot open a file again: {cause}");
            }
            renewed.push((node, handle));
        }
        Ok(renewed)
    }

    /// Describes all views again, under their old numbers. A transfer that uses one which is refused fails.
    fn describe_views(&mut self, part_max: usize) -> Result<(), Error> {
        let views = {
            let core = self.shared.core.lock().unwrap_or_else(PoisonError::into_inner);
            core.views.living()
        };
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
        node: &Node,
    ) -> Result<Result<FileHandle, StaleCause>, Error> {
        let answer = self.call(opcode, root, body, &node.present_path())?;
        if answer.header.status != Status::OK {
            return Ok(Err(StaleCause::Path(answer.header.status)));
        }
        let attributes = decode_message_pack::<Attributes>("attributes", &answer.payload)?;
        self.check(Ok((answer.header.handle, attributes.identity())), node)
    }

    /// The handle, if it is of the very file that the node is of; else that is given back.
    fn check(&mut self, opened: Root, node: &Node) -> Result<Result<FileHandle, StaleCause>, Error> {
        let (handle, identity) = match opened {
            Ok(opened) => opened,
            Err(cause) => return Ok(Err(cause)),
        };
        if identity.is_same(&node.identity) {
            return match self.lock_again(handle, node)? {
                Status::OK => Ok(Ok(handle)),
                status => {
                    self.call(Opcode::Close, handle, &[], &[])?;
                    Ok(Err(StaleCause::Locks(status)))
                }
            };
        }
        self.call(Opcode::Close, handle, &[], &[])?;
        let is_known = identity.generation != 0 && node.identity.generation != 0;
        let other = !is_known && identity.file_id == node.identity.file_id;
        Ok(Err(if other { StaleCause::Unnamed } else { StaleCause::Replaced }))
    }

    /// Takes the locks of a node again. Without one of them what its program does next would be wrong.
    fn lock_again(&mut self, handle: FileHandle, node: &Node) -> Result<Status, Error> {
        let reclaims = node.locks().reclaims();
        let count = reclaims.len();
        for (number, mut request) in reclaims.into_iter().enumerate() {
            request.flags.set(LockFlags::LAST, self.reclaims_left == 0 && number + 1 == count);
            let status = self.call(Opcode::Lock, handle, &request.bytes(), &[])?.header.status;
            if status != Status::OK {
                return Ok(status);
            }
        }
        Ok(Status::OK)
    }

    fn call(
        &mut self,
        opcode: Opcode,
        handle: FileHandle,
        body: &[u8],
        payload: &[u8],
    ) -> Result<Answer, Error> {
        self.caller.deadline = self.shared.clock.now().after(self.shared.config.connect_timeout);
        self.caller.call(Header::request(opcode, handle), body, payload)
    }
}

impl Driven {
    /// The connection that broke was one too many of those that brought no reply to what was sent.
    fn gives_up(&mut self) -> bool {
        self.give_up.on_broken(self.session.replies(), self.session.outstanding() > 0)
    }

    /// Takes a new connection into use.
    fn install(&mut self, fresh: Fresh, shared: &Shared) {
        let Fresh { established, session, nodes } = fresh;
        self.reconnects += 1;
        self.endpoint = Some(established.endpoint);
        self.core.reconnected(established.terms, session, nodes, shared.clock.now());
        self.give_up.on_connected(self.core.session.replies());
        let config = &shared.config;
        shared.registrar.set_useful_min(self.useful_sizes_min(config));
        shared.has_locks.store(self.terms.has_locks(), Ordering::Relaxed);
        self.ask_for_eager_buffers(config);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // [CLI-102]
    #[test]
    fn refusal_that_trying_again_cannot_help_is_final_and_no_other() {
        let refused = |status| is_final(&Error::Handshake(HandshakeError::Refused(status)));
        for status in [Status::DRAINING, Status::SERVER_FULL, Status::NO_SESSION, Status::AGAIN] {
            assert!(!refused(status), "{status}");
        }
        for status in [Status::AUTH_FAILED, Status::AUTH_REQUIRED, Status::FENCED, Status::from_value(0x7777)]
        {
            assert!(refused(status), "{status}");
        }
        assert!(is_final(&Error::Handshake(HandshakeError::KeyRequired)));
        let lost = Error::Connection { server: String::new(), cause: String::new() };
        assert!(!is_final(&lost), "it was lost in the handshake");
    }
}
