/* What ROMIO does with a file besides moving data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dafs_romio.h"

/* What ROMIO divides a file by; as in its own drivers. */
#define BLOCK_SIZE (4L * 1024 * 1024)

static void file_free(ADIO_File fd)
{
    struct dafs_romio_file *file = dafs_file_of(fd);

    dafs_hints_free(&file->hints);
    free(file);
    fd->fs_ptr = NULL;
}

/* Where the server does not keep a shared file pointer, ROMIO does in a small file, which it locks: in the node's memory, for that is
 * what the open file's name is to ROMIO. Its own driver for local files sees to it from now on. */
static void open_shared_pointer(ADIO_File fd, int rank, int amode, int *error)
{
    if (fd->fs_ptr)
        file_free(fd);
    fd->fns = romio.ufs;
    fd->file_system = ADIO_UFS;
    romio.OpenColl(fd, rank, amode, error);
}

/* The name that ROMIO puts a shared file pointer beside: of this open alone. */
static void name_shared_pointer(ADIO_File fd, const struct dafs_romio_file *file)
{
    const char *directory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    char name[64];

    snprintf(name, sizeof name, "%s/dafs-%016" PRIx64, directory, file->common.serial);
    romio.Free(fd->filename, __LINE__, __FILE__);
    fd->filename = romio.Strdup(name);
}

/* Where MPI_MODE_APPEND begins, the same for all. */
static int seek_end(ADIO_File fd, struct dafs_romio_file *file, int rank)
{
    uint64_t size = 0;
    int class = dafs_begin_at_end(&file->common, fd->comm, rank, &size);

    file->position = size;
#ifdef DAFS_MPICH
    /* On this rank alone. */
    file->begins = fd->hints->ranklist && rank == fd->hints->ranklist[0];
#endif
    /* ROMIO begins the shared pointer there. */
    if (class == MPI_SUCCESS)
        fd->fp_ind = (ADIO_Offset)size;
    return class;
}

static struct dafs_romio_file *file_of_hints(ADIO_File fd)
{
    if (!fd->fs_ptr)
        fd->fs_ptr = calloc(1, sizeof(struct dafs_romio_file));
    return fd->fs_ptr;
}

static int open_together(ADIO_File fd, int rank, int amode, const char *name)
{
    struct dafs_romio_file *file = file_of_hints(fd);
    /* A rank without memory takes part all the same, for the others wait for it. */
    struct dafs_romio_file none = {0};
    struct dafs_opening opening = {
        .comm = fd->comm,
        .rank = rank,
        .name = name,
        .amode = amode,
        .hints = file ? &file->hints : &none.hints,
        .class = file ? MPI_SUCCESS : MPI_ERR_NO_MEM,
    };
    int class;

    PMPI_Comm_size(fd->comm, &opening.size);
    class = dafs_open_together(&opening, file ? &file->common : &none.common);
    if (class == MPI_SUCCESS && (amode & MPI_MODE_APPEND)) {
        class = seek_end(fd, file, rank);
        if (class != MPI_SUCCESS)
            dafs_close_together(&file->common, fd->comm, rank, false);
    }
    if (!file)
        return class;
    if (class != MPI_SUCCESS)
        file_free(fd);
    else
        file->common.library_shares = dafs_on_one_node(fd->comm);
    return class;
}

void dafs_adio_open_coll(ADIO_File fd, int rank, int amode, int *error)
{
    char *name;

    if (fd->cookie != ADIOI_FILE_COOKIE || fd->fns != &dafs_functions) {
        fprintf(stderr, "adio-dafs: cannot open a file: ROMIO is not as expected; run cargo xtask mpi install again\n");
        *error = MPI_ERR_INTERN;
        return;
    }
    name = dafs_whole_name(fd->filename);
    if (!name) {
        open_shared_pointer(fd, rank, amode, error);
        return;
    }
    *error = open_together(fd, rank, amode, name);
    free(name);
    if (*error != MPI_SUCCESS)
        return;
    name_shared_pointer(fd, dafs_file_of(fd));
    fd->access_mode = amode;
    fd->fd_sys = -1;
    fd->fd_direct = -1;
    fd->fp_sys_posn = -1;
    fd->blksize = BLOCK_SIZE;
    fd->is_open = 1;
}

