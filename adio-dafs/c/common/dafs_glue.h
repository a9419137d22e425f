/* What both ways into an MPI library share: the outcome of a call as an MPI error class, hints, and what the ranks of a
 * communicator agree on. Knows MPI's constants and adio_dafs.h; talks MPI only by the functions at the end, which
 * each way supplies. */
#ifndef DAFS_GLUE_H
#define DAFS_GLUE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <mpi.h>

#include "adio_dafs.h"

/* Room for a key and for a value, with the ending zero. */
#define DAFS_KEY_SIZE (MPI_MAX_INFO_KEY + 1)
#define DAFS_VALUE_SIZE (MPI_MAX_INFO_VAL + 1)

/* Where the shared file pointer is. */
enum dafs_pointer_place {
    /* Nobody has asked yet. */
    DAFS_POINTER_UNKNOWN,
    DAFS_POINTER_SERVER,
    /* The server cannot keep it: with the MPI library, on the one node that all ranks are on. */
    DAFS_POINTER_LIBRARY,
};

/* What is under way on a file. */
enum dafs_call {
    /* A rank's own calls. */
    DAFS_CALL_OWN,
    /* All ranks read, or all write. */
    DAFS_CALL_READ,
    DAFS_CALL_WRITE,
};

static inline enum dafs_call dafs_call_of_all(int direction)
{
    return direction == ADIO_DAFS_READ ? DAFS_CALL_READ : DAFS_CALL_WRITE;
}

/* A file that is open on this rank. */
struct dafs_file {
    adio_dafs_file *handle;
    /* Collective calls: each rank moves its own data (dafs_collective=independent, or =server). The ranks agree on it. */
    bool independent;
    /* The view of some rank has data in another order than the file has, which an exchange goes by. The ranks agree on it. */
    bool disordered;
    /* A collective call is under way: an error is kept for its end, so that the exchange with other ranks goes on. */
    enum dafs_call collective;
    /* The first error of the call that is under way: an MPI error class. A thread that makes progress may set it. */
    atomic_int error;
    /* A read of the call that is under way came short. */
    bool ended;
    /* Where reads of the collective call that is under way found the end of the file: the first byte that is not there. */
    uint64_t end;
    /* The same on all ranks, and on the node of no other file that is open. */
    uint64_t serial;
    /* An enum dafs_pointer_place; threads that find out at once find the same. */
    atomic_int pointer;
    /* Where it begins in this view, etypes: at the end of a file that was opened there. */
    uint64_t pointer_begin;
    /* Why it cannot be had was said. */
    bool pointer_told;
    /* The MPI library has a shared file pointer that all ranks reach. */
    bool library_shares;
    /* MPI_File_set_atomicity() */
    bool atomic;
    /* Why a transfer of this file failed was said. */
    atomic_bool failure_told;
    /* What is done before a close failed, which was told on all ranks. */
    bool finish_failed;
};

/* In collective calls each rank moves its own data. In atomic mode what two ranks exchange would lie under no lock. */
static inline bool dafs_is_alone(const struct dafs_file *file)
{
    return file->independent || file->disordered || file->atomic;
}

/* A growing list of hints. Owns its strings. */
struct dafs_hints {
    adio_dafs_hint *list;
    size_t count;
    size_t capacity;
};

/* A collective open. */
struct dafs_opening {
    MPI_Comm comm;
    int rank;
    int size;
    const char *name;
    /* As the program gave it, on all ranks. */
    int amode;
    const struct dafs_hints *hints;
    /* What went wrong on this rank before: the open then fails on all. */
    int class;
};

/* The MPI error class of a status. */
int dafs_class(int status);

/* Tells what this thread's last call failed of in one line on stderr, unless the MPI error class alone says it. */
void dafs_report(int status);
/* The same of a call on a file, such as a transfer: once a file. Returns the MPI error class. */
int dafs_tell(struct dafs_file *file, int status);
/* Keeps what it failed of: what a thread calls meanwhile may fail, of something else. Room for words, which are cut. */
#define DAFS_WORDS_SIZE 1024
void dafs_keep_words(char words[DAFS_WORDS_SIZE]);

