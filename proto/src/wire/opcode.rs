use super::Features;

/// One row an opcode, with every property as a column: none can be forgotten.
macro_rules! opcodes {
    ($(
        $(#[$doc:meta])*
        $name:ident = $value:literal,
        $sender:ident, $class:ident, $replay:ident, $anew:ident, $feature:ident, $action:literal;
    )*) => {
        /// What a message asks, answers or tells. Numbers are those of `spec/protocol/wire.md`.
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

            /// Who sends it on its own account; the other side replies, or not.
            #[inline]
            pub const fn sender(self) -> Sender {
                match self { $(Self::$name => Sender::$sender,)* }
            }

            /// What it acts on.
            #[inline]
            pub const fn class(self) -> Class {
                match self { $(Self::$name => Class::$class,)* }
            }

            /// What becomes of a request that is sent again in its session.
            #[inline]
            pub const fn replay(self) -> Replay {
                match self { $(Self::$name => Replay::$replay,)* }
            }

            /// What becomes of a request whose session the server has forgotten.
            #[inline]
            pub const fn anew(self) -> Anew {
                match self { $(Self::$name => Anew::$anew,)* }
            }

            /// What both sides have to name before it may be sent.
            #[inline]
            pub const fn feature(self) -> Features {
                match self { $(Self::$name => Features::$feature,)* }
            }

            /// What it does, as it follows "cannot".
            pub const fn action(self) -> &'static str {
                match self { $(Self::$name => $action,)* }
            }

            /// The name in logs and statistics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name),)* }
            }
        }
    };
}

/// A side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// The client.
    Client,
    /// The server.
    Server,
}

/// What an opcode acts on, and so what allows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The handshake, before there is a session.
    Handshake,
    /// The session, its connection or the server.
    Session,
    /// The session's handles: makes them or gives them back.
    Handle,
    /// What a handle names, without a change.
    Inspect,
    /// What a handle names: changes files, directories or attributes. Refused on read-only exports.
    Modify,
    /// The client is told something; it does not reply.
    Callback,
}

/// What becomes of a request that is sent again, in its session, because its reply was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replay {
    /// The server keeps the reply and sends it again.
    Cached,
    /// The server executes it again: it changes nothing.
    Executed,
}

/// What becomes of a request that was sent in a session which the server has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anew {
    /// It is sent again in a new session: twice has the effect of once.
    Repeated,
    /// Whether it was executed is not known.
    InDoubt,
}

