//! The servers that this process uses: one session with each, whatever files are open there. Imports `error`, `hint`
//! and `name`.
//!
//! A session stays when its last file is closed, for a program that opens a file for each time step; it ends with the process.

mod exit;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use dafs_client::{Background, Config, Export, ReconnectPolicy, Session, Url, load_key};

use crate::error::{Class, Error, Result};
use crate::hint::{CACHE_ENTRIES, Settings, parse_bool, say_unusable};
use crate::name::Place;

/// A session, and what was mounted in it.
pub struct Server {
    /// The session.
    pub session: Session,
    exports: Mutex<HashMap<String, Export>>,
}

static SERVERS: OnceLock<Mutex<HashMap<Url, Arc<Server>>>> = OnceLock::new();

/// The key of this client.
const KEY_VARIABLE: &str = "DAFS_KEY_FILE";
/// Time for connecting again after a break, milliseconds.
const RECONNECT_VARIABLE: &str = "DAFS_MPI_RECONNECT_TIME_MS";
/// Whether a thread moves nonblocking operations along.
const PROGRESS_VARIABLE: &str = "DAFS_MPI_PROGRESS_THREAD";

impl Server {
    /// The server of a place, connected to if it is not yet. Blocks.
    fn connected(url: &Url) -> Result<Arc<Self>> {
        if let Some(server) = table().get(url) {
            return Ok(Arc::clone(server));
        }
        // Not under the lock: other servers answer meanwhile. Of two sessions that threads made at once, the second ends.
        let session = Session::connect_url(url, &config()?)?;
        session.set_registrations_max(Settings::of_process().cache_entries.unwrap_or(CACHE_ENTRIES));
        let made = Arc::new(Self { session, exports: Mutex::default() });
        Ok(Arc::clone(table().entry(url.clone()).or_insert(made)))
    }

    /// Does something on the export of a place, in the session of its server; when that has ended, in another. An export that has another
    /// directory since the server was restarted is mounted again. Blocks.
    pub fn on_export<T>(
        place: &Place,
        act: impl Fn(&Arc<Self>, &Export) -> dafs_client::Result<T>,
    ) -> Result<T> {
        let server = Self::connected(&place.server)?;
        let outcome = server.export(&place.export).and_then(|export| act(&server, &export));
        match outcome {
            Err(error) if has_ended(&error) => {
                table().retain(|_, other| !Arc::ptr_eq(other, &server));
                let server = Self::connected(&place.server)?;
                Ok(server.export(&place.export).and_then(|export| act(&server, &export))?)
            }
            Err(dafs_client::Error::Stale { .. }) => {
                server.forget_export(&place.export);
                Ok(server.export(&place.export).and_then(|export| act(&server, &export))?)
            }
            outcome => Ok(outcome?),
        }
    }

    /// An export of this session, mounted once. Blocks.
    pub fn export(&self, name: &str) -> dafs_client::Result<Export> {
        let mut exports = self.exports();
        if let Some(export) = exports.get(name) {
            return Ok(export.clone());
        }
        let export = self.session.mount(name)?;
        exports.insert(name.to_owned(), export.clone());
        Ok(export)
    }

    fn forget_export(&self, name: &str) {
        self.exports().remove(name);
    }

    fn exports(&self) -> MutexGuard<'_, HashMap<String, Export>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table() -> MutexGuard<'static, HashMap<Url, Arc<Server>>> {
    SERVERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all sessions. Blocks for a second at most where requests are in flight.
fn end_all() {
    if SERVERS.get().is_none() {
        return;
    }
    let all = std::mem::take(&mut *table());
    all.values().for_each(|server| server.session.close());
}

/// The session is over, so another may do better.
fn has_ended(error: &dafs_client::Error) -> bool {
    use dafs_client::Error as E;
    matches!(error, E::Connection { .. } | E::Closed | E::Forked | E::Peer(_))
}

fn config() -> Result<Config> {
    let key = match std::env::var_os(KEY_VARIABLE) {
        Some(path) => Some(load_key(Path::new(&path))?),
        None => None,
    };
    let mut reconnect = ReconnectPolicy::default();
    if let Some(time_ms) = number(RECONNECT_VARIABLE)? {
        reconnect.time_max = Duration::from_millis(time_ms);
        reconnect.attempts_max = u32::MAX;
    }
    let background = match has_progress_thread() {
        true => Background::Progress,
        false => Background::KeepAlive,
    };
    Ok(Config { key, reconnect, background, client_name: Some(client_name()), ..Config::default() })
}

fn has_progress_thread() -> bool {
    let Ok(value) = std::env::var(PROGRESS_VARIABLE) else { return false };
    parse_bool(value.trim()).unwrap_or_else(|| {
        say_unusable(PROGRESS_VARIABLE, &value, "write true or false");
        false
    })
}

fn number(variable: &str) -> Result<Option<u64>> {
    match std::env::var(variable) {
        Ok(text) => text.trim().parse().map(Some).map_err(|_| {
            Error::new(
                Class::Argument,
                format!("cannot use {variable}={text}: not a number; write milliseconds, such as 5000"),
            )
        }),
        Err(_) => Ok(None),
    }
}

/// For the server's operator: the program, and its rank where the MPI library tells it.
fn client_name() -> String {
    let program = std::env::args_os().next().map(std::path::PathBuf::from);
    let program = program.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let program = program.unwrap_or_else(|| "mpi".to_owned());
    match ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().find_map(|name| std::env::var(name).ok()) {
        Some(rank) => format!("{program} (rank {rank})"),
        None => program,
    }
}
