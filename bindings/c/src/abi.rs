//! The types and numbers of the header.
#![allow(non_camel_case_types, missing_docs, reason = "names of C; fields say what they are")]

use std::ffi::{c_char, c_int, c_void};

/// The version of this interface: the major part changes when programs must be compiled again.
pub const DAFS_VERSION_MAJOR: c_int = 0;
pub const DAFS_VERSION_MINOR: c_int = 1;

/// What is special about an error, beside errno: dafs_error_code().
/// Nothing: errno says all.
pub const DAFS_E_PLAIN: c_int = 0;
/// The server forgot the session in which the request was sent. It may have been executed: look before you try again. errno is EIO.
pub const DAFS_E_IN_DOUBT: c_int = 1;
/// After a restart of the server this file could not be opened again: open it anew. errno is ESTALE.
pub const DAFS_E_STALE: c_int = 2;
/// A restart of the server lost data before it was durable: dafs_lost() has the ranges; write them again. errno is EIO.
pub const DAFS_E_WRITES_LOST: c_int = 3;
/// This client is fenced off the export. errno is EACCES.
pub const DAFS_E_FENCED: c_int = 4;
/// The connection is lost, and could not be made again in time. The session has ended. errno is ECONNRESET.
pub const DAFS_E_DISCONNECTED: c_int = 5;
/// The server broke the rules of the protocol. The session has ended. errno is EPROTO.
pub const DAFS_E_PROTOCOL: c_int = 6;
/// The session belongs to the parent of this process. errno is ENOTCONN.
pub const DAFS_E_FORKED: c_int = 7;
/// A fault of this library, which should be reported. errno is ENOTRECOVERABLE.
pub const DAFS_E_INTERNAL: c_int = 8;
/// dafs_chain_verify(): the file is not as it was expected to be, or still as it was to be no more. errno is ECANCELED.
pub const DAFS_E_NOT_SAME: c_int = 9;

/// Threads of the library's own: dafs_options.background.
/// One that keeps an idle session alive; it nearly always sleeps.
pub const DAFS_BACKGROUND_DEFAULT: c_int = 0;
/// None that stays: only calls move the session along.
pub const DAFS_BACKGROUND_NONE: c_int = 1;
/// One that also receives replies, so that nonblocking operations advance without calls.
pub const DAFS_BACKGROUND_PROGRESS: c_int = 2;

/// How calls wait for replies: dafs_options.wait.
/// Spin for a short time while that pays, then sleep.
pub const DAFS_WAIT_ADAPTIVE: c_int = 0;
/// Sleep at once.
pub const DAFS_WAIT_EVENT: c_int = 1;
/// Spin, never sleep.
pub const DAFS_WAIT_BUSY: c_int = 2;

/// What the server does with what lies between the extents of lists: dafs_options.sieve.
/// Reads and rewrites it where that is quicker.
pub const DAFS_SIEVE_AUTO: c_int = 0;
/// The same, wherever it can.
pub const DAFS_SIEVE_ON: c_int = 1;
/// Leaves it alone: for files that programs of the server's host write at the same time without locks.
pub const DAFS_SIEVE_OFF: c_int = 2;

/// dafs_openat, beside the flags of open(2): no other open of the file reads it, or writes it, as long as this one lasts. EBUSY where one
/// does.
pub const DAFS_O_DENY_READ: c_int = 0x1000_0000;
pub const DAFS_O_DENY_WRITE: c_int = 0x2000_0000;

/// Locks: shared or exclusive.
pub const DAFS_LOCK_SHARED: c_int = 0;
pub const DAFS_LOCK_EXCLUSIVE: c_int = 1;

/// dafs_flock.flags. It fails with EAGAIN where it would have to wait.
pub const DAFS_LOCK_NOWAIT: u32 = 1;
/// Reads and writes of other sessions that conflict with it fail with EAGAIN.
pub const DAFS_LOCK_MANDATORY: u32 = 2;
/// An exclusive lock that stays, broken, where its owner goes without giving it back: others fail with EOWNERDEAD until one repairs.
pub const DAFS_LOCK_PERSISTENT: u32 = 4;
/// Takes broken locks over, to repair what they guard.
pub const DAFS_LOCK_REPAIR: u32 = 8;

