//! The servers that this process uses: one session with each, whatever files are open there. Imports `environment`, `error`, `hint`
//! and `name`.
//!
//! A session stays when its last file is closed, for a program that opens a file for each time step; it ends with the process.

mod exit;
mod gone;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use dafs_client::{Background, Config, Export, ReconnectPolicy, Session, Url, load_key};
use dafs_stripe::Volume;

use crate::environment::{text, variable};
use crate::error::{Class, Error, Result};
use crate::hint::{CACHE_ENTRIES, Settings, parse_bool, say_unusable};
use crate::name::FileAddress;
use gone::Gone;

/// A session, and what was mounted in it.
pub struct Server {
    /// The session.
    pub session: Session,
    /// The same, where files may be striped.
    exports: Mutex<HashMap<String, (Export, Volume)>>,
    /// Of the session, and of those with data servers.
    config: Config,
}

/// What is known of a server.
enum Known {
    There(Arc<Server>),
    Gone(Gone),
}

static SERVERS: OnceLock<Mutex<HashMap<Url, Known>>> = OnceLock::new();

/// The key of this client.
const KEY_VARIABLE: &str = "DAFS_KEY_FILE";
/// Time for connecting again after a break, milliseconds.
const RECONNECT_VARIABLE: &str = "DAFS_MPI_RECONNECT_TIME_MS";
/// Whether a thread moves nonblocking operations along.
const PROGRESS_VARIABLE: &str = "DAFS_MPI_PROGRESS_THREAD";

impl Server {
    /// The server of a place, connected to if it is not yet. One that did not answer is not asked again for a while, and then for a second.
    /// Blocks.
    fn connected(url: &Url) -> Result<Arc<Self>> {
        let mut config = config()?;
        match table().get(url) {
            Some(Known::There(server)) => return Ok(Arc::clone(server)),
            Some(Known::Gone(gone)) => {
                config.connect_timeout = config.connect_timeout.min(gone.timeout(Instant::now())?);
            }
            None => {}
        }
        let began = Instant::now();
        // Not under the lock: other servers answer meanwhile.
        let session = match Session::connect_url(url, &config) {
            Ok(session) => session,
            Err(error) => return Err(Self::failed(url, error, began)),
        };
        session.set_registrations_max(Settings::of_process().cache_entries.unwrap_or(CACHE_ENTRIES));
        let made = Arc::new(Self { session, exports: Mutex::default(), config });
        let mut table = table();
        // Of two sessions that threads made at once, the second ends.
        if let Some(Known::There(server)) = table.get(url) {
            return Ok(Arc::clone(server));
        }
        table.insert(url.clone(), Known::There(Arc::clone(&made)));
        Ok(made)
    }

    /// An attempt to connect failed.
    fn failed(url: &Url, error: dafs_client::Error, began: Instant) -> Error {
        // A refusal is an answer.
        let is_silent =
            matches!(error, dafs_client::Error::Connect(_) | dafs_client::Error::Connection { .. });
        let error = Error::from(error);
        if is_silent {
            let gone = Gone::failed(error.clone(), began, Instant::now());
            let mut table = table();
            if !matches!(table.get(url), Some(Known::There(_))) {
                table.insert(url.clone(), Known::Gone(gone));
            }
        }
        error
    }

    /// The session has ended.
    fn lost(self: &Arc<Self>, url: &Url, error: dafs_client::Error) {
        let mut table = table();
        if let Some(Known::There(known)) = table.get(url)
            && Arc::ptr_eq(known, self)
        {
            let known = match error {
                dafs_client::Error::Connection { .. } => Some(Gone::lost(error.into(), Instant::now())),
                _ => None,
            };
            match known {
                Some(gone) => table.insert(url.clone(), Known::Gone(gone)),
                None => table.remove(url),
            };
        }
    }

    /// Does something on the export of a place, in the session of its server; when that has ended, in another. An export that has another
    /// directory since the server was restarted is mounted again. Blocks.
    pub fn on_export<T>(
        place: &FileAddress,
        act: impl Fn(&Arc<Self>, &Export) -> dafs_client::Result<T>,
    ) -> Result<T> {
        let server = Self::connected(&place.server)?;
        let outcome = server.export(&place.export).and_then(|export| act(&server, &export));
        match outcome {
            Err(error) if has_ended(&error) => {
                server.lost(&place.server, error);
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
        if let Some((export, _)) = exports.get(name) {
            return Ok(export.clone());
        }
        let export = self.session.mount(name)?;
        let volume = Volume::new(&export, &self.config);
        exports.insert(name.to_owned(), (export.clone(), volume));
        Ok(export)
    }

    /// An export of this session as a volume, whose files may lie over several servers. Blocks where it is not mounted yet.
    pub fn volume(&self, name: &str) -> dafs_client::Result<Volume> {
        let export = self.export(name)?;
        let known = self.exports().get(name).map(|(_, volume)| volume.clone());
        Ok(known.unwrap_or_else(|| Volume::new(&export, &self.config)))
    }

    fn forget_export(&self, name: &str) {
        self.exports().remove(name);
    }

    fn exports(&self) -> MutexGuard<'_, HashMap<String, (Export, Volume)>> {
        self.exports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn table() -> MutexGuard<'static, HashMap<Url, Known>> {
    SERVERS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends all sessions. Blocks for a second at most where requests are in flight.
fn end_all() {
    if SERVERS.get().is_none() {
        return;
    }
    let all = std::mem::take(&mut *table());
    for known in all.into_values() {
        if let Known::There(server) = known {
            server.session.close();
        }
    }
}

/// The session is over, so another may do better.
fn has_ended(error: &dafs_client::Error) -> bool {
    use dafs_client::Error as E;
    matches!(error, E::Connection { .. } | E::Closed | E::Forked | E::Peer(_))
}

fn config() -> Result<Config> {
    let key = match variable(KEY_VARIABLE) {
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
    let Some(value) = text(PROGRESS_VARIABLE) else { return false };
    parse_bool(value.trim()).unwrap_or_else(|| {
        say_unusable(PROGRESS_VARIABLE, &value, "write true or false");
        false
    })
}

fn number(variable: &str) -> Result<Option<u64>> {
    match text(variable) {
        Some(text) => text.trim().parse().map(Some).map_err(|_| {
            Error::new(
                Class::Argument,
                format!("cannot use {variable}={text}: not a number; write milliseconds, such as 5000"),
            )
        }),
        None => Ok(None),
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
