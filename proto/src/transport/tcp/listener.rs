//! Accepts connections and takes their hellos, without ever waiting for one.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;
use smallvec::smallvec;
use socket2::{Socket, Type};

use super::super::util::{Home, Waiting, gives_way};
use super::super::{
    Address, ConnectParams, Endpoint, EventFds, Listener, PeerFault, TransportError, WaitPolicy,
};
use super::domain::configure;
use super::domain_parts::TcpDomainParts;
use super::endpoint::TcpEndpoint;
use super::frame::{HEADER_SIZE, Hello};

/// Connections that wait to be accepted by the kernel's count.
const BACKLOG: i32 = 1024;

/// Connections taken from the kernel between two looks at the handshakes.
const ACCEPTS_AT_ONCE: usize = 64;

/// An accept ends when it has looked at so many connections and handshakes, whatever became of them.
const STEPS_MAX: usize = 64;

const LISTENING: Token = Token(usize::MAX - 1);

/// A listening socket and the handshakes that came in through it, behind one descriptor.
pub struct TcpListener {
    pub(super) socket: std::net::TcpListener,
    // Who shuts a socket down does so for the processes that share it.
    home: Home,
    address: Address,
    // Watches `socket` and the sockets in `handshakes`, edge-triggered.
    poll: Poll,
    events: Events,
    handshakes: Slab<Handshake>,
    ready: VecDeque<TcpEndpoint>,
    // The kernel may have more connections for us than were taken.
    backlog_waiting: bool,
    // As `Listener::has_more`.
    has_more: bool,
    // No descriptors were left at the last accept: `expire_handshakes` tries again, since no event will come for those that wait.
    out_of_descriptors: bool,
    shared: Arc<TcpDomainParts>,
    hello: Hello,
    policy: WaitPolicy,
}

/// A connection whose hello has not all arrived.
struct Handshake {
    stream: TcpStream,
    peer: SocketAddr,
    bytes: [u8; HEADER_SIZE],
    received: usize,
    began: Instant,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Peer(#[from] PeerFault),
    #[error("the peer closed")]
    Closed,
    #[error(transparent)]
    System(#[from] io::Error),
}

impl TcpListener {
    pub(super) fn bind(
        at: SocketAddr,
        shared: Arc<TcpDomainParts>,
        params: &ConnectParams,
    ) -> io::Result<Self> {
        let socket = Socket::new(socket2::Domain::for_address(at), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&at.into())?;
        socket.listen(BACKLOG)?;
        let socket: std::net::TcpListener = socket.into();
        let poll = Poll::new()?;
        poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), LISTENING, Interest::READABLE)?;
        Ok(Self {
            address: Address::Tcp(socket.local_addr()?),
            home: Home::here(),
            socket,
            poll,
            events: Events::with_capacity(ACCEPTS_AT_ONCE),
            handshakes: Slab::new(),
            ready: VecDeque::new(),
            backlog_waiting: false,
            has_more: false,
            out_of_descriptors: false,
            shared,
            hello: Hello::new(params),
            policy: params.wait,
        })
    }

