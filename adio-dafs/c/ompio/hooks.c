/* Functions that stand before OMPIO's own, for files of ours alone: each MPI_File has its copy of the table of functions that
 * MPI's calls go through. OMPIO 4.1
 *   - returns success from reads and writes whose fbtl failed, and hangs where one rank's fails in a collective call;
 *   - never ends a nonblocking call that moves no bytes;
 *   - tells a collective read beyond the end of the file as complete, and takes the end of a view with gaps for another;
 *   - moves data before the view, or elsewhere in it, where an offset is negative or too large, and finds no byte in large blocks;
 *   - stores atomic mode and ignores it, and sets space aside by reading and writing the whole file.
 * Those of the shared file pointer are in shared_pointer.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "ompi/errhandler/errcode-internal.h"

void dafs_enter(struct dafs_ompio_file *file, enum dafs_call call)
{
    pthread_mutex_lock(&file->call_lock);
    file->common.collective = call;
    file->common.ended = false;
    if (call != DAFS_CALL_OWN)
        file->common.end = DAFS_NO_END;
    dafs_take_error(&file->common);
}

int dafs_leave(struct dafs_ompio_file *file, int code)
{
    int error = dafs_take_error(&file->common);

    file->common.collective = DAFS_CALL_OWN;
    pthread_mutex_unlock(&file->call_lock);
    return code != OMPI_SUCCESS ? ompi_errcode_get_mpi_code(code) : error;
}

/* --- Whether a call is allowed, as an MPI error class. What it depends on is the same on all ranks. --- */

/* A sequential file has its shared pointer alone. */
int dafs_at_any_place(ompi_file_t *fp)
{
    return dafs_handle_of(fp)->f_amode & MPI_MODE_SEQUENTIAL ? MPI_ERR_UNSUPPORTED_OPERATION : MPI_SUCCESS;
}

#define ALLOWED dafs_at_any_place(fp)

static int first_of(int error, int other)
{
    return error != MPI_SUCCESS ? error : other;
}

/* No byte of the file is there, or OMPIO would look for it at another place: its arithmetic goes round. */
static bool is_nowhere(const ompio_file_t *fh, MPI_Offset at)
{
    int64_t position, end;

    if (at < 0 || __builtin_mul_overflow(at, (int64_t)fh->f_etype_size, &position))
        return true;
    if (fh->f_view_size == 0)
        return false;
    return __builtin_mul_overflow(position / (int64_t)fh->f_view_size + 1, (int64_t)fh->f_view_extent, &end) ||
           __builtin_add_overflow(end, (int64_t)fh->f_disp, &end);
}

/* What is wrong with an offset may be so on one rank alone. */
static int at_place(ompi_file_t *fp, MPI_Offset at)
{
    return first_of(dafs_at_any_place(fp), is_nowhere(dafs_handle_of(fp), at) ? MPI_ERR_ARG : MPI_SUCCESS);
}

#define ALLOWED_AT at_place(fp, at)

/* OMPIO's collective functions do not look at the amode. */
int dafs_readable(ompi_file_t *fp)
{
    return dafs_handle_of(fp)->f_amode & MPI_MODE_WRONLY ? MPI_ERR_ACCESS : MPI_SUCCESS;
}

int dafs_writable(ompi_file_t *fp)
{
    return dafs_handle_of(fp)->f_amode & MPI_MODE_RDONLY ? MPI_ERR_READ_ONLY : MPI_SUCCESS;
}

static int readable(ompi_file_t *fp)
{
    return first_of(dafs_readable(fp), dafs_at_any_place(fp));
}

static int writable(ompi_file_t *fp)
{
    return first_of(dafs_writable(fp), dafs_at_any_place(fp));
}

/* --- One process by itself --- */

#define INDEPENDENT(name, direction, parameters, check, ...)                                                                       \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        ompi_status_public_t told;                                                                                                 \
        struct dafs_read read;                                                                                                     \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (dafs_move_by_view(fp, direction, false, DAFS_POINTER, buf, count, type, status, &error))                               \
            return error;                                                                                                          \
        BY_OMPIO_LANDED(name, __VA_ARGS__)                                                                                         \
    }

INDEPENDENT(read, ADIO_DAFS_READ, READ, ALLOWED, fp, buf, count, type, status)
INDEPENDENT(write, ADIO_DAFS_WRITE, WRITE, ALLOWED, fp, buf, count, type, status)

