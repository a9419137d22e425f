/* The C interface of adio-dafs: what the glue of an MPI library calls. Made by `cargo xtask header`.
 *
 * Handles are opaque. Every call returns a status, ADIO_DAFS_OK or an error; adio_dafs_last_error() then has the words. Panics are
 * caught and become ADIO_DAFS_ERR_INTERNAL. Several threads may use a file at once, one at a time a request. No call talks MPI: what
 * the ranks of a communicator agree on is the glue's business.
 */

#ifndef ADIO_DAFS_H
#define ADIO_DAFS_H

#include <stddef.h>
#include <stdint.h>

// Changes when this interface does: compare with adio_dafs_abi_version().
#define ADIO_DAFS_ABI_VERSION 5

// Room for any ticket, bytes.
#define ADIO_DAFS_TICKET_SIZE_MAX 16384

// Room for all counters.
#define ADIO_DAFS_COUNTERS_MAX 64

// How a file is opened; the numbers are those of ROMIO's and Open MPI's MPI_MODE_*.
#define ADIO_DAFS_CREATE 1

#define ADIO_DAFS_RDONLY 2

#define ADIO_DAFS_WRONLY 4

#define ADIO_DAFS_RDWR 8

#define ADIO_DAFS_DELETE_ON_CLOSE 16

#define ADIO_DAFS_UNIQUE_OPEN 32

#define ADIO_DAFS_EXCL 64

#define ADIO_DAFS_APPEND 128

#define ADIO_DAFS_SEQUENTIAL 256

// From the file to memory.
#define ADIO_DAFS_READ 0

// From memory to the file.
#define ADIO_DAFS_WRITE 1

// In a collective call the processes exchanged data; or each moved its own.
#define ADIO_DAFS_EXCHANGED 0

#define ADIO_DAFS_ALONE 1

// Outcomes. Each error has an MPI error class of the same name.
typedef enum adio_dafs_status {
  ADIO_DAFS_OK = 0,
  ADIO_DAFS_ERR_ARG = 1,
  ADIO_DAFS_ERR_AMODE = 2,
  ADIO_DAFS_ERR_NO_SUCH_FILE = 3,
  ADIO_DAFS_ERR_FILE_EXISTS = 4,
  ADIO_DAFS_ERR_BAD_FILE = 5,
  ADIO_DAFS_ERR_ACCESS = 6,
  ADIO_DAFS_ERR_READ_ONLY = 7,
  ADIO_DAFS_ERR_NO_SPACE = 8,
  ADIO_DAFS_ERR_QUOTA = 9,
  ADIO_DAFS_ERR_FILE_IN_USE = 10,
  ADIO_DAFS_ERR_NO_MEMORY = 11,
  ADIO_DAFS_ERR_UNSUPPORTED = 12,
  ADIO_DAFS_ERR_IO = 13,
  ADIO_DAFS_ERR_INTERNAL = 14,
} adio_dafs_status;

// An open file, for C.
typedef struct adio_dafs_file adio_dafs_file;

// Where a file is, for C.
typedef struct adio_dafs_place adio_dafs_place;

// A transfer under way, for C.
typedef struct adio_dafs_request adio_dafs_request;

// A hint: a key and its value.
typedef struct adio_dafs_hint {
  const char *key;
  const char *value;
} adio_dafs_hint;

// A piece of memory and the extent of the file that it belongs to, of the same length in bytes.
typedef struct adio_dafs_segment {
  void *memory;
  uint64_t offset;
  uint64_t len;
} adio_dafs_segment;

// A flattened datatype: blocks in the order of its typemap, and what lies from one instance to the next, bytes. Blocks may be
// without bytes.
typedef struct adio_dafs_type {
  const int64_t *offsets;
  const int64_t *lens;
  size_t count;
  int64_t extent;
} adio_dafs_type;

// Instances of a type in memory.
typedef struct adio_dafs_memory {
  void *base;
  uint64_t count;
  struct adio_dafs_type type;
} adio_dafs_memory;

// What a process sees of a file: from the displacement on, instances of a type.
typedef struct adio_dafs_view {
  uint64_t displacement;
  struct adio_dafs_type type;
} adio_dafs_view;

