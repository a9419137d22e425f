use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use dafs_proto::wire::{
    AccessMode, Attributes, CommitRequest, Existing, Fence, FenceChange, FenceList, FileKind, FsStatistics,
    MknodRequest, MountReply, NameRequest, NodeKind, Opcode, OpenFlags, OpenRequest, PATH_SIZE_MAX,
    RemoveRequest, RenameRequest, SetAttributes, Stability, TwoNames, Writer, XattrNames, XattrSetMode,
    decode_message_pack, encode_message_pack,
};

use crate::api::file::File;
use crate::api::options::OpenOptions;
use crate::api::read_dir::ReadDir;
use crate::api::reply::{attributes, bytes, decoded, done};
use crate::driver::Owner;
use crate::driver::pending::{Call, Pending};
use crate::error::{Error, Result};
use crate::handle::node::{MAKING, Node, Reopen};
use crate::op::Op;
use crate::op::named::Named;

/// A directory that is open on the server. Paths begin there.
///
/// A path is bytes, relative to the directory. A leading slash changes nothing. An empty path is the directory itself. No path leaves
/// the export.
///
/// A method is one request and blocks until its reply, unless it says otherwise; its `submit_` form does not block. An error of the
/// server names operation and path ([`Error::Status`]). Clones are cheap.
#[derive(Clone)]
pub struct Dir {
    pub(crate) owner: Arc<Owner>,
    pub(crate) node: Arc<Node>,
}

/// A mounted export. It derefs to its root directory. Clones are cheap.
#[derive(Clone)]
pub struct Export {
    root: Dir,
    name: Arc<str>,
    read_only: bool,
    attributes: Attributes,
}

