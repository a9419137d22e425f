//! An export whose files may lie over several servers: names, and what is done to files by name.

mod creating;
mod table;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_client::{
    Attributes, Config, Dir, Error as ClientError, Export, File as PlainFile, FileKind, OpenOptions, Session,
    SetAttributes, Status, Url,
};

use crate::data_server::{Connection, DataServer, Failure};
use crate::error::{Error, Result};
use crate::file::piece::Piece;
use crate::file::striped::Striped;
use crate::file::{File, Kind};
use crate::layout::{LAYOUT_XATTR, Layout, STRIPED_BIT, Striping};
use crate::servers::{ServerRow, ServerTable};

/// An export whose files may be striped. Clones are cheap.
///
/// Paths are those of [`Dir`]. Until a file is met that may be striped, the servers file is not read: an export without one costs nothing.
#[derive(Clone)]
pub struct Volume {
    inner: Arc<Inner>,
}

struct Inner {
    root: Dir,
    config: Config,
    /// `None` until it is needed.
    table: Mutex<Option<Arc<ServerTable>>>,
    servers: Mutex<HashMap<String, Arc<DataServer>>>,
}

impl Volume {
    /// Connects to the metadata server and mounts the export that a URL names. The settings are those for all servers. Blocks.
    pub fn connect(url: impl AsRef<std::ffi::OsStr>, config: &Config) -> Result<Self> {
        let url = Url::parse(url.as_ref()).map_err(ClientError::from)?;
        let Some(export) = &url.export else {
            return Err(Error::Invalid(format!("{url} names no export; write it as dafs://host/export")));
        };
        let session = Session::connect_url(&url, config)?;
        Ok(Self::new(&session.mount(String::from_utf8_lossy(export).as_ref())?, config))
    }

    /// The volume of an export that is mounted. `config` has the settings for data servers, the key above all.
    pub fn new(export: &Export, config: &Config) -> Self {
        let (table, servers) = (Mutex::new(None), Mutex::new(HashMap::new()));
        let inner = Inner { root: export.root().clone(), config: config.clone(), table, servers };
        Self { inner: Arc::new(inner) }
    }

    /// The root directory of the export on the metadata server.
    pub fn root(&self) -> &Dir {
        &self.inner.root
    }

    /// Opens a file, striped or not, as the options say. One that is created is striped where its directory says so
    /// ([`Volume::set_striping`]).
    pub fn open(&self, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let path = path.as_ref();
        match options.creates() && !self.table()?.rows.is_empty() {
            true => match self.striping(parent_of(path))? {
                Some(striping) => self.create(path, options, &striping),
                None => self.open_as_it_is(path, options),
            },
            false => self.open_as_it_is(path, options),
        }
    }

    /// As [`Volume::open`]; a file that is created is striped so. One that is there stays as it is.
    pub fn create(&self, path: impl AsRef<Path>, options: &OpenOptions, striping: &Striping) -> Result<File> {
        let path = path.as_ref();
        striping.check()?;
        options.check()?;
        let found = match options.creates_only() {
            true => None,
            false => match self.open_as_it_is(path, &without_creation(options)) {
                Err(error) if error.is_not_found() && options.creates() => None,
                opened => Some(opened?),
            },
        };
        match found {
            Some(file) => Ok(file),
            None => match creating::create(self, path, options, striping) {
                // Somebody else was faster.
                Err(error) if error.already_exists() && !options.creates_only() => {
                    self.open_as_it_is(path, &without_creation(options))
                }
                created => created,
            },
        }
    }

    /// Opens what has the name. What would truncate a striped file does so with its pieces.
    fn open_as_it_is(&self, path: &Path, options: &OpenOptions) -> Result<File> {
        self.adopt(self.inner.root.open_with(path, options)?, path, options)
    }

    /// A file of this export that was opened with these options by other means, as what it is: striped or not. `path` is for messages.
    /// Blocks where it may be striped.
    pub fn adopt(&self, file: PlainFile, path: impl AsRef<Path>, options: &OpenOptions) -> Result<File> {
        let (path, attributes) = (path.as_ref(), file.attributes_at_open().clone());
        if !self.may_be_striped(&attributes)? {
            return Ok(File::plain(file));
        }
        let layout = match file.xattr(LAYOUT_XATTR) {
            Ok(layout) => parsed(&layout, path, &attributes)?,
            Err(error) if has_none(&error) => return Ok(File::plain(file)),
            Err(error) => return Err(error.into()),
        };
        let striped = self.striped(layout, file, path, options)?;
        let file = File { kind: Kind::Striped(Arc::new(striped)) };
        if options.truncates() {
            file.truncate(0)?;
        }
        Ok(file)
    }