/// dafs_renameat: it is an error where the new name exists.
pub const DAFS_RENAME_NOREPLACE: c_int = 1;
/// dafs_flinkat, dafs_chain_flinkat: in place of a file that has the name.
pub const DAFS_LINK_REPLACE: c_int = 1;

/// dafs_expected.mask: what is compared.
pub const DAFS_EXPECT_CHANGE: u32 = 1;
pub const DAFS_EXPECT_BYTES: u32 = 2;
pub const DAFS_EXPECT_MTIME: u32 = 4;
/// ino and generation.
pub const DAFS_EXPECT_IDENTITY: u32 = 8;

/// Bytes of a token of dafs_share().
pub const DAFS_TOKEN_SIZE: usize = 32;

/// Arrays of dafs_type_subarray() and dafs_type_darray(): the last dimension is the fastest, or the first.
pub const DAFS_ORDER_C: c_int = 0;
pub const DAFS_ORDER_FORTRAN: c_int = 1;

/// dafs_darray.distribution: one process has all; one block each; blocks in turn.
pub const DAFS_DISTRIBUTE_NONE: c_int = 0;
pub const DAFS_DISTRIBUTE_BLOCK: c_int = 1;
pub const DAFS_DISTRIBUTE_CYCLIC: c_int = 2;

/// Settings of a session. Begin with DAFS_OPTIONS_INIT; 0 and NULL are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_options {
    /// sizeof(struct dafs_options): what an older program does not know keeps its default, and E2BIG tells of what an older library does
    /// not know.
    pub size: u32,
    /// Requests outstanding at most, 1 to 4096; 64.
    pub credits: u32,
    /// A file with the pre-shared key of this client, where the server demands one.
    pub key_file: *const c_char,
    /// A name for the server's operator; the program's.
    pub client_name: *const c_char,
    /// For one attempt to connect; 10 s.
    pub connect_timeout_ms: u32,
    /// For each operation; none: as long as the server lives.
    pub operation_timeout_ms: u32,
    /// For connecting again when the connection breaks; 60 s.
    pub reconnect_time_ms: u32,
    /// DAFS_BACKGROUND_….
    pub background: c_int,
    /// How the data of transfers travels: "auto", "inline", "direct", "bounced", "eager", "client-initiated" or "hybrid"; "auto".
    pub method: *const c_char,
    /// DAFS_WAIT_….
    pub wait: c_int,
    /// DAFS_SIEVE_….
    pub sieve: c_int,
}

/// What was agreed with the server, and how the session is: dafs_session_info(). Begin with DAFS_INFO_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_info {
    /// sizeof(struct dafs_info).
    pub size: u32,
    /// Requests outstanding at most, and requests of a chain.
    pub slots: u32,
    /// Bytes of the largest read and write of a chain.
    pub read_inline_max: u32,
    pub write_inline_max: u32,
    /// Bytes of the largest append; larger reads and writes are cut.
    pub transfer_size_max: u32,
    /// Files and directories open at most.
    pub handles_max: u32,
    /// Silence after which this side speaks.
    pub keep_alive_ms: u32,
    /// The server keeps a silent session for so long.
    pub lease_ms: u32,
    /// 1 where there is a connection now.
    pub connected: u32,
    /// 1 where the server has said that it shuts down.
    pub draining: u32,
    /// How often the session has connected again.
    pub reconnects: u64,
    /// The id by which fences name this client.
    pub client_id: [u8; 16],
}

/// A part of a file.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_extent {
    pub offset: u64,
    pub len: u64,
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_dirent {
    /// sizeof(struct dafs_dirent).
    pub size: u32,
    /// DT_REG, DT_DIR, …; DT_UNKNOWN where the entry vanished meanwhile.
    pub kind: u32,
    /// The inode number; 0 where the entry vanished meanwhile.
    pub ino: u64,
    /// Where dafs_listat() goes on behind this entry.
    pub cookie: u64,
    /// With an ending zero.
    pub name: [c_char; 256],
}