/// Declares blocking methods, and the nonblocking form of each, over one constructor of the request.
macro_rules! forms {
    ($(
        $(#[$doc:meta])* $name:ident, $submit:ident, $call:ident,
        (&$self:ident $(, $arg:ident: $type:ty)*) -> $result:ty $body:block
    )*) => { $(
        $(#[$doc])*
        pub fn $name(&self, $($arg: $type),*) -> Result<$result> {
            self.owner.shared.check_home()?;
            self.$call($($arg),*)?.run(&self.owner)
        }

        #[doc = concat!("Nonblocking form of [`Self::", stringify!($name), "`].")]
        pub fn $submit(&self, $($arg: $type),*) -> Pending<Result<$result>> {
            let call = self.owner.shared.check_home().and_then(|()| self.$call($($arg),*));
            call.map_or_else(|error| Pending::ready(Err(error)), |call| call.submit(&self.owner))
        }

        fn $call(&$self, $($arg: $type),*) -> Result<Call<Result<$result>>> $body
    )* };
}
pub(crate) use forms;

impl Dir {
    pub(crate) fn new(owner: Arc<Owner>, node: Arc<Node>) -> Self {
        Self { owner, node }
    }

    /// Path of this directory below its export.
    pub fn path(&self) -> &[u8] {
        &self.node.path
    }

    /// Whether it is of no use any more: after a restart of the server it could not be opened again. Does not ask the server.
    pub fn is_stale(&self) -> bool {
        self.node.is_stale()
    }

    /// Opens an existing file for reading.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true))
    }

    /// Creates a file with mode 0o644, or truncates the one that is there, and opens it for reading and writing.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<File> {
        self.open_with(path, OpenOptions::new().read(true).write(true).create(true).truncate(true))
    }

    forms! {
        /// Opens or creates a file, as the options say.
        open_with, submit_open_with, open_call, (&self, path: impl AsRef<Path>, options: &OpenOptions) -> File {
            let flags = options.flags()?;
            let named = open_request(path.as_ref(), flags, options.mode_bits())?;
            let options = options.clone();
            Ok(self.node_call(Opcode::Open, named, Reopen::open(flags), move |owner, node, attributes| {
                File::new(owner, node, attributes, &options)
            }))
        }

        /// Opens a directory, for its entries and for paths that begin there.
        open_dir, submit_open_dir, open_dir_call, (&self, path: impl AsRef<Path>) -> Dir {
            self.directory_call(path.as_ref(), OpenFlags::READ | OpenFlags::DIRECTORY)
        }

        /// As [`Dir::open_dir`], but a symbolic link as the last part of the path is an error. A path of one part then leads nowhere else,
        /// whatever is renamed meanwhile.
        open_dir_no_follow, submit_open_dir_no_follow, open_dir_no_follow_call,
        (&self, path: impl AsRef<Path>) -> Dir {
            self.directory_call(path.as_ref(), OpenFlags::READ | OpenFlags::DIRECTORY | OpenFlags::NO_FOLLOW)
        }

        /// As [`Dir::open_dir_no_follow`], with the attributes that the directory has as it is opened.
        enter, submit_enter, enter_call, (&self, path: impl AsRef<Path>) -> (Dir, Attributes) {
            let flags = OpenFlags::READ | OpenFlags::DIRECTORY | OpenFlags::NO_FOLLOW;
            let named = open_request(path.as_ref(), flags, 0)?;
            Ok(self.node_call(Opcode::Open, named, Reopen::open(flags), |owner, node, attributes| {
                (Dir::new(owner, node), attributes)
            }))
        }

        /// Makes the attributes of the directory and the names in it durable: entries that were created, renamed and removed before the
        /// call. Files and directories below are not covered.
        commit, submit_commit, commit_call, (&self) -> () {
            Ok(self.call(Opcode::Commit, commit_request(0, 0, Stability::FileSync), done))
        }

        /// Looks a path up. The handle is for attributes, and for paths below a directory, not for data. `follow` follows a symbolic link
        /// at the end.
        lookup, submit_lookup, lookup_call,
        (&self, path: impl AsRef<Path>, follow: bool) -> (Dir, Attributes) {
            let named = name_request(path.as_ref(), follow, 0)?;
            Ok(self.node_call(Opcode::Lookup, named, Reopen::Lookup { follow }, |owner, node, attributes| {
                (Dir::new(owner, node), attributes)
            }))
        }

        /// Attributes of a path. A symbolic link at the end is followed.
        metadata, submit_metadata, metadata_call, (&self, path: impl AsRef<Path>) -> Attributes {
            Ok(self.call(Opcode::Getattr, name_request(path.as_ref(), true, 0)?, attributes))
        }

        /// Attributes of a path. A symbolic link at the end is not followed.
        symlink_metadata, submit_symlink_metadata, symlink_metadata_call,
        (&self, path: impl AsRef<Path>) -> Attributes {
            Ok(self.call(Opcode::Getattr, name_request(path.as_ref(), false, 0)?, attributes))
        }

        /// Changes attributes and returns the new ones. `follow` follows a symbolic link at the end.
        set_attributes, submit_set_attributes, set_attributes_call,
        (&self, path: impl AsRef<Path>, follow: bool, set: &SetAttributes) -> Attributes {
            Ok(self.call(Opcode::Setattr, setattr_request(path.as_ref(), follow, set)?, attributes))
        }

        /// Creates a directory with these permission bits and returns its attributes.
        create_dir, submit_create_dir, create_dir_call,
        (&self, path: impl AsRef<Path>, mode: u32) -> Attributes {
            Ok(self.call(Opcode::Mkdir, name_request(path.as_ref(), false, mode)?, attributes))
        }

        /// Makes a FIFO, the name of a socket, or a device, with these permission bits, and returns its attributes. `device` is the number
        /// of a device as [`Attributes::device`] has it, else 0. Devices need a client that acts as root.
        make_node, submit_make_node, make_node_call,
        (&self, path: impl AsRef<Path>, kind: NodeKind, mode: u32, device: u64) -> Attributes {
            if mode > 0o7777 {
                return Err(Error::Invalid(format!("mode {mode:#o}: permission bits are at most 0o7777")));
            }
            let request = MknodRequest { kind, mode, device };
            let mut named = name_request(path.as_ref(), false, 0)?;
            named.body = request.bytes().as_slice().into();
            Ok(self.call(Opcode::Mknod, named, attributes))
        }

        /// Removes a file, or a symbolic link.
        remove_file, submit_remove_file, remove_file_call, (&self, path: impl AsRef<Path>) -> () {
            Ok(self.call(Opcode::Remove, remove_request(path.as_ref(), false)?, done))
        }

        /// Removes an empty directory.
        remove_dir, submit_remove_dir, remove_dir_call, (&self, path: impl AsRef<Path>) -> () {
            Ok(self.call(Opcode::Remove, remove_request(path.as_ref(), true)?, done))
        }

        /// Renames `from` below this directory to `to` below `directory`, which is in the same export. `replace` replaces an existing
        /// `to`; without it that is an error.
        rename, submit_rename, rename_call,
        (&self, from: impl AsRef<Path>, directory: &Dir, to: impl AsRef<Path>, replace: bool) -> () {
            let named = self.second_name(from.as_ref(), directory, to.as_ref(), Existing::of(replace))?;
            Ok(self.call(Opcode::Rename, named, done))
        }

        /// Gives `from` below this directory the name `to` below `directory`, which is in the same export, and what has that name the name
        /// `from`, in one step. Both exist.
        exchange, submit_exchange, exchange_call,
        (&self, from: impl AsRef<Path>, directory: &Dir, to: impl AsRef<Path>) -> () {
            let named = self.second_name(from.as_ref(), directory, to.as_ref(), Existing::Exchanged)?;
            Ok(self.call(Opcode::Rename, named, done))
        }

        /// Creates `to` below `directory` as another name of the file `from`, and returns the file's attributes.
        link, submit_link, link_call,
        (&self, from: impl AsRef<Path>, directory: &Dir, to: impl AsRef<Path>) -> Attributes {
            let named = self.second_name(from.as_ref(), directory, to.as_ref(), Existing::Kept)?;
            Ok(self.call(Opcode::Link, named, attributes))
        }

        /// Creates a symbolic link to `target`, any bytes without a zero, and returns its attributes.
        symlink, submit_symlink, symlink_call,
        (&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> Attributes {
            let target = target.as_ref().as_os_str().as_bytes();
            check_path(target)?;
            let mut named = name_request(path.as_ref(), false, 0)?;
            named.payload = two_names(target, &named.path);
            Ok(self.call(Opcode::Symlink, named, attributes))
        }

        /// The target of a symbolic link.
        read_link, submit_read_link, read_link_call, (&self, path: impl AsRef<Path>) -> Vec<u8> {
            Ok(self.call(Opcode::Readlink, name_request(path.as_ref(), false, 0)?, bytes))
        }

        /// The value of an extended attribute.
        xattr, submit_xattr, xattr_call, (&self, path: impl AsRef<Path>, name: &str) -> Vec<u8> {
            Ok(self.call(Opcode::XattrRead, xattr_request(path.as_ref(), name, &[], 0)?, bytes))
        }

        /// Sets an extended attribute. Its value must fit a message ([`crate::Agreed::write_inline_max`] or a little more).
        set_xattr, submit_set_xattr, set_xattr_call,
        (&self, path: impl AsRef<Path>, name: &str, value: &[u8], mode: XattrSetMode) -> () {
            let named = xattr_request(path.as_ref(), name, value, mode as u32)?;
            Ok(self.call(Opcode::XattrWrite, named, done))
        }

        /// Names of the extended attributes.
        xattrs, submit_xattrs, xattrs_call, (&self, path: impl AsRef<Path>) -> Vec<Vec<u8>> {
            Ok(self.call(Opcode::XattrList, xattr_request(path.as_ref(), "", &[], 0)?, xattr_names))
        }

        /// Removes an extended attribute.
        remove_xattr, submit_remove_xattr, remove_xattr_call,
        (&self, path: impl AsRef<Path>, name: &str) -> () {
            Ok(self.call(Opcode::XattrRemove, xattr_request(path.as_ref(), name, &[], 0)?, done))
        }

        /// Checks whether the caller may do all that `mode` names with a path, as access(2) does. It is an error if not. The answer may be
        /// old when it arrives.
        access, submit_access, access_call, (&self, path: impl AsRef<Path>, mode: AccessMode) -> () {
            Ok(self.call(Opcode::AccessCheck, name_request(path.as_ref(), true, mode.bits())?, done))
        }

        /// Space of the file system that a path is on.
        statfs, submit_statfs, statfs_call, (&self, path: impl AsRef<Path>) -> FsStatistics {
            let named = name_request(path.as_ref(), true, 0)?;
            Ok(self.call(Opcode::Statfs, named, |op| decoded("file system statistics", op)))
        }
    }

    /// Creates a directory and the missing directories above it, as `mkdir -p` does, also those that `..` leads out of again. What exists
    /// stays as it is. It takes one request where only the last directory is missing.
    pub fn create_dir_all(&self, path: impl AsRef<Path>, mode: u32) -> Result<()> {
        let parts = path.as_ref().components();
        let named = parts.filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir));
        self.create_missing(&named.collect::<PathBuf>(), mode)
    }

    /// The path has no parts but names and `..`.
    fn create_missing(&self, path: &Path, mode: u32) -> Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        if path.ends_with("..") {
            self.create_missing(parent, mode)?;
            // It is there, unless it leads out of the export.
            return self.metadata(path).map(drop);
        }
        match self.create_dir(path, mode) {
            Err(error) if error.is_not_found() && !parent.as_os_str().is_empty() => {
                self.create_missing(parent, mode)?;
                self.directory_at(path, self.create_dir(path, mode))
            }
            made => self.directory_at(path, made),
        }
    }

    /// There is a directory: it was made, or was there.
    fn directory_at(&self, path: &Path, made: Result<Attributes>) -> Result<()> {
        match made {
            Err(error) if error.already_exists() => match self.metadata(path) {
                Ok(found) if found.kind == FileKind::Directory => Ok(()),
                _ => Err(error),
            },
            made => made.map(drop),
        }
    }

    /// The entries of a directory, and with `attributes` their attributes too. It opens the directory; the iterator fetches the entries.
    pub fn read_dir(&self, path: impl AsRef<Path>, attributes: bool) -> Result<ReadDir> {
        self.read_dir_from(path, attributes, 0)
    }

    /// As [`Dir::read_dir`], from behind the entry with this cookie.
    pub fn read_dir_from(&self, path: impl AsRef<Path>, attributes: bool, cookie: u64) -> Result<ReadDir> {
        Ok(ReadDir::new(self.open_dir(path)?, attributes, cookie))
    }

    /// The entries of this directory, which must have been opened, not looked up; with `attributes` their attributes too.
    pub fn entries(&self, attributes: bool) -> ReadDir {
        self.entries_from(attributes, 0)
    }

    /// As [`Dir::entries`], from behind the entry with this cookie.
    pub fn entries_from(&self, attributes: bool, cookie: u64) -> ReadDir {
        ReadDir::new(self.clone(), attributes, cookie)
    }

    fn directory_call(&self, path: &Path, flags: OpenFlags) -> Result<Call<Result<Dir>>> {
        let named = open_request(path, flags, 0)?;
        Ok(self.node_call(Opcode::Open, named, Reopen::open(flags), |owner, node, _| Dir::new(owner, node)))
    }

    /// A request that is answered with a handle, which `make` makes something of.
    pub(crate) fn node_call<T>(
        &self,
        opcode: Opcode,
        named: Named,
        reopen: Reopen,
        make: impl FnOnce(Arc<Owner>, Arc<Node>, Attributes) -> T + Send + 'static,
    ) -> Call<Result<T>> {
        let owner = Arc::clone(&self.owner);
        let named = Named { reopen: Some(reopen), ..named };
        Call::boxed(Some(&self.node), opcode, named, move |op| {
            let reply = op.into_reply()?;
            let attributes: Attributes = decode_message_pack("attributes", &reply.payload)?;
            Ok(make(owner, reply.into_node()?, attributes))
        })
    }

    fn second_name(&self, from: &Path, directory: &Dir, to: &Path, existing: Existing) -> Result<Named> {
        if !Arc::ptr_eq(&self.owner, &directory.owner) || self.node.export != directory.node.export {
            return Err(Error::Invalid("both names must be in one export of one session".into()));
        }
        let (from, to) = (clean(from)?, clean(to)?);
        let named = Named::of(&RenameRequest { second_handle: 0, replace: existing }.bytes());
        let second = Some(Arc::clone(&directory.node));
        Ok(Named { payload: two_names(&from, &to), second, path: from, ..named })
    }

    fn call<T>(&self, opcode: Opcode, named: Named, finish: fn(Op) -> T) -> Call<T> {
        Call::plain(Some(&self.node), opcode, named, finish)
    }
}