/* True where the MPI library and the driver's library are those that this was compiled for; else false and one line on stderr. */
bool dafs_fits(void);
/* That line, with another reason. */
void dafs_refuse(const char *why);

/* Appends a copy. Without memory the hint is lost, as hints may be. */
void dafs_hints_add(struct dafs_hints *hints, const char *key, const char *value);
void dafs_hints_free(struct dafs_hints *hints);

/* This rank's hints ask for collective calls of each rank by itself. It does so when the ranks next agree on it. */
bool dafs_asks_for_independent(struct dafs_file *file);

/* The value that is in force for a key; false where there is none. */
bool dafs_hint_value(struct dafs_file *file, const char *key, char value[DAFS_VALUE_SIZE]);

/* What an open fails of, which a name sends to dafs on some ranks alone. The first rank says so. An MPI error class. */
int dafs_claimed_by_some(const char *name, int rank);

/* Opens a file on all ranks of a communicator: one open at the server, the other ranks join it. The same MPI error class on
 * all ranks. Collective. */
int dafs_open_together(const struct dafs_opening *opening, struct dafs_file *file);

/* Says what the hint dafs_explain asks for, closes, and removes the file where that is asked for: the one that was opened, whatever its
 * name leads to by now. The same MPI error class on all ranks. Collective. */
int dafs_close_together(struct dafs_file *file, MPI_Comm comm, int rank, bool removes);

/* What a close does before the file goes, so that a program can be told of it. The same MPI error class on all ranks. Collective. */
int dafs_finish_together(struct dafs_file *file, MPI_Comm comm, int rank);

/* For the hint dafs_explain: a collective call goes by the exchange of somebody, or, where that is NULL, each rank moves its own, and why,
 * or NULL for what the file says. */
void dafs_note_collective(struct dafs_file *file, int direction, const char *exchanged_by, const char *why);

/* Moves data and waits. Returns an MPI error class; moved gets the bytes. In a collective call an error is kept and success
 * pretended. */
int dafs_transfer(struct dafs_file *file, const adio_dafs_transfer *transfer, uint64_t wanted, uint64_t *moved);

/* The outcome of a transfer that has ended, by the rules of dafs_transfer(). */
int dafs_settle(struct dafs_file *file, bool collective, int status, uint64_t wanted, uint64_t *moved);

/* No read has found the end of the file. */
#define DAFS_NO_END UINT64_MAX

/* The first error of the call that ends now, as an MPI error class; forgets it. */
int dafs_take_error(struct dafs_file *file);

/* Ends a collective call: all ranks learn of an error of any, and of the first end of the file that any found. Collective. */
int dafs_agree(struct dafs_file *file, MPI_Comm comm, int error, uint64_t *end);

/* What MPI_File_set_view() is given, in numbers: bytes. */
struct dafs_view_asked {
    int64_t displacement;
    uint64_t etype_size;
    uint64_t filetype_size;
    const char *datarep;
    /* The MPI library takes the representation "internal". */
    bool knows_internal;
    /* It refuses the file type, which has data before its beginning, by itself. */
    bool begins_before;
};
/* Whether that can be a view of a file with this amode. A mistake of one rank is found here for all, before the MPI library finds it on
 * that rank alone, while the others wait. Collective; an MPI error class. */
int dafs_check_view(MPI_Comm comm, int amode, const struct dafs_view_asked *asked);

/* Each rank sees the file by this view from now on: the server is told of it where transfers will name it there, and the shared file
 * pointer begins anew. The ranks agree again on collective calls, as at the open. A class that is not success is this rank's mistake,
 * which all then fail of. Collective; an MPI error class. */
int dafs_set_view(struct dafs_file *file, MPI_Comm comm, const adio_dafs_view *view, int class);

/* Bytes of wanted ones from a position of the view on that lie before an end of the file. */
uint64_t dafs_bytes_before(const adio_dafs_view *view, uint64_t end, uint64_t position, uint64_t wanted);

/* The size of the file, which the first rank looks up for all; where it is opened at its end, the shared file pointer begins there.
 * Collective; an MPI error class. */
int dafs_begin_at_end(struct dafs_file *file, MPI_Comm comm, int rank, uint64_t *size);

/* --- landing.c: memory where a read lands that may come to the end of the file --- */