opcodes! {
    // name = number, sender, class, replay, anew, feature, action
    /// Nothing: a round trip, and keep-alive.
    Null = 0x0000, Client, Session, Executed, Repeated, BASE, "ping the server";
    /// Opens the handshake; asks for a new session or an old one.
    Hello = 0x0001, Client, Handshake, Executed, Repeated, BASE, "open a session";
    /// Proves knowledge of the key.
    Authenticate = 0x0002, Client, Handshake, Executed, Repeated, BASE, "open a session";
    /// Ends the session.
    Bye = 0x0003, Client, Session, Executed, Repeated, BASE, "end the session";
    /// The limits and thresholds in force.
    Limits = 0x0004, Client, Session, Executed, Repeated, BASE, "ask for the limits";
    /// Counters of the server.
    Statistics = 0x0005, Client, Session, Executed, Repeated, BASE, "ask for the counters";
    /// Names of the exports this client may mount.
    Exports = 0x0006, Client, Session, Executed, Repeated, BASE, "list the exports";
    /// Exchanges buffers with which data is moved outside of messages; see `spec/protocol/wire.md`.
    EagerBuffers = 0x0007, Client, Session, Executed, Repeated, EAGER_BUFFERS, "exchange buffers";
    /// Publishes crossovers that the client has measured, for clients as it is.
    Publish = 0x0008, Client, Session, Executed, Repeated, BASE, "publish the crossovers";
    /// The root of an export.
    Mount = 0x0010, Client, Handle, Cached, InDoubt, BASE, "mount";
    /// A handle for a path, to be used for attributes and names, not data.
    Lookup = 0x0011, Client, Handle, Cached, InDoubt, BASE, "look up";
    /// Opens a file for data.
    Open = 0x0012, Client, Handle, Cached, InDoubt, BASE, "open";
    /// Gives a handle back.
    Close = 0x0013, Client, Handle, Cached, InDoubt, BASE, "close";
    /// Attributes of a handle, or of a path below it.
    Getattr = 0x0014, Client, Inspect, Executed, Repeated, BASE, "look at";
    /// Changes attributes.
    Setattr = 0x0015, Client, Modify, Cached, InDoubt, BASE, "set attributes of";
    /// Makes a token of an open file, by which other sessions open the same.
    Share = 0x0016, Client, Handle, Cached, InDoubt, TOKENS, "share";
    /// Opens the file that a token names.
    OpenToken = 0x0017, Client, Handle, Cached, InDoubt, TOKENS, "open";
    /// Asks a server on this host for the descriptor of an open file.
    HandOver = 0x0018, Client, Inspect, Executed, Repeated, LOCAL_FILES, "get the descriptor of";
    /// Reads file data.
    Read = 0x0020, Client, Inspect, Executed, Repeated, BASE, "read";
    /// Writes file data.
    Write = 0x0021, Client, Modify, Cached, Repeated, BASE, "write";
    /// Writes at the end of the file, atomically; answers where.
    Append = 0x0022, Client, Modify, Cached, InDoubt, BASE, "append to";
    /// Makes written data durable.
    Commit = 0x0023, Client, Inspect, Cached, Repeated, BASE, "commit";
    /// Sets the size of a file.
    Truncate = 0x0024, Client, Modify, Cached, InDoubt, BASE, "set the size of";
    /// Reserves space for a range.
    Allocate = 0x0025, Client, Modify, Cached, Repeated, BASE, "allocate space of";
    /// Gives the space of a range back; it reads as zeros.
    Punch = 0x0026, Client, Modify, Cached, Repeated, BASE, "punch a hole into";
    /// The next data or hole.
    Seek = 0x0027, Client, Inspect, Executed, Repeated, BASE, "seek in";
    /// Advice about future use; may be ignored.
    Hint = 0x0028, Client, Inspect, Executed, Repeated, BASE, "advise about";
    /// Reads a list of file extents.
    ReadList = 0x0029, Client, Inspect, Executed, Repeated, LISTS, "read";
    /// Writes a list of file extents.
    WriteList = 0x002a, Client, Modify, Cached, Repeated, LISTS, "write";
    /// Many reads and writes that do not depend on each other.
    Batch = 0x002b, Client, Session, Executed, Repeated, BATCHES, "move data of";
    /// Copies a range of one file to another, on the server.
    CopyRange = 0x002c, Client, Modify, Cached, Repeated, BASE, "copy to";
    /// Reads what a view shows of a file.
    ReadView = 0x002d, Client, Inspect, Executed, Repeated, VIEWS, "read";
    /// Writes what a view shows of a file.
    WriteView = 0x002e, Client, Modify, Cached, Repeated, VIEWS, "write";
    /// Entries of a directory, with attributes.
    Readdir = 0x0030, Client, Inspect, Executed, Repeated, BASE, "list";
    /// Makes a directory.
    Mkdir = 0x0031, Client, Modify, Cached, InDoubt, BASE, "make the directory";
    /// Removes a name.
    Remove = 0x0032, Client, Modify, Cached, InDoubt, BASE, "remove";
    /// Renames.
    Rename = 0x0033, Client, Modify, Cached, InDoubt, BASE, "rename";
    /// Makes another name for a file.
    Link = 0x0034, Client, Modify, Cached, InDoubt, BASE, "link";
    /// Makes a symbolic link.
    Symlink = 0x0035, Client, Modify, Cached, InDoubt, BASE, "make the symbolic link";
    /// The target of a symbolic link.
    Readlink = 0x0036, Client, Inspect, Executed, Repeated, BASE, "read the symbolic link";
    /// What access(2) says of a path: whether the client may do all that a mode names.
    AccessCheck = 0x0037, Client, Inspect, Executed, Repeated, BASE, "check access to";
    /// Compares attributes with expected ones: fails where they differ, or where they do not.
    Verify = 0x0038, Client, Inspect, Executed, Repeated, BASE, "verify attributes of";
    /// Makes a FIFO, a socket or a device.
    Mknod = 0x0039, Client, Modify, Cached, InDoubt, BASE, "make";
    /// The value of an extended attribute.
    XattrRead = 0x0040, Client, Inspect, Executed, Repeated, BASE, "read an extended attribute of";
    /// Sets an extended attribute.
    XattrWrite = 0x0041, Client, Modify, Cached, InDoubt, BASE, "set an extended attribute of";
    /// Names of the extended attributes.
    XattrList = 0x0042, Client, Inspect, Executed, Repeated, BASE, "list extended attributes of";
    /// Removes an extended attribute.
    XattrRemove = 0x0043, Client, Modify, Cached, InDoubt, BASE, "remove an extended attribute of";
    /// Space and limits of the file system.
    Statfs = 0x0044, Client, Inspect, Executed, Repeated, BASE, "ask for the space of";
    /// Replaces the list of fenced clients of an export.
    FenceWrite = 0x0050, Client, Session, Cached, InDoubt, BASE, "set the fence of";
    /// The list of fenced clients of an export.
    FenceRead = 0x0051, Client, Session, Executed, Repeated, BASE, "read the fence of";
    /// Locks a range of a file.
    Lock = 0x0060, Client, Inspect, Cached, Repeated, LOCKS, "lock";
    /// Gives locks of a range back.
    Unlock = 0x0061, Client, Inspect, Cached, Repeated, LOCKS, "unlock";
    /// What is in the way of a lock.
    LockTest = 0x0062, Client, Inspect, Executed, Repeated, LOCKS, "test a lock of";
    /// Describes a view to the server, or a part of the description.
    ViewSet = 0x0070, Client, Session, Cached, InDoubt, VIEWS, "describe a view";
    /// Gives a view back.
    ViewDrop = 0x0071, Client, Session, Cached, Repeated, VIEWS, "give back a view";
    /// From the server: something the client should know.
    Notice = 0x8001, Server, Callback, Executed, Repeated, CALLBACKS, "take a callback";
    /// From the server: this many credits are granted at once.
    CreditTarget = 0x8002, Server, Callback, Executed, Repeated, CALLBACKS, "take a callback";
    /// From the server: operations of a batch have ended.
    BatchDone = 0x8003, Server, Callback, Executed, Repeated, CALLBACKS, "take a callback";
    /// From the server: a lock that was waited for is to be asked for again.
    LockTurn = 0x8004, Server, Callback, Executed, Repeated, CALLBACKS, "take a callback";
    /// From the server: a file that was handed over is to be given back.
    Recall = 0x8005, Server, Callback, Executed, Repeated, LOCAL_FILES, "take a callback";
}