impl std::fmt::Debug for Dir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Dir({}:/{})", self.node.export, String::from_utf8_lossy(&self.node.path))
    }
}

impl Export {
    pub(crate) fn new(root: Dir, name: String, mounted: MountReply) -> Self {
        Self { root, name: name.into(), read_only: mounted.read_only, attributes: mounted.attributes }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// It is read-only.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Attributes of the root when it was mounted.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// The root directory.
    pub fn root(&self) -> &Dir {
        &self.root
    }

    forms! {
        /// Who is fenced off the export.
        fence_list, submit_fence_list, fence_list_call, (&self) -> FenceList {
            Ok(self.root.call(Opcode::FenceRead, Named::default(), |op| decoded("fence list", op)))
        }

        /// The same, to be replaced by [`Export::replace_fence_list`].
        fence, submit_fence, fence_call, (&self) -> Fence {
            Ok(self.root.call(Opcode::FenceRead, Named::default(), |op| Ok(Fence::decode(&bytes(op)?)?)))
        }

        /// Replaces the list of those who are fenced off the export, at most 1,024 entries and 8,000 bytes. Returns when nothing of theirs
        /// is in flight on the server, and the list is kept where the server keeps lists. Only root and the server's own user may.
        set_fence_list, submit_set_fence_list, set_fence_list_call, (&self, list: &FenceList) -> () {
            let change = FenceChange::new(list.clone(), None);
            let named = Named { payload: encode_message_pack(&change), ..Named::default() };
            Ok(self.root.call(Opcode::FenceWrite, named, done))
        }

        /// As [`Export::set_fence_list`], where the fence is as it was `before`. Fails with
        /// [`Status::NOT_SAME`](crate::Status::NOT_SAME), and changes nothing, where it is another by now.
        replace_fence_list, submit_replace_fence_list, replace_fence_list_call,
        (&self, before: &Fence, list: &FenceList) -> () {
            let change = FenceChange::new(list.clone(), Some(before.sum));
            let named = Named { payload: encode_message_pack(&change), ..Named::default() };
            Ok(self.root.call(Opcode::FenceWrite, named, done))
        }
    }
}

impl Deref for Export {
    type Target = Dir;

