//! Listening on a unix socket, and the server's side of handshakes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use slab::Slab;
use socket2::Socket;

use super::super::util::{Waiting, gives_way, time_until_one_gives_way};
use super::super::{
    Address, ConnectError, ConnectParams, Endpoint, EventFds, Listener, PeerCredentials, PeerFault,
    TransportError,
};
use super::closing::{Left, PeerSocket};
use super::cma::Process;
use super::connection::Connection;
use super::domain::{Parts, ShmDomain, is_shortage, socket_path};
use super::endpoint::ShmEndpoint;
use super::handshake::{MESSAGE_SIZE, Message, Nonce, NonceClaim, malformed, receives, sent};
use super::layout::{Layout, RingTerms, Side};
use super::map::{Mapping, check_file_size, check_memory_files, create_memory_file};
use super::sock::{self, Epoll, Incoming, Next};
use crate::budget::Owner;

/// Handshakes in progress at once; more wait in the backlog.
const HANDSHAKES_MAX: usize = 256;
/// A handshake lasts no longer than this.
const HANDSHAKE_TIME_MAX: Duration = Duration::from_secs(5);
/// A handshake that has said nothing for this long makes room for others when there is none: one of the user who has most. A client's
/// next message takes it microseconds; this is for one that has to wait for a processor.
const SILENCE_MAX: Duration = Duration::from_millis(250);
/// Between two searches for a handshake that makes room, at least.
const ROOM_PAUSE_MIN: Duration = Duration::from_millis(5);
/// Connections taken in one go, so that the handshakes that are in progress are looked at between them.
const ACCEPTS_AT_ONCE: usize = 64;
/// An accept ends when it has looked at so many connections and handshakes, whatever became of them.
const STEPS_MAX: usize = 64;
const BACKLOG: i32 = 4096;
/// How often the lock of a directory is asked for at most, and between two of these.
const DIRECTORY_LOCK_TRIES: u32 = 200;
const DIRECTORY_LOCK_PAUSE: Duration = Duration::from_millis(5);
/// Token of the listening socket; handshakes use their place in the slab.
const LISTENING: u64 = u64::MAX;
/// Token of the timer.
const TIMER: u64 = u64::MAX - 1;

/// A listener of the shm provider. The socket file is removed when it is dropped.
pub struct ShmListener {
    domain: ShmDomain,
    params: ConnectParams,
    address: Address,
    file: SocketFile,
    /// Whoever is not accepted yet may have sent something, which closes with it.
    socket: PeerSocket,
    epoll: Epoll,
    /// Set while connections wait for the place of a handshake that is silent.
    timer: OwnedFd,
    handshakes: Slab<Handshake>,
    accepted: VecDeque<ShmEndpoint>,
    /// A handshake lasts no longer than this.
    pub(super) handshake_time_max: Duration,
    /// The listening socket is not watched: no descriptors left, or too many handshakes.
    paused: bool,
    /// As [`Listener::has_more`].
    has_more: bool,
    /// No descriptors were left at the last accept, or handshake: only time tells when there are some again.
    out_of_descriptors: bool,
}

struct Handshake {
    stage: Stage,
    /// The peer's user.
    user: Owner,
    started: Instant,
    /// When its last message came; until the first, when it began.
    heard: Instant,
}

enum Stage {
    /// Connected; Hello comes next.
    Hello(PeerSocket),
    /// This Hello came when there was no descriptor for its answer.
    Owed(PeerSocket, Message),
    /// Welcomed; Ready comes next. The nonce stays where the client was told to look.
    Ready(Box<Connection>, Nonce),
}

/// What a connection is made of, beside its socket.
struct Made {
    file: OwnedFd,
    segment: Mapping,
    /// The client's end, and the server's.
    pipe: (OwnedFd, OwnedFd),
    eventfd: OwnedFd,
    peer: PeerCredentials,
    process: Option<Process>,
}

impl Handshake {
    fn socket(&self) -> BorrowedFd<'_> {
        match &self.stage {
            Stage::Hello(socket) | Stage::Owed(socket, _) => socket.as_fd(),
            Stage::Ready(connection, _) => connection.socket.as_fd(),
        }
    }
}

