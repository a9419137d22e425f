//! Files that get their name when they are whole.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use dafs_proto::wire::{Attributes, Existing, Opcode, OpenFlags, RenameRequest, Status};

use crate::api::chain::Chain;
use crate::api::dir::{Dir, clean, forms, open_request, two_names};
use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::reply::attributes;
use crate::api::verify::Expected;
use crate::connect;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::handle::node::Reopen;
use crate::op::chain::Link;
use crate::op::named::Named;

/// How a file without a name is opened.
const UNNAMED: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::UNNAMED);

/// Requests of a replacing chain beside its writes, each of which is verified: open, commit, link, commit, close.
const OTHER_LINKS: usize = 5;

/// How a file begins that the server's file system cannot make without a name.
const PREFIX: &str = ".dafs-new-";

impl Dir {
    /// Puts a file with this content and these permission bits at `path`, in place of whatever file has that name. Until the new one is
    /// whole and durable the old one stays as it is, and whoever opens the path gets all of the one or all of the other. When it returns,
    /// data and name are durable. Blocks.
    ///
    /// There is one exception: the storage of the server fails to write something back meanwhile. The file is then made a second time. If
    /// that fails too, the name may have a new file that is whole and perhaps not durable.
    ///
    /// The new file belongs to the caller; nothing of the old one is kept, neither owner nor attributes. Small data takes one round trip.
    /// When it fails nothing is left behind, except where a server without nameless files (`O_TMPFILE`), or the connection to it, ends
    /// meanwhile: then a file may stay whose name begins with `.dafs-new-`. [`Error::InDoubt`] means that either file may be there; calling
    /// it again does no harm.
    pub fn replace(&self, path: impl AsRef<Path>, data: &[u8], mode: u32) -> Result<()> {
        let path = path.as_ref();
        let agreed = self.owner.shared.lock().terms.clone();
        let piece = agreed.write_inline_max.max(1) as usize;
        let links = 2 * data.len().div_ceil(piece) + OTHER_LINKS;
        let replaced = match links <= usize::from(agreed.welcome.slots) {
            true => self.replace_in_a_chain(path, data, piece, mode),
            false => self.replace_step_by_step(path, data, mode),
        };
        match replaced {
            Err(error) if error.status() == Some(Status::NOT_SUPPORTED) => {
                self.replace_by_rename(path, data, mode)
            }
            // A part alone was written, and a step tells why; or the server may have lost what was.
            Err(error)
                if error.status() == Some(Status::NOT_SAME) || matches!(error, Error::WritesLost { .. }) =>
            {
                self.replace_step_by_step(path, data, mode)
            }
            replaced => replaced,
        }
    }

    fn replace_in_a_chain(&self, path: &Path, data: &[u8], piece: usize, mode: u32) -> Result<()> {
        let mut chain = self.chain().open_unnamed(parent_of(path), mode);
        let mut size = 0;
        for part in data.chunks(piece) {
            chain = chain.write_at(part, size);
            size += part.len() as u64;
            // A write may end after a part, and what follows would give that the name.
            chain = chain.verify(&Expected::new().size(size));
        }
        chain.commit().link_to(self, path, true).commit().close().run().map(drop)
    }

    fn replace_step_by_step(&self, path: &Path, data: &[u8], mode: u32) -> Result<()> {
        let file = self.open_unnamed(parent_of(path), mode)?;
        file.write_all_at(data, 0)?;
        file.commit()?;
        file.link_to(self, path, true)?;
        file.commit()
    }

    /// For file systems that know no files without a name.
    fn replace_by_rename(&self, path: &Path, data: &[u8], mode: u32) -> Result<()> {
        let mut chance = [0; 8];
        connect::random(&mut chance)?;
        let name = format!("{PREFIX}{:016x}", u64::from_le_bytes(chance));
        let own = parent_of(path).join(name);
        let file = self.open_with(&own, OpenOptions::new().write(true).create_new(true).mode(mode))?;
        let placed = file
            .write_all_at(data, 0)
            .and_then(|()| file.commit())
            .and_then(|()| self.rename(&own, self, path, true))
            .and_then(|()| self.open_dir(parent_of(path))?.commit());
        if placed.is_err() {
            // Where it was renamed there is none.
            let _ = self.remove_file(&own);
        }
        placed
    }