    fn deref(&self) -> &Dir {
        &self.root
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({})", self.name)
    }
}

/// The request that changes attributes of a path.
pub(crate) fn setattr_request(path: &Path, follow: bool, set: &SetAttributes) -> Result<Named> {
    let mut named = name_request(path, follow, 0)?;
    let set = encode_message_pack(set);
    named.payload = vec![0; 2 + named.path.len() + set.len()];
    Writer::new(&mut named.payload).prefixed(&named.path).bytes(&set);
    Ok(named)
}

pub(crate) fn name_request(path: &Path, follow: bool, mode: u32) -> Result<Named> {
    let path = clean(path)?;
    if mode > 0o7777 {
        return Err(Error::Invalid(format!("mode {mode:#o}: permission bits are at most 0o7777")));
    }
    Ok(Named::of(&NameRequest { follow, mode }.bytes()).about(path))
}

pub(crate) fn open_request(path: &Path, flags: OpenFlags, mode: u32) -> Result<Named> {
    let named = Named::of(&OpenRequest { flags, mode }.bytes()).about(clean(path)?);
    Ok(Named { makes: flags.intersects(MAKING), ..named })
}

pub(crate) fn commit_request(offset: u64, len: u64, stability: Stability) -> Named {
    Named::of(&CommitRequest { offset, len, stability }.bytes())
}

fn remove_request(path: &Path, directory: bool) -> Result<Named> {
    Ok(Named::of(&RemoveRequest { directory }.bytes()).about(clean(path)?))
}

/// The request about an extended attribute, or with an empty name about all: of a link at the end of the path itself.
pub(crate) fn xattr_request(path: &Path, name: &str, value: &[u8], mode: u32) -> Result<Named> {
    let mut named = name_request(path, false, mode)?;
    if !name.is_empty() {
        check_name(name.as_bytes(), "attribute name")?;
    }
    let names = XattrNames { path: &named.path, name: name.as_bytes(), value };
    named.payload = vec![0; names.size()];
    names.encode(&mut named.payload);
    Ok(named)
}

/// The names in the reply to a request for all.
pub(crate) fn xattr_names(op: Op) -> Result<Vec<Vec<u8>>> {
    let names = bytes(op)?;
    Ok(names.split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
}

pub(crate) fn two_names(first: &[u8], second: &[u8]) -> Vec<u8> {
    let names = TwoNames { first, second };
    let mut payload = vec![0; names.size()];
    names.encode(&mut payload);
    payload
}

pub(crate) fn check_name(name: &[u8], what: &str) -> Result<()> {
    if name.is_empty() || name.len() > dafs_proto::wire::NAME_SIZE_MAX || name.contains(&0) {
        return Err(Error::Invalid(format!(
            "{what} {:?}: must have 1 to {} bytes, none of them zero",
            String::from_utf8_lossy(name),
            dafs_proto::wire::NAME_SIZE_MAX
        )));
    }
    Ok(())
}

/// A path as it is sent: without leading slashes, checked.
pub(crate) fn clean(path: &Path) -> Result<Vec<u8>> {
    let bytes = path.as_os_str().as_bytes();
    check_path(bytes)?;
    let start = bytes.iter().position(|byte| *byte != b'/').unwrap_or(bytes.len());
    Ok(bytes[start..].to_vec())
}

fn check_path(path: &[u8]) -> Result<()> {
    if path.len() > PATH_SIZE_MAX {
        return Err(Error::Invalid(format!("a path of {} bytes: the limit is {PATH_SIZE_MAX}", path.len())));
    }
    if path.contains(&0) {
        return Err(Error::Invalid(format!(
            "the path {:?} contains a zero byte",
            String::from_utf8_lossy(path)
        )));
    }
    Ok(())
}
