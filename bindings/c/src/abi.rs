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

/// Threads of the library's own: dafs_options.background.
/// One that keeps an idle session alive; it nearly always sleeps.
pub const DAFS_BACKGROUND_DEFAULT: c_int = 0;
/// None that stays: only calls move the session along.
pub const DAFS_BACKGROUND_NONE: c_int = 1;
/// One that also receives replies, so that nonblocking operations advance without calls.
pub const DAFS_BACKGROUND_PROGRESS: c_int = 2;

/// Locks: shared or exclusive.
pub const DAFS_LOCK_SHARED: c_int = 0;
pub const DAFS_LOCK_EXCLUSIVE: c_int = 1;

/// dafs_renameat: it is an error where the new name exists.
pub const DAFS_RENAME_NOREPLACE: c_int = 1;

/// Settings of a session. Begin with DAFS_OPTIONS_INIT; 0 and NULL are the defaults.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct dafs_options {
    /// sizeof(struct dafs_options): what an older program does not know keeps its default.
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
    /// Where dafs_opendir() goes on behind this entry.
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