/* Whether a transfer is one piece in the file and in memory, and which: then there is nothing for OMPIO to do, which takes as long
 * as a third of a small transfer. */
static bool in_one_piece(ompi_file_t *fp, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type, adio_dafs_segment *piece)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    ptrdiff_t gap;

    if (at < 0 || count <= 0 || !(fh->f_flags & OMPIO_DATAREP_NATIVE) || fh->f_iov_count != 1 || fh->f_decoded_iov[0].iov_base ||
        fh->f_view_extent <= 0 || (size_t)fh->f_view_extent != fh->f_view_size ||
        !opal_datatype_is_contiguous_memory_layout(&type->super, count))
        return false;
    opal_datatype_span(&type->super, (size_t)count, &gap);
    *piece = (adio_dafs_segment){.memory = (char *)buf + gap, .len = bytes_of(count, type)};
    return piece->len > 0 && !__builtin_mul_overflow((uint64_t)at, fh->f_etype_size, &piece->offset) &&
           !__builtin_add_overflow(piece->offset, (uint64_t)fh->f_disp, &piece->offset);
}

static int move_piece(ompi_file_t *fp, int direction, const adio_dafs_segment *piece, ompi_status_public_t *status)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    adio_dafs_transfer transfer = {.direction = direction, .segments = piece, .segment_count = 1};
    uint64_t moved = 0;
    int outcome = adio_dafs_transfer_run(file->common.handle, &transfer, &moved);

    if (status != MPI_STATUS_IGNORE)
        status->_ucount = moved;
    dafs_info_refresh(fp, file);
    return dafs_tell(&file->common, outcome);
}

/* Anywhere in a file, and for what the shared file pointer leads to. */
#define INDEPENDENT_AT(name, direction, parameters, check)                                                                         \
    int dafs_##name parameters                                                                                                     \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        ompi_status_public_t told;                                                                                                 \
        struct dafs_read read;                                                                                                     \
        adio_dafs_segment piece;                                                                                                   \
        int error;                                                                                                                 \
                                                                                                                                   \
        if (check == MPI_SUCCESS && in_one_piece(fp, at, buf, count, type, &piece))                                                \
            return move_piece(fp, direction, &piece, status);                                                                      \
        if (dafs_move_by_view(fp, direction, false, at, buf, count, type, status, &error))                                         \
            return error;                                                                                                          \
        BY_OMPIO_LANDED(name, fp, at, buf, count, type, status)                                                                    \
    }                                                                                                                              \
                                                                                                                                   \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        int error = at_place(fp, at);                                                                                              \
                                                                                                                                   \
        return error != MPI_SUCCESS ? error : dafs_##name(fp, at, buf, count, type, status);                                       \
    }

INDEPENDENT_AT(read_at, ADIO_DAFS_READ, READ_AT, dafs_readable(fp))
INDEPENDENT_AT(write_at, ADIO_DAFS_WRITE, WRITE_AT, dafs_writable(fp))

/* --- One process by itself, and nonblocking. OMPIO has no nonblocking exchange, so the collective ones and the split ones
 * are of this kind too. The lock keeps a request from being taken for one of a collective call. --- */

#define NONBLOCKING(name, direction, where, parameters, check, made, ...)                                                          \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (dafs_begin_by_view(fp, direction, where, buf, count, type, &(made)))                                                   \
            return MPI_SUCCESS;                                                                                                    \
        BEGUN_BY_OMPIO(name, made, __VA_ARGS__)                                                                                    \
    }

NONBLOCKING(iread, ADIO_DAFS_READ, DAFS_POINTER, IREAD, ALLOWED, *request, fp, buf, count, type, request)
NONBLOCKING(iwrite, ADIO_DAFS_WRITE, DAFS_POINTER, IWRITE, ALLOWED, *request, fp, buf, count, type, request)
NONBLOCKING(iread_at, ADIO_DAFS_READ, at, IREAD_AT, ALLOWED_AT, *request, fp, at, buf, count, type, request)
NONBLOCKING(iwrite_at, ADIO_DAFS_WRITE, at, IWRITE_AT, ALLOWED_AT, *request, fp, at, buf, count, type, request)
NONBLOCKING(iread_all, ADIO_DAFS_READ, DAFS_POINTER, IREAD, ALLOWED, *request, fp, buf, count, type, request)
NONBLOCKING(iwrite_all, ADIO_DAFS_WRITE, DAFS_POINTER, IWRITE, ALLOWED, *request, fp, buf, count, type, request)
NONBLOCKING(iread_at_all, ADIO_DAFS_READ, at, IREAD_AT, ALLOWED_AT, *request, fp, at, buf, count, type, request)
NONBLOCKING(iwrite_at_all, ADIO_DAFS_WRITE, at, IWRITE_AT, ALLOWED_AT, *request, fp, at, buf, count, type, request)

