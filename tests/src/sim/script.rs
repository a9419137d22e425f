//! What a test makes of single requests between the provider and the real server: an endpoint around the server's own.
//!
//! In it requests get lost, connections break at a moment that no chance would find, and replies are lies. All else is honest, for the real
//! server says it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::{
    Access, Capabilities, Completion, Endpoint, EventFds, Interrupt, LocalSegments, MemoryRef, OpToken,
    PostError, Posted, Received, RegionError, RemoteRange, SendSlot, Span, TransportError,
};
use dafs_proto::wire::{
    AuthenticateReply, Flags, Header, Hello, Opcode, Resume, Status, Welcome, decode_message_pack,
    encode_message_pack,
};

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The server gets it.
    Serve,
    /// Nobody gets it, and nobody is told.
    Ignore,
    /// The connection ends, and the server does not get it.
    CutBefore,
    /// The server executes it; the connection ends in place of its reply.
    CutAfter,
    /// The server executes it; its reply gets lost, and nobody is told.
    Mute,
    /// The server's process dies and comes back at once, and does not get it.
    CrashBefore,
    /// The server executes it; then its process dies and comes back at once, in place of the reply.
    CrashAfter,
    /// The server executes it; this head and payload go out in place of its reply.
    Say(Vec<u8>, Vec<u8>),
}

/// A session that a server is about to give.
pub struct Greeting<'a> {
    /// At which port of the network.
    pub port: u32,
    /// What the client asked to resume.
    pub resume: Option<&'a Resume>,
    /// What it will be told.
    pub welcome: &'a mut Welcome,
}