/// A nonblocking operation. The caller keeps it, and may move it; the library writes it in the calls that get it and at no other time.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_op {
    /// sizeof(struct dafs_op): DAFS_OP_INIT.
    pub size: u32,
    /// errno of it, once it has ended with result -1.
    pub error: c_int,
    /// DAFS_E_… of that error.
    pub error_code: c_int,
    /// The library's.
    pub reserved: u32,
    /// What dafs_next() calls it; 0 where it ended before it was sent, of which dafs_next() does not tell.
    pub id: u64,
    /// What the blocking call would return, once it has ended.
    pub result: i64,
    /// The library's.
    pub handle: i64,
    /// The caller's.
    pub user: *mut c_void,
}

/// Attributes of a file, more than struct stat has. Begin with DAFS_ATTRIBUTES_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dafs_attributes {
    /// sizeof(struct dafs_attributes).
    pub size: u32,
    /// As st_mode.
    pub mode: u32,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    /// Zero.
    pub reserved: u32,
    /// Bytes of data, and bytes of storage in use.
    pub bytes: u64,
    pub allocated: u64,
    pub ino: u64,
    pub dev: u64,
    pub rdev: u64,
    /// Tells files apart that had the same ino one after the other; 0 where the file system does not.
    pub generation: u64,
    /// Greater after each change of data, attributes or names.
    pub change: u64,
    pub atime: libc::timespec,
    pub mtime: libc::timespec,
    pub ctime: libc::timespec,
}

/// Attributes that a file is expected to have: dafs_chain_verify(). Begin with DAFS_EXPECTED_INIT.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dafs_expected {
    /// sizeof(struct dafs_expected).
    pub size: u32,
    /// DAFS_EXPECT_…: one at least.
    pub mask: u32,
    /// As of struct dafs_attributes.
    pub change: u64,
    pub bytes: u64,
    pub ino: u64,
    pub generation: u64,
    pub mtime: libc::timespec,
}

/// A lock with all that can be said of it. Begin with DAFS_FLOCK_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_flock {
    /// sizeof(struct dafs_flock).
    pub size: u32,
    /// DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE.
    pub kind: c_int,
    pub offset: i64,
    /// 0: to the end of any file.
    pub len: i64,
    /// The program's number for whoever locks; 0: the file's handle. Locks of one owner do not conflict.
    pub owner: u64,
    /// DAFS_LOCK_NOWAIT, DAFS_LOCK_MANDATORY, DAFS_LOCK_PERSISTENT, DAFS_LOCK_REPAIR.
    pub flags: u32,
    /// dafs_lock_test: 1 where its owner went without giving it back.
    pub broken: u32,
    /// dafs_lock_test: whose it is; zeros where it is a process of the server's host.
    pub client_id: [u8; 16],
}

/// A place in what a view shows of a file. Begin with DAFS_VIEW_PLACE_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_view_place {
    /// sizeof(struct dafs_view_place).
    pub size: u32,
    /// So many transfers, of this and other sessions, have the same group; 0 for none.
    pub group_size: u32,
    /// Of dafs_view_make().
    pub view: i64,
    /// Where in the file the first tile begins.
    pub displacement: u64,
    /// The first byte of the view's data.
    pub place: u64,
    /// A number of these transfers' own: the server may move together what lies side by side.
    pub group: u64,
}

/// Copies of a type side by side: dafs_type_indexed().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_block {
    pub len: u64,
    pub displacement: i64,
}

/// Copies of a type at a displacement in bytes: dafs_type_struct().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_struct_block {
    pub len: u64,
    pub displacement: i64,
    pub of: i64,
}

/// A dimension of an array, and the part of it that is wanted: dafs_type_subarray().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_subarray {
    pub size: u64,
    pub subsize: u64,
    pub start: u64,
}

/// A dimension of an array that is dealt out to processes: dafs_type_darray().
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_darray {
    pub size: u64,
    /// Elements of a block; 0 for as many as it takes, or one in turn.
    pub block: u64,
    /// DAFS_DISTRIBUTE_….
    pub distribution: c_int,
    /// Processes along it.
    pub processes: u32,
}

/// When a program wants to hear of the ends in a batch: dafs_batch_submit(). Begin with DAFS_BATCH_HINTS_INIT.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_batch_hints {
    /// sizeof(struct dafs_batch_hints).
    pub size: u32,
    /// Time after which it is told of fewer, counted from the first end.
    pub window_us: u32,
    /// Operations that are to have ended before it is told.
    pub completions: u64,
}
