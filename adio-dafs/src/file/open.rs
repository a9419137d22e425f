//! Opening: by one process, which gives the others a ticket.

use std::ffi::OsStr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use std::time::Duration;

use dafs_client::{Direction, Export, FileKind, IoPath, OpenOptions, Status};
use dafs_stripe::Volume;

use super::access::Collectives;
use super::pointer::{SharedPointer, new_key};
use super::raw::of_servers;
use super::ticket::Ticket;
use super::worker::Worker;
use super::{AccessMode, Account, Counters, File, Returning, by_policies};
use crate::error::{Class, Error, Result};
use crate::hint::Settings;
use crate::memory::Trials;
use crate::name::{FileAddress, Surroundings};
use crate::server::Server;

/// For so long others may join.
const TICKET_TIME: Duration = Duration::from_secs(60);

/// How a file is opened.
#[derive(Clone, Debug)]
pub struct Opening<'a> {
    /// As the program gave it.
    pub name: &'a OsStr,
    /// Access mode.
    pub mode: AccessMode,
    /// Permission bits of a file that is made; `None` for 0666 less the umask.
    pub permissions: Option<u32>,
    /// Processes that open it together.
    pub ranks: usize,
    /// Hints.
    pub hints: Vec<(&'a str, &'a str)>,
}

impl Opening<'_> {
    /// Opens or makes the file. Blocks.
    pub fn open(&self) -> Result<File> {
        let place = self.place()?;
        let mut options = self.options();
        options.mode(self.permissions.unwrap_or_else(|| 0o666 & !umask()) & 0o7777);
        options.create(self.mode.creates()).create_new(self.mode.is_exclusive());
        let opened = Server::on_export(&place, |server, _| {
            let volume = server.volume(&place.export)?;
            let open = || self.open_in(&volume, &place, &options).map_err(of_servers);
            let file = match open() {
                // The session was one of before a restart. What may have been made is opened now.
                Err(dafs_client::Error::InDoubt { .. }) if !self.mode.is_exclusive() => open(),
                result => result,
            };
            Ok((Arc::clone(server), file?))
        });
        let (server, file) = opened.map_err(|error| error.cannot("open", &place.shown))?;
        self.made(place, server, file, None)
    }

    /// A file that is made is striped where hints or its directory say so, and the export has servers for that.
    fn open_in(
        &self,
        volume: &Volume,
        place: &FileAddress,
        options: &OpenOptions,
    ) -> dafs_stripe::Result<dafs_stripe::File> {
        let mut settings = Settings::of_process();
        settings.take(self.hints.iter().copied());
        let count = if self.mode.creates() && settings.stripes() { volume.servers()?.len() } else { 0 };
        match settings.striping(count) {
            Some(striping) => volume.create(&place.path, options, &striping),
            None => volume.open(&place.path, options),
        }
    }

    /// Joins the file that another process has open. Blocks.
    pub fn join(&self, ticket: &[u8]) -> Result<File> {
        let place = self.place()?;
        let ticket = Ticket::decode(ticket)?;
        ticket.check(&place)?;
        let options = self.options();
        let opened = Server::on_export(&place, |server, export| {
            let by_token = ticket.token().map(|token| export.open_token(&token, &place.path, &options));
            let (file, joined) = match by_token {
                Some(Ok(file)) => (file, true),
                // Its time is over, or the server was restarted, or it is for another user: the path may do.
                _ => (by_path(export, &place, &options)?, false),
            };
            let volume = server.volume(&place.export)?;
            let file = volume.adopt(file, &place.path, &options).map_err(of_servers)?;
            Ok((Arc::clone(server), file, joined))
        });
        let (server, file, joined) = opened.map_err(|error| match error.class {
            Class::NoSuchFile => other_than_opened(&place, "no such file"),
            _ => error.cannot("open", &place.shown),
        })?;
        if file.metadata_file().attributes_at_open().identity() != ticket.identity() {
            return Err(other_than_opened(&place, "another file"));
        }
        self.made(place, server, file, Some((joined, ticket.key())))
    }

    fn place(&self) -> Result<FileAddress> {
        let shown = self.name.to_string_lossy();
        Surroundings::of_process()?.place(self.name).map_err(|error| error.cannot("open", &shown))
    }

    fn options(&self) -> OpenOptions {
        let mut options = OpenOptions::new();
        options.read(self.mode.reads()).write(self.mode.writes());
        options
    }

    /// `joined`: by a token, or else by the path; and the key of the open. `None` at the first process.
    fn made(
        &self,
        place: FileAddress,
        server: Arc<Server>,
        file: dafs_stripe::File,
        joined: Option<(bool, u64)>,
    ) -> Result<File> {
        let inner = Arc::clone(file.metadata_file());
        let striped = file.layout().is_some().then_some(file);
        if inner.attributes_at_open().kind == FileKind::Directory {
            return Err(Error::new(Class::BadFile, "is a directory").cannot("open", &place.shown));
        }
        // The session began with the number of the environment. That of another file stays where this one asks for none.
        let mut settings = Settings::of_process();
        settings.cache_entries = None;
        settings.take(self.hints.iter().copied());
        settings.show_layout(striped.as_ref().and_then(dafs_stripe::File::layout));
        inner.set_sieve(settings.sieve);
        let session = &server.session;
        if let Some(count) = settings.cache_entries {
            session.set_registrations_max(count);
        }
        let direct_sizes_min = [Direction::Read, Direction::Write].map(|d| direct_size_min(session, d));
        let agreed = session.agreed();
        let [registering, keeping] = by_policies(&inner);
        let (joined, key) = joined.unwrap_or_else(|| (false, new_key()));
        Ok(File {
            pointer: SharedPointer::default(),
            key,
            atomic: AtomicBool::new(false),
            worker: Worker::default(),
            views: Mutex::default(),
            collectives: Collectives::default(),
            inline_sizes_max: [agreed.read_inline_max.into(), agreed.write_inline_max.into()],
            registered_before: session.registration_counters(),
            inner,
            striped,
            registering,
            keeping,
            mode: self.mode,
            ranks: self.ranks.max(1),
            joined,
            settings: ArcSwap::from_pointee(settings),
            trials: Mutex::new(Trials::default()),
            counters: Counters::default(),
            account: Mutex::new(Account::default()),
            unstable: AtomicBool::new(false),
            direct_sizes_min,
            _returning: Returning(session.clone()),
            place,
            server,
        })
    }
}

