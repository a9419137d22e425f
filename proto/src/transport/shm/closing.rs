//! Closing descriptors that peers have sent. That may take as long as somebody else likes: a socket may linger, or a program may serve the
//! file. Freeing memory that nobody else uses takes long too, page by page.

use std::collections::VecDeque;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use rustix::net::{Shutdown, sockopt};
use smallvec::smallvec;
use socket2::Socket;

use super::super::util::lock;
use super::map::Mapping;
use super::sock::{self, Files, Next};
use crate::budget::{Budget, Charge, Owner};

/// Messages that are forgotten before a socket closes. An honest peer leaves few.
const FORGOTTEN_MAX: u32 = 64;

/// What a peer has left.
#[derive(Debug)]
#[allow(dead_code, reason = "it is there to be dropped")]
pub(super) enum Left {
    Files(Files),
    Memory(Mapping),
    /// Of several files. Who still uses one keeps it.
    Mappings(Vec<Arc<Mapping>>),
}

/// Threads that close what peers have left: nobody else waits for that. A budget bounds them, and what one owner has of them; what they
/// have no time for waits, open.
#[derive(Debug)]
pub struct Closers {
    threads: Arc<Budget>,
    /// In the order in which they came; taken from when a thread of their owner ends with something.
    waiting: Mutex<VecDeque<(Owner, Left)>>,
}

impl Closers {
    /// As many threads as the budget allows, none of which runs without need.
    pub fn new(threads: Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { threads, waiting: Mutex::default() })
    }

    /// Threads that close something now.
    pub fn threads(&self) -> &Budget {
        &self.threads
    }

    /// How many times something waits for a thread.
    pub fn waiting(&self) -> usize {
        lock(&self.waiting).len()
    }

    /// Closes what this owner has left. Not blocking.
    #[cold]
    pub(super) fn close(self: &Arc<Self>, owner: &Owner, left: Left) {
        let mut waiting = lock(&self.waiting);
        waiting.push_back((owner.clone(), left));
        let Some(thread) = self.threads.take(owner, 1) else { return };
        drop(waiting);
        let closers = Arc::clone(self);
        let spawned =
            std::thread::Builder::new().name("dafs-shm-close".into()).spawn(move || closers.run(thread));
        if let Err(error) = spawned {
            tracing::warn!(%error, %owner, "a peer's descriptors stay open: no thread to close them");
        }
    }

    fn run(&self, mut thread: Charge) {
        while let Some((next, left)) = self.next(thread) {
            drop(left);
            thread = next;
        }
    }

    /// What a thread that is done closes next.
    fn next(&self, thread: Charge) -> Option<(Charge, Left)> {
        let mut waiting = lock(&self.waiting);
        drop(thread);
        let at = waiting.iter().position(|(owner, _)| self.threads.has_room(owner, 1))?;
        let (owner, left) = waiting.remove(at)?;
        Some((self.threads.count(&owner, 1), left))
    }
}

/// A unix socket to which peers may have sent descriptors that nobody has taken: they close with the socket. Dropping it waits for none.
#[derive(Debug)]
pub(super) struct PeerSocket {
    /// There until it is dropped.
    socket: Option<Socket>,
    peer: Owner,
    closers: Arc<Closers>,
}

impl PeerSocket {
    /// A socket that is connected, or listens. Its peer's user is charged with what has to be closed elsewhere.
    pub(super) fn new(socket: Socket, closers: &Arc<Closers>) -> Self {
        let peer =
            sock::peer_credentials(socket.as_fd()).map_or(Owner::Unknown, |peer| Owner::User(peer.uid));
        Self { socket: Some(socket), peer, closers: Arc::clone(closers) }
    }

    /// Whom its peer is charged to.
    pub(super) fn peer(&self) -> &Owner {
        &self.peer
    }
}

impl Deref for PeerSocket {
    type Target = Socket;

    fn deref(&self) -> &Socket {
        self.socket.as_ref().expect("it is there")
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else { return };
        // From here on the peer adds nothing to what there is.
        let _ = rustix::net::shutdown(&socket, Shutdown::Read);
        if !closes_at_once(socket.as_fd()) {
            self.closers.close(&self.peer, Left::Files(smallvec![socket.into()]));
        }
    }
}

/// No descriptor is left in a socket that receives nothing more. Forgets messages before it can tell.
fn closes_at_once(socket: BorrowedFd<'_>) -> bool {
    for _ in 0..FORGOTTEN_MAX {
        match sock::look(socket) {
            Ok(Next::Message) => drop(sock::receive(socket, &mut [])),
            // A message of no bytes looks like the end. With credentials, which it has no room for, it does not.
            Ok(Next::Nothing) => {
                let credentials = sockopt::set_socket_passcred(socket, true);
                return credentials.is_ok() && matches!(sock::look(socket), Ok(Next::Nothing));
            }
            Ok(Next::Descriptors) | Err(_) => return false,
        }
    }
    false
}
