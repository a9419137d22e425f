/* libdafs: files of dafs servers for C and C++. Made by `cargo xtask header`.
 *
 * Calls look like those of POSIX. An error is -1 or NULL, with errno; dafs_error() has the words, and dafs_error_code() what is special.
 * Sessions, directories, files, listings, chains, batches, types and views are numbers (int64_t). A closed or foreign one is EBADF; 0 and
 * -1 never are one.
 *
 * Threads: every call may be made from any thread, on the same handles too; but one thread at a time uses a struct dafs_op, a listing, a
 * chain, a batch, and the calls of a session's descriptor (dafs_session_fd, dafs_turn, dafs_next, dafs_arm). Another one's call is EBUSY.
 *
 * Structs begin with their size, but those that are elements of arrays: a program begins with DAFS_…_INIT. A smaller size than the library
 * knows is EINVAL, but of dafs_options; what is behind it is left alone.
 *
 * Memory: any memory of the program's can be read into and written from. It is the caller's again when the call returns; for dafs_submit_…
 * when the operation has ended, and memory that is freed before is outside of all promises. dafs_alloc() and dafs_pin() save copies and
 * registrations. Strings and arrays are copied or used up before a call returns.
 *
 * Blocking: a call says whether it blocks. One that does waits as long as the server lives, unless dafs_options.operation_timeout_ms says
 * otherwise; signals do not interrupt it.
 *
 * fork(): the child's calls with a session of its parent's fail with ENOTCONN (DAFS_E_FORKED), the parent goes on. Open a session after it,
 * which any child may, whatever other threads of the parent did at that time. Memory of dafs_alloc() is the parent's alone.
 */

#ifndef DAFS_H
#define DAFS_H

#include <dirent.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>

// The version of this interface: the major part changes when programs must be compiled again.
#define DAFS_VERSION_MAJOR 0

#define DAFS_VERSION_MINOR 1

// What is special about an error, beside errno: dafs_error_code().
// Nothing: errno says all.
#define DAFS_E_PLAIN 0

// The server forgot the session in which the request was sent. It may have been executed: look before you try again. errno is EIO.
#define DAFS_E_IN_DOUBT 1

// After a restart of the server this file could not be opened again: open it anew. errno is ESTALE.
#define DAFS_E_STALE 2

// A restart of the server lost data before it was durable: dafs_lost() has the ranges; write them again. errno is EIO.
#define DAFS_E_WRITES_LOST 3

// This client is fenced off the export. errno is EACCES.
#define DAFS_E_FENCED 4

// The connection is lost, and could not be made again in time. The session has ended. errno is ECONNRESET.
#define DAFS_E_DISCONNECTED 5

// The server broke the rules of the protocol. The session has ended. errno is EPROTO.
#define DAFS_E_PROTOCOL 6

// The session belongs to the parent of this process. errno is ENOTCONN.
#define DAFS_E_FORKED 7

// A fault of this library, which should be reported. errno is ENOTRECOVERABLE.
#define DAFS_E_INTERNAL 8

// dafs_chain_verify(): the file is not as it was expected to be, or still as it was to be no more. errno is ECANCELED.
#define DAFS_E_NOT_SAME 9

// Threads of the library's own: dafs_options.background.
// One that keeps an idle session alive; it nearly always sleeps.
#define DAFS_BACKGROUND_DEFAULT 0

// None that stays: only calls move the session along.
#define DAFS_BACKGROUND_NONE 1

// One that also receives replies, so that nonblocking operations advance without calls.
#define DAFS_BACKGROUND_PROGRESS 2

// How calls wait for replies: dafs_options.wait.
// Spin for a short time while that pays, then sleep.
#define DAFS_WAIT_ADAPTIVE 0

// Sleep at once.
#define DAFS_WAIT_EVENT 1

// Spin, never sleep.
#define DAFS_WAIT_BUSY 2

// What the server does with what lies between the extents of lists: dafs_options.sieve.
// Reads and rewrites it where that is quicker.
#define DAFS_SIEVE_AUTO 0

// The same, wherever it can.
#define DAFS_SIEVE_ON 1

// Leaves it alone: for files that programs of the server's host write at the same time without locks.
#define DAFS_SIEVE_OFF 2

// dafs_openat, beside the flags of open(2): no other open of the file reads it, or writes it, as long as this one lasts. EBUSY where one
// does.
#define DAFS_O_DENY_READ 268435456

#define DAFS_O_DENY_WRITE 536870912

// Locks: shared or exclusive.
#define DAFS_LOCK_SHARED 0

#define DAFS_LOCK_EXCLUSIVE 1

// dafs_flock.flags. It fails with EAGAIN where it would have to wait.
#define DAFS_LOCK_NOWAIT 1

// Reads and writes of other sessions that conflict with it fail with EAGAIN.
#define DAFS_LOCK_MANDATORY 2

// An exclusive lock that stays, broken, where its owner goes without giving it back: others fail with EOWNERDEAD until one repairs.
#define DAFS_LOCK_PERSISTENT 4

// Takes broken locks over, to repair what they guard.
#define DAFS_LOCK_REPAIR 8

// dafs_renameat: it is an error where the new name exists.
#define DAFS_RENAME_NOREPLACE 1

// dafs_flinkat, dafs_chain_flinkat: in place of a file that has the name.
#define DAFS_LINK_REPLACE 1

// dafs_expected.mask: what is compared.
#define DAFS_EXPECT_CHANGE 1

#define DAFS_EXPECT_BYTES 2

#define DAFS_EXPECT_MTIME 4

// ino and generation.
#define DAFS_EXPECT_IDENTITY 8

// Bytes of a token of dafs_share().
#define DAFS_TOKEN_SIZE 32

// Arrays of dafs_type_subarray() and dafs_type_darray(): the last dimension is the fastest, or the first.
#define DAFS_ORDER_C 0

#define DAFS_ORDER_FORTRAN 1

