/* Shared file pointers. The server keeps them, and these functions stand before OMPIO's. Where the server cannot, OMPIO does on one node,
 * in memory that the ranks share. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"
#include "ompi/errhandler/errcode-internal.h"

/* --- OMPIO's own pointer --- */

/* OMPIO names the memory by what follows the last slash of the file's name. Two opens of one name would share their pointers, and
 * long names have no memory. */
static int open_pointer(ompi_communicator_t *comm, const char *name, int amode, opal_info_t *info, ompio_file_t *fh)
{
    struct dafs_ompio_file *file = dafs_file_of(fh);
    char own[64];

    (void)name;
    snprintf(own, sizeof own, "dafs-%016" PRIx64, file->common.serial);
    return file->library_pointer->sharedfp_file_open(comm, own, amode, info, fh);
}

/* Its other ways put files beside the file by POSIX calls, or open two more files for each rank. */
void dafs_share_pointer(ompio_file_t *fh, struct dafs_ompio_file *file)
{
    file->library_pointer = fh->f_sharedfp;
    file->common.library_shares = fh->f_sharedfp && strcmp(fh->f_sharedfp_component->mca_component_name, "sm") == 0;
    if (file->common.library_shares) {
        file->pointer = *fh->f_sharedfp;
        file->pointer.sharedfp_file_open = open_pointer;
        fh->f_sharedfp = &file->pointer;
    } else {
        fh->f_sharedfp = NULL;
    }
}

void dafs_unshare_pointer(ompio_file_t *fh, struct dafs_ompio_file *file)
{
    fh->f_sharedfp = file->library_pointer;
}

/* --- One process by itself --- */

static int etypes_of(ompi_file_t *fp, int count, ompi_datatype_t *type, uint64_t *etypes)
{
    uint64_t bytes = bytes_of(count, type), size = dafs_handle_of(fp)->f_etype_size;

    *etypes = size ? bytes / size : 0;
    return bytes == *etypes * size ? MPI_SUCCESS : MPI_ERR_ARG;
}

/* Takes a call's etypes of the pointer, if that is on the server: where they begin. */
static int take(ompi_file_t *fp, int count, ompi_datatype_t *type, MPI_Offset *at)
{
    struct dafs_file *file = &dafs_file_of_mpi(fp)->common;
    uint64_t etypes, position = 0;
    int class = etypes_of(fp, count, type, &etypes);

    if (class == MPI_SUCCESS)
        class = dafs_pointer_find(file);
    if (class == MPI_SUCCESS && file->pointer == DAFS_POINTER_SERVER && etypes > 0)
        class = dafs_pointer_add(file, etypes, &position);
    *at = (MPI_Offset)position;
    return class;
}

#define IS_LIBRARYS (dafs_file_of_mpi(fp)->common.pointer == DAFS_POINTER_LIBRARY)

/* `there` is the function for an explicit offset. */
#define SHARED(name, there, parameters, check)                                                                                     \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        ompi_status_public_t told;                                                                                                 \
        struct dafs_read read;                                                                                                     \
        MPI_Offset at = 0;                                                                                                         \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error == MPI_SUCCESS)                                                                                                  \
            error = take(fp, count, type, &at);                                                                                    \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (!IS_LIBRARYS)                                                                                                          \
            return dafs_##there(fp, at, buf, count, type, status);                                                                 \
        BY_OMPIO_LANDED(name, fp, buf, count, type, status)                                                                        \
    }

SHARED(read_shared, read_at, READ, dafs_readable(fp))
SHARED(write_shared, write_at, WRITE, dafs_writable(fp))

#define SHARED_NONBLOCKING(name, direction, there, parameters, check)                                                              \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        MPI_Offset at = 0;                                                                                                         \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error == MPI_SUCCESS)                                                                                                  \
            error = take(fp, count, type, &at);                                                                                    \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (IS_LIBRARYS) {                                                                                                         \
            BEGUN_BY_OMPIO(name, *request, fp, buf, count, type, request)                                                          \
        }                                                                                                                          \
        if (dafs_begin_by_view(fp, direction, at, buf, count, type, request))                                                      \
            return MPI_SUCCESS;                                                                                                    \
        BEGUN_BY_OMPIO(there, *request, fp, at, buf, count, type, request)                                                         \
    }

SHARED_NONBLOCKING(iread_shared, ADIO_DAFS_READ, iread_at, IREAD, dafs_readable(fp))
SHARED_NONBLOCKING(iwrite_shared, ADIO_DAFS_WRITE, iwrite_at, IWRITE, dafs_writable(fp))