/// Where a handshake goes.
enum Room {
    /// A place that nobody has.
    Free,
    /// The place of this one, which says nothing.
    Of(usize),
}

impl ShmListener {
    pub(super) fn bind(
        domain: ShmDomain,
        address: &Address,
        params: &ConnectParams,
    ) -> Result<Self, ConnectError> {
        let path = socket_path(address)?;
        let failed = |source| ConnectError::listening(address, source);
        let most = RingTerms { depth: u16::MAX, payload_max: u32::MAX };
        let largest = Layout::negotiate(sent(params, most), receives(params));
        check_file_size(largest.size()).map_err(failed)?;
        check_memory_files().map_err(failed)?;
        sock::check_silence().map_err(failed)?;
        let socket = PeerSocket::new(listen_replacing_stale(path).map_err(failed)?, domain.closers());
        let file = SocketFile::of(path, domain.socket_mode()).map_err(failed)?;
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(socket.as_fd(), LISTENING).map_err(failed)?;
        let timer = sock::timer().map_err(failed)?;
        epoll.add(timer.as_fd(), TIMER).map_err(failed)?;
        Ok(Self {
            domain,
            params: *params,
            address: address.clone(),
            file,
            socket,
            epoll,
            timer,
            handshakes: Slab::new(),
            accepted: VecDeque::new(),
            handshake_time_max: HANDSHAKE_TIME_MAX,
            paused: false,
            has_more: false,
            out_of_descriptors: false,
        })
    }

    /// [`Listener::accept`], answering the endpoint itself.
    pub fn accept_endpoint(&mut self) -> Result<Option<ShmEndpoint>, TransportError> {
        self.has_more = false;
        let mut steps = 0;
        while self.accepted.is_empty() && steps < STEPS_MAX {
            let ready =
                self.epoll.ready().map_err(|error| TransportError::system("watch handshakes", error))?;
            if ready.is_empty() {
                return Ok(None);
            }
            steps += ready.len();
            for token in ready {
                match (token, usize::try_from(token)) {
                    (TIMER, _) => {
                        sock::set_timer(self.timer.as_fd(), Duration::ZERO);
                        self.resume();
                    }
                    (LISTENING, _) | (_, Err(_)) => steps += self.accept_sockets()?,
                    (_, Ok(index)) => self.step(index),
                }
            }
            if self.paused && !self.out_of_descriptors && self.has_place() {
                self.resume();
            }
        }
        self.has_more = true;
        Ok(self.accepted.pop_front())
    }

    /// Handshakes in progress.
    pub fn handshake_count(&self) -> usize {
        self.handshakes.len()
    }

    /// Takes connections; returns how many.
    fn accept_sockets(&mut self) -> Result<usize, TransportError> {
        for taken in 0..ACCEPTS_AT_ONCE {
            let Some(room) = self.find_room() else {
                self.wait_for_room();
                return Ok(taken);
            };
            match self.socket.accept() {
                Ok((socket, _)) => {
                    if let Room::Of(silent) = room {
                        self.abandon(silent, SILENCE_MAX);
                    }
                    self.out_of_descriptors = false;
                    self.begin(socket);
                    if self.out_of_descriptors {
                        return Ok(taken + 1);
                    }
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => {
                        self.out_of_descriptors = false;
                        return Ok(taken);
                    }
                    Some(libc::EINTR | libc::ECONNABORTED) => {}
                    _ if is_shortage(&error) => {
                        self.run_out(&error);
                        return Ok(taken);
                    }
                    _ => return Err(TransportError::system("accept a connection", error)),
                },
            }
        }
        // More may wait: the socket stays readable.
        Ok(ACCEPTS_AT_ONCE)
    }