struct dafs_landing {
    /* NULL where data goes straight to the caller's memory. */
    void *memory;
    /* The caller's, and where the lowest byte of its data is from there. */
    void *buf;
    int64_t low;
};
/* Bytes from the lowest to the highest of a type's instances, and where the lowest is from their address. */
uint64_t dafs_span(int count, int64_t true_lb, int64_t true_extent, int64_t extent, int64_t *low);
/* A read of so many bytes from a position of the view on may come to the end of the file. Data of a large span that is all there need not
 * be copied. */
bool dafs_may_come_short(struct dafs_file *file, const adio_dafs_view *view, uint64_t position, uint64_t bytes, uint64_t span);
/* What to read into in place of `buf`; NULL without memory. */
void *dafs_landing_begin(struct dafs_landing *landing, void *buf, int64_t low, uint64_t span);
/* So many bytes were found, which go to the caller's memory, unless they went there. */
void dafs_landing_end(struct dafs_landing *landing, const adio_dafs_memory *memory, uint64_t found);

/* --- Atomic mode --- */

/* Sets atomic mode where all ranks ask for the same, and on all or on none. Collective; an MPI error class. */
int dafs_set_atomic(struct dafs_file *file, MPI_Comm comm, int flag);

/* --- The shared file pointer. All return an MPI error class. --- */

/* Finds out where it is, if that is not known. */
int dafs_pointer_find(struct dafs_file *file);
/* Of one that the server keeps: moves it on by so many etypes, and tells where it was. */
int dafs_pointer_add(struct dafs_file *file, uint64_t count, uint64_t *position);
int dafs_pointer_set(struct dafs_file *file, uint64_t position);
/* Moves it on by the etypes of all ranks, and tells each where its own begin, in the order of ranks. A class that is not success is this
 * rank's mistake, which all then fail of. All know then where it is: with the MPI library nothing was moved. Collective. */
int dafs_pointer_share(struct dafs_file *file, MPI_Comm comm, int rank, int size, int class, uint64_t count, uint64_t *position);

/* What MPI_File_seek_shared() is given, and the rank's view; NULL where there was no memory for it. */
struct dafs_seek {
    int64_t offset;
    int whence;
    const adio_dafs_view *view;
    uint64_t etype_size;
    /* Where the pointer of the MPI library is, in etypes; an MPI error class. `of` is what it takes. */
    int (*library_position)(void *of, int64_t *position);
    void *of;
};
/* Seeks, unless it then turns out to be with the MPI library, which is to set it to `target`: etypes. Collective. */
int dafs_pointer_seek(struct dafs_file *file, MPI_Comm comm, int rank, const struct dafs_seek *to, int64_t *target);

/* A view that has data somewhere has none behind so many etypes: there is no such place in a file. */
bool dafs_is_outside(const adio_dafs_view *view, uint64_t etype_size, int64_t etypes);

/* The end of the file in etypes of a view. */
int dafs_end_of_file(struct dafs_file *file, const adio_dafs_view *view, uint64_t etype_size, uint64_t *end);

/* The first rank does something with a size that all ranks gave alike. Collective; an MPI error class, the same on all ranks. */
int dafs_act_by_first(struct dafs_file *file, MPI_Comm comm, int rank, int64_t size, int (*act)(adio_dafs_file *, uint64_t));

/* Makes one rank's outcome that of all. Collective. */
int dafs_share_class(MPI_Comm comm, int class);

/* The largest class of any rank. Collective. */
int dafs_max_class(MPI_Comm comm, int class);

/* --- Supplied by each way. All are collective and return an MPI error class. --- */

/* The first rank's bytes, for all. */
int dafs_bcast(MPI_Comm comm, void *data, size_t len);
/* Another rank's. */
int dafs_bcast_from(MPI_Comm comm, int rank, void *data, size_t len);
/* The sums over the ranks up to each, in place. */
int dafs_scan(MPI_Comm comm, uint64_t *values, int count);
/* The largest value of any rank, for all. */
int dafs_max(MPI_Comm comm, int64_t *values, int count);
/* The sums over all ranks, for the first; it is rank 0 that gets them in place. */
int dafs_sum_at_first(MPI_Comm comm, int rank, uint64_t *values, int count);

#endif
