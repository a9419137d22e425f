//! A server that has pieces: connected when it is needed, and again after its session has ended.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Config, Dir, Error as ClientError, OpenOptions, Session};

use crate::names::StripeId;
use crate::servers::{IDENTITY_FILE, PIECES_DIRECTORY, ServerRow};

/// After an attempt to connect has failed, others fail with its error for so long at least, and for twice the time that it took: a loop
/// over the stripes of a file would else wait at each for a server that is gone.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// A server by the name that layouts give it.
pub(crate) struct DataServer {
    pub(crate) row: ServerRow,
    config: Config,
    state: Mutex<State>,
}

enum State {
    Idle,
    Connected(Arc<Connection>),
    /// Until when that stands.
    Failed(Instant, Failure),
}

/// A session with a data server: its directory of pieces.
pub(crate) struct Connection {
    pub(crate) pieces: Dir,
}

/// Why a server cannot be used.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The way there, or what it answered.
    Client(ClientError),
    /// It is another server, or has never been made one.
    Wrong(String),
}

impl Failure {
    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Client(error) => error.cause(),
            Self::Wrong(cause) => cause.clone(),
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        Self::Client(error)
    }
}

impl DataServer {
    pub(crate) fn new(row: ServerRow, config: &Config) -> Self {
        Self { row, config: config.clone(), state: Mutex::new(State::Idle) }
    }

    /// The session, which is made if there is none. Blocks.
    pub(crate) fn connection(&self) -> Result<Arc<Connection>, Failure> {
        let mut state = self.state();
        match &*state {
            State::Connected(connection) => return Ok(Arc::clone(connection)),
            State::Failed(until, failure) if Instant::now() < *until => return Err(failure.clone()),
            State::Failed(..) | State::Idle => {}
        }
        let begun = Instant::now();
        let connected = self.connect().map(Arc::new);
        *state = match &connected {
            Ok(connection) => State::Connected(Arc::clone(connection)),
            Err(failure) => {
                let pause = (begun.elapsed() * 2).max(PAUSE_MIN);
                State::Failed(Instant::now() + pause, failure.clone())
            }
        };
        connected
    }

    fn connect(&self) -> Result<Connection, Failure> {
        let session = Session::connect_url(&self.row.url, &self.config)?;
        let export = self.row.url.export.as_deref().unwrap_or_default();
        let root = session.mount(String::from_utf8_lossy(export).as_ref())?;
        let path = pieces_path(&self.row.url.path);
        let pieces = root.open_dir(os_path(&path))?;
        let found = read_identity(&pieces)?;
        if found != Some(self.row.identity) {
            let cause = match found {
                Some(found) => {
                    format!("its identity is {found}, not {} of the servers file", self.row.identity)
                }
                None => format!("{PIECES_DIRECTORY}/{IDENTITY_FILE} has no identity"),
            };
            return Err(Failure::Wrong(format!("{} is another server: {cause}", self.row.url)));
        }
        Ok(Connection { pieces })
    }

    /// That session has ended: the next call connects again.
    pub(crate) fn forget(&self, connection: &Arc<Connection>) {
        let mut state = self.state();
        if matches!(&*state, State::Connected(current) if Arc::ptr_eq(current, connection)) {
            *state = State::Idle;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the session that answered this goes on.
pub(crate) fn ends_session(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Connection { .. }
            | ClientError::Connect(_)
            | ClientError::Resolve(_)
            | ClientError::Handshake(_)
            | ClientError::Peer(_)
            | ClientError::Closed
            | ClientError::Forked
    )
}

/// The directory of pieces below a server's export.
pub(crate) fn pieces_path(directory: &[u8]) -> Vec<u8> {
    let name = PIECES_DIRECTORY.as_bytes();
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

pub(crate) fn os_path(path: &[u8]) -> &std::path::Path {
    use std::os::unix::ffi::OsStrExt;
    std::path::Path::new(std::ffi::OsStr::from_bytes(path))
}

/// What a directory of pieces says of its server; `None` where that is no identity.
pub(crate) fn read_identity(pieces: &Dir) -> Result<Option<StripeId>, ClientError> {
    let file = pieces.open_with(IDENTITY_FILE, OpenOptions::new().read(true).no_follow(true))?;
    let mut text = [0; 64];
    let count = file.read_at(&mut text, 0)?;
    let text = std::str::from_utf8(&text[..count]).ok();
    Ok(text.and_then(|text| StripeId::parse(text.trim_end())))
}