    /// Lays a file of this export over servers that is open to read and write, and has no data yet. `path` is for messages. Where this
    /// fails the file is as it was.
    pub fn stripe(&self, file: PlainFile, path: impl AsRef<Path>, striping: &Striping) -> Result<File> {
        let options = OpenOptions::new().read(true).write(true).clone();
        let striped = creating::stripe(self, file, path.as_ref(), &options, striping)?;
        Ok(File { kind: Kind::Striped(Arc::new(striped)) })
    }

    /// Whether a file with these attributes may be striped; else it is certainly not. Metadata files are empty, and programs that cannot
    /// stripe know them by a mode bit.
    pub fn may_be_striped(&self, attributes: &Attributes) -> Result<bool> {
        let looks_so = attributes.size == 0 || attributes.mode & STRIPED_BIT != 0;
        Ok(attributes.kind == FileKind::File && looks_so && !self.table()?.rows.is_empty())
    }

    fn striped(
        &self,
        layout: Layout,
        file: PlainFile,
        path: &Path,
        options: &OpenOptions,
    ) -> Result<Striped> {
        let table = self.table()?;
        let options = for_pieces(options);
        let path = path.display().to_string();
        let pieces = layout.servers.iter().enumerate().map(|(index, name)| {
            let server = table.position(name).map(|place| self.server(&table.rows[place]));
            Piece::new(&layout, index, &path, server, &options)
        });
        let geometry = layout.geometry();
        Ok(Striped { geometry, pieces: pieces.collect(), metadata_file: Arc::new(file), layout })
    }

    fn server(&self, row: &ServerRow) -> Arc<DataServer> {
        let mut servers = locked(&self.inner.servers);
        let server = servers
            .entry(row.name.clone())
            .or_insert_with(|| Arc::new(DataServer::new(row.clone(), &self.inner.config)));
        if server.row != *row {
            *server = Arc::new(DataServer::new(row.clone(), &self.inner.config));
        }
        Arc::clone(server)
    }

    /// A session with a data server.
    pub(crate) fn connection(&self, name: &str) -> std::result::Result<Arc<Connection>, Failure> {
        let table = self.table().map_err(|error| Failure::Wrong(error.to_string()))?;
        match table.position(name) {
            Some(place) => self.server(&table.rows[place]).connection(),
            None => Err(Failure::Wrong("the servers file does not name it".to_owned())),
        }
    }

    /// How a file is striped; `None` where it is not. A symbolic link at the end is followed.
    pub fn layout(&self, path: impl AsRef<Path>) -> Result<Option<Layout>> {
        let path = path.as_ref();
        let (node, attributes) = self.inner.root.lookup(path, true)?;
        self.layout_of(&node, path, &attributes)
    }