impl Opcode {
    /// Sent by the server on its own account.
    #[inline]
    pub const fn is_callback(self) -> bool {
        match self.sender() {
            Sender::Server => true,
            Sender::Client => false,
        }
    }

    /// Changes files, directories or attributes: refused on read-only exports.
    #[inline]
    pub const fn modifies(self) -> bool {
        match self.class() {
            Class::Modify => true,
            Class::Handshake | Class::Session | Class::Handle | Class::Inspect | Class::Callback => false,
        }
    }

    /// The server keeps its reply.
    #[inline]
    pub const fn keeps_reply(self) -> bool {
        match self.replay() {
            Replay::Cached => true,
            Replay::Executed => false,
        }
    }

    /// Executing it twice, with nothing between, has the effect of executing it once.
    #[inline]
    pub const fn is_idempotent(self) -> bool {
        match self.anew() {
            Anew::Repeated => true,
            Anew::InDoubt => false,
        }
    }
}

// What changes something is not changed a second time: others may have changed it since. A batch keeps the results of its writes.
const _: () = {
    let mut index = 0;
    while index < Opcode::ALL.len() {
        let opcode = Opcode::ALL[index];
        let keeps = matches!(opcode.class(), Class::Modify | Class::Handle);
        assert!(!keeps || opcode.keeps_reply());
        index += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::{Class, Opcode, Sender};

    #[test]
    fn opcodes_of_all_numbers_round_trip() {
        let known = (0..=u16::MAX).filter_map(Opcode::from_value).inspect(|op| {
            assert_eq!(Opcode::from_value(op.value()), Some(*op));
        });
        assert_eq!(known.count(), Opcode::ALL.len());
    }

    // [WIRE-13]
    #[test]
    fn callbacks_are_told_by_their_number() {
        for op in Opcode::ALL {
            assert_eq!(op.value() & 0x8000 != 0, op.sender() == Sender::Server, "{op:?}");
            assert_eq!(op.sender() == Sender::Server, op.class() == Class::Callback, "{op:?}");
        }
    }

    /// The table of `spec/protocol/wire.md` says the same.
    #[test]
    fn specification_has_a_row_of_each_opcode() {
        let spec = include_str!("../../../spec/protocol/wire.md");
        let row = |op: &Opcode| {
            let replay = if op.keeps_reply() { "cached" } else { "executed" };
            let anew = if op.is_idempotent() { "repeated" } else { "in doubt" };
            let class = format!("{:?}", op.class()).to_lowercase();
            let row = format!("| {:#06X} | {} | {class} | {replay} | {anew} |", op.value(), op.name());
            row.replace("0X", "0x")
        };
        let missing: Vec<String> = Opcode::ALL.iter().map(row).filter(|row| !spec.contains(row)).collect();
        assert!(missing.is_empty(), "spec/protocol/wire.md has no rows {missing:#?}");
        let rows = spec.lines().filter(|line| line.starts_with("| 0x") && line.matches('|').count() == 8);
        assert_eq!(rows.count(), Opcode::ALL.len());
    }
}
