/* The shared file pointer, which the server keeps. Where it cannot, ROMIO does on one node, in a small file that it locks: file.c. */
#include "dafs_romio.h"

/* So far before the file that no view and no etype gets it back. */
#define NOWHERE(fd) (INT64_MIN / 2 / ((fd)->etype_size > 0 ? (fd)->etype_size : 1))

/* A place that this thread was given in the order of ranks, for ROMIO, which asks in the same call. */
static _Thread_local struct {
    ADIO_File fd;
    ADIO_Offset position;
} ordered;

bool dafs_get_pointer(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *position, int *error)
{
    struct dafs_file *file = dafs_ours(fd);
    uint64_t found = 0;

    if (!file)
        return false;
    dafs_file_of(fd)->begins = false;
    if (ordered.fd == fd) {
        *position = ordered.position;
        *error = MPI_SUCCESS;
        ordered.fd = NULL;
        return true;
    }
    *error = dafs_pointer_find(file);
    if (*error == MPI_SUCCESS && file->pointer == DAFS_POINTER_LIBRARY)
        return false;
    if (*error == MPI_SUCCESS)
        *error = dafs_pointer_add(file, (uint64_t)etypes, &found);
    *position = *error == MPI_SUCCESS ? (ADIO_Offset)found : NOWHERE(fd);
    dafs_file_of(fd)->pointer_error = *error;
    return true;
}

bool dafs_set_pointer(ADIO_File fd, ADIO_Offset position, int *error)
{
    struct dafs_file *file = dafs_ours(fd);
    bool begins = true;

    if (!file)
        return false;
#ifdef DAFS_MPICH
    /* MPICH's ROMIO seeks by this, too. */
    begins = dafs_file_of(fd)->begins;
    dafs_file_of(fd)->begins = false;
#endif
    /* ROMIO sets it to where it begins, on one rank, at the open and with each view. On the server it begins there, where anybody uses
     * it; and it may yet turn out to be ROMIO's. */
    if (begins && file->pointer != DAFS_POINTER_LIBRARY && (uint64_t)position == file->pointer_begin) {
        *error = MPI_SUCCESS;
        return file->pointer == DAFS_POINTER_SERVER || !file->library_shares;
    }
    *error = dafs_pointer_find(file);
    if (*error == MPI_SUCCESS && file->pointer == DAFS_POINTER_LIBRARY)
        return false;
    if (*error == MPI_SUCCESS)
        *error = dafs_pointer_set(file, (uint64_t)position);
    return true;
}

static int position_of_romios(void *of, int64_t *position)
{
    ADIO_Offset found = 0;
    int error;

    romio.Get_shared_fp(of, 0, &found, &error);
    *position = found;
    return error == MPI_SUCCESS ? MPI_SUCCESS : MPI_ERR_INTERN;
}

bool dafs_seek_pointer(ADIO_File fd, MPI_Offset *offset, int *whence, int *error)
{
    struct dafs_file *file = dafs_ours(fd);
    struct dafs_seek to = {.offset = *offset, .whence = *whence, .library_position = position_of_romios, .of = fd};
    adio_dafs_view view;
    int64_t whole[2], target = 0;
    int rank = 0;

    if (!file || (fd->access_mode & MPI_MODE_SEQUENTIAL))
        return false;
    view = dafs_view_of(fd, whole);
    to.view = &view;
    to.etype_size = (uint64_t)fd->etype_size;
    PMPI_Comm_rank(fd->comm, &rank);
    *error = dafs_pointer_seek(file, fd->comm, rank, &to, &target);
    *offset = target;
    *whence = MPI_SEEK_SET;
    return *error != MPI_SUCCESS || file->pointer == DAFS_POINTER_SERVER;
}

bool dafs_refuses(ADIO_File fd, bool writes, bool converts, int *error)
{
    *error = MPI_SUCCESS;
    if (!dafs_ours(fd))
        return false;
    if (fd->access_mode & (writes ? MPI_MODE_RDONLY : MPI_MODE_WRONLY))
        *error = writes ? MPI_ERR_READ_ONLY : MPI_ERR_ACCESS;
    else if (fd->is_external32 && !converts)
        *error = MPI_ERR_UNSUPPORTED_DATAREP;
    return *error != MPI_SUCCESS;
}