// dafs_darray.distribution: one process has all; one block each; blocks in turn.
#define DAFS_DISTRIBUTE_NONE 0

#define DAFS_DISTRIBUTE_BLOCK 1

#define DAFS_DISTRIBUTE_CYCLIC 2

// A part of a file.
struct dafs_extent {
  uint64_t offset;
  uint64_t len;
};

// Settings of a session. Begin with DAFS_OPTIONS_INIT; 0 and NULL are the defaults.
struct dafs_options {
  // sizeof(struct dafs_options): what an older program does not know keeps its default, and E2BIG tells of what an older library does
  // not know.
  uint32_t size;
  // Requests outstanding at most, 1 to 4096; 64.
  uint32_t credits;
  // A file with the pre-shared key of this client, where the server demands one.
  const char *key_file;
  // A name for the server's operator; the program's.
  const char *client_name;
  // For one attempt to connect; 10 s.
  uint32_t connect_timeout_ms;
  // For each operation; none: as long as the server lives.
  uint32_t operation_timeout_ms;
  // For connecting again when the connection breaks; 60 s.
  uint32_t reconnect_time_ms;
  // DAFS_BACKGROUND_….
  int background;
  // How the data of transfers travels: "auto", "inline", "direct", "bounced", "eager", "client-initiated" or "hybrid"; "auto".
  const char *method;
  // DAFS_WAIT_….
  int wait;
  // DAFS_SIEVE_….
  int sieve;
};

// What was agreed with the server, and how the session is: dafs_session_info(). Begin with DAFS_INFO_INIT.
struct dafs_info {
  // sizeof(struct dafs_info).
  uint32_t size;
  // Requests outstanding at most, and requests of a chain.
  uint32_t slots;
  // Bytes of the largest read and write of a chain.
  uint32_t read_inline_max;
  uint32_t write_inline_max;
  // Bytes of the largest append; larger reads and writes are cut.
  uint32_t transfer_size_max;
  // Files and directories open at most.
  uint32_t handles_max;
  // Silence after which this side speaks.
  uint32_t keep_alive_ms;
  // The server keeps a silent session for so long.
  uint32_t lease_ms;
  // 1 where there is a connection now.
  uint32_t connected;
  // 1 where the server has said that it shuts down.
  uint32_t draining;
  // How often the session has connected again.
  uint64_t reconnects;
  // The id by which fences name this client.
  uint8_t client_id[16];
};

// An entry of a directory.
struct dafs_dirent {
  // sizeof(struct dafs_dirent).
  uint32_t size;
  // DT_REG, DT_DIR, …; DT_UNKNOWN where the entry vanished meanwhile.
  uint32_t kind;
  // The inode number; 0 where the entry vanished meanwhile.
  uint64_t ino;
  // Where dafs_listat() goes on behind this entry.
  uint64_t cookie;
  // With an ending zero.
  char name[256];
};

// Attributes of a file, more than struct stat has. Begin with DAFS_ATTRIBUTES_INIT.
struct dafs_attributes {
  // sizeof(struct dafs_attributes).
  uint32_t size;
  // As st_mode.
  uint32_t mode;
  uint32_t nlink;
  uint32_t uid;
  uint32_t gid;
  // Zero.
  uint32_t reserved;
  // Bytes of data, and bytes of storage in use.
  uint64_t bytes;
  uint64_t allocated;
  uint64_t ino;
  uint64_t dev;
  uint64_t rdev;
  // Tells files apart that had the same ino one after the other; 0 where the file system does not.
  uint64_t generation;
  // Greater after each change of data, attributes or names.
  uint64_t change;
  struct timespec atime;
  struct timespec mtime;
  struct timespec ctime;
};

// A lock with all that can be said of it. Begin with DAFS_FLOCK_INIT.
struct dafs_flock {
  // sizeof(struct dafs_flock).
  uint32_t size;
  // DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE.
  int kind;
  int64_t offset;
  // 0: to the end of any file.
  int64_t len;
  // The program's number for whoever locks; 0: the file's handle. Locks of one owner do not conflict.
  uint64_t owner;
  // DAFS_LOCK_NOWAIT, DAFS_LOCK_MANDATORY, DAFS_LOCK_PERSISTENT, DAFS_LOCK_REPAIR.
  uint32_t flags;
  // dafs_lock_test: 1 where its owner went without giving it back.
  uint32_t broken;
  // dafs_lock_test: whose it is; zeros where it is a process of the server's host.
  uint8_t client_id[16];
};

// A nonblocking operation. The caller keeps it, and may move it; the library writes it in the calls that get it and at no other time.
struct dafs_op {
  // sizeof(struct dafs_op): DAFS_OP_INIT.
  uint32_t size;
  // errno of it, once it has ended with result -1.
  int error;
  // DAFS_E_… of that error.
  int error_code;
  // The library's.
  uint32_t reserved;
  // What dafs_next() calls it; 0 where it ended before it was sent, of which dafs_next() does not tell.
  uint64_t id;
  // What the blocking call would return, once it has ended.
  int64_t result;
  // The library's.
  int64_t handle;
  // The caller's.
  void *user;
};

// Attributes that a file is expected to have: dafs_chain_verify(). Begin with DAFS_EXPECTED_INIT.
struct dafs_expected {
  // sizeof(struct dafs_expected).
  uint32_t size;
  // DAFS_EXPECT_…: one at least.
  uint32_t mask;
  // As of struct dafs_attributes.
  uint64_t change;
  uint64_t bytes;
  uint64_t ino;
  uint64_t generation;
  struct timespec mtime;
};

// When a program wants to hear of the ends in a batch: dafs_batch_submit(). Begin with DAFS_BATCH_HINTS_INIT.
struct dafs_batch_hints {
  // sizeof(struct dafs_batch_hints).
  uint32_t size;
  // Time after which it is told of fewer, counted from the first end.
  uint32_t window_us;
  // Operations that are to have ended before it is told.
  uint64_t completions;
};

