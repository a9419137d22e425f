//! The servers of a volume, and how directories stripe what is created in them.

use std::path::Path;
use std::sync::Arc;

use dafs_client::{
    Dir, Error as ClientError, FileKind, OpenOptions, Session, SetAttributes, Status, Url, XattrSetMode,
};

use crate::data_server::{os_path, pieces_path, read_identity};
use crate::error::{Error, Result};
use crate::layout::{STRIPING_XATTR, Striping};
use crate::names::{StripeId, is_name};
use crate::servers::{IDENTITY_FILE, SERVERS_FILE, SERVERS_FILE_SIZE_MAX, ServerRow, ServerTable};
use crate::volume::{Volume, has_none, locked};

/// Everybody may make pieces, and remove his own.
const PIECES_MODE: u32 = 0o1777;

impl Volume {
    /// The data servers.
    pub fn servers(&self) -> Result<Vec<ServerRow>> {
        Ok(self.table()?.rows.clone())
    }

    /// Whether a data server can be reached, and is the one that the servers file says.
    pub fn check_server(&self, name: &str) -> Result<()> {
        self.connection(name)
            .map(drop)
            .map_err(|failure| Error::Servers(format!("{name}: {}", failure.cause())))
    }

    /// Makes an export of another server, or a directory in one, a data server of this volume: it gets a directory for pieces and an
    /// identity, where it has none, and a line in the servers file. Needs the rights to write both. One that is there under this name and
    /// with this identity gets the new address.
    pub fn add_server(&self, name: &str, url: &Url) -> Result<()> {
        if !is_name(name) {
            return Err(Error::Invalid(format!(
                "{name:?} is no name of a server: 1 to 32 of a-z, 0-9 and -"
            )));
        }
        let Some(export) = &url.export else {
            return Err(Error::Invalid(format!("{url} names no export; write it as dafs://host/export")));
        };
        let session = Session::connect_url(url, &self.inner.config)?;
        let root = session.mount(String::from_utf8_lossy(export).as_ref())?;
        let path = pieces_path(&url.path);
        let path = os_path(&path);
        match root.create_dir(path, PIECES_MODE) {
            // What a server's umask takes is given back.
            Ok(_) => {
                let set = SetAttributes { mode: Some(PIECES_MODE), ..SetAttributes::default() };
                root.set_attributes(path, false, &set).map(drop)?;
            }
            Err(error) if error.already_exists() => {}
            Err(error) => return Err(error.into()),
        }
        let pieces = root.open_dir_no_follow(path)?;
        let identity = match read_identity(&pieces) {
            Ok(Some(identity)) => identity,
            Ok(None) => {
                let cause = format!("{} of {url} has no identity", path.join(IDENTITY_FILE).display());
                return Err(Error::Servers(cause));
            }
            Err(error) if error.is_not_found() => {
                let identity = StripeId::random()?;
                let file =
                    pieces.open_with(IDENTITY_FILE, OpenOptions::new().write(true).create_new(true))?;
                file.write_all_at(format!("{identity}\n").as_bytes(), 0)?;
                file.commit()?;
                pieces.commit()?;
                identity
            }
            Err(error) => return Err(error.into()),
        };
        let row = ServerRow { name: name.to_owned(), identity, url: url.clone() };
        self.change_table(|table| {
            match table.position(name) {
                Some(place) if table.rows[place].identity == identity => table.rows[place] = row,
                Some(place) => {
                    let known = &table.rows[place];
                    let cause = format!("{name} is {} already; give {url} another name", known.url);
                    return Err(Error::Servers(cause));
                }
                None => table.rows.push(row),
            }
            Ok(())
        })
    }

    fn change_table(&self, change: impl FnOnce(&mut ServerTable) -> Result<()>) -> Result<()> {
        let mut table = self.read_table()?;
        change(&mut table)?;
        // It is one that will be read.
        let text = table.encode();
        let table = ServerTable::parse(text.as_bytes()).map_err(Error::Servers)?;
        self.inner.root.replace(SERVERS_FILE, text.as_bytes(), 0o644)?;
        *locked(&self.inner.table) = Some(Arc::new(table));
        Ok(())
    }

    /// The servers, read once.
    pub(crate) fn table(&self) -> Result<Arc<ServerTable>> {
        if let Some(table) = &*locked(&self.inner.table) {
            return Ok(Arc::clone(table));
        }
        let table = Arc::new(self.read_table()?);
        *locked(&self.inner.table) = Some(Arc::clone(&table));
        Ok(table)
    }

    fn read_table(&self) -> Result<ServerTable> {
        let root = &self.inner.root;
        match root.symlink_metadata(SERVERS_FILE) {
            Err(error) if error.is_not_found() => return Ok(ServerTable { rows: Vec::new() }),
            found => found.map(drop)?,
        }
        let file = root.open_with(SERVERS_FILE, OpenOptions::new().read(true).no_follow(true))?;
        let (attributes, of_root) = (file.attributes_at_open().clone(), root.metadata("")?);
        let refused = |cause: &str| Err(Error::Servers(cause.to_owned()));
        if attributes.kind != FileKind::File || attributes.size > SERVERS_FILE_SIZE_MAX {
            return refused("it is no file of at most 64 KiB");
        }
        // Who can write it says where the data of others goes.
        if attributes.mode & 0o022 != 0 || (attributes.uid != of_root.uid && attributes.uid != 0) {
            return refused(
                "others than the owner of the export can write it; set its owner, and its mode to 0644",
            );
        }
        let mut text = vec![0; usize::try_from(attributes.size).unwrap_or(0)];
        let count = file.read_at(&mut text, 0)?;
        ServerTable::parse(&text[..count]).map_err(Error::Servers)
    }

    /// How files are striped that are created in a directory; `None` where they are not.
    pub fn striping(&self, directory: impl AsRef<Path>) -> Result<Option<Striping>> {
        self.striping_in(&self.inner.root, directory)
    }

    /// As [`Volume::striping`], of a directory below another. Where the export has no servers it asks nothing.
    pub fn striping_in(&self, dir: &Dir, directory: impl AsRef<Path>) -> Result<Option<Striping>> {
        let directory = directory.as_ref();
        if self.table()?.rows.is_empty() {
            return Ok(None);
        }
        match dir.xattr(directory, STRIPING_XATTR) {
            Ok(value) => Striping::parse(&value).map(Some).ok_or_else(|| Error::Layout {
                path: directory.display().to_string(),
                cause: "its attribute user.dafs.striping is not as version 1 has it; set it again".to_owned(),
            }),
            Err(error) if has_none(&error) || is_forbidden(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Sets how files are striped that are created in a directory from now on; `None`: they are not. Files that are there stay as they are.
    pub fn set_striping(&self, directory: impl AsRef<Path>, striping: Option<&Striping>) -> Result<()> {
        let (root, directory) = (&self.inner.root, directory.as_ref());
        let Some(striping) = striping else {
            return match root.remove_xattr(directory, STRIPING_XATTR) {
                Err(error) if has_none(&error) => Ok(()),
                removed => Ok(removed?),
            };
        };
        striping.check()?;
        if root.metadata(directory)?.kind != FileKind::Directory {
            return Err(Error::Invalid(format!("{} is no directory", directory.display())));
        }
        Ok(root.set_xattr(directory, STRIPING_XATTR, striping.encode().as_bytes(), XattrSetMode::Any)?)
    }
}

/// Who may not read a directory may not read its attributes either.
fn is_forbidden(error: &ClientError) -> bool {
    matches!(error.status(), Some(Status::ACCESS | Status::PERMISSION))
}
