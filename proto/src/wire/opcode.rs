/// One table: name, number, whether its effect may be repeated without harm.
macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $idempotent:literal;)*) => {
        /// What a message asks, answers or tells. Numbers are those of `spec/wire.md`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Opcode { $($(#[$doc])* $name = $value,)* }

        impl Opcode {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The number on the wire.
            #[inline]
            pub const fn value(self) -> u16 {
                self as u16
            }

            /// The opcode with this number.
            #[inline]
            pub const fn from_value(value: u16) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }

            /// Executing it twice has the effect of executing it once: its reply need not be cached.
            #[inline]
            pub const fn is_idempotent(self) -> bool {
                match self { $(Self::$name => $idempotent,)* }
            }

            /// The name in logs and statistics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

opcodes! {
    /// Nothing: a round trip, and keep-alive.
    Null = 0x0000, true;
    /// Opens the handshake; asks for a new session or an old one.
    Hello = 0x0001, true;
    /// Proves knowledge of the key.
    Authenticate = 0x0002, true;
    /// Ends the session.
    Bye = 0x0003, true;
    /// The limits and thresholds in force.
    Limits = 0x0004, true;
    /// Counters of the server.
    Statistics = 0x0005, true;
    /// Names of the exports this client may mount.
    Exports = 0x0006, true;
    /// Exchanges buffers with which data is moved outside of messages; see `spec/wire.md`.
    Lanes = 0x0007, true;
    /// The root of an export.
    Mount = 0x0010, false;
    /// A handle for a path, to be used for attributes and names, not data.
    Lookup = 0x0011, false;
    /// Opens a file for data.
    Open = 0x0012, false;
    /// Gives a handle back.
    Close = 0x0013, false;
    /// Attributes of a handle, or of a path below it.
    Getattr = 0x0014, true;
    /// Changes attributes.
    Setattr = 0x0015, false;
    /// Makes a token of an open file, by which other sessions open the same.
    Share = 0x0016, false;
    /// Opens the file that a token names.
    OpenToken = 0x0017, false;
    /// Reads file data.
    Read = 0x0020, true;
    /// Writes file data.
    Write = 0x0021, true;
    /// Writes at the end of the file, atomically; answers where.
    Append = 0x0022, false;
    /// Makes written data durable.
    Commit = 0x0023, true;
    /// Sets the size of a file.
    Truncate = 0x0024, false;
    /// Reserves space for a range.
    Allocate = 0x0025, true;
    /// Gives the space of a range back; it reads as zeros.
    Punch = 0x0026, true;
    /// The next data or hole.
    Seek = 0x0027, true;
    /// Advice about future use; may be ignored.
    Hint = 0x0028, true;
    /// Reads a list of file extents.
    ReadList = 0x0029, true;
    /// Writes a list of file extents.
    WriteList = 0x002a, true;
    /// Many reads and writes that do not depend on each other.
    Batch = 0x002b, true;
    /// Entries of a directory, with attributes.
    Readdir = 0x0030, true;
    /// Makes a directory.
    Mkdir = 0x0031, false;
    /// Removes a name.
    Remove = 0x0032, false;
    /// Renames.
    Rename = 0x0033, false;
    /// Makes another name for a file.
    Link = 0x0034, false;
    /// Makes a symbolic link.
    Symlink = 0x0035, false;
    /// The target of a symbolic link.
    Readlink = 0x0036, true;
    /// The value of an extended attribute.
    XattrRead = 0x0040, true;
    /// Sets an extended attribute.
    XattrWrite = 0x0041, false;
    /// Names of the extended attributes.
    XattrList = 0x0042, true;
    /// Removes an extended attribute.
    XattrRemove = 0x0043, false;
    /// Space and limits of the file system.
    Statfs = 0x0044, true;
    /// Replaces the list of fenced clients of an export.
    FenceWrite = 0x0050, false;
    /// The list of fenced clients of an export.
    FenceRead = 0x0051, true;
    /// From the server: something the client should know.
    Notice = 0x8001, true;
    /// From the server: this many credits are granted at once.
    CreditTarget = 0x8002, true;
    /// From the server: operations of a batch have ended.
    BatchDone = 0x8003, true;
}

impl Opcode {
    /// Sent by the server on its own account.
    #[inline]
    pub const fn is_callback(self) -> bool {
        self.value() & 0x8000 != 0
    }

    /// Belongs to the handshake, before there is a session.
    #[inline]
    pub const fn is_handshake(self) -> bool {
        matches!(self, Self::Hello | Self::Authenticate)
    }

    /// Changes files, directories or the server: refused on read-only exports and to fenced clients.
    #[inline]
    pub const fn modifies(self) -> bool {
        matches!(
            self,
            Self::Setattr
                | Self::Write
                | Self::WriteList
                | Self::Append
                | Self::Truncate
                | Self::Allocate
                | Self::Punch
                | Self::Mkdir
                | Self::Remove
                | Self::Rename
                | Self::Link
                | Self::Symlink
                | Self::XattrWrite
                | Self::XattrRemove
        )
    }
}

#[cfg(test)]
mod tests {
    use super::Opcode;

    #[test]
    fn opcodes_of_all_numbers_round_trip() {
        let known = (0..=u16::MAX).filter_map(Opcode::from_value).inspect(|op| {
            assert_eq!(Opcode::from_value(op.value()), Some(*op));
        });
        assert_eq!(known.count(), Opcode::ALL.len());
    }
}
