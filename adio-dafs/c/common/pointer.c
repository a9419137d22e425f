/* The shared file pointer: kept on the server, for processes on any number of nodes. */
#include <stdio.h>

#include "dafs_glue.h"

/* What one rank found out for all. */
struct told {
    int class;
    int place;
    uint64_t position;
};

/* The server can keep it for nobody: the file's directory may not be written, or there are no locks. What it refuses to this rank alone is
 * of another class. */
static bool is_refused(int status)
{
    return status == ADIO_DAFS_ERR_ACCESS || status == ADIO_DAFS_ERR_READ_ONLY || status == ADIO_DAFS_ERR_UNSUPPORTED;
}

int dafs_pointer_find(struct dafs_file *file)
{
    int status;

    if (file->pointer != DAFS_POINTER_UNKNOWN)
        return MPI_SUCCESS;
    status = adio_dafs_pointer_open(file->handle);
    if (status == ADIO_DAFS_OK) {
        file->pointer = DAFS_POINTER_SERVER;
    } else if (is_refused(status) && file->library_shares) {
        file->pointer = DAFS_POINTER_LIBRARY;
    } else {
        /* Its class alone says nothing of a pointer. */
        if (!file->pointer_told)
            fprintf(stderr, "adio-dafs: %s\n", adio_dafs_last_error());
        file->pointer_told = true;
        return dafs_class(status);
    }
    return MPI_SUCCESS;
}

int dafs_pointer_add(struct dafs_file *file, uint64_t count, uint64_t *position)
{
    int status = adio_dafs_pointer_add(file->handle, count, position);

    dafs_report(status);
    return dafs_class(status);
}

int dafs_pointer_set(struct dafs_file *file, uint64_t position)
{
    int status = adio_dafs_pointer_set(file->handle, position);

    dafs_report(status);
    return dafs_class(status);
}

/* What a rank found out becomes what all know. */
static int tell(struct dafs_file *file, MPI_Comm comm, int from, struct told *told)
{
    int talk = dafs_bcast_from(comm, from, told, sizeof *told);

    if (talk != MPI_SUCCESS)
        return talk;
    if (told->class == MPI_SUCCESS)
        file->pointer = told->place;
    return told->class;
}

int dafs_pointer_share(struct dafs_file *file, MPI_Comm comm, int rank, int size, int class, uint64_t count, uint64_t *position)
{
    struct told told = {0};
    /* Sums up to this rank: etypes, and ranks with a mistake. The last rank has the total. */
    uint64_t sums[2] = {count, class != MPI_SUCCESS};
    int talk = dafs_scan(comm, sums, 2);

    if (talk != MPI_SUCCESS)
        return talk;
    if (rank == size - 1) {
        told.class = sums[1] ? MPI_ERR_ARG : dafs_pointer_find(file);
        told.place = file->pointer;
        if (told.class == MPI_SUCCESS && file->pointer == DAFS_POINTER_SERVER)
            told.class = dafs_pointer_add(file, sums[0], &told.position);
    }
    class = tell(file, comm, size - 1, &told);
    *position = told.position + sums[0] - count;
    return class;
}

bool dafs_is_outside(const adio_dafs_view *view, uint64_t etype_size, int64_t etypes)
{
    uint64_t position, offset;

    if (etypes < 0 || __builtin_mul_overflow((uint64_t)etypes, etype_size, &position))
        return true;
    return view && adio_dafs_view_offset(view, 0, &offset) == ADIO_DAFS_OK &&
           adio_dafs_view_offset(view, position, &offset) != ADIO_DAFS_OK;
}

static int present(struct dafs_file *file, const struct dafs_seek *to, int64_t *position)
{
    uint64_t found = 0;
    int class;

    if (file->pointer == DAFS_POINTER_LIBRARY)
        return to->library_position(to->of, position);
    class = dafs_pointer_add(file, 0, &found);
    *position = (int64_t)found;
    return class;
}

/* Where the first rank's arguments set it. The MPI library would look at them on that rank alone, and knows no view with gaps. */
static int find_target(struct dafs_file *file, const struct dafs_seek *to, int64_t *target)
{
    int64_t from = 0;
    uint64_t end = 0;
    int class = MPI_SUCCESS;

    if (to->whence == MPI_SEEK_CUR)
        class = present(file, to, &from);
    else if (to->whence == MPI_SEEK_END && !to->view)
        class = MPI_ERR_NO_MEM;
    else if (to->whence == MPI_SEEK_END)
        class = dafs_end_of_file(file, to->view, to->etype_size, &end);
    else if (to->whence != MPI_SEEK_SET)
        class = MPI_ERR_ARG;
    if (class != MPI_SUCCESS)
        return class;
    if (to->whence == MPI_SEEK_END)
        from = (int64_t)end;
    if (__builtin_add_overflow(from, to->offset, target) || dafs_is_outside(to->view, to->etype_size, *target))
        return MPI_ERR_ARG;
    return MPI_SUCCESS;
}

int dafs_pointer_seek(struct dafs_file *file, MPI_Comm comm, int rank, const struct dafs_seek *to, int64_t *target)
{
    struct told told = {0};
    int64_t first[2] = {to->offset, to->whence};
    int class = dafs_bcast(comm, first, sizeof first);

    if (class == MPI_SUCCESS && (first[0] != to->offset || first[1] != to->whence))
        class = MPI_ERR_NOT_SAME;
    /* All are here, so none moves the pointer by an earlier call. */
    class = dafs_max_class(comm, class);
    if (class != MPI_SUCCESS)
        return class;
    if (rank == 0) {
        told.class = dafs_pointer_find(file);
        told.place = file->pointer;
        if (told.class == MPI_SUCCESS)
            told.class = find_target(file, to, target);
        told.position = (uint64_t)*target;
        if (told.class == MPI_SUCCESS && file->pointer == DAFS_POINTER_SERVER)
            told.class = dafs_pointer_set(file, told.position);
    }
    class = tell(file, comm, 0, &told);
    *target = (int64_t)told.position;
    return class;
}

int dafs_end_of_file(struct dafs_file *file, const adio_dafs_view *view, uint64_t etype_size, uint64_t *end)
{
    uint64_t size = 0, position = 0;
    int status = adio_dafs_size(file->handle, &size);

    if (status == ADIO_DAFS_OK)
        status = adio_dafs_view_position(view, size, &position);
    *end = etype_size ? (position + etype_size - 1) / etype_size : 0;
    return dafs_tell(file, status);
}
