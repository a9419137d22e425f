/* What the functions that stand before OMPIO's share: hooks.c and shared_pointer.c. */
#ifndef DAFS_HOOKS_H
#define DAFS_HOOKS_H

#include "dafs_ompio.h"

/* What they take, as OMPIO's. */
#define READ (ompi_file_t * fp, void *buf, int count, ompi_datatype_t *type, ompi_status_public_t *status)
#define WRITE (ompi_file_t * fp, const void *buf, int count, ompi_datatype_t *type, ompi_status_public_t *status)
#define READ_AT (ompi_file_t * fp, MPI_Offset at, void *buf, int count, ompi_datatype_t *type, ompi_status_public_t *status)
#define WRITE_AT (ompi_file_t * fp, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type, ompi_status_public_t *status)
#define IREAD (ompi_file_t * fp, void *buf, int count, ompi_datatype_t *type, ompi_request_t **request)
#define IWRITE (ompi_file_t * fp, const void *buf, int count, ompi_datatype_t *type, ompi_request_t **request)
#define IREAD_AT (ompi_file_t * fp, MPI_Offset at, void *buf, int count, ompi_datatype_t *type, ompi_request_t **request)
#define IWRITE_AT (ompi_file_t * fp, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type, ompi_request_t **request)
#define READ_BEGIN (ompi_file_t * fp, void *buf, int count, ompi_datatype_t *type)
#define WRITE_BEGIN (ompi_file_t * fp, const void *buf, int count, ompi_datatype_t *type)
#define READ_AT_BEGIN (ompi_file_t * fp, MPI_Offset at, void *buf, int count, ompi_datatype_t *type)
#define WRITE_AT_BEGIN (ompi_file_t * fp, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type)
#define READ_END (ompi_file_t * fp, void *buf, ompi_status_public_t *status)
#define WRITE_END (ompi_file_t * fp, const void *buf, ompi_status_public_t *status)

/* Puts one of ours before OMPIO's. */
#define HOOK(name) fp->f_io_selected_module.v2_0_0.io_module_file_##name = our_##name

static inline struct dafs_ompio_file *dafs_file_of_mpi(ompi_file_t *fp)
{
    return dafs_file_of(dafs_handle_of(fp));
}

static inline uint64_t bytes_of(int count, ompi_datatype_t *type)
{
    size_t size;

    opal_datatype_type_size(&type->super, &size);
    return (uint64_t)count * size;
}

/* Begins a call of OMPIO that tells an error of the fbtl only by way of the file. */
void dafs_enter(struct dafs_ompio_file *file, enum dafs_call call);
/* Ends it: the error that OMPIO returned or else the one that it passed over, as a class. */
int dafs_leave(struct dafs_ompio_file *file, int code);