/* What is wrong with a rank's offset in a collective call. It takes part all the same, for the others wait for it: with nothing. */
static int misplaced(ompi_file_t *fp, MPI_Offset *at, int *count)
{
    int error = at_place(fp, *at);

    if (error != MPI_SUCCESS) {
        *at = 0;
        *count = 0;
    }
    return error;
}

#define MISPLACED misplaced(fp, &at, &count)
/* The pointer leads to a place. */
#define PLACED MPI_SUCCESS

/* The same of a split call. What is wrong with a rank's offset is told at its end, which all come to. */
#define SPLIT_BEGIN(name, direction, where, parameters, check, place, ...)                                                         \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (!dafs_handle_of(fp)->f_split_coll_in_use)                                                                              \
            file->split_error = place;                                                                                             \
        if (dafs_begin_split_by_view(fp, direction, where, buf, count, type))                                                      \
            return MPI_SUCCESS;                                                                                                    \
        BEGUN_BY_OMPIO(name, SPLIT, __VA_ARGS__)                                                                                   \
    }

SPLIT_BEGIN(read_all_begin, ADIO_DAFS_READ, DAFS_POINTER, READ_BEGIN, readable(fp), PLACED, fp, buf, count, type)
SPLIT_BEGIN(write_all_begin, ADIO_DAFS_WRITE, DAFS_POINTER, WRITE_BEGIN, writable(fp), PLACED, fp, buf, count, type)
SPLIT_BEGIN(read_at_all_begin, ADIO_DAFS_READ, at, READ_AT_BEGIN, readable(fp), MISPLACED, fp, at, buf, count, type)
SPLIT_BEGIN(write_at_all_begin, ADIO_DAFS_WRITE, at, WRITE_AT_BEGIN, writable(fp), MISPLACED, fp, at, buf, count, type)

int dafs_end_split(ompi_file_t *fp, int code)
{
    ompio_file_t *fh = dafs_handle_of(fp);
    int error = code == OMPI_SUCCESS ? dafs_file_of(fh)->split_error : ompi_errcode_get_mpi_code(code);

    dafs_file_of(fh)->split_error = MPI_SUCCESS;
    /* A request that failed is left for its error to be told. */
    if (error != MPI_SUCCESS && fh->f_split_coll_req && fh->f_split_coll_req != MPI_REQUEST_NULL)
        ompi_request_free(&fh->f_split_coll_req);
    dafs_info_refresh(fp, dafs_file_of_mpi(fp));
    return dafs_max_class(fh->f_comm, error);
}

#define SPLIT_END(name, parameters)                                                                                                \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        return dafs_end_split(fp, dafs_file_of_mpi(fp)->ompio.io_module_file_##name(fp, buf, status));                             \
    }

SPLIT_END(read_all_end, READ_END)
SPLIT_END(write_all_end, WRITE_END)
SPLIT_END(read_at_all_end, READ_END)
SPLIT_END(write_at_all_end, WRITE_END)

/* --- All processes together --- */

/* Bytes of the view's data before the individual file pointer. */
static int64_t position_of(const ompio_file_t *fh)
{
    if (fh->f_view_extent == 0)
        return 0;
    return (fh->f_offset - fh->f_disp) / fh->f_view_extent * (int64_t)fh->f_view_size + (int64_t)fh->f_total_bytes;
}

#define HERE position_of(dafs_handle_of(fp))
#define THERE at *(int64_t)dafs_handle_of(fp)->f_etype_size

/* How much of a read of wanted bytes lies before the end of the file. */
static uint64_t bytes_found(ompi_file_t *fp, uint64_t end, uint64_t position, uint64_t wanted)
{
    const adio_dafs_view *view = dafs_view_of(fp);

    return view ? dafs_bytes_before(view, end, position, wanted) : 0;
}