    /// As [`Listener::accept`], with the provider's own type.
    pub fn accept_tcp(&mut self) -> Result<Option<TcpEndpoint>, TransportError> {
        self.has_more = false;
        let mut steps = 0;
        while self.ready.is_empty() && steps < STEPS_MAX {
            let failed = |error| TransportError::system("watch the listener", error);
            match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(failed(error)),
                _ => {}
            }
            let tokens: smallvec::SmallVec<[Token; ACCEPTS_AT_ONCE]> =
                self.events.iter().map(|event| event.token()).collect();
            if tokens.is_empty() && !self.backlog_waiting {
                return Ok(None);
            }
            steps += tokens.len();
            for token in tokens {
                match token {
                    LISTENING => self.backlog_waiting = true,
                    Token(index) => self.advance(index),
                }
            }
            if self.backlog_waiting {
                steps += self.accept_some(false);
            }
        }
        self.has_more = true;
        Ok(self.ready.pop_front())
    }

    /// Handshakes in progress.
    pub fn handshakes_count(&self) -> usize {
        self.handshakes.len()
    }

    /// Takes connections; returns how many, those among them that had died.
    fn accept_some(&mut self, by_event: bool) -> usize {
        // Until the kernel says otherwise.
        self.backlog_waiting = true;
        for taken in 0..ACCEPTS_AT_ONCE {
            match self.socket.accept() {
                Ok((stream, peer)) => self.begin(stream, peer, by_event),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.backlog_waiting = false;
                        return taken;
                    }
                    _ if is_exhaustion(&error) => {
                        if !self.out_of_descriptors {
                            tracing::warn!(%error, "cannot accept connections now; trying again every second");
                        }
                        self.out_of_descriptors = true;
                        self.backlog_waiting = false;
                        return taken;
                    }
                    // A connection that died in the queue, or a network error of it: accept(2) says to go on.
                    _ => tracing::debug!(%error, "accept"),
                },
            }
        }
        ACCEPTS_AT_ONCE
    }

    /// Takes a new connection. `by_event`: the caller of `accept` is to learn of it by an event, even when its hello is here.
    fn begin(&mut self, stream: TcpStream, peer: SocketAddr, by_event: bool) {
        self.out_of_descriptors = false;
        let prepared = stream.set_nonblocking(true).and_then(|()| {
            let socket = socket2::SockRef::from(&stream);
            configure(&socket, peer, &self.shared.settings)
        });
        if let Err(error) = prepared {
            tracing::debug!(%peer, %error, "connection dropped before its handshake");
            return;
        }
        let mut handshake =
            Handshake { stream, peer, bytes: [0; HEADER_SIZE], received: 0, began: Instant::now() };
        if by_event {
            self.watch(handshake);
            return;
        }
        // Mostly the hello is here already.
        match handshake.receive().transpose() {
            None => self.watch(handshake),
            Some(outcome) => self.finish(handshake, outcome),
        }
    }

    /// Something arrived for a handshake.
    fn advance(&mut self, index: usize) {
        // It may be gone, expired after the event.
        let Some(handshake) = self.handshakes.get_mut(index) else { return };
        if let Some(outcome) = handshake.receive().transpose() {
            let handshake = self.unwatch(index);
            self.finish(handshake, outcome);
        }
    }

    fn finish(&mut self, mut handshake: Handshake, outcome: Result<Hello, Failure>) {
        let outcome = outcome.and_then(|theirs| {
            handshake.answer(&self.hello)?;
            // From here on each call says for itself whether it waits.
            handshake.stream.set_nonblocking(false)?;
            Ok(theirs)
        });
        match outcome {
            Ok(theirs) => {
                let (Handshake { stream, peer, .. }, shared) = (handshake, Arc::clone(&self.shared));
                self.ready.push_back(TcpEndpoint::new(stream, shared, peer, self.hello, theirs, self.policy));
            }
            Err(failure) => {
                // Whoever speaks another version of this transport learns ours.
                if matches!(failure, Failure::Peer(_)) {
                    let _ = handshake.answer(&self.hello);
                }
                tracing::debug!(peer = %handshake.peer, %failure, "handshake failed");
            }
        }
    }

    fn watch(&mut self, handshake: Handshake) {
        if self.handshakes.len() >= self.shared.settings.handshakes_max.max(1) && !self.make_room(&handshake)
        {
            tracing::debug!(peer = %handshake.peer, "handshake dropped: too many at once");
            return;
        }
        let entry = self.handshakes.vacant_entry();
        let fd = handshake.stream.as_raw_fd();
        match self.poll.registry().register(&mut SourceFd(&fd), Token(entry.key()), Interest::READABLE) {
            Ok(()) => {
                entry.insert(handshake);
            }
            Err(error) => tracing::debug!(peer = %handshake.peer, %error, "cannot watch a handshake"),
        }
    }

    /// Drops the handshake that goes for a new one, if one does.
    fn make_room(&mut self, newcomer: &Handshake) -> bool {
        let all = self.handshakes.iter().map(|(place, handshake)| Waiting {
            place,
            whose: handshake.peer.ip(),
            age: handshake.began.elapsed(),
        });
        let age_min = self.shared.settings.handshake_age_min;
        let Some(place) = gives_way(all, Some(newcomer.peer.ip()), age_min) else { return false };
        let gone = self.unwatch(place);
        tracing::debug!(peer = %gone.peer, "handshake dropped for a newer one");
        true
    }

    fn unwatch(&mut self, index: usize) -> Handshake {
        let handshake = self.handshakes.remove(index);
        if let Err(error) = self.poll.registry().deregister(&mut SourceFd(&handshake.stream.as_raw_fd())) {
            tracing::debug!(%error, "deregister a handshake");
        }
        handshake
    }
}

impl Handshake {
    /// The peer's hello, once all of it is here.
    fn receive(&mut self) -> Result<Option<Hello>, Failure> {
        while self.received < HEADER_SIZE {
            match self.stream.read(&mut self.bytes[self.received..]) {
                Ok(0) => return Err(Failure::Closed),
                Ok(count) => self.received += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(Hello::decode(&self.bytes)?))
    }

    /// The first bytes this way: they fit the socket's buffer or the peer is of no use.
    fn answer(&mut self, hello: &Hello) -> io::Result<()> {
        self.stream.write_all(&hello.encode())
    }
}

impl Drop for TcpListener {
    /// Its place is free at once, also where a child of this process has the descriptor for a while. In a child it stays the parent's.
    fn drop(&mut self) {
        if !self.home.is_here() {
            return;
        }
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Listener for TcpListener {
    fn address(&self) -> &Address {
        &self.address
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError> {
        Ok(self.accept_tcp()?.map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>))
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn expire_handshakes(&mut self) {
        let limit = self.shared.settings.handshake_timeout;
        let late: Vec<usize> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| handshake.began.elapsed() >= limit)
            .map(|(index, _)| index)
            .collect();
        for index in late {
            let handshake = self.unwatch(index);
            tracing::debug!(peer = %handshake.peer, failure = %PeerFault::handshake_timeout(limit), "handshake failed");
        }
        self.descriptors_freed();
    }

    fn descriptors_freed(&mut self) {
        if self.out_of_descriptors {
            self.accept_some(true);
        }
    }

    fn event_fds(&self) -> EventFds {
        smallvec![self.poll.as_raw_fd()]
    }
}

/// The process or system is out of descriptors or memory, which is no fault of the connection.
fn is_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}