// What is to be moved: segments, or, where segments is NULL, memory by a view.
typedef struct adio_dafs_transfer {
  // ADIO_DAFS_READ or ADIO_DAFS_WRITE.
  int direction;
  // It is part of a collective call: counted apart.
  int collective;
  const struct adio_dafs_segment *segments;
  size_t segment_count;
  const struct adio_dafs_memory *memory;
  const struct adio_dafs_view *view;
  // Bytes of the view's data before the first that is moved.
  uint64_t position;
} adio_dafs_transfer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// ADIO_DAFS_ABI_VERSION of the library.
int adio_dafs_abi_version(void);

// 1 when a file of this name is on a dafs server: dafs:/export/path (server in DAFS_ADDRESS), dafs://host/export/path,
// dafs+tcp://…, dafs+shm://…, dafs+verbs://…, or a path below a prefix in DAFS_MPI_PREFIX; else 0. 1 for every name where
// DAFS_MPI_PREFIX cannot be read: opening or deleting it then fails, and says so. Connects to nothing.
int adio_dafs_claims(const char *file_name);

// Opens or makes a file: by the first of the processes that open it together, which then gives the others a ticket. amode is a
// sum of the constants above; permissions are those of a file that is made (-1: 0666 less the umask); ranks is how many
// processes open it. Blocks.
int adio_dafs_open(const char *file_name,
                   int amode,
                   int permissions,
                   int ranks,
                   const struct adio_dafs_hint *hint_list,
                   size_t hint_count,
                   struct adio_dafs_file **file);

// Joins a file that another process has open. name, amode and hints are those of that open. Blocks.
int adio_dafs_join(const char *file_name,
                   int amode,
                   int ranks,
                   const void *ticket,
                   size_t len,
                   const struct adio_dafs_hint *hint_list,
                   size_t hint_count,
                   struct adio_dafs_file **file);

// Makes a ticket by which the other processes join the open file. It holds for a minute. Blocks.
int adio_dafs_share(struct adio_dafs_file *file, void *ticket, size_t capacity, size_t *len);

// Closes a file. Requests of it must have ended or been freed. The handle is gone, whatever is returned. DELETE_ON_CLOSE is the
// caller's. Blocks.
int adio_dafs_close(struct adio_dafs_file *file);

// Removes a file by name. Blocks.
int adio_dafs_delete(const char *file_name);

// Where an open file is, which its name need not lead to when it is closed: relative names begin at the current directory. It stays when
// the file is closed, and goes by adio_dafs_place_remove().
int adio_dafs_place_of(struct adio_dafs_file *file, struct adio_dafs_place **place);

// Removes the file at a place, which is freed, whatever is returned. Blocks.
int adio_dafs_place_remove(struct adio_dafs_place *place);

// Moves data. count gets the bytes moved from the beginning without a gap, also with an error; a read beyond the end of the
// file is short. Blocks.
int adio_dafs_transfer_run(struct adio_dafs_file *file, const struct adio_dafs_transfer *transfer, uint64_t *count);

// Starts to move data. The lists of the transfer may go when this returns; the memory belongs to the request until that has
// ended. Does not block, but of a file in atomic mode where no thread can be started.
int adio_dafs_transfer_submit(struct adio_dafs_file *file, const struct adio_dafs_transfer *transfer, struct adio_dafs_request **request);

// Sets done to 1 when the request has ended, and then count and the status; else done to 0 and returns ADIO_DAFS_OK. Moves data
// along. Never blocks.
int adio_dafs_request_test(struct adio_dafs_request *request, int *done, uint64_t *count);

// Waits for the end of a request. Blocks.
int adio_dafs_request_wait(struct adio_dafs_request *request, uint64_t *count);

// Frees a request. One that runs is cancelled, and waited for where the server may be at its memory.
void adio_dafs_request_free(struct adio_dafs_request *request);

// Bytes of a view's data before a byte of the file; from a byte in a gap, those before the next data.
int adio_dafs_view_position(const struct adio_dafs_view *view, uint64_t offset, uint64_t *position);

// The byte of the file where data after position bytes of the view begins.
int adio_dafs_view_offset(const struct adio_dafs_view *view, uint64_t position, uint64_t *offset);

// The process sees the file by this view from now on. It is described to the server where the hints have transfers name it there; the
// description stays for transfers with an equal type. A view that the server does not take is no error: its transfers go by lists. Blocks.
int adio_dafs_view_set(struct adio_dafs_file *file, const struct adio_dafs_view *view);