impl File {
    /// A ticket by which other processes join, for a minute. Blocks.
    pub fn share(&self) -> Result<Vec<u8>> {
        let shared = self.inner.share(self.mode.reads(), self.mode.writes(), TICKET_TIME);
        let token = match shared {
            Ok(token) => Some(token),
            // The others then open it by its path.
            Err(error) if is_of_no_tokens(&error) => None,
            Err(error) => return Err(self.cannot("share", error)),
        };
        let identity = self.inner.attributes_at_open().identity();
        Ok(Ticket::new(token.as_ref(), &self.place, identity, self.key).encode())
    }
}

/// A rank finds something else than the file that the first one has open.
fn other_than_opened(place: &FileAddress, found: &str) -> Error {
    let what = format!(
        "{found} here, where the first rank has one open: it was removed or replaced meanwhile, or is at another server; \
         this name must lead to the same server on all nodes"
    );
    Error::new(Class::NoSuchFile, what).cannot("open", &place.shown)
}

/// Removes a file by name. Blocks.
pub fn delete(name: &OsStr) -> Result<()> {
    let shown = name.to_string_lossy();
    let place = Surroundings::of_process()?.place(name).map_err(|error| error.cannot("delete", &shown))?;
    remove(&place)
}

/// Removes the file at a place, whatever its name leads to by now. Blocks.
pub fn remove(place: &FileAddress) -> Result<()> {
    let removed = Server::on_export(place, |server, _| {
        server.volume(&place.export)?.remove_file(&place.path).map_err(of_servers)
    });
    removed.map_err(|error| error.cannot("delete", &place.shown))
}

fn by_path(
    export: &Export,
    place: &FileAddress,
    options: &OpenOptions,
) -> dafs_client::Result<dafs_client::File> {
    export.open_with(&place.path, options)
}

/// The server gives no tokens, or no more of them now.
fn is_of_no_tokens(error: &dafs_client::Error) -> bool {
    match error {
        dafs_client::Error::Invalid(_) => true,
        other => matches!(other.status(), Some(Status::NOT_SUPPORTED | Status::TOO_MANY_OPEN)),
    }
}

/// The smallest transfer for which some memory mode registers memory, bytes; rounded up to a power of two.
fn direct_size_min(session: &dafs_client::Session, direction: Direction) -> u64 {
    // Where registering takes hold of pages, what is kept registered pays earlier than what is registered each time.
    let registration = session.kept_registration();
    let is_direct = |size: &u64| session.decide(direction, *size, registration).0.path != IoPath::Inline;
    (0..40).map(|power| 1u64 << power).find(is_direct).unwrap_or(u64::MAX)
}

/// The file mode creation mask, which cannot be asked for without setting it but here.
fn umask() -> u32 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
}