/* Where an open was put off. Never, for ADIO_SCALABLE_OPEN rules that out. */
void dafs_adio_open(ADIO_File fd, int *error)
{
    (void)fd;
    *error = MPI_ERR_UNSUPPORTED_OPERATION;
}

/* ROMIO has another name for a file that goes when it is closed, and is kept from removing that. */
void dafs_adio_close(ADIO_File fd, int *error)
{
    struct dafs_romio_file *file = dafs_file_of(fd);
    int rank = 0;

    dafs_requests_end(file);
    PMPI_Comm_rank(fd->comm, &rank);
    *error = dafs_close_together(&file->common, fd->comm, rank, fd->access_mode & MPI_MODE_DELETE_ON_CLOSE);
    fd->access_mode &= ~MPI_MODE_DELETE_ON_CLOSE;
    file_free(fd);
}

struct dafs_file *dafs_ours(ADIO_File fd)
{
    bool is_ours = fd && fd->cookie == ADIOI_FILE_COOKIE && fd->fns == &dafs_functions && fd->fs_ptr;

    return is_ours ? &dafs_file_of(fd)->common : NULL;
}

/* In ROMIO a rank that asks for another mode than the first returns alone, and the others wait for it. ROMIO is not told of the mode: it
 * would lock too, and run nonblocking calls as blocking ones, of which it tells the bytes that were asked for. */
bool dafs_adio_set_atomicity(ADIO_File fd, int flag, int *error)
{
    struct dafs_file *file = dafs_ours(fd);

    if (!file)
        return false;
    *error = dafs_set_atomic(file, fd->comm, flag);
    return true;
}

bool dafs_adio_get_atomicity(ADIO_File fd, int *flag)
{
    struct dafs_file *file = dafs_ours(fd);

    if (file)
        *flag = file->atomic;
    return file != NULL;
}

void dafs_adio_fcntl(ADIO_File fd, int what, ADIO_Fcntl_t *arguments, int *error)
{
    struct dafs_file *file = &dafs_file_of(fd)->common;
    uint64_t size = 0;

    switch (what) {
    case ADIO_FCNTL_GET_FSIZE:
        *error = dafs_tell(file, adio_dafs_size(file->handle, &size));
        arguments->fsize = (ADIO_Offset)size;
        return;
    case ADIO_FCNTL_SET_DISKSPACE:
        *error = dafs_tell(file, adio_dafs_preallocate(file->handle, (uint64_t)arguments->diskspace));
        return;
    default:
        *error = MPI_ERR_ARG;
    }
}

void dafs_adio_flush(ADIO_File fd, int *error)
{
    int status = adio_dafs_sync(dafs_file_of(fd)->common.handle);

    dafs_report(status);
    *error = dafs_max_class(fd->comm, dafs_class(status));
}

/* ROMIO's refuses a file that is only read. */
bool dafs_adio_sync(ADIO_File fd, int *error)
{
    if (!dafs_ours(fd))
        return false;
    dafs_adio_flush(fd, error);
    return true;
}

void dafs_adio_resize(ADIO_File fd, ADIO_Offset size, int *error)
{
    struct dafs_file *file = &dafs_file_of(fd)->common;
    int rank = 0;

    *error = MPI_SUCCESS;
    PMPI_Comm_rank(fd->comm, &rank);
    if (rank == 0)
        *error = dafs_tell(file, adio_dafs_resize(file->handle, (uint64_t)size));
    *error = dafs_share_class(fd->comm, *error);
}

/* By the name that MPI_File_delete() was given. */
void dafs_adio_delete(const char *name, int *error)
{
    char *whole = dafs_whole_name(name);
    int status = adio_dafs_delete(whole ? whole : name);

    dafs_report(status);
    *error = dafs_class(status);
    free(whole);
}

/* Not ADIO_LOCKS: ROMIO would lock by a descriptor, where each transfer locks for itself. */
int dafs_adio_feature(ADIO_File fd, int feature)
{
    (void)fd;
    switch (feature) {
    case ADIO_SHARED_FP:
    case ADIO_ATOMIC_MODE:
    case ADIO_SCALABLE_OPEN:
    case ADIO_SCALABLE_RESIZE:
    case ADIO_TWO_PHASE:
    case ADIO_UNLINK_AFTER_CLOSE:
    /* Else ROMIO takes the hint away that chooses it. */
    case ADIO_DATA_SIEVING_WRITES:
        return 1;
    default:
        return 0;
    }
}