    fn layout_of(&self, node: &Dir, path: &Path, attributes: &Attributes) -> Result<Option<Layout>> {
        if !self.may_be_striped(attributes)? {
            return Ok(None);
        }
        match node.xattr("", LAYOUT_XATTR) {
            Ok(layout) => parsed(&layout, path, attributes).map(Some),
            Err(error) if has_none(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Attributes of a path, of a striped file those of the whole. `follow` follows a symbolic link at the end.
    pub fn metadata(&self, path: impl AsRef<Path>, follow: bool) -> Result<Attributes> {
        let path = path.as_ref();
        let attributes = match follow {
            true => self.inner.root.metadata(path)?,
            false => self.inner.root.symlink_metadata(path)?,
        };
        self.whole_attributes(&self.inner.root, path, attributes)
    }

    /// What the metadata server says of a name in a directory, made to be what the whole file has.
    pub fn whole_attributes(
        &self,
        dir: &Dir,
        name: impl AsRef<Path>,
        attributes: Attributes,
    ) -> Result<Attributes> {
        let name = name.as_ref();
        if !self.may_be_striped(&attributes)? {
            return Ok(attributes);
        }
        let options = OpenOptions::new().read(true).clone();
        match self.adopt(dir.open_with(name, &options)?, name, &options)?.kind {
            Kind::Plain(_) => Ok(attributes),
            Kind::Striped(striped) => striped.metadata(),
        }
    }

    /// Changes attributes and returns the new ones; of a striped file on every server. A symbolic link at the end is followed.
    pub fn set_attributes(&self, path: impl AsRef<Path>, set: &SetAttributes) -> Result<Attributes> {
        let path = path.as_ref();
        match self.layout(path)? {
            Some(_) => self.open_as_it_is(path, OpenOptions::new().read(true))?.set_attributes(set),
            None => Ok(self.inner.root.set_attributes(path, true, set)?),
        }
    }

    /// Removes a file, or a symbolic link; its pieces too, where that was its last name.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> Result<()> {
        let (root, path) = (&self.inner.root, path.as_ref());
        let doomed = self.doomed(root, path)?;
        root.remove_file(path)?;
        doomed.into_iter().for_each(Doomed::settle);
        Ok(())
    }

    /// Renames `from` to `to`; `replace` replaces an existing `to`, whose pieces go with it.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>, replace: bool) -> Result<()> {
        let (root, to) = (&self.inner.root, to.as_ref());
        let doomed = if replace { self.doomed(root, to)? } else { None };
        root.rename(from, root, to, replace)?;
        doomed.into_iter().for_each(Doomed::settle);
        Ok(())
    }

    /// As [`Volume::doomed`], of an open file; `None` where it is not striped.
    pub fn doomed_of(&self, file: &File) -> Option<Doomed> {
        let Kind::Striped(striped) = &file.kind else { return None };
        let (file, layout) = (Arc::clone(&striped.metadata_file), striped.layout.clone());
        Some(Doomed { volume: self.clone(), node: Node::File(file), layout })
    }

    /// The striped file that has a name in a directory; `None` where none has it. It is asked for before the name goes, by other means than
    /// this library's, and settled afterwards.
    pub fn doomed(&self, dir: &Dir, name: impl AsRef<Path>) -> Result<Option<Doomed>> {
        let name = name.as_ref();
        if self.table()?.rows.is_empty() {
            return Ok(None);
        }
        let (node, attributes) = match dir.lookup(name, false) {
            Ok(found) => found,
            // What the name is used for says so too.
            Err(ClientError::Status { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        match self.layout_of(&node, name, &attributes) {
            Ok(layout) => {
                Ok(layout.map(|layout| Doomed { volume: self.clone(), node: Node::Looked(node), layout }))
            }
            Err(error @ Error::Layout { .. }) => {
                tracing::warn!("{error}; its pieces stay");
                Ok(None)
            }
            Err(Error::Client(error @ ClientError::Status { .. })) => {
                tracing::warn!(
                    "cannot read the layout of {}: {}; its pieces stay",
                    name.display(),
                    error.cause()
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A striped file whose name goes, held so that what becomes of it is seen.
pub struct Doomed {
    volume: Volume,
    node: Node,
    layout: Layout,
}

enum Node {
    Looked(Dir),
    File(Arc<PlainFile>),
}

impl Doomed {
    /// Its name is gone: removes its pieces, where it has no other. What cannot be removed stays, for [`Volume::check`], and is logged.
    pub fn settle(self) {
        let found = match &self.node {
            Node::Looked(node) => node.metadata(""),
            Node::File(file) => file.metadata(),
        };
        match found {
            Ok(attributes) if attributes.links > 0 => return,
            Ok(_) => {}
            Err(ClientError::Status { status: Status::STALE | Status::NOT_FOUND, .. }) => {}
            Err(error) => {
                tracing::warn!("cannot tell whether a file has other names: {error}; its pieces stay");
                return;
            }
        }
        creating::remove_pieces(&self.volume, &self.layout);
    }
}

/// Reads a layout, which must be of the file that has it.
pub(crate) fn parsed(bytes: &[u8], path: &Path, attributes: &Attributes) -> Result<Layout> {
    let wrong = |cause| Error::Layout { path: path.display().to_string(), cause };
    let layout = Layout::parse(bytes).map_err(wrong)?;
    match layout.file_id == attributes.file_id {
        true => Ok(layout),
        false => Err(wrong(
            "it was copied from another file, or the file was restored; `dafs stripe check` says which"
                .to_owned(),
        )),
    }
}

/// There is no such attribute, or there cannot be one.
pub(crate) fn has_none(error: &ClientError) -> bool {
    matches!(error.status(), Some(Status::NO_DATA | Status::NOT_SUPPORTED))
}

/// As a file is opened that is there.
fn without_creation(options: &OpenOptions) -> OpenOptions {
    options.clone().create(false).create_new(false).clone()
}

/// What says how a file is opened is said to the metadata server; a piece is opened for its data.
fn for_pieces(options: &OpenOptions) -> OpenOptions {
    let mut of_pieces = without_creation(options);
    of_pieces
        .truncate(false)
        .append(false)
        .write(options.writes())
        .deny_read(false)
        .deny_write(false)
        .no_follow(true);
    of_pieces
}

fn parent_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