void *dafs_read_begin(ompi_file_t *fp, struct dafs_read *read, bool lands, int64_t position, const void *buf, int *count,
                      ompi_datatype_t *type)
{
    ptrdiff_t lb, extent, true_lb, true_extent;
    int64_t low;
    uint64_t span;
    void *into;

    *read = (struct dafs_read){.error = MPI_SUCCESS, .typed.bytes = bytes_of(*count, type)};
    if (!lands || *count <= 0 || read->typed.bytes == 0)
        return (void *)buf;
    opal_datatype_get_extent(&type->super, &lb, &extent);
    opal_datatype_get_true_extent(&type->super, &true_lb, &true_extent);
    span = dafs_span(*count, true_lb, true_extent, extent, &low);
    if (position != DAFS_NOWHERE &&
        !dafs_may_come_short(&dafs_file_of_mpi(fp)->common, dafs_view_of(fp), (uint64_t)position, read->typed.bytes, span))
        return (void *)buf;
    into = dafs_landing_begin(&read->landing, (void *)buf, low, span);
    if (read->landing.memory && dafs_describe_memory(dafs_handle_of(fp), buf, *count, type, &read->typed))
        return into;
    free(read->landing.memory);
    read->landing.memory = NULL;
    read->error = MPI_ERR_NO_MEM;
    *count = 0;
    return (void *)buf;
}

void dafs_read_end(struct dafs_read *read, uint64_t found)
{
    if (read->landing.memory)
        dafs_landing_end(&read->landing, &read->typed.memory, found);
    free(read->typed.numbers);
    read->typed.numbers = NULL;
}

void dafs_note(ompi_file_t *fp, int direction, bool alone)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    const char *name = fh->f_fcoll_component ? fh->f_fcoll_component->mca_component_name : "OMPIO";
    bool moves_own = strcmp(name, "individual") == 0;
    char why[64];

    snprintf(why, sizeof why, moves_own ? "OMPIO chose fcoll %.32s" : "OMPIO (fcoll %.32s)", name);
    dafs_note_collective(&dafs_file_of_mpi(fp)->common, direction, alone || moves_own ? NULL : why, alone ? NULL : why);
}

int dafs_end_collective(ompi_file_t *fp, int error, int64_t position, uint64_t wanted, struct dafs_read *read,
                        ompi_status_public_t *status)
{
    ompio_file_t *fh = dafs_handle_of(fp);
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    uint64_t end, found = wanted;
    int class = dafs_agree(&file->common, fh->f_comm, read && read->error != MPI_SUCCESS ? read->error : error, &end);

    if (end != DAFS_NO_END && position != DAFS_NOWHERE)
        found = bytes_found(fp, end, (uint64_t)position, wanted);
    if (read)
        dafs_read_end(read, class == MPI_SUCCESS ? found : 0);
    if (status != MPI_STATUS_IGNORE && class != MPI_SUCCESS)
        status->_ucount = 0;
    else if (status != MPI_STATUS_IGNORE && end != DAFS_NO_END && position != DAFS_NOWHERE)
        status->_ucount = found;
    dafs_info_refresh(fp, file);
    return class;
}

/* `alone` is what each process does by itself where nothing is exchanged. */
#define COLLECTIVE(name, alone, direction, where, parameters, check, place, from, ...)                                             \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        int error = check, mistake = place;                                                                                        \
        bool alone_now = dafs_is_alone(&file->common);                                                                             \
        int64_t position = FOUND_BY(direction, alone_now, from);                                                                   \
        struct dafs_read read;                                                                                                     \
                                                                                                                                   \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        dafs_note(fp, direction, alone_now);                                                                                       \
        if (alone_now && dafs_move_by_view(fp, direction, true, where, buf, count, type, status, &error))                          \
            return dafs_end_collective(fp, first_of(mistake, error), DAFS_NOWHERE, 0, NULL, status);                               \
        buf = LAND(&read, direction, alone_now, position);                                                                         \
        dafs_enter(file, dafs_call_of_all(direction));                                                                             \
        error = dafs_leave(file, alone_now ? file->ompio.io_module_file_##alone(__VA_ARGS__)                                       \
                                           : file->ompio.io_module_file_##name(__VA_ARGS__));                                      \
        return dafs_end_collective(fp, first_of(mistake, error), position, bytes_of(count, type), &read, status);                  \
    }