/* Moves the pointer by the etypes of all ranks. ROMIO, which asks each rank's in the same call, is told where its own begin. An MPI error
 * class, the same on all ranks. */
static int take_together(ADIO_File fd, int class, uint64_t etypes)
{
    struct dafs_file *file = &dafs_file_of(fd)->common;
    uint64_t position = 0;
    int rank = 0, ranks = 1;

    PMPI_Comm_rank(fd->comm, &rank);
    PMPI_Comm_size(fd->comm, &ranks);
    class = dafs_pointer_share(file, fd->comm, rank, ranks, class, etypes, &position);
    if (class == MPI_SUCCESS && file->pointer == DAFS_POINTER_SERVER) {
        ordered.fd = fd;
        ordered.position = (ADIO_Offset)position;
    }
    return class;
}

/* What a rank's arguments forbid is found before anything moves. */
bool dafs_order(ADIO_File fd, int count, MPI_Datatype type, int *error)
{
    MPI_Count size = 0;
    uint64_t bytes, etypes;
    int class = MPI_SUCCESS;

    if (!dafs_ours(fd))
        return false;
    if (count < 0 || type == MPI_DATATYPE_NULL || fd->split_coll_count)
        class = MPI_ERR_ARG;
    else
        PMPI_Type_size_x(type, &size);
    bytes = (uint64_t)count * (uint64_t)size;
    etypes = fd->etype_size > 0 ? bytes / (uint64_t)fd->etype_size : 0;
    if (bytes != etypes * (uint64_t)fd->etype_size)
        class = MPI_ERR_ARG;
    *error = take_together(fd, class, class == MPI_SUCCESS ? etypes : 0);
    return *error != MPI_SUCCESS;
}

void dafs_ordered(void)
{
    ordered.fd = NULL;
}

/* In ROMIO a rank with a mistake returns alone, and the others wait for it. Nor does it look at the error of the pointer, which stands for
 * the displacement of a sequential file. */
bool dafs_adio_check_view(ADIO_File fd, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep, int *error)
{
    struct dafs_view_asked asked = {.displacement = disp, .datarep = datarep, .knows_internal = true};
    MPI_Count etype_size = 0, filetype_size = 0;

    if (!dafs_ours(fd))
        return false;
    if (etype != MPI_DATATYPE_NULL)
        PMPI_Type_size_x(etype, &etype_size);
    if (filetype != MPI_DATATYPE_NULL)
        PMPI_Type_size_x(filetype, &filetype_size);
    asked.etype_size = (uint64_t)etype_size;
    asked.filetype_size = (uint64_t)filetype_size;
    *error = dafs_check_view(fd->comm, fd->access_mode, &asked);
    if (*error == MPI_SUCCESS && disp == MPI_DISPLACEMENT_CURRENT)
        *error = take_together(fd, MPI_SUCCESS, 0);
    return *error != MPI_SUCCESS;
}

/* ROMIO waits for all ranks behind this, unless it failed: hence one outcome for all. */
void dafs_view_changed(ADIO_File fd, int *error)
{
    struct dafs_file *file = dafs_ours(fd);
    int64_t whole[2];
    adio_dafs_view view;
    bool is_view;

    if (!file || !file->handle)
        return;
    /* ROMIO did not find the byte that the shared pointer leads to, and went on. */
    if (*error == MPI_SUCCESS && fd->disp < 0) {
        fd->disp = 0;
        *error = dafs_file_of(fd)->pointer_error != MPI_SUCCESS ? dafs_file_of(fd)->pointer_error : MPI_ERR_ARG;
    }
    /* Where ROMIO failed, there is no file type any more. */
    is_view = *error == MPI_SUCCESS;
    if (is_view)
        view = dafs_view_of(fd, whole);
    dafs_file_of(fd)->position = 0;
    *error = dafs_set_view(file, fd->comm, is_view ? &view : NULL, *error);
    /* ROMIO leaves alone what it never made: its own file, of which it does not know that the server stands for it. */
    dafs_file_of(fd)->begins = *error == MPI_SUCCESS && fd->shared_fp_fd;
}