    /// Waits for descriptors.
    #[cold]
    fn run_out(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.out_of_descriptors, true) {
            tracing::warn!(%error, address = %self.address, "cannot accept connections now; trying again every second");
        }
        self.pause();
    }

    /// Whoever waits now gets the first place whose handshake stays silent.
    fn wait_for_room(&mut self) {
        self.pause();
        sock::set_timer(self.timer.as_fd(), self.time_until_room());
    }

    fn time_until_room(&self) -> Duration {
        time_until_one_gives_way(self.waiting(), SILENCE_MAX)
            .map_or(SILENCE_MAX, |time| time.max(ROOM_PAUSE_MIN))
    }

    /// Handshakes, as those who may have to make room.
    fn waiting(&self) -> impl Iterator<Item = Waiting<usize, &Owner>> + Clone {
        let all = self.handshakes.iter();
        all.map(|(place, handshake)| Waiting {
            place,
            whose: &handshake.user,
            age: handshake.heard.elapsed(),
        })
    }

    /// One more handshake has a place of its own. What is left of peers and does not close keeps theirs.
    fn has_place(&self) -> bool {
        self.handshakes.len() + self.domain.closers().waiting() < HANDSHAKES_MAX
    }

    /// Where one more handshake would go: `None` while all that are in progress have said something lately.
    fn find_room(&mut self) -> Option<Room> {
        loop {
            if self.has_place() {
                return Some(Room::Free);
            }
            let index = gives_way(self.waiting(), None, SILENCE_MAX)?;
            let heard = self.handshakes.get(index)?.heard;
            // What it says may be here and not be looked at yet.
            self.step(index);
            if self.handshakes.get(index).is_some_and(|handshake| handshake.heard == heard) {
                return Some(Room::Of(index));
            }
        }
    }

    fn begin(&mut self, socket: Socket) {
        let socket = PeerSocket::new(socket, self.domain.closers());
        let now = Instant::now();
        let user = socket.peer().clone();
        let begun = self.watch(Handshake { stage: Stage::Hello(socket), user, started: now, heard: now });
        // Its first message is usually here already.
        if let Some(index) = begun {
            self.step(index);
        }
    }

    /// Waits for the next message of a handshake. Every call on its socket says that it must not block.
    fn watch(&mut self, handshake: Handshake) -> Option<usize> {
        let entry = self.handshakes.vacant_entry();
        let index = entry.key();
        match self.epoll.add(handshake.socket(), u64::try_from(index).unwrap_or(LISTENING)) {
            Ok(()) => {
                entry.insert(handshake);
                Some(index)
            }
            Err(error) => {
                tracing::warn!(%error, "shm: a connection was dropped");
                None
            }
        }
    }

    /// Nobody watches it any more: its socket may stay open for long.
    fn unwatch(&mut self, index: usize) -> Option<Handshake> {
        let handshake = self.handshakes.try_remove(index)?;
        self.epoll.remove(handshake.socket());
        Some(handshake)
    }

    fn step(&mut self, index: usize) {
        let Some(handshake) = self.handshakes.get(index) else { return };
        let socket = handshake.socket();
        let mut bytes = [0; MESSAGE_SIZE];
        let outcome = match sock::look(socket).and_then(|next| match next {
            // Not taken: who has sent them is charged with them by the kernel.
            Next::Descriptors => Ok(None),
            Next::Nothing | Next::Message => sock::receive(socket, &mut bytes).map(Some),
        }) {
            Ok(Some(Incoming::Nothing)) => return,
            // The look told of the peer's end instead, which hides what stands before it.
            Ok(Some(Incoming::Message { fds, .. })) if !fds.is_empty() => {
                self.domain.closers().close(&handshake.user, Left::Files(fds));
                Err(malformed("descriptors of a socket message", 1, 0).into())
            }
            Ok(Some(Incoming::Message { len, cut: false, .. })) => {
                Message::decode(&bytes, len).map_err(TransportError::from)
            }
            Ok(None | Some(Incoming::Message { .. })) => {
                Err(malformed("size or descriptors of a socket message", 0, MESSAGE_SIZE as u64).into())
            }
            Ok(Some(Incoming::End)) => Err(TransportError::Closed),
            Err(error) => Err(TransportError::system("receive", error)),
        };
        let Some(handshake) = self.unwatch(index) else { return };
        let outcome = outcome.and_then(|message| match (handshake.stage, message) {
            (Stage::Hello(socket), Message::Hello { .. }) => {
                let stage = self.answer(socket, message)?;
                let (user, started) = (handshake.user, handshake.started);
                self.watch(Handshake { stage, user, started, heard: Instant::now() });
                Ok(())
            }
            (Stage::Ready(connection, _nonce), Message::Ready { cma }) => {
                connection.set_peer_reaches_us(cma);
                self.accepted.push_back(self.domain.endpoint(*connection, &self.params));
                Ok(())
            }
            _ => Err(malformed("kind of a socket message", bytes[0].into(), 3).into()),
        });
        if let Err(error) = outcome {
            self.on_failed(&error);
        }
    }

    /// Answers a Hello, or leaves that for when there are descriptors.
    fn answer(&mut self, socket: PeerSocket, message: Message) -> Result<Stage, TransportError> {
        let Message::Hello { receives: client_receives, nonce: claim } = message else {
            return Err(malformed("kind of a socket message", 0, 1).into());
        };
        let layout = Layout::negotiate(sent(&self.params, client_receives), receives(&self.params));
        let failed = |error| TransportError::system("make the segment of a connection", error);
        match self.make_segment(&layout, &socket) {
            Ok(made) => self.welcome(socket, layout, made, claim).map_err(failed),
            Err(error) if is_shortage(&error) => {
                self.run_out(&error);
                Ok(Stage::Owed(socket, message))
            }
            Err(error) => Err(failed(error)),
        }
    }

    fn make_segment(&self, layout: &Layout, socket: &PeerSocket) -> io::Result<Made> {
        let file = create_memory_file(c"dafs-segment", layout.size())?;
        let segment = Mapping::new(file.as_fd(), 0, layout.size(), true)?;
        let segment = segment.unmapped_by(file.as_fd(), self.domain.closers(), socket.peer());
        let peer = sock::peer_credentials(socket.as_fd())?;
        let process = self.domain.hold(&peer)?;
        Ok(Made { file, segment, pipe: sock::pipe()?, eventfd: sock::eventfd()?, peer, process })
    }

    /// Sends the segment and the doorbells.
    fn welcome(
        &self,
        socket: PeerSocket,
        layout: Layout,
        made: Made,
        claim: NonceClaim,
    ) -> io::Result<Stage> {
        let Made { file, segment, pipe: (pipe_client, pipe_server), eventfd, peer, process } = made;
        let nonce = Nonce::new()?;
        let parts = Parts { side: Side::Server, layout, segment, socket, bells: (eventfd, pipe_server) };
        let connection = self.domain.connection(parts, peer, (process, claim));
        let welcome = Message::welcome(&layout, connection.peer_process.is_some(), &nonce);
        let fds = [file.as_fd(), pipe_client.as_fd(), connection.bell_in.as_fd()];
        sock::send(connection.socket.as_fd(), &welcome.encode(), &fds)?;
        Ok(Stage::Ready(Box::new(connection), nonce))
    }

    /// Answers the Hellos that had to wait; whether there were descriptors for all.
    fn answer_owed(&mut self) -> bool {
        let is_owed = |handshake: &Handshake| matches!(handshake.stage, Stage::Owed(..));
        let owed: Vec<_> = self.handshakes.iter().filter(|(_, one)| is_owed(one)).map(|(at, _)| at).collect();
        for index in owed {
            let Some(Handshake { stage: Stage::Owed(socket, hello), user, started, .. }) =
                self.unwatch(index)
            else {
                continue;
            };
            let answered = self.answer(socket, hello).map(|stage| {
                let is_owed = matches!(stage, Stage::Owed(..));
                self.watch(Handshake { stage, user, started, heard: Instant::now() });
                is_owed
            });
            match answered {
                Ok(true) => return false,
                Ok(false) => {}
                Err(error) => self.on_failed(&error),
            }
        }
        true
    }

    fn on_failed(&self, error: &TransportError) {
        tracing::info!(%error, address = %self.address, "a connection failed in its handshake");
    }

    fn abandon(&mut self, index: usize, limit: Duration) {
        drop(self.unwatch(index));
        let fault = PeerFault::handshake_timeout(limit);
        tracing::debug!(%fault, address = %self.address, "a connection failed in its handshake");
    }

    fn pause(&mut self) {
        if !std::mem::replace(&mut self.paused, true) {
            self.epoll.remove(self.socket.as_fd());
        }
    }

    fn resume(&mut self) {
        if self.paused && self.epoll.add(self.socket.as_fd(), LISTENING).is_ok() {
            self.paused = false;
        }
    }
}