type Hook = Box<dyn FnMut(&Header) -> Action + Send>;
type Greet = Box<dyn FnMut(Greeting<'_>) -> Status + Send>;

/// What happens to the requests of a world's clients. Clones are the same.
#[derive(Clone, Default)]
pub struct Script {
    inside: Arc<Mutex<Inside>>,
}

#[derive(Default)]
struct Inside {
    hook: Option<Hook>,
    greet: Option<Greet>,
    log: Vec<(Opcode, Flags)>,
    crashes: bool,
}

impl Script {
    /// From now on `hook` decides about each request. It must not call the world.
    pub fn hook(&self, hook: impl FnMut(&Header) -> Action + Send + 'static) {
        self.lock().hook = Some(Box::new(hook));
    }

    /// Requests so far, whatever became of them; those of the handshake do not count.
    pub fn log(&self) -> Vec<(Opcode, Flags)> {
        self.lock().log.clone()
    }

    /// From now on `greet` decides which sessions are given, and what their clients are told. It must not call the world.
    pub fn greet(&self, greet: impl FnMut(Greeting<'_>) -> Status + Send + 'static) {
        self.lock().greet = Some(Box::new(greet));
    }

    pub(super) fn wrap(&self, endpoint: Box<dyn Endpoint>, port: u32) -> Box<dyn Endpoint> {
        let (script, awaited) = (self.clone(), Vec::new());
        Box::new(ScriptedEndpoint { endpoint, port, script, awaited, resume: None, is_over: false })
    }

    /// The answer to `Authenticate`, as the script has it; `None` where that leaves it alone.
    fn greeting(&self, port: u32, resume: Option<&Resume>, payload: &[u8]) -> Option<(Status, Vec<u8>)> {
        let mut inside = self.lock();
        let greet = inside.greet.as_mut()?;
        let mut reply: AuthenticateReply = decode_message_pack("an answer", payload).ok()?;
        let status = greet(Greeting { port, resume, welcome: &mut reply.welcome });
        Some((status, if status == Status::OK { encode_message_pack(&reply) } else { Vec::new() }))
    }

    /// The server dies before it says any more.
    fn crash(&self) {
        self.lock().crashes = true;
    }

    /// Whether the server is to die now.
    pub(super) fn take_crash(&self) -> bool {
        std::mem::take(&mut self.lock().crashes)
    }

    fn on_request(&self, header: &Header) -> Action {
        let mut inside = self.lock();
        inside.log.push((header.opcode, header.flags));
        let action = inside.hook.as_mut().map_or(Action::Serve, |hook| hook(header));
        inside.crashes |= action == Action::CrashBefore;
        action
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's side of a connection.
struct ScriptedEndpoint {
    endpoint: Box<dyn Endpoint>,
    port: u32,
    /// What its client has asked to resume.
    resume: Option<Resume>,
    script: Script,
    /// Requests whose replies do not go out as they are.
    awaited: Vec<(Header, Action)>,
    is_over: bool,
}

impl ScriptedEndpoint {
    /// Answers `Authenticate` as the script has it, or not at all.
    fn greet(&mut self, head: &[u8], payload: &[u8]) -> Option<Result<(), PostError>> {
        let mut reply = Header::decode(head, u32::try_from(payload.len()).ok()?).ok()?.0;
        if reply.opcode != Opcode::Authenticate || reply.status != Status::OK {
            return None;
        }
        let (status, payload) = self.script.greeting(self.port, self.resume.as_ref(), payload)?;
        let mut head = head.to_vec();
        (reply.status, reply.payload_len) = (status, u32::try_from(payload.len()).ok()?);
        reply.encode(&mut head);
        Some(self.endpoint.send_copy(&head, &payload))
    }

    /// What is to be done with a reply.
    fn awaited(&mut self, head: &[u8], payload_len: usize) -> Option<usize> {
        let (reply, _) = Header::decode(head, u32::try_from(payload_len).ok()?).ok()?;
        let is_its_own = |request: &Header| (request.slot, request.sequence) == (reply.slot, reply.sequence);
        self.awaited.iter().position(|(request, _)| reply.flags.contains(Flags::REPLY) && is_its_own(request))
    }
}

impl Endpoint for ScriptedEndpoint {
    fn recv(&mut self) -> Result<Option<Received>, TransportError> {
        while !self.is_over {
            let received = self.endpoint.recv()?;
            let Some(Received::Message { head, payload_len }) = &received else { return Ok(received) };
            let (request, _) =
                Header::decode(head.as_bytes(), *payload_len).expect("the client keeps the protocol");
            if matches!(request.opcode, Opcode::Hello | Opcode::Authenticate) {
                let hello = self.endpoint.payload().to_vec();
                if let (Opcode::Hello, Ok(hello)) =
                    (request.opcode, decode_message_pack::<Hello>("it", &hello))
                {
                    self.resume = hello.resume;
                }
                return Ok(received);
            }
            match self.script.on_request(&request) {
                Action::Serve => return Ok(received),
                Action::Ignore => {}
                Action::CutBefore | Action::CrashBefore => self.is_over = true,
                later @ (Action::CutAfter | Action::CrashAfter | Action::Mute | Action::Say(..)) => {
                    self.awaited.push((request, later));
                    return Ok(received);
                }
            }
        }
        Err(TransportError::Closed)
    }

    fn send(&mut self, slot: SendSlot, head: &[u8], payload_len: usize) -> Result<(), PostError> {
        let payload = self.endpoint.slot_payload(&slot).slice(0, payload_len).unwrap_or(Span::EMPTY).to_vec();
        if let Some(sent) = self.greet(head, &payload) {
            self.endpoint.cancel_send(slot);
            return sent;
        }
        let awaited = self.awaited(head, payload_len);
        if awaited.is_none() && !self.is_over {
            return self.endpoint.send(slot, head, payload_len);
        }
        self.endpoint.cancel_send(slot);
        let Some(at) = awaited else { return Ok(()) };
        match &self.awaited[at].1 {
            Action::Say(head, payload) => self.endpoint.send_copy(head, payload)?,
            Action::CutAfter => self.is_over = true,
            Action::CrashAfter => {
                self.is_over = true;
                self.script.crash();
            }
            _ => {}
        }
        self.awaited.swap_remove(at);
        Ok(())
    }

    fn capabilities(&self) -> &Capabilities {
        self.endpoint.capabilities()
    }

    fn reserve(&mut self, payload_len_max: usize) -> Result<SendSlot, PostError> {
        self.endpoint.reserve(payload_len_max)
    }

    fn slot_payload(&self, slot: &SendSlot) -> Span<'_> {
        self.endpoint.slot_payload(slot)
    }

    fn cancel_send(&mut self, slot: SendSlot) {
        self.endpoint.cancel_send(slot);
    }

    fn payload(&self) -> Span<'_> {
        self.endpoint.payload()
    }

    fn recv_done(&mut self) {
        self.endpoint.recv_done();
    }

    fn rdma_write(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
        immediate: Option<u32>,
    ) -> Result<Posted, PostError> {
        self.endpoint.rdma_write(token, local, remote, immediate)
    }

    fn rdma_read(
        &mut self,
        token: OpToken,
        local: LocalSegments,
        remote: RemoteRange,
    ) -> Result<Posted, PostError> {
        self.endpoint.rdma_read(token, local, remote)
    }

    fn remote_memory(
        &mut self,
        remote: &RemoteRange,
        access: Access,
    ) -> Result<Option<MemoryRef>, RegionError> {
        self.endpoint.remote_memory(remote, access)
    }

    fn poll_completion(&mut self) -> Option<Completion> {
        self.endpoint.poll_completion()
    }

    fn flush(&mut self) -> Result<(), TransportError> {
        self.endpoint.flush()
    }

    fn wants_flush(&self) -> bool {
        self.endpoint.wants_flush()
    }

    fn arm(&mut self) -> bool {
        !self.is_over && self.endpoint.arm()
    }

    fn wait_or(
        &mut self,
        timeout: Option<Duration>,
        interrupt: Option<&Interrupt>,
    ) -> Result<(), TransportError> {
        self.endpoint.wait_or(timeout, interrupt)
    }

    fn spin_pays(&self) -> bool {
        self.endpoint.spin_pays()
    }

    fn event_fds(&self) -> EventFds {
        self.endpoint.event_fds()
    }

    fn close(&mut self) {
        self.endpoint.close();
    }
}