// Copies of a type side by side: dafs_type_indexed().
struct dafs_block {
  uint64_t len;
  int64_t displacement;
};

// Copies of a type at a displacement in bytes: dafs_type_struct().
struct dafs_struct_block {
  uint64_t len;
  int64_t displacement;
  int64_t of;
};

// A dimension of an array, and the part of it that is wanted: dafs_type_subarray().
struct dafs_subarray {
  uint64_t size;
  uint64_t subsize;
  uint64_t start;
};

// A dimension of an array that is dealt out to processes: dafs_type_darray().
struct dafs_darray {
  uint64_t size;
  // Elements of a block; 0 for as many as it takes, or one in turn.
  uint64_t block;
  // DAFS_DISTRIBUTE_….
  int distribution;
  // Processes along it.
  uint32_t processes;
};

// A place in what a view shows of a file. Begin with DAFS_VIEW_PLACE_INIT.
struct dafs_view_place {
  // sizeof(struct dafs_view_place).
  uint32_t size;
  // So many transfers, of this and other sessions, have the same group; 0 for none.
  uint32_t group_size;
  // Of dafs_view_make().
  int64_t view;
  // Where in the file the first tile begins.
  uint64_t displacement;
  // The first byte of the view's data.
  uint64_t place;
  // A number of these transfers' own: the server may move together what lies side by side.
  uint64_t group;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library: major * 1000 + minor. Compare with DAFS_VERSION_MAJOR of the header. From any thread; does not block.
int dafs_version(void);

// The words of the calling thread's last error; valid until its next error, never NULL. Does not block.
const char *dafs_error(void);

// DAFS_E_… of the calling thread's last error. Does not block.
int dafs_error_code(void);

// The ranges that the calling thread's last DAFS_E_WRITES_LOST told of: fills at most count, returns how many there are.
ptrdiff_t dafs_lost(struct dafs_extent *ranges, size_t count);

// Opens a session with a server: dafs://host, dafs+tcp://host:port, dafs+shm:///path/of/socket, dafs+verbs://host. options may be NULL.
// Returns its handle, or -1. Blocks.
//
// A session may be used by all threads at once, and so may everything opened in it. When its connection breaks, the next call connects
// again. In a child of fork() every call with it fails with ENOTCONN, but that dafs_close() and dafs_disconnect() forget handles; the
// parent goes on.
int64_t dafs_connect(const char *url, const struct dafs_options *options);

// Ends a session. Its files, directories and operations can only be closed then. Blocks until the server has heard of it, for a second
// at most.
int dafs_disconnect(int64_t session);

// Opens an export of the server: returns the handle of its root directory, or -1. Close it by dafs_close(). Blocks.
int64_t dafs_mount(int64_t session, const char *export_name);

// Closes a file, a directory, a listing, a chain, a batch, a type or a view. Data that was not made durable by dafs_fsync() is with the
// server, which writes it in its time. Operations in flight go on. EBUSY for a chain or a batch in flight. Does not block.
int dafs_close(int64_t handle);

// What was agreed with the server, and how the session is. Does not block.
int dafs_session_info(int64_t session, struct dafs_info *info);

// The names of the exports that this client may mount, each with an ending zero: their size, and the names where size is large enough;
// with size 0 only their size. Blocks.
ptrdiff_t dafs_exports(int64_t session, char *names, size_t size);

// A round trip to the server: its duration in nanoseconds, or -1. Blocks.
int64_t dafs_ping(int64_t session);

// Holds submissions back: nonblocking operations that are submitted until dafs_uncork() leave together, in few system calls and few
// wake-ups of the server. They leave earlier where buffers are full, and when a thread waits for or tests an operation of the session.
// Corks are counted. Does not block.
int dafs_cork(int64_t session);

// Sends what dafs_cork() held back, where it is the last. EINVAL where there is none. Does not block.
int dafs_uncork(int64_t session);

// How the server is reached: "tcp", "shm" or "verbs", written with an ending zero to at most size bytes. Does not block.
int dafs_provider(int64_t session, char *name, size_t size);

// A descriptor for poll(2), select(2) or epoll(7), which is readable when nonblocking operations of the session have ended or need the
// program's turn. It stays the session's, and the same when that connects again; do not read or close it. One thread uses it, so:
//
//   dafs_turn(session) until it returns 0; dafs_next() until it returns 0; dafs_arm(session): 0 means begin anew, 1 means
//   poll() may sleep.
//
// Does not block.
int dafs_session_fd(int64_t session);

// Receives and sends what can be without waiting. 1 where there may be more to do, 0 where there is none.
int dafs_turn(int64_t session);

// An operation that has ended and was not told of: 1, and its number in *id (that of struct dafs_op); 0 where there is none.
int dafs_next(int64_t session, uint64_t *id);

// 1: the descriptor becomes readable as soon as there is something to do. 0: there is something now; take turns again.
int dafs_arm(int64_t session);

// Opens a file below a directory. flags as of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_NOFOLLOW,
// O_DIRECT (past the server's page cache), O_DSYNC and O_SYNC (each write is durable when it returns), DAFS_O_DENY_READ,
// DAFS_O_DENY_WRITE; O_CLOEXEC and O_NOCTTY mean nothing here. A file that is made has mode less the umask. EOPNOTSUPP for a file that is
// striped over several servers. Returns its handle, or -1. Blocks.
//
// With O_DIRECTORY it opens a directory to read, as dafs_opendirat(). With O_TMPFILE, and O_WRONLY or O_RDWR, it makes a file without a
// name in the file system of the directory path, which gets a name by dafs_flinkat() or is gone when it is closed; EOPNOTSUPP where the
// server has no such files.
//
// The handle has no position: pread, pwrite, append. O_APPEND changes nothing.
int64_t dafs_openat(int64_t dir, const char *path, int flags, uint32_t mode);

// Reads at most count bytes at an offset into the caller's memory; returns how many, 0 at the end of the file. Fewer only where the file
// ends. Blocks.
ptrdiff_t dafs_pread(int64_t file, void *buffer, size_t count, int64_t offset);

// Writes count bytes at an offset from the caller's memory; returns how many. Fewer only where the server met an error behind them. With
// O_APPEND too it writes at the offset. Blocks.
ptrdiff_t dafs_pwrite(int64_t file, const void *buffer, size_t count, int64_t offset);

// As preadv(2). Blocks.
ptrdiff_t dafs_preadv(int64_t file, const struct iovec *iov, int count, int64_t offset);

// As pwritev(2). Blocks.
ptrdiff_t dafs_pwritev(int64_t file, const struct iovec *iov, int count, int64_t offset);

// As pwritev2(2), with the flags RWF_DSYNC and RWF_SYNC: durable when it returns. Blocks.
ptrdiff_t dafs_pwritev2(int64_t file, const struct iovec *iov, int count, int64_t offset, int flags);

// Appends count bytes to the file, whole and atomically; returns their offset. Blocks.
int64_t dafs_append(int64_t file, const void *buffer, size_t count);

// Reads a list of extents of the file, one after the other, into a list of pieces of memory: one request. Returns the bytes read from
// the beginning of the list without a gap. Blocks.
ptrdiff_t dafs_read_list(int64_t file, const struct dafs_extent *extents, size_t extent_count, const struct iovec *iov, int iov_count);

// Writes a list of pieces of memory to a list of extents of the file: one request. Returns the bytes written from the beginning of the
// list without a gap. Blocks.
ptrdiff_t dafs_write_list(int64_t file, const struct dafs_extent *extents, size_t extent_count, const struct iovec *iov, int iov_count);

// Makes all that was written to the file durable, with its attributes. Where a restart of the server lost some of it, the error is
// DAFS_E_WRITES_LOST, and dafs_lost() has the ranges. Blocks.
int dafs_fsync(int64_t file);

// As dafs_fsync(), of data alone.
int dafs_fdatasync(int64_t file);

// As dafs_fdatasync(), of a range (len 0: to the end of the file). Blocks.
int dafs_fdatasync_range(int64_t file, int64_t offset, int64_t len);

// Copies count bytes from one file to another of the same session, or within one where the ranges do not overlap; returns how many: fewer
// only where the source ends. The data stays on the server. EXDEV where that cannot copy between the two. Blocks.
ptrdiff_t dafs_copy_file_range(int64_t from, int64_t from_offset, int64_t to, int64_t to_offset, size_t count);

// Gives a file a name, or another one, below a directory of the same export. flags: 0, or DAFS_LINK_REPLACE. Of a file that was opened by
// O_TMPFILE, the name is durable after the next dafs_fsync() of it. Blocks.
int dafs_flinkat(int64_t file, int64_t dir, const char *path, int flags);

// Makes a token of the file, DAFS_TOKEN_SIZE bytes, by which other sessions of the same user and key open it: dafs_open_token(). access:
// O_RDONLY, O_WRONLY or O_RDWR. It lives for time_ms, 60 s at most, which is also what 0 asks for, and no longer than this session.
// Blocks.
int dafs_share(int64_t file, int access, uint32_t time_ms, void *token);

// Opens the file that a token names, with the token's rights. export is a handle of dafs_mount(). path and flags are those of whoever
// opened the file: after a restart of the server it is opened again by them. ESTALE where the token's time is over or it is for others.
// Returns its handle, or -1. Blocks.
int64_t dafs_open_token(int64_t export_, const void *token, const char *path, int flags);

// Sets the size. Blocks.
int dafs_ftruncate(int64_t file, int64_t size);

// As fallocate(2): mode 0, or FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE. Blocks.
int dafs_fallocate(int64_t file, int mode, int64_t offset, int64_t len);

// Where the next data (SEEK_DATA) or hole (SEEK_HOLE) at or behind an offset begins, or with SEEK_END the size plus offset. The handle has
// no position, so nothing is moved. Blocks.
int64_t dafs_lseek(int64_t file, int64_t offset, int whence);

// As posix_fadvise(2), with POSIX_FADV_…: returns -1 and errno for an error. Blocks.
int dafs_fadvise(int64_t file, int64_t offset, int64_t len, int advice);

// The attributes of the file, as fstat(2) fills them. Blocks.
int dafs_fstat(int64_t file, struct stat *attributes);

// As fchmod(2). Blocks.
int dafs_fchmod(int64_t file, uint32_t mode);

// As fchown(2); (uint32_t)-1 leaves one as it is. Blocks.
int dafs_fchown(int64_t file, uint32_t uid, uint32_t gid);

// As futimens(3): access and modification, each a time, UTIME_NOW or UTIME_OMIT; NULL for now. Blocks.
int dafs_futimens(int64_t file, const struct timespec *times);

// Opens a directory, for paths that begin there. Returns its handle, or -1. Blocks.
int64_t dafs_opendirat(int64_t dir, const char *path);

// Opens the listing of a directory, from its beginning (cookie 0) or behind an entry. Returns its handle, or -1. Blocks.
int64_t dafs_listat(int64_t dir, const char *path, uint64_t cookie);

// The next entry of a listing: 1, and the entry; 0 at the end; -1 for an error. Without "." and "..". Blocks while entries are fetched.
int dafs_readdir(int64_t listing, struct dafs_dirent *entry);

// The attributes of a path, as fstatat(2) fills them; flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
int dafs_fstatat(int64_t dir, const char *path, struct stat *attributes, int flags);

// Makes a directory with mode less the umask. Blocks.
int dafs_mkdirat(int64_t dir, const char *path, uint32_t mode);

// Removes a file or a symbolic link, or with AT_REMOVEDIR an empty directory. Blocks.
int dafs_unlinkat(int64_t dir, const char *path, int flags);

// Renames a path below a directory to a path below another of the same export. flags: 0, or DAFS_RENAME_NOREPLACE. Blocks.
int dafs_renameat(int64_t from_dir, const char *from, int64_t to_dir, const char *to, int flags);

// Puts a file with this content, and mode less the umask, in place of whatever file has the name. Until it is whole and durable the old
// one stays, and whoever opens the path gets all of the one or all of the other. Data and name are durable when it returns. Blocks.
int dafs_replaceat(int64_t dir, const char *path, const void *data, size_t size, uint32_t mode);

// Gives a file another name, in the same export. Blocks.
int dafs_linkat(int64_t from_dir, const char *from, int64_t to_dir, const char *to);

// Makes a symbolic link at path to target. Blocks.
int dafs_symlinkat(const char *target, int64_t dir, const char *path);

// The target of a symbolic link, as readlinkat(2): without an ending zero, and cut at size bytes. Blocks.
ptrdiff_t dafs_readlinkat(int64_t dir, const char *path, char *target, size_t size);

// Whether the caller may do all that mode says (R_OK, W_OK, X_OK, or F_OK), as access(2). Blocks.
int dafs_accessat(int64_t dir, const char *path, int mode);

// As fchmodat(2). Blocks.
int dafs_fchmodat(int64_t dir, const char *path, uint32_t mode);

// As fchownat(2); (uint32_t)-1 leaves one as it is. flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
int dafs_fchownat(int64_t dir, const char *path, uint32_t uid, uint32_t gid, int flags);

// As utimensat(2): two times, or NULL for now. flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
int dafs_utimensat(int64_t dir, const char *path, const struct timespec *times, int flags);

// Makes the names of a directory durable: what was created, renamed and removed there before. Blocks.
int dafs_fsyncdir(int64_t dir);

// Space of the file system that a path is on, as statvfs(3) fills it. Blocks.
int dafs_statvfsat(int64_t dir, const char *path, struct statvfs *space);

// The value of an extended attribute, as getxattr(2): its size, and the value where size is large enough; with size 0 only its size.
// Blocks.
ptrdiff_t dafs_getxattrat(int64_t dir, const char *path, const char *name, void *value, size_t size);

// Sets an extended attribute; flags: 0, XATTR_CREATE or XATTR_REPLACE. Blocks.
int dafs_setxattrat(int64_t dir, const char *path, const char *name, const void *value, size_t size, int flags);

// The names of the extended attributes, each with an ending zero, as listxattr(2). Blocks.
ptrdiff_t dafs_listxattrat(int64_t dir, const char *path, char *names, size_t size);

// Removes an extended attribute. Blocks.
int dafs_removexattrat(int64_t dir, const char *path, const char *name);

// All attributes of a path; flags: 0 or AT_SYMLINK_NOFOLLOW. Blocks.
int dafs_getattrat(int64_t dir, const char *path, struct dafs_attributes *attributes, int flags);

// All attributes of the file. Blocks.
int dafs_fgetattr(int64_t file, struct dafs_attributes *attributes);

// As dafs_getxattrat(), of an open file. Blocks.
ptrdiff_t dafs_fgetxattr(int64_t file, const char *name, void *value, size_t size);

// As dafs_setxattrat(), of an open file. Blocks.
int dafs_fsetxattr(int64_t file, const char *name, const void *value, size_t size, int flags);

// As dafs_listxattrat(), of an open file. Blocks.
ptrdiff_t dafs_flistxattr(int64_t file, char *names, size_t size);

// As dafs_removexattrat(), of an open file. Blocks.
int dafs_fremovexattr(int64_t file, const char *name);

// Locks a range (len 0: to the end of any file), DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE, and waits for it in the order of coming. It is
// this handle's: it excludes other handles, of this process too. It ends with dafs_unlock(), with the handle and with the session, and is
// taken again after a restart of the server. EDEADLK where the holder waits for this one. Blocks.
int dafs_lock(int64_t file, int64_t offset, int64_t len, int kind);

// As dafs_lock(), without waiting for others: EAGAIN where it would have to.
int dafs_trylock(int64_t file, int64_t offset, int64_t len, int kind);

// Gives a range back. Blocks.
int dafs_unlock(int64_t file, int64_t offset, int64_t len);

// Locks what *lock says, for an owner of the program's or with effect on others, and waits for it unless DAFS_LOCK_NOWAIT is set.
// Otherwise as dafs_lock(). Blocks.
int dafs_flock_set(int64_t file, const struct dafs_flock *lock);

// Gives the range of *lock back, of its owner. Blocks.
int dafs_flock_unset(int64_t file, const struct dafs_flock *lock);

// Whether something keeps this handle from locking the range of *lock: 1, and *lock is what does; 0 where nothing does, and *lock is as it
// was. It may have changed when this returns. Blocks.
int dafs_flock_test(int64_t file, struct dafs_flock *lock);

// Allocates memory that stays registered with the session's network: transfers to and from it, or any part of it, take neither a copy
// nor a registration. Zeroed, and aligned to a page. It is ordinary memory for all other uses, and for other sessions. NULL for an
// error. A child of fork() must not use it. Does not block on the server.
void *dafs_alloc(int64_t session, size_t size);

// Frees memory of dafs_alloc(), once the operations that use it have ended; NULL is nothing. Does not block.
int dafs_free(void *memory);

// Keeps memory of the caller's registered, from its first transfer on, until dafs_unpin(). It must stay mapped, readable and writable,
// until then. Does not block.
int dafs_pin(int64_t session, void *memory, size_t size);

// Ends what dafs_pin() of this address began last. Operations on the memory must have ended. Does not block.
int dafs_unpin(void *memory);

// Nonblocking form of dafs_pread(): op begins with DAFS_OP_INIT. The memory is the operation's until that has ended: until dafs_test()
// returns 1, or dafs_wait() or dafs_cancel() return. Each operation that was submitted is ended by one of these.
int dafs_submit_pread(int64_t file, void *buffer, size_t count, int64_t offset, struct dafs_op *op);

// Nonblocking form of dafs_pwrite(), as dafs_submit_pread().
int dafs_submit_pwrite(int64_t file, const void *buffer, size_t count, int64_t offset, struct dafs_op *op);

// Nonblocking form of dafs_preadv(). The array is copied; the memory is the operation's until it has ended.
int dafs_submit_preadv(int64_t file, const struct iovec *iov, int count, int64_t offset, struct dafs_op *op);

// Nonblocking form of dafs_pwritev(), as dafs_submit_preadv().
int dafs_submit_pwritev(int64_t file, const struct iovec *iov, int count, int64_t offset, struct dafs_op *op);

// Nonblocking form of dafs_append(), as dafs_submit_pwrite().
int dafs_submit_append(int64_t file, const void *buffer, size_t count, struct dafs_op *op);

// Nonblocking form of dafs_read_list(). The arrays are copied; the memory is the operation's until it has ended.
int dafs_submit_read_list(int64_t file,
                          const struct dafs_extent *extents,
                          size_t extent_count,
                          const struct iovec *iov,
                          int iov_count,
                          struct dafs_op *op);

// Nonblocking form of dafs_write_list(), as dafs_submit_read_list().
int dafs_submit_write_list(int64_t file,
                           const struct dafs_extent *extents,
                           size_t extent_count,
                           const struct iovec *iov,
                           int iov_count,
                           struct dafs_op *op);

// Nonblocking form of dafs_fsync().
int dafs_submit_fsync(int64_t file, struct dafs_op *op);

// Nonblocking form of dafs_fdatasync().
int dafs_submit_fdatasync(int64_t file, struct dafs_op *op);

// Nonblocking form of dafs_ftruncate().
int dafs_submit_ftruncate(int64_t file, int64_t size, struct dafs_op *op);

// Nonblocking form of dafs_copy_file_range(), in one request: the server may copy a part alone, of 64 MiB mostly.
int dafs_submit_copy_file_range(int64_t from, int64_t from_offset, int64_t to, int64_t to_offset, size_t count, struct dafs_op *op);

// Nonblocking form of dafs_lock(). It waits for others as long as it takes: dafs_cancel() ends that.
int dafs_submit_lock(int64_t file, int64_t offset, int64_t len, int kind, struct dafs_op *op);

// Nonblocking form of dafs_fstat(). The attributes are the operation's until it has ended.
int dafs_submit_fstat(int64_t file, struct stat *attributes, struct dafs_op *op);

// Nonblocking form of dafs_openat(); op.result is the handle. Without O_DIRECTORY, and without O_CREAT to read only. Where the operation
// is cancelled and has opened the file all the same, op.result has it too.
int dafs_submit_openat(int64_t dir, const char *path, int flags, uint32_t mode, struct dafs_op *op);

// Nonblocking form of dafs_fstatat(). The attributes are the operation's until it has ended.
int dafs_submit_fstatat(int64_t dir, const char *path, struct stat *attributes, int flags, struct dafs_op *op);

// Nonblocking form of dafs_mkdirat().
int dafs_submit_mkdirat(int64_t dir, const char *path, uint32_t mode, struct dafs_op *op);

// Nonblocking form of dafs_unlinkat().
int dafs_submit_unlinkat(int64_t dir, const char *path, int flags, struct dafs_op *op);

// Nonblocking form of dafs_renameat().
int dafs_submit_renameat(int64_t from_dir, const char *from, int64_t to_dir, const char *to, int flags, struct dafs_op *op);

// Whether an operation has ended: 1, and op.result is what the blocking call would return, with op.error the errno of -1; 0 where it goes
// on. Moves the session along; does not block.
int dafs_test(struct dafs_op *op);

// Waits for the end of an operation: returns what the blocking call would, and sets errno as that does. Blocks.
int64_t dafs_wait(struct dafs_op *op);

// Cancels an operation, and waits until its memory is the caller's again: one that was not sent has no effect, one that was sent may have
// been executed. Returns what became of it: mostly -1 with ECANCELED. Blocks only while the server may be moving data.
int64_t dafs_cancel(struct dafs_op *op);

// Waits until one of several operations, of any sessions, has ended; returns its place in the array, and it is as after dafs_wait().
// Entries that are NULL or have ended are passed over; -1 with ENOENT where none is in flight. Blocks.
ptrdiff_t dafs_wait_any(struct dafs_op *const *ops, size_t count);

// Begins a chain: requests that depend on each other and go out together, in one round trip. They are executed in order, and the first
// that fails aborts the rest. A chain of a directory begins with dafs_chain_lookup() or dafs_chain_open(); one of a file has neither. The
// other calls add a request each; dafs_chain_run() sends them. Returns its handle, or -1; close it by dafs_close(). Does not block.
//
// Data travels in the messages: a read or write moves at most dafs_info.read_inline_max or write_inline_max bytes, and a chain has at most
// dafs_info.slots requests. Its memory is the chain's while it runs. One thread at a time uses a chain: EBUSY.
int64_t dafs_chain_begin(int64_t dir_or_file);

// Looks a path up, below what was looked up before. Does not block, as all that adds to a chain.
int dafs_chain_lookup(int64_t chain, const char *path);

// Opens or makes a file, below what was looked up before; what follows is done to it. flags and mode as of dafs_openat(), also O_TMPFILE,
// but not O_DIRECTORY, and not O_CREAT to read only.
int dafs_chain_open(int64_t chain, const char *path, int flags, uint32_t mode);

// Reads at an offset of the file that was opened, into the caller's memory. dafs_chain_count() has how much.
int dafs_chain_pread(int64_t chain, void *buffer, size_t count, int64_t offset);

// Writes at an offset of the file that was opened, as durable as that was opened for.
int dafs_chain_pwrite(int64_t chain, const void *buffer, size_t count, int64_t offset);

// Goes on only where the file, or what was looked up, has the attributes that are expected; with differs not 0 only where one of them at
// least is another. Else the chain fails with ECANCELED (DAFS_E_NOT_SAME). So a file is changed only if nobody else has.
int dafs_chain_verify(int64_t chain, const struct dafs_expected *expected, int differs);

// As dafs_ftruncate(), of the file that was opened.
int dafs_chain_ftruncate(int64_t chain, int64_t size);

// As dafs_fadvise(), of the file that was opened.
int dafs_chain_fadvise(int64_t chain, int64_t offset, int64_t len, int advice);

// As dafs_fsync(), of the file that was opened.
int dafs_chain_fsync(int64_t chain);

// As dafs_flinkat(), of the file that was opened by O_TMPFILE.
int dafs_chain_flinkat(int64_t chain, int64_t dir, const char *path, int flags);

// As dafs_lock(), for this chain: what follows is done under the lock, until dafs_chain_unlock(). It is given back where the chain breaks
// off, and behind it. Where another owner of this session may have the lock, use dafs_chain_trylock().
int dafs_chain_lock(int64_t chain, int64_t offset, int64_t len, int kind);

// As dafs_chain_lock(), without waiting for others: the chain fails with EAGAIN.
int dafs_chain_trylock(int64_t chain, int64_t offset, int64_t len, int kind);

// Gives back what this chain has locked of a range.
int dafs_chain_unlock(int64_t chain, int64_t offset, int64_t len);

// Closes the file that was opened.
int dafs_chain_close(int64_t chain);

// Sends the chain and waits until all of it is answered: 0, or -1 and the error of the first request that failed. What was opened is then
// closed again. It may be run again, and does the same again. Blocks.
int dafs_chain_run(int64_t chain);

// Nonblocking form of dafs_chain_run(); op.result is 0 at the end. Its memory is the chain's until the operation has ended, and so is the
// chain: EBUSY.
int dafs_submit_chain(int64_t chain, struct dafs_op *op);

// Bytes that a read or write of the chain has moved, counted from 0. A read is short only at the end of the file. ENOENT where there is no
// such one, or the chain has not succeeded. Does not block.
ptrdiff_t dafs_chain_count(int64_t chain, size_t place);

// The attributes of what the chain looked up or opened last. ENOENT as of dafs_chain_count(). Does not block.
int dafs_chain_attributes(int64_t chain, struct dafs_attributes *attributes);

// The file that the chain opened and did not close: its handle, which is the caller's, or -1 with ENOENT. It is given once. Does not
// block.
int64_t dafs_chain_file(int64_t chain);

// Begins a batch: independent reads and writes of any files of a session, which go out in as few requests as carry them and are executed
// in any order. The calls that follow add an operation each; dafs_batch_run() or dafs_batch_submit() sends them. Returns its handle, or
// -1; close it by dafs_close(). Does not block.
//
// The memory of its operations is the batch's until that has ended. One thread at a time uses a batch: EBUSY. What is added to a batch
// that has ended begins it anew.
int64_t dafs_batch_begin(int64_t session);

// Adds a read at an offset. Returns the operation's place in the batch, from 0 on, or -1. Does not block, as all that adds to a batch.
ptrdiff_t dafs_batch_pread(int64_t batch, int64_t file, void *buffer, size_t count, int64_t offset);

// Adds a write at an offset, as dafs_batch_pread().
ptrdiff_t dafs_batch_pwrite(int64_t batch, int64_t file, const void *buffer, size_t count, int64_t offset);

// Adds a read of a list, as of dafs_read_list(). The arrays are copied.
ptrdiff_t dafs_batch_read_list(int64_t batch,
                               int64_t file,
                               const struct dafs_extent *extents,
                               size_t extent_count,
                               const struct iovec *iov,
                               int iov_count);

// Adds a write of a list, as of dafs_write_list(). The arrays are copied. Of a list that is too long for a request the extents ascend and
// do not overlap.
ptrdiff_t dafs_batch_write_list(int64_t batch,
                                int64_t file,
                                const struct dafs_extent *extents,
                                size_t extent_count,
                                const struct iovec *iov,
                                int iov_count);

// Runs the batch and waits until all operations have ended: 0, and dafs_batch_result() has what became of each. -1 where it failed as a
// whole: EINVAL, and nothing was sent, where an operation cannot be (totals that differ, a file of another session), or the session
// ended. Blocks.
int dafs_batch_run(int64_t batch);

// Starts the batch. With hints the server tells of ends while others run: see dafs_batch_wait_some(). Without (NULL) it tells once, of
// all. Its number for dafs_next() goes to *id, unless that is NULL; 0 where there is none. End it by dafs_batch_wait(), or
// dafs_batch_test() that returns 1. Does not block.
int dafs_batch_submit(int64_t batch, const struct dafs_batch_hints *hints, uint64_t *id);

// Whether all operations of a batch have ended: 1, or 0 where some go on; -1 as of dafs_batch_run(). Moves the session along; does not
// block.
int dafs_batch_test(int64_t batch);

// Waits until some operations have ended that were not told of; returns how many, count at most, and their places, each once. 0 when all
// are told. Their results come with dafs_batch_wait(). Blocks.
ptrdiff_t dafs_batch_wait_some(int64_t batch, size_t *places, size_t count);

// Asks the server to tell of ends as soon as it can, from now on: for a program that has nothing left to do but wait. Before
// dafs_batch_submit() it holds for that. Does not block.
int dafs_batch_expedite(int64_t batch);

// Waits until all operations of a batch that was submitted have ended. As dafs_batch_run() then. Blocks.
int dafs_batch_wait(int64_t batch);

// What the operation at a place of the batch would have returned by itself: the bytes moved without a gap from the first on, or -1 and
// errno. Where a read met the end of the file, that goes to *end, else -1; end may be NULL. ENOENT where there is no such operation, or
// the batch has not ended. Does not block.
ptrdiff_t dafs_batch_result(int64_t batch, size_t place, int64_t *end);

// Types say where data lies, as the datatypes of MPI do; each is made of an earlier one, and dafs_view_make() makes a view of the last.
// This one is bytes side by side. Returns its handle, or -1; close it by dafs_close(). Whether it contradicts itself is said when a view
// is made. Does not block, as all calls that make types.
int64_t dafs_type_bytes(uint64_t len);

// Copies of a type side by side.
int64_t dafs_type_contiguous(int64_t of, uint64_t count);

// Blocks of block_len copies, stride copies apart.
int64_t dafs_type_vector(int64_t of, uint64_t count, uint64_t block_len, int64_t stride);

// Blocks of block_len copies, stride bytes apart.
int64_t dafs_type_hvector(int64_t of, uint64_t count, uint64_t block_len, int64_t stride);

// Blocks at displacements in copies.
int64_t dafs_type_indexed(int64_t of, const struct dafs_block *blocks, size_t count);

// Blocks at displacements in bytes.
int64_t dafs_type_hindexed(int64_t of, const struct dafs_block *blocks, size_t count);

// Blocks of block_len copies at displacements in copies.
int64_t dafs_type_indexed_block(int64_t of, uint64_t block_len, const int64_t *displacements, size_t count);

// Blocks of block_len copies at displacements in bytes.
int64_t dafs_type_hindexed_block(int64_t of, uint64_t block_len, const int64_t *displacements, size_t count);

// Blocks of different types, at displacements in bytes.
int64_t dafs_type_struct(const struct dafs_struct_block *blocks, size_t count);

// A part of an array of a type: DAFS_ORDER_C or DAFS_ORDER_FORTRAN, and its dimensions. The tile is all of the array.
int64_t dafs_type_subarray(int64_t of, int order, const struct dafs_subarray *dimensions, size_t count);

// What process rank of size has of an array that is dealt out to a grid of processes.
int64_t dafs_type_darray(int64_t of, uint32_t size, uint32_t rank, int order, const struct dafs_darray *dimensions, size_t count);

// The same data with other bounds: the lower one and the extent, bytes. What is beside it begins an extent behind.
int64_t dafs_type_resized(int64_t of, int64_t lower, int64_t extent);

// Describes a view to the server, for all files of the session: where the data of a type lies in a file. Requests that use it have a
// constant size, whatever the number of pieces. Returns its handle, or -1; close it by dafs_close(). EINVAL where the type contradicts
// itself, and EOPNOTSUPP where the server knows no views. Blocks.
int64_t dafs_view_make(int64_t session, int64_t of);

// Bytes of data in a tile of the view. Does not block.
int64_t dafs_view_size(int64_t view);

// From one tile to the next, bytes: 0, and the extent in *extent. Does not block.
int dafs_view_extent(int64_t view, int64_t *extent);

// Reads what a view shows of a file from a place on, into a list of pieces of memory: byte n of the memory is byte n of the view's data
// behind the place. Returns the bytes read from there without a gap; fewer than the memory holds only where the file ends. Blocks.
ptrdiff_t dafs_view_read(int64_t file, const struct dafs_view_place *place, const struct iovec *iov, int iov_count);

// Writes a list of pieces of memory to what a view shows of a file from a place on. Returns the bytes written without a gap. Blocks.
ptrdiff_t dafs_view_write(int64_t file, const struct dafs_view_place *place, const struct iovec *iov, int iov_count);

// Nonblocking form of dafs_view_read(). The place and the array are copied; the memory is the operation's until it has ended.
int dafs_submit_view_read(int64_t file, const struct dafs_view_place *place, const struct iovec *iov, int iov_count, struct dafs_op *op);

// Nonblocking form of dafs_view_write(), as dafs_submit_view_read().
int dafs_submit_view_write(int64_t file, const struct dafs_view_place *place, const struct iovec *iov, int iov_count, struct dafs_op *op);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAFS_H */

/* How structs begin: the library sees which version of them the program knows. */
#ifdef __cplusplus
#define DAFS_OPTIONS_INIT { sizeof(struct dafs_options), 0, nullptr, nullptr, 0, 0, 0, 0, nullptr, 0, 0 }
#define DAFS_INFO_INIT { sizeof(struct dafs_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0} }
#define DAFS_DIRENT_INIT { sizeof(struct dafs_dirent), 0, 0, 0, {0} }
#define DAFS_OP_INIT { sizeof(struct dafs_op), 0, 0, 0, 0, 0, 0, nullptr }
#define DAFS_ATTRIBUTES_INIT { sizeof(struct dafs_attributes), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {0, 0} }
#define DAFS_EXPECTED_INIT { sizeof(struct dafs_expected), 0, 0, 0, 0, 0, {0, 0} }
#define DAFS_FLOCK_INIT { sizeof(struct dafs_flock), 0, 0, 0, 0, 0, 0, {0} }
#define DAFS_VIEW_PLACE_INIT { sizeof(struct dafs_view_place), 0, 0, 0, 0, 0 }
#define DAFS_BATCH_HINTS_INIT { sizeof(struct dafs_batch_hints), 0, 0 }
#else
#define DAFS_OPTIONS_INIT { .size = sizeof(struct dafs_options) }
#define DAFS_INFO_INIT { .size = sizeof(struct dafs_info) }
#define DAFS_DIRENT_INIT { .size = sizeof(struct dafs_dirent) }
#define DAFS_OP_INIT { .size = sizeof(struct dafs_op) }
#define DAFS_ATTRIBUTES_INIT { .size = sizeof(struct dafs_attributes) }
#define DAFS_EXPECTED_INIT { .size = sizeof(struct dafs_expected) }
#define DAFS_FLOCK_INIT { .size = sizeof(struct dafs_flock) }
#define DAFS_VIEW_PLACE_INIT { .size = sizeof(struct dafs_view_place) }
#define DAFS_BATCH_HINTS_INIT { .size = sizeof(struct dafs_batch_hints) }
#endif