impl Listener for ShmListener {
    fn address(&self) -> &Address {
        &self.address
    }

    fn accept(&mut self) -> Result<Option<Box<dyn Endpoint>>, TransportError> {
        Ok(self.accept_endpoint()?.map(|endpoint| Box::new(endpoint) as Box<dyn Endpoint>))
    }

    fn has_more(&self) -> bool {
        self.has_more
    }

    fn expire_handshakes(&mut self) {
        let late: Vec<usize> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| handshake.started.elapsed() >= self.handshake_time_max)
            .map(|(index, _)| index)
            .collect();
        for index in late {
            self.abandon(index, self.handshake_time_max);
        }
        if self.answer_owed() {
            self.resume();
        }
    }

    fn descriptors_freed(&mut self) {
        if self.out_of_descriptors && self.answer_owed() {
            self.resume();
        }
    }

    fn event_fds(&self) -> EventFds {
        [self.epoll.as_raw_fd()].into_iter().collect()
    }
}

impl Drop for ShmListener {
    fn drop(&mut self) {
        self.file.remove();
    }
}

/// The file that a listening socket left, known again by its inode.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn of(path: &Path, mode: u32) -> io::Result<Self> {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        let metadata = std::fs::symlink_metadata(path)?;
        Ok(Self { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// Removes it, unless another has taken its place.
    fn remove(&self) {
        let ours = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|metadata| (metadata.dev(), metadata.ino()) == (self.device, self.inode));
        if ours {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A dead server leaves its socket file behind; nobody answers there.
fn listen_replacing_stale(path: &Path) -> io::Result<Socket> {
    let _alone = lock_directory_of(path);
    match sock::listen(path, BACKLOG) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        done => return done,
    }
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let answer = sock::connect(path, Duration::from_millis(1));
    let refused =
        matches!(&answer, Err(error) if error.kind() == io::ErrorKind::ConnectionRefused) && is_socket;
    if !refused {
        return Err(io::Error::from_raw_os_error(libc::EADDRINUSE));
    }
    std::fs::remove_file(path)?;
    sock::listen(path, BACKLOG)
}

/// Keeps other servers that start from taking what was bound a moment ago for left behind. Where it cannot be had soon they are not.
fn lock_directory_of(path: &Path) -> Option<std::fs::File> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = std::fs::File::open(parent.unwrap_or(Path::new("."))).ok()?;
    for _ in 0..DIRECTORY_LOCK_TRIES {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(DIRECTORY_LOCK_PAUSE),
            locked => return locked.is_ok().then_some(directory),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // [SHM-45] One of another user, who has few, is not waited for again and again.
    #[test]
    fn handshake_falling_silent_makes_room_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Shm(directory.path().join("socket"));
        let mut listener = ShmDomain::new().listen_at(&address, &ConnectParams::default()).unwrap();
        let clients: Vec<_> =
            (0..3).map(|_| sock::connect(socket_path(&address).unwrap(), SILENCE_MAX).unwrap()).collect();
        assert!(listener.accept_endpoint().unwrap().is_none());
        let now = Instant::now();
        let mut set = |heard: [Instant; 3]| {
            for ((_, handshake), (heard, user)) in
                listener.handshakes.iter_mut().zip(heard.into_iter().zip([1, 2, 2]))
            {
                (handshake.heard, handshake.user) = (heard, Owner::User(user));
            }
            listener.time_until_room()
        };
        let later = now + Duration::from_secs(3600);
        assert_eq!(set([now, later, later]), SILENCE_MAX);
        let Some(before) = now.checked_sub(SILENCE_MAX) else { return };
        assert_eq!(set([later, before, later]), ROOM_PAUSE_MIN, "it was left a moment ago");
        drop(clients);
    }
}