// 1 where transfers of a direction name views in the server, by the hints in force; else 0. Asks nobody.
int adio_dafs_view_used(struct adio_dafs_file *file, int direction);

// Sets the size. By one process of those that have it open. Blocks.
int adio_dafs_resize(struct adio_dafs_file *file, uint64_t size);

// The size now. Blocks.
int adio_dafs_size(struct adio_dafs_file *file, uint64_t *size);

// Has space for the first size bytes set aside; the file grows to it. By one process. Blocks.
int adio_dafs_preallocate(struct adio_dafs_file *file, uint64_t size);

// Makes durable what this process wrote. Blocks.
int adio_dafs_sync(struct adio_dafs_file *file);

// What adio_dafs_close() does before the handle goes: makes durable what this process wrote, unless a hint says no. What fails here a
// close tries again. Blocks.
int adio_dafs_finish(struct adio_dafs_file *file);

// Sets reaches to 1 when the file has the byte at an offset, else to 0. It is read, which is no transfer. Blocks.
int adio_dafs_reaches(struct adio_dafs_file *file, uint64_t offset, int *reaches);

// A collective call was made, for what adio_dafs_explain() says: the processes exchanged data (ADIO_DAFS_EXCHANGED), and by is who did it
// for them; or each moved its own (ADIO_DAFS_ALONE), and by is the reason.
int adio_dafs_collective(struct adio_dafs_file *file, int direction, int way, const char *by);

// Turns atomic mode on (atomic is not 0) or off, for transfers that begin after this: each then locks all from its first byte to
// its last while it runs. By all processes that have the file open together. ADIO_DAFS_ERR_UNSUPPORTED where the server knows no
// locks. Blocks.
int adio_dafs_set_atomic(struct adio_dafs_file *file, int atomic);

// The shared file pointer, kept on the server, begins anew at position (in etypes): when a file is opened at its end, and when the
// view changes. By all processes, while nobody moves it. Does not block.
int adio_dafs_pointer_begin(struct adio_dafs_file *file, uint64_t position);

// Sees to it that the server keeps the pointer, which the calls below do too. What they fail of for lack of a right or of locks, they
// fail of here. Blocks.
int adio_dafs_pointer_open(struct adio_dafs_file *file);

// Moves the pointer on by count etypes; position gets where it was. Blocks.
int adio_dafs_pointer_add(struct adio_dafs_file *file, uint64_t count, uint64_t *position);

// Sets the pointer. By one process. Blocks.
int adio_dafs_pointer_set(struct adio_dafs_file *file, uint64_t position);

// 1 when this process has used the pointer, else 0.
int adio_dafs_pointer_used(struct adio_dafs_file *file);

// Removes the pointer from the server: by one process, before it closes the file, where any has used the pointer and none will any
// more. Blocks.
int adio_dafs_pointer_remove(struct adio_dafs_file *file);

// Takes hints over. Keys that it does not know, and values that cannot be, are passed over. At any time; from the next transfer
// on.
int adio_dafs_set_hints(struct adio_dafs_file *file, const struct adio_dafs_hint *hint_list, size_t hint_count);

// The index-th of the hints in force and of the counters (dafs_stat_…), as strings with an ending zero; found is 0 beyond the
// last. Strings that do not fit are cut.
int adio_dafs_hint_at(struct adio_dafs_file *file,
                      size_t index,
                      char *key,
                      size_t key_capacity,
                      char *value,
                      size_t value_capacity,
                      int *found);

// Counters of this process, in the order in which adio_dafs_hint_at() tells them, to be added up over the processes. count gets how many
// there are.
int adio_dafs_counters(struct adio_dafs_file *file, uint64_t *values, size_t capacity, size_t *count);

// What the hint dafs_explain asks to be said when the file is closed: which ways were chosen and why, and the counters of all
// processes, added up. len is 0 where the hint does not ask. With an ending zero; what does not fit is cut.
int adio_dafs_explain(struct adio_dafs_file *file, const uint64_t *values, size_t count, char *text, size_t capacity, size_t *len);

// The words of the last error on this thread, "" where there was none. Valid until the thread's next call.
const char *adio_dafs_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* ADIO_DAFS_H */