static int our_get_position_shared(ompi_file_t *fp, MPI_Offset *offset)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    uint64_t position = 0;
    int class = dafs_at_any_place(fp);

    if (class == MPI_SUCCESS)
        class = dafs_pointer_find(&file->common);
    if (class == MPI_SUCCESS && IS_LIBRARYS)
        return file->ompio.io_module_file_get_position_shared(fp, offset);
    if (class == MPI_SUCCESS)
        class = dafs_pointer_add(&file->common, 0, &position);
    if (class == MPI_SUCCESS)
        *offset = (MPI_Offset)position;
    dafs_info_refresh(fp, file);
    return class;
}

/* --- All processes together --- */

/* Takes the etypes of all ranks of OMPIO's own pointer, which counts bytes. Its own ordered calls end in its exchange, whatever there is
 * against one. All ranks are here, so that none moves it by an earlier call. `position` comes with the etypes of the ranks before. */
static int take_of_library(ompio_file_t *fh, uint64_t etypes, uint64_t *position)
{
    mca_sharedfp_base_module_t *pointer = fh->f_sharedfp;
    uint64_t total = *position + etypes;
    OMPI_MPI_OFFSET_TYPE bytes = 0;
    struct {
        uint64_t at;
        int class;
    } first = {0, MPI_SUCCESS};
    int class = dafs_bcast_from(fh->f_comm, fh->f_size - 1, &total, sizeof total);

    if (class != MPI_SUCCESS)
        return class;
    if (fh->f_rank == 0) {
        first.class = ompi_errcode_get_mpi_code(pointer->sharedfp_get_position(fh, &bytes));
        first.at = fh->f_etype_size ? (uint64_t)bytes / fh->f_etype_size : 0;
    }
    class = dafs_bcast(fh->f_comm, &first, sizeof first);
    if (class != MPI_SUCCESS || first.class != MPI_SUCCESS)
        return class != MPI_SUCCESS ? class : first.class;
    *position += first.at;
    if (total == 0)
        return MPI_SUCCESS;
    class = ompi_errcode_get_mpi_code(pointer->sharedfp_seek(fh, (OMPI_MPI_OFFSET_TYPE)(first.at + total), MPI_SEEK_SET));
    return dafs_max_class(fh->f_comm, class);
}

/* Takes the etypes of all ranks of the pointer, in their order. A class that is not success is this rank's mistake, which all then fail
 * of. */
static int take_together(ompi_file_t *fp, int class, uint64_t etypes, uint64_t *position)
{
    ompio_file_t *fh = dafs_handle_of(fp);
    struct dafs_file *file = &dafs_file_of(fh)->common;

    class = dafs_pointer_share(file, fh->f_comm, fh->f_rank, fh->f_size, class, etypes, position);
    if (class == MPI_SUCCESS && file->pointer == DAFS_POINTER_LIBRARY)
        class = take_of_library(fh, etypes, position);
    return class;
}

static int take_ordered(ompi_file_t *fp, int count, ompi_datatype_t *type, MPI_Offset *at)
{
    uint64_t etypes, position = 0;
    int class = etypes_of(fp, count, type, &etypes);

    class = take_together(fp, class, etypes, &position);
    *at = (MPI_Offset)position;
    return class;
}

#define ORDERED(name, there, alone, direction, parameters, check)                                                                  \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        bool alone_now = dafs_is_alone(&file->common);                                                                             \
        struct dafs_read read;                                                                                                     \
        int64_t position;                                                                                                          \
        MPI_Offset at = 0;                                                                                                         \
        int error = check;                                                                                                         \
                                                                                                                                   \
        if (error == MPI_SUCCESS)                                                                                                  \
            error = take_ordered(fp, count, type, &at);                                                                            \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        dafs_note(fp, direction, alone_now);                                                                                       \
        if (alone_now && dafs_move_by_view(fp, direction, true, at, buf, count, type, status, &error))                             \
            return dafs_end_collective(fp, error, DAFS_NOWHERE, 0, NULL, status);                                                  \
        position = FOUND_BY(direction, alone_now, at *(int64_t)dafs_handle_of(fp)->f_etype_size);                                  \
        buf = LAND(&read, direction, alone_now, position);                                                                         \
        dafs_enter(file, dafs_call_of_all(direction));                                                                             \
        error = dafs_leave(file, alone_now ? file->ompio.io_module_file_##alone(fp, at, buf, count, type, status)                  \
                                           : file->ompio.io_module_file_##there(fp, at, buf, count, type, status));                \
        return dafs_end_collective(fp, error, position, bytes_of(count, type), &read, status);                                     \
    }