    forms! {
        /// Makes a file without a name, in the file system of the directory `path`, and opens it for reading and writing. It gets a name by
        /// [`File::link_to`]; without one it is gone when it is closed, or its session ends. After a restart of the server it is stale.
        ///
        /// Fails with the status `NOT_SUPPORTED` where the server's file system knows no such files.
        open_unnamed, submit_open_unnamed, open_unnamed_call, (&self, path: impl AsRef<Path>, mode: u32) -> File {
            let named = unnamed_request(path.as_ref(), mode)?;
            Ok(self.node_call(Opcode::Open, named, reopen(), |owner, node, attributes| {
                File::new(owner, node, attributes, OpenOptions::new().read(true).write(true))
            }))
        }
    }
}

impl File {
    forms! {
        /// Gives the file a name, or another one, below `directory`, which is in the same export; returns its attributes. `replace` puts it
        /// in the place of a file that has the name; without it that is an error. The name is durable after the next [`File::commit`] of a
        /// file that was opened without one.
        link_to, submit_link_to, link_to_call,
        (&self, directory: &Dir, path: impl AsRef<Path>, replace: bool) -> Attributes {
            if !Arc::ptr_eq(&self.owner, &directory.owner) || self.node.export != directory.node.export {
                return Err(Error::Invalid("file and directory must be in one export of one session".into()));
            }
            let named = link_request(directory, path.as_ref(), replace)?;
            Ok(Call::plain(Some(&self.node), Opcode::Link, named, attributes))
        }
    }
}

impl Chain<'_> {
    /// Makes a file without a name ([`Dir::open_unnamed`]). What follows is done to it.
    pub fn open_unnamed(mut self, path: impl AsRef<Path>, mode: u32) -> Self {
        let request = self.checked(unnamed_request(path.as_ref(), mode)).unwrap_or_default();
        self.options = OpenOptions::new().read(true).write(true).clone();
        self.push(Link { reopen: Some(reopen()), ..Link::new(Opcode::Open, request) })
    }

    /// Gives the file that was opened a name below `directory` ([`File::link_to`]). A chain with it is not sent again when its outcome is
    /// not known.
    pub fn link_to(mut self, directory: &Dir, path: impl AsRef<Path>, replace: bool) -> Self {
        if !Arc::ptr_eq(self.owner, &directory.owner) || self.node.export != directory.node.export {
            self.checked::<()>(Err(Error::Invalid(
                "file and directory must be in one export of one session".into(),
            )));
        }
        let request = self.checked(link_request(directory, path.as_ref(), replace)).unwrap_or_default();
        self.push(Link::new(Opcode::Link, request))
    }
}

/// It cannot be: what it was is gone with its session.
fn reopen() -> Reopen {
    Reopen::Open { flags: OpenFlags::READ | OpenFlags::WRITE }
}

fn unnamed_request(path: &Path, mode: u32) -> Result<Named> {
    if mode > 0o7777 {
        return Err(Error::Invalid(format!("mode {mode:#o}: permission bits are at most 0o7777")));
    }
    open_request(path, UNNAMED, mode)
}

fn link_request(directory: &Dir, path: &Path, replace: bool) -> Result<Named> {
    let to = clean(path)?;
    let request = RenameRequest { second_handle: 0, replace: Existing::of(replace) };
    let named = Named::of(&request.bytes());
    let second = Some(Arc::clone(&directory.node));
    Ok(Named { payload: two_names(b"", &to), second, makes: true, ..named })
}

/// The directory of a path, as the path has it; empty for the one where the path begins.
fn parent_of(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    let slash = bytes.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    Path::new(OsStr::from_bytes(&bytes[..slash]))
}