/* The rest of a function that OMPIO's own does the work of. */
#define BY_OMPIO(name, ...)                                                                                                        \
    dafs_enter(file, DAFS_CALL_OWN);                                                                                               \
    error = dafs_leave(file, file->ompio.io_module_file_##name(__VA_ARGS__));                                                      \
    dafs_info_refresh(fp, file);                                                                                                   \
    return error;

/* The same of one that makes a request. */
#define BEGUN_BY_OMPIO(name, made, ...)                                                                                            \
    count = bytes_of(count, type) == 0 ? 0 : count;                                                                                \
    dafs_enter(file, DAFS_CALL_OWN);                                                                                               \
    dafs_list_lock();                                                                                                              \
    error = file->ompio.io_module_file_##name(__VA_ARGS__);                                                                        \
    if (error == OMPI_SUCCESS)                                                                                                     \
        dafs_guard(made);                                                                                                          \
    dafs_list_unlock();                                                                                                            \
    return dafs_leave(file, error);

/* The request of a split call. */
#define SPLIT dafs_handle_of(fp)->f_split_coll_req

/* Whether the amode allows it, as an MPI error class. */
int dafs_readable(ompi_file_t *fp);
int dafs_writable(ompi_file_t *fp);
int dafs_at_any_place(ompi_file_t *fp);

/* One process by itself; the offset counts etypes. */
int dafs_read_at READ_AT;
int dafs_write_at WRITE_AT;

/* views.c */
/* A transfer, and the numbers of its memory's type. */
struct typed {
    adio_dafs_memory memory;
    adio_dafs_transfer transfer;
    /* The block of memory without gaps. */
    int64_t whole[2];
    /* Of memory with gaps: to be freed. */
    int64_t *numbers;
    uint64_t bytes;
};
/* The memory of `typed->bytes`; false without memory for the numbers. */
bool dafs_describe_memory(const ompio_file_t *fh, const void *buf, int count, ompi_datatype_t *type, struct typed *typed);
/* The rank's view, as the library has it, until the next; NULL without memory. */
const adio_dafs_view *dafs_view_of(ompi_file_t *fp);
/* The view has changed. */
void dafs_forget_view(struct dafs_ompio_file *file);
/* Where the individual pointer is to lead to the data, and is moved on: in place of an offset, which counts etypes. */
#define DAFS_POINTER INT64_MIN
/* A transfer that names the view in the server, where the hints ask for it. False where they do not, or where it cannot: then nothing was
 * done. `error` gets an MPI error class. */
bool dafs_move_by_view(ompi_file_t *fp, int direction, bool collective, MPI_Offset at, const void *buf, int count,
                       ompi_datatype_t *type, ompi_status_public_t *status, int *error);
/* The same, nonblocking: `made` gets a request. */
bool dafs_begin_by_view(ompi_file_t *fp, int direction, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type,
                        ompi_request_t **made);
/* The same of a split call, whose request OMPIO keeps. */
bool dafs_begin_split_by_view(ompi_file_t *fp, int direction, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type);

/* Where a read lands of which OMPIO would write all of the memory. */
struct dafs_read {
    struct dafs_landing landing;
    struct typed typed;
    /* It cannot land, for lack of memory: an MPI error class. The rank takes part with nothing. */
    int error;
};
/* Returns what to read into: `buf`, where the read lands nowhere else. `count` becomes 0 where it cannot. From DAFS_NOWHERE on nobody asks
 * whether it may come short. */
void *dafs_read_begin(ompi_file_t *fp, struct dafs_read *read, bool lands, int64_t position, const void *buf, int *count,
                      ompi_datatype_t *type);
/* So many bytes were found. */
void dafs_read_end(struct dafs_read *read, uint64_t found);
/* OMPIO converts all that a read asks for, of another representation. */
#define CONVERTS(direction) ((direction) == ADIO_DAFS_READ && !(dafs_handle_of(fp)->f_flags & OMPIO_DATAREP_NATIVE))
/* The memory of a read of one rank by itself that is converted, in a function whose status then is `told`. */
#define LAND_CONVERTED(read, direction)                                                                                            \
    dafs_read_begin(fp, read, CONVERTS(direction), DAFS_NOWHERE, buf, &count, type)
/* The end of a function that reads or writes by OMPIO's, into what `read` says. */
#define BY_OMPIO_LANDED(name, ...)                                                                                                 \
    status = status == MPI_STATUS_IGNORE ? &told : status;                                                                         \
    buf = LAND_CONVERTED(&read, direction_of_##name);                                                                              \
    dafs_enter(file, DAFS_CALL_OWN);                                                                                               \
    error = dafs_leave(file, file->ompio.io_module_file_##name(__VA_ARGS__));                                                      \
    dafs_read_end(&read, error == MPI_SUCCESS ? status->_ucount : 0);                                                              \
    dafs_info_refresh(fp, file);                                                                                                   \
    return read.error != MPI_SUCCESS ? read.error : error;
#define direction_of_read ADIO_DAFS_READ
#define direction_of_read_at ADIO_DAFS_READ
#define direction_of_read_shared ADIO_DAFS_READ
#define direction_of_write ADIO_DAFS_WRITE
#define direction_of_write_at ADIO_DAFS_WRITE
#define direction_of_write_shared ADIO_DAFS_WRITE
/* The memory of a read of all ranks, unless each moves its own. */
#define LAND(read, direction, alone, position)                                                                                     \
    dafs_read_begin(fp, read, (direction) == ADIO_DAFS_READ && !(alone), position, buf, &count, type)
/* A collective call is made: for the hint dafs_explain. */
void dafs_note(ompi_file_t *fp, int direction, bool alone);

/* The ranks agree on the outcome of a call that began at a position of the view's data; `read` is NULL for one that writes. */
int dafs_end_collective(ompi_file_t *fp, int error, int64_t position, uint64_t wanted, struct dafs_read *read,
                        ompi_status_public_t *status);
/* Only known to OMPIO. */
#define DAFS_NOWHERE -1
/* Where a call began whose status is wrong where its exchange came to the end of the file. Others tell what they moved. */
#define FOUND_BY(direction, alone, from) ((direction) == ADIO_DAFS_READ && !(alone) ? (from) : DAFS_NOWHERE)
/* The end of a split call: it has waited, and the ranks agree. */
int dafs_end_split(ompi_file_t *fp, int code);

/* shared_pointer.c */
void dafs_hook_shared(ompi_file_t *fp);
/* The byte that MPI_DISPLACEMENT_CURRENT stands for. Collective. */
int dafs_displacement_of_pointer(ompi_file_t *fp, MPI_Offset *displacement);

#endif