ORDERED(read_ordered, read_at_all, read_at, ADIO_DAFS_READ, READ, dafs_readable(fp))
ORDERED(write_ordered, write_at_all, write_at, ADIO_DAFS_WRITE, WRITE, dafs_writable(fp))

#define ORDERED_BEGIN(name, direction, there, parameters, check)                                                                   \
    static int our_##name parameters                                                                                               \
    {                                                                                                                              \
        struct dafs_ompio_file *file = dafs_file_of_mpi(fp);                                                                       \
        MPI_Offset at = 0;                                                                                                         \
        int error = dafs_handle_of(fp)->f_split_coll_in_use ? MPI_ERR_OTHER : check;                                               \
                                                                                                                                   \
        if (error == MPI_SUCCESS)                                                                                                  \
            error = take_ordered(fp, count, type, &at);                                                                            \
        if (error != MPI_SUCCESS)                                                                                                  \
            return error;                                                                                                          \
        if (dafs_begin_split_by_view(fp, direction, at, buf, count, type))                                                         \
            return MPI_SUCCESS;                                                                                                    \
        BEGUN_BY_OMPIO(there, SPLIT, fp, at, buf, count, type)                                                                     \
    }

ORDERED_BEGIN(read_ordered_begin, ADIO_DAFS_READ, read_at_all_begin, READ_BEGIN, dafs_readable(fp))
ORDERED_BEGIN(write_ordered_begin, ADIO_DAFS_WRITE, write_at_all_begin, WRITE_BEGIN, dafs_writable(fp))

/* All split calls end alike. */
static int our_read_ordered_end READ_END
{
    return dafs_end_split(fp, dafs_file_of_mpi(fp)->ompio.io_module_file_read_at_all_end(fp, buf, status));
}

static int our_write_ordered_end WRITE_END
{
    return dafs_end_split(fp, dafs_file_of_mpi(fp)->ompio.io_module_file_write_at_all_end(fp, buf, status));
}

static int position_of_librarys(void *of, int64_t *position)
{
    ompi_file_t *fp = of;
    OMPI_MPI_OFFSET_TYPE found = 0;
    int code = dafs_file_of_mpi(fp)->ompio.io_module_file_get_position_shared(fp, &found);

    *position = found;
    return ompi_errcode_get_mpi_code(code);
}

static int our_seek_shared(ompi_file_t *fp, MPI_Offset offset, int whence)
{
    ompio_file_t *fh = dafs_handle_of(fp);
    struct dafs_ompio_file *file = dafs_file_of(fh);
    struct dafs_seek to = {offset, whence, dafs_view_of(fp), fh->f_etype_size, position_of_librarys, fp};
    int64_t target = 0;
    int class = dafs_at_any_place(fp);

    if (class != MPI_SUCCESS)
        return class;
    class = dafs_pointer_seek(&file->common, fh->f_comm, fh->f_rank, &to, &target);
    dafs_info_refresh(fp, file);
    if (class != MPI_SUCCESS || !IS_LIBRARYS)
        return class;
    return file->ompio.io_module_file_seek_shared(fp, target, MPI_SEEK_SET);
}

int dafs_displacement_of_pointer(ompi_file_t *fp, MPI_Offset *displacement)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    const adio_dafs_view *view;
    uint64_t position = 0, offset = 0;
    int class = MPI_SUCCESS;

    if (!(fh->f_amode & MPI_MODE_SEQUENTIAL))
        return MPI_ERR_ARG;
    class = take_together(fp, MPI_SUCCESS, 0, &position);
    if (class != MPI_SUCCESS)
        return class;
    view = dafs_view_of(fp);
    if (!view)
        return MPI_ERR_NO_MEM;
    class = dafs_class(adio_dafs_view_offset(view, position * fh->f_etype_size, &offset));
    *displacement = (MPI_Offset)offset;
    return class;
}

void dafs_hook_shared(ompi_file_t *fp)
{
    HOOK(read_shared), HOOK(write_shared), HOOK(iread_shared), HOOK(iwrite_shared);
    HOOK(read_ordered), HOOK(write_ordered), HOOK(read_ordered_begin), HOOK(write_ordered_begin);
    HOOK(read_ordered_end), HOOK(write_ordered_end), HOOK(seek_shared), HOOK(get_position_shared);
}
