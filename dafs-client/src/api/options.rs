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
    mode: u32,
    pub(crate) stability: Stability,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet; new files get the mode 0o644, writes are unstable.
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
            mode: 0o644,
            stability: Stability::Unstable,
        }
    }

    /// Data may be read.
    pub fn read(&mut self, read: bool) -> &mut Self {
        self.read = read;
        self
    }

    /// Data may be written.
    pub fn write(&mut self, write: bool) -> &mut Self {
        self.write = write;
        self
    }

    /// Data may be written, and [`std::io::Write`] writes at the end, atomically.
    pub fn append(&mut self, append: bool) -> &mut Self {
        self.append = append;
        self
    }

    /// The file is made when it is not there. Needs `write` or `append`.
    pub fn create(&mut self, create: bool) -> &mut Self {
        self.create = create;
        self
    }

    /// The file is made, and must not be there. Needs `write` or `append`.
    pub fn create_new(&mut self, create_new: bool) -> &mut Self {
        self.create_new = create_new;
        self
    }

    /// The file is cut to no bytes. Needs `write`.
    pub fn truncate(&mut self, truncate: bool) -> &mut Self {
        self.truncate = truncate;
        self
    }

    /// A symbolic link at the end of the path is an error.
    pub fn no_follow(&mut self, no_follow: bool) -> &mut Self {
        self.no_follow = no_follow;
        self
    }

    /// The server's page cache is bypassed, where its storage can.
    pub fn direct_io(&mut self, direct_io: bool) -> &mut Self {
        self.direct_io = direct_io;
        self
    }

    /// Permission bits of a file that is made; used as given, without a umask.
    pub fn mode(&mut self, mode: u32) -> &mut Self {
        self.mode = mode;
        self
    }

    /// When written data is durable, where a call does not say: by the next commit (unstable, the default), or before each write returns.
    pub fn stability(&mut self, stability: Stability) -> &mut Self {
        self.stability = stability;
        self
    }

    pub(crate) fn mode_bits(&self) -> u32 {
        self.mode
    }

    pub(crate) fn appends(&self) -> bool {
        self.append
    }

    pub(crate) fn flags(&self) -> Result<OpenFlags> {
        let writes = self.write || self.append;
        if !self.read && !writes {
            return Err(Error::Invalid("a file is opened for reading, writing or both".into()));
        }
        if (self.create || self.create_new || self.truncate) && !writes {
            return Err(Error::Invalid("a file that is made or cut must be opened for writing".into()));
        }
        if self.truncate && self.append && !self.create_new {
            return Err(Error::Invalid("a file is opened for appending or cut, not both".into()));
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
        Ok(flags)
    }
}