COLLECTIVE(read_all, read, ADIO_DAFS_READ, DAFS_POINTER, READ, readable(fp), PLACED, HERE, fp, buf, count, type, status)
COLLECTIVE(write_all, write, ADIO_DAFS_WRITE, DAFS_POINTER, WRITE, writable(fp), PLACED, HERE, fp, buf, count, type, status)
COLLECTIVE(read_at_all, read_at, ADIO_DAFS_READ, at, READ_AT, readable(fp), MISPLACED, THERE, fp, at, buf, count, type, status)
COLLECTIVE(write_at_all, write_at, ADIO_DAFS_WRITE, at, WRITE_AT, writable(fp), MISPLACED, THERE, fp, at, buf, count, type, status)

/* --- The rest --- */

/* The end of the file in etypes of the view. */
static int end_of_file(ompi_file_t *fp, MPI_Offset *end)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    uint64_t etypes = 0;
    const adio_dafs_view *view = dafs_view_of(fp);
    int class = view ? dafs_end_of_file(&dafs_file_of_mpi(fp)->common, view, fh->f_etype_size, &etypes) : MPI_ERR_NO_MEM;

    *end = (MPI_Offset)etypes;
    return class;
}

static int our_get_position(ompi_file_t *fp, MPI_Offset *at)
{
    int error = dafs_at_any_place(fp);

    return error != MPI_SUCCESS ? error : dafs_file_of_mpi(fp)->ompio.io_module_file_get_position(fp, at);
}

/* OMPIO counts the end of the file wrongly where the view has gaps, and takes places that there are not. */
static int our_seek(ompi_file_t *fp, MPI_Offset offset, int whence)
{
    const struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    MPI_Offset from = 0;
    int error = dafs_at_any_place(fp);

    if (error == MPI_SUCCESS && whence == MPI_SEEK_END)
        error = end_of_file(fp, &from);
    else if (error == MPI_SUCCESS && whence == MPI_SEEK_CUR)
        error = file->ompio.io_module_file_get_position(fp, &from);
    else if (error == MPI_SUCCESS && whence != MPI_SEEK_SET)
        error = MPI_ERR_ARG;
    if (error == MPI_SUCCESS && (__builtin_add_overflow(offset, from, &offset) || is_nowhere(dafs_handle_of(fp), offset)))
        error = MPI_ERR_ARG;
    return error != MPI_SUCCESS ? error : file->ompio.io_module_file_seek(fp, offset, MPI_SEEK_SET);
}

/* OMPIO walks over the end of its list of blocks where one has 2 GiB or more. */
static int our_get_byte_offset(ompi_file_t *fp, MPI_Offset at, MPI_Offset *byte)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    uint64_t offset = (uint64_t)fh->f_disp;
    const adio_dafs_view *view = dafs_view_of(fp);
    int error = at_place(fp, at);

    if (error == MPI_SUCCESS && !view)
        error = MPI_ERR_NO_MEM;
    /* A view without data has no other byte. */
    if (error == MPI_SUCCESS && fh->f_view_size > 0)
        error = dafs_class(adio_dafs_view_offset(view, (uint64_t)at * fh->f_etype_size, &offset));
    if (error == MPI_SUCCESS)
        *byte = (MPI_Offset)offset;
    return error;
}

static int by_first(ompi_file_t *fp, MPI_Offset size, int (*act)(adio_dafs_file *, uint64_t))
{
    ompio_file_t *fh = dafs_handle_of(fp);
    int class = dafs_at_any_place(fp);

    return class != MPI_SUCCESS ? class : dafs_act_by_first(&dafs_file_of(fh)->common, fh->f_comm, fh->f_rank, size, act);
}

/* OMPIO prints a line on each rank where this fails. */
static int our_set_size(ompi_file_t *fp, MPI_Offset size)
{
    return by_first(fp, size, adio_dafs_resize);
}

/* OMPIO reads and writes all of the file for this, and returns an error on one rank. */
static int our_preallocate(ompi_file_t *fp, MPI_Offset size)
{
    return by_first(fp, size, adio_dafs_preallocate);
}

/* OMPIO refuses while any file has a nonblocking call under way, and then leaves other ranks waiting. It also refuses a file that is only
 * read, where a reader needs it to see what others synced. */
static int our_sync(ompi_file_t *fp)
{
    int class = dafs_fs_sync(dafs_handle_of(fp));

    dafs_info_refresh(fp, dafs_file_of_mpi(fp));
    return class;
}

