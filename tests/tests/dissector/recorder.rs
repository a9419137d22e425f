//! A relay for TCP that records what passes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_proto::transport::Address;
use dafs_tests::cut::Way;

use crate::capture::Segment;

/// The made-up port of the first client.
const FIRST_CLIENT: u16 = 40_000;

/// A wait that takes longer has failed.
const LONGEST: Duration = Duration::from_secs(60);

/// A relay in front of a TCP server. Dropping it ends it and its connections.
pub(crate) struct Recorder {
    address: SocketAddr,
    shared: Arc<RecorderState>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct RecorderState {
    server: SocketAddr,
    recorded: Mutex<Vec<Segment>>,
    grown: Condvar,
    connections: Mutex<Vec<[TcpStream; 2]>>,
    is_stopping: AtomicBool,
}

impl Recorder {
    pub(crate) fn start(server: &Address) -> Self {
        let Address::Tcp(server) = server else { panic!("{server} is not a TCP address") };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port for the relay");
        let address = listener.local_addr().expect("the relay's address");
        let shared = Arc::new(RecorderState {
            server: *server,
            recorded: Mutex::default(),
            grown: Condvar::new(),
            connections: Mutex::default(),
            is_stopping: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&shared);
        let thread = std::thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared, thread: Some(thread) }
    }

    /// Where clients connect.
    pub(crate) fn url(&self) -> String {
        format!("dafs+tcp://{}", self.address)
    }

    /// Cuts the connections that there are.
    pub(crate) fn cut(&self) {
        for streams in locked(&self.shared.connections).drain(..) {
            // It may be closed already.
            streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        }
    }

    /// Waits until what was recorded is as `is_enough` wants it.
    #[track_caller]
    pub(crate) fn wait_until(&self, is_enough: impl Fn(&[Segment]) -> bool) {
        let recorded = locked(&self.shared.recorded);
        let waited = self.shared.grown.wait_timeout_while(recorded, LONGEST, |recorded| !is_enough(recorded));
        let (_recorded, outcome) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(!outcome.timed_out(), "what the test waits for was not sent");
    }

    /// All that passed, in order.
    pub(crate) fn recorded(&self) -> Vec<Segment> {
        locked(&self.shared.recorded).clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            // Its panic has been reported by itself.
            let _ = thread.join();
        }
        self.cut();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<RecorderState>) {
    for (client, number) in listener.incoming().zip(FIRST_CLIENT..) {
        if shared.is_stopping.load(Ordering::Acquire) {
            return;
        }
        let Ok(client) = client else { continue };
        // A server that is not there refuses its clients.
        let Ok(server) = TcpStream::connect(shared.server) else { continue };
        let both = || [&client, &server].map(|stream| stream.try_clone().expect("a descriptor"));
        locked(&shared.connections).push(both());
        for way in [Way::ToServer, Way::ToClient] {
            let (shared, streams) = (Arc::clone(shared), both());
            std::thread::spawn(move || pump(&shared, number, way, streams));
        }
    }
}

fn pump(shared: &RecorderState, client: u16, way: Way, [at_client, at_server]: [TcpStream; 2]) {
    let (mut from, mut to) = match way {
        Way::ToServer => (&at_client, &at_server),
        Way::ToClient => (&at_server, &at_client),
    };
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 {
            break;
        }
        let bytes = buffer[..count].to_vec();
        // Before it is sent on: what answers it comes later.
        locked(&shared.recorded).push(Segment { client, way, bytes });
        shared.grown.notify_all();
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    for stream in [&at_client, &at_server] {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
