/* libdafs: files of dafs servers for C and C++. Made by `cargo xtask header`.
 *
 * Calls look like those of POSIX. An error is -1 or NULL, with errno; dafs_error() has the words, and dafs_error_code() what is special.
 * Sessions, directories, files and listings are numbers (int64_t). A closed or foreign one is EBADF; 0 and -1 never are one.
 *
 * Threads: every call may be made from any thread, on the same handles too; but one thread at a time uses a struct dafs_op, a listing,
 * and the three calls of a session's descriptor (dafs_turn, dafs_next, dafs_arm).
 *
 * Memory: any memory of the program's can be read into and written from. It is the caller's again when the call returns; for dafs_submit_…
 * when the operation has ended, and memory that is freed before is outside of all promises. dafs_alloc() and dafs_pin() save copies and
 * registrations. Strings and arrays are copied or used up before a call returns.
 *
 * Blocking: a call says whether it blocks. One that does waits as long as the server lives, unless dafs_options.operation_timeout_ms says
 * otherwise; signals do not interrupt it.
 *
 * fork(): the child's calls with a session of its parent's fail with ENOTCONN (DAFS_E_FORKED), the parent goes on. Open a session after it.
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

// Threads of the library's own: dafs_options.background.
// One that keeps an idle session alive; it nearly always sleeps.
#define DAFS_BACKGROUND_DEFAULT 0

// None that stays: only calls move the session along.
#define DAFS_BACKGROUND_NONE 1

// One that also receives replies, so that nonblocking operations advance without calls.
#define DAFS_BACKGROUND_PROGRESS 2

// Locks: shared or exclusive.
#define DAFS_LOCK_SHARED 0

#define DAFS_LOCK_EXCLUSIVE 1

// dafs_renameat: it is an error where the new name exists.
#define DAFS_RENAME_NOREPLACE 1

// A part of a file.
struct dafs_extent {
  uint64_t offset;
  uint64_t len;
};

// Settings of a session. Begin with DAFS_OPTIONS_INIT; 0 and NULL are the defaults.
struct dafs_options {
  // sizeof(struct dafs_options): what an older program does not know keeps its default.
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
};

// An entry of a directory.
struct dafs_dirent {
  // sizeof(struct dafs_dirent).
  uint32_t size;
  // DT_REG, DT_DIR, …; DT_UNKNOWN where the entry vanished meanwhile.
  uint32_t kind;
  // The inode number; 0 where the entry vanished meanwhile.
  uint64_t ino;
  // Where dafs_opendir() goes on behind this entry.
  uint64_t cookie;
  // With an ending zero.
  char name[256];
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
// again. In a child of fork() every call with it fails with ENOTCONN; the parent goes on.
int64_t dafs_connect(const char *url, const struct dafs_options *options);

// Ends a session. Its files, directories and operations can only be closed then. Blocks until the server has heard of it, for a second
// at most.
int dafs_disconnect(int64_t session);

// Opens an export of the server: returns the handle of its root directory, or -1. Close it by dafs_close(). Blocks.
int64_t dafs_mount(int64_t session, const char *export_name);

// Closes a file, a directory or a listing. Data that was not made durable by dafs_fsync() is with the server, which writes it in its
// time. Operations in flight go on. Does not block.
int dafs_close(int64_t handle);

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
// O_DIRECT (past the server's page cache), O_DSYNC and O_SYNC (each write is durable when it returns); O_CLOEXEC and O_NOCTTY mean
// nothing here. A file that is made has mode less the umask. Returns its handle, or -1. Blocks.
//
// The handle has no position: pread, pwrite, append.
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

// Locks a range (len 0: to the end of any file), DAFS_LOCK_SHARED or DAFS_LOCK_EXCLUSIVE, and waits for it in the order of coming. It is
// this handle's: it excludes other handles, of this process too. It ends with dafs_unlock(), with the handle and with the session, and is
// taken again after a restart of the server. EDEADLK where the holder waits for this one. Blocks.
int dafs_lock(int64_t file, int64_t offset, int64_t len, int kind);

// As dafs_lock(), without waiting for others: EAGAIN where it would have to.
int dafs_trylock(int64_t file, int64_t offset, int64_t len, int kind);

// Gives a range back. Blocks.
int dafs_unlock(int64_t file, int64_t offset, int64_t len);

// Allocates memory that stays registered with the session's network: transfers to and from it, or any part of it, take neither a copy
// nor a registration. Zeroed, and aligned to a page. It is ordinary memory for all other uses, and for other sessions. NULL for an
// error. Does not block on the server.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DAFS_H */

/* How structs begin: the library sees which version of them the program knows. */
#ifdef __cplusplus
#define DAFS_OPTIONS_INIT { sizeof(struct dafs_options), 0, nullptr, nullptr, 0, 0, 0, 0, nullptr }
#define DAFS_DIRENT_INIT { sizeof(struct dafs_dirent), 0, 0, 0, {0} }
#define DAFS_OP_INIT { sizeof(struct dafs_op), 0, 0, 0, 0, 0, 0, nullptr }
#else
#define DAFS_OPTIONS_INIT { .size = sizeof(struct dafs_options) }
#define DAFS_DIRENT_INIT { .size = sizeof(struct dafs_dirent) }
#define DAFS_OP_INIT { .size = sizeof(struct dafs_op) }
#endif