static int check_view(const ompio_file_t *fh, MPI_Offset disp, const ompi_datatype_t *etype, const ompi_datatype_t *filetype,
                      const char *datarep)
{
    struct dafs_view_asked asked = {.displacement = disp, .datarep = datarep};
    ptrdiff_t lowest, extent;

    opal_datatype_get_true_extent(&filetype->super, &lowest, &extent);
    asked.begins_before = lowest < 0;
    opal_datatype_type_size(&etype->super, &asked.etype_size);
    opal_datatype_type_size(&filetype->super, &asked.filetype_size);
    return dafs_check_view(fh->f_comm, fh->f_amode, &asked);
}

/* OMPIO divides by the size of an etype that has none, and finds other mistakes when it has let the view go that was before. */
static int our_set_view(ompi_file_t *fp, MPI_Offset disp, ompi_datatype_t *etype, ompi_datatype_t *filetype, const char *datarep,
                        opal_info_t *info)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    struct dafs_hints hints = {0};
    const adio_dafs_view *view;
    opal_info_t *asked;
    int code = check_view(dafs_handle_of(fp), disp, etype, filetype, datarep);

    if (code == MPI_SUCCESS && disp == MPI_DISPLACEMENT_CURRENT)
        code = dafs_displacement_of_pointer(fp, &disp);
    if (code != MPI_SUCCESS)
        return code;
    dafs_info_drop_zeros(dafs_handle_of(fp)->f_info);
    asked = OBJ_NEW(opal_info_t);
    if (info)
        opal_info_dup(info, &asked);
    dafs_info_drop_zeros(asked);
    code = file->ompio.io_module_file_set_view(fp, disp, etype, filetype, datarep, asked);
    OBJ_RELEASE(asked);
    dafs_forget_view(file);
    if (code != OMPI_SUCCESS)
        return code;
    dafs_hints_of_info(&hints, info);
    if (hints.count) {
        adio_dafs_set_hints(file->common.handle, hints.list, hints.count);
        atomic_store(&file->info_stale, true);
    }
    dafs_hints_free(&hints);
    view = dafs_view_of(fp);
    code = dafs_set_view(&file->common, dafs_handle_of(fp)->f_comm, view, view ? MPI_SUCCESS : MPI_ERR_NO_MEM);
    dafs_info_refresh(fp, file);
    return code;
}

/* OMPIO's, the same for all files. */
static mca_common_ompio_get_mca_parameter_value_fn_t mca_parameter;

/* OMPIO moves what is larger than this in several pieces, each of which would lock for itself. */
static int whole_cycle(char *name, int len)
{
    return strcmp(name, "cycle_buffer_size") == 0 ? -1 : mca_parameter(name, len);
}

/* OMPIO stores the mode, and tells it. */
static int our_set_atomicity(ompi_file_t *fp, int flag)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    ompio_file_t *fh = dafs_handle_of(fp);
    int class = dafs_set_atomic(&file->common, fh->f_comm, flag);

    if (class != MPI_SUCCESS)
        return class;
    if (!mca_parameter)
        mca_parameter = fh->f_get_mca_parameter_value;
    fh->f_get_mca_parameter_value = flag ? whole_cycle : mca_parameter;
    return file->ompio.io_module_file_set_atomicity(fp, flag);
}

void dafs_hook(ompi_file_t *fp, struct dafs_ompio_file *file)
{
    file->ompio = fp->f_io_selected_module.v2_0_0;
    HOOK(read), HOOK(write), HOOK(read_at), HOOK(write_at);
    HOOK(iread), HOOK(iwrite), HOOK(iread_at), HOOK(iwrite_at);
    HOOK(iread_all), HOOK(iwrite_all), HOOK(iread_at_all), HOOK(iwrite_at_all);
    HOOK(read_all_begin), HOOK(write_all_begin), HOOK(read_at_all_begin), HOOK(write_at_all_begin);
    HOOK(read_all_end), HOOK(write_all_end), HOOK(read_at_all_end), HOOK(write_at_all_end);
    HOOK(read_all), HOOK(write_all), HOOK(read_at_all), HOOK(write_at_all);
    HOOK(seek), HOOK(get_position), HOOK(get_byte_offset), HOOK(set_size), HOOK(preallocate), HOOK(set_view), HOOK(set_atomicity);
    HOOK(sync);
    dafs_hook_shared(fp);
}
