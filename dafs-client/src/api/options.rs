use dafs_proto::wire::{OpenFlags, Stability};

use crate::error::{Error, Result};

/// How a file is opened: a builder like [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    read: bool,
    write: bool,
    append: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
    no_follow: bool,
    direct_io: bool,
    deny_read: bool,
    deny_write: bool,
    mode: u32,
    pub(crate) stability: Stability,
}

/// Declares methods that set the field of their name.
macro_rules! setters {
    ($($(#[$doc:meta])* $field:ident: $type:ty;)*) => { $(
        $(#[$doc])*
        pub fn $field(&mut self, $field: $type) -> &mut Self {
            self.$field = $field;
            self
        }
    )* };
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Options that allow nothing yet. New files get the mode 0o644, and writes are unstable.
    pub fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            create: false,
            create_new: false,
            truncate: false,
            no_follow: false,
            direct_io: false,
            deny_read: false,
            deny_write: false,
            mode: 0o644,
            stability: Stability::Unstable,
        }
    }

    setters! {
        /// Data may be read.
        read: bool;
        /// Data may be written.
        write: bool;
        /// Data may be written, and [`std::io::Write`] appends it, atomically.
        append: bool;
        /// Creates the file if it does not exist.
        create: bool;
        /// Creates the file, which must not exist.
        create_new: bool;
        /// Truncates the file to no bytes. Needs `write`.
        truncate: bool;
        /// A symbolic link at the end of the path is an error.
        no_follow: bool;
        /// Bypasses the server's page cache (O_DIRECT), where its storage can.
        direct_io: bool;
        /// Keeps others from opening the file to read, as long as this open lasts. The open fails with the status `SHARE_DENIED` where
        /// another open reads the file. It binds all clients of the server, this one's other opens too, and no program beside the server.
        deny_read: bool;
        /// Keeps others from opening the file to write, as [`OpenOptions::deny_read`] from reading.
        deny_write: bool;
        /// Permission bits of a file that is created, without a umask.
        mode: u32;
        /// When written data is durable, where a call does not say: at the next commit (unstable, the default), or before each write
        /// returns.
        stability: Stability;
    }

    /// Whether they would create a file that is not there.
    pub fn creates(&self) -> bool {
        self.create || self.create_new
    }

    /// Whether the file must not be there.
    pub fn creates_only(&self) -> bool {
        self.create_new
    }

    /// Whether they truncate a file that is there.
    pub fn truncates(&self) -> bool {
        self.truncate && !self.create_new
    }

    /// Whether they let data be written.
    pub fn writes(&self) -> bool {
        self.write || self.append
    }

    /// Permission bits of a file that is created.
    pub fn mode_bits(&self) -> u32 {
        self.mode
    }

    /// Whether they can be: the error says which do not go together.
    pub fn check(&self) -> Result<()> {
        self.flags().map(drop)
    }

    pub(crate) fn appends(&self) -> bool {
        self.append
    }

    pub(crate) fn flags(&self) -> Result<OpenFlags> {
        let writes = self.writes();
        if !self.read && !writes {
            return Err(Error::Invalid("a file is opened for reading, writing or both".into()));
        }
        if self.truncate && !writes {
            return Err(Error::Invalid("a file that is truncated must be opened for writing".into()));
        }
        if self.truncate && self.append && !self.create_new {
            return Err(Error::Invalid("a file cannot be both appended to and truncated".into()));
        }
        if self.mode > 0o7777 {
            return Err(Error::Invalid(format!("mode {:#o}: permission bits are at most 0o7777", self.mode)));
        }
        let mut flags = OpenFlags::empty();
        flags.set(OpenFlags::READ, self.read);
        flags.set(OpenFlags::WRITE, writes);
        flags.set(OpenFlags::CREATE, self.create || self.create_new);
        flags.set(OpenFlags::EXCLUSIVE, self.create_new);
        flags.set(OpenFlags::TRUNCATE, self.truncate && !self.create_new);
        flags.set(OpenFlags::NO_FOLLOW, self.no_follow);
        flags.set(OpenFlags::DIRECT_IO, self.direct_io);
        flags.set(OpenFlags::DENY_READ, self.deny_read);
        flags.set(OpenFlags::DENY_WRITE, self.deny_write);
        Ok(flags)
    }
}
