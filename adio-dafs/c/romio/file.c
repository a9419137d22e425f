/* What ROMIO does with a file besides moving data. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dafs_romio.h"
#include "ompi/communicator/communicator.h"
#include "ompi/group/group.h"
#include "ompi/proc/proc.h"

/* What ROMIO divides a file by; as in its own drivers. */
#define BLOCK_SIZE (4L * 1024 * 1024)

/* ROMIO frees what it allocated, and aborts over NULL. */
static void replace_name(ADIO_File fd, const char *name)
{
    romio.Free(fd->filename, __LINE__, __FILE__);
    fd->filename = romio.Strdup(name);
}

static bool on_one_node(MPI_Comm comm)
{
    int size = ompi_comm_size(comm);

    for (int i = 0; i < size; i++) {
        if (!OPAL_PROC_ON_LOCAL_NODE(ompi_group_peer_lookup(comm->c_local_group, i)->super.proc_flags))
            return false;
    }
    return true;
}

static uint64_t hash_of(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

/* ROMIO keeps a shared file pointer in a small file beside the file, which it locks: here one in the node's memory, and ROMIO's
 * own driver for local files sees to it from now on. ROMIO's name ends with its process and a random number. */
static void open_shared_pointer(ADIO_File fd, int rank, int amode, int *error)
{
    const char *directory = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    const char *end = strstr(fd->filename, ".shfp.");
    char name[128];

    snprintf(name, sizeof name, "%s/dafs-%016" PRIx64 "%.64s", directory, hash_of(fd->filename), end ? end : "");
    replace_name(fd, name);
    if (fd->fs_ptr) {
        dafs_hints_free(&dafs_file_of(fd)->hints);
        free(fd->fs_ptr);
        fd->fs_ptr = NULL;
    }
    fd->fns = romio.ufs;
    fd->file_system = ADIO_UFS;
    romio.OpenColl(fd, rank, amode, error);
}

/* Where MPI_MODE_APPEND begins, the same for all. */
static int seek_end(ADIO_File fd, struct dafs_romio_file *file, int rank)
{
    struct {
        uint64_t size;
        int class;
    } end = {0, MPI_SUCCESS};
    int class;

    if (rank == 0)
        end.class = dafs_class(adio_dafs_size(file->common.handle, &end.size));
    class = dafs_bcast(fd->comm, &end, sizeof end);
    if (class == MPI_SUCCESS)
        class = end.class;
    if (class == MPI_SUCCESS)
        fd->fp_ind = (ADIO_Offset)end.size;
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
    struct dafs_file none = {0};
    struct dafs_hints no_hints = {0};
    struct dafs_opening opening = {
        .comm = fd->comm,
        .rank = rank,
        .name = name,
        .amode = amode,
        .hints = file ? &file->hints : &no_hints,
        .class = file ? MPI_SUCCESS : MPI_ERR_NO_MEM,
    };
    int class;

    PMPI_Comm_size(fd->comm, &opening.size);
    class = dafs_open_together(&opening, file ? &file->common : &none);
    if (class == MPI_SUCCESS && (amode & MPI_MODE_APPEND)) {
        class = seek_end(fd, file, rank);
        if (class != MPI_SUCCESS)
            dafs_close_together(&file->common, fd->comm, rank);
    }
    if (file)
        dafs_hints_free(&file->hints);
    if (class != MPI_SUCCESS) {
        free(file);
        fd->fs_ptr = NULL;
        return class;
    }
    file->one_node = on_one_node(fd->comm);
    return MPI_SUCCESS;
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
    if (*error == MPI_SUCCESS) {
        /* For MPI_MODE_DELETE_ON_CLOSE. */
        replace_name(fd, name);
        fd->access_mode = amode;
        fd->fd_sys = -1;
        fd->fd_direct = -1;
        fd->fp_sys_posn = -1;
        fd->blksize = BLOCK_SIZE;
        fd->is_open = 1;
    }
    free(name);
}

/* By one process: ROMIO does this where an open was put off, which ADIO_SCALABLE_OPEN rules out. */
void dafs_adio_open(ADIO_File fd, int *error)
{
    MPI_Comm comm = fd->comm;

    fd->comm = MPI_COMM_SELF;
    *error = open_together(fd, 0, fd->access_mode, fd->filename);
    fd->comm = comm;
}

void dafs_adio_close(ADIO_File fd, int *error)
{
    struct dafs_romio_file *file = dafs_file_of(fd);
    int rank = 0;

    dafs_requests_end(file);
    PMPI_Comm_rank(fd->comm, &rank);
    *error = dafs_close_together(&file->common, fd->comm, rank);
    dafs_hints_free(&file->hints);
    free(file);
    fd->fs_ptr = NULL;
}

void dafs_adio_fcntl(ADIO_File fd, int what, ADIO_Fcntl_t *arguments, int *error)
{
    adio_dafs_file *handle = dafs_file_of(fd)->common.handle;
    uint64_t size = 0;
    int rank = 0;

    switch (what) {
    case ADIO_FCNTL_GET_FSIZE:
        *error = dafs_class(adio_dafs_size(handle, &size));
        arguments->fsize = (ADIO_Offset)size;
        return;
    case ADIO_FCNTL_SET_DISKSPACE:
        *error = dafs_class(adio_dafs_preallocate(handle, (uint64_t)arguments->diskspace));
        return;
    case ADIO_FCNTL_SET_ATOMICITY:
        *error = arguments->atomicity ? MPI_ERR_UNSUPPORTED_OPERATION : MPI_SUCCESS;
        PMPI_Comm_rank(fd->comm, &rank);
        if (*error != MPI_SUCCESS && rank == 0)
            fprintf(stderr, "adio-dafs: cannot set atomic mode of %s: not supported; order accesses by MPI_File_sync and MPI_Barrier\n",
                    fd->filename);
        return;
    default:
        *error = MPI_ERR_ARG;
    }
}

void dafs_adio_flush(ADIO_File fd, int *error)
{
    *error = dafs_max_class(fd->comm, dafs_class(adio_dafs_sync(dafs_file_of(fd)->common.handle)));
}

void dafs_adio_resize(ADIO_File fd, ADIO_Offset size, int *error)
{
    int rank = 0;

    *error = MPI_SUCCESS;
    PMPI_Comm_rank(fd->comm, &rank);
    if (rank == 0)
        *error = dafs_class(adio_dafs_resize(dafs_file_of(fd)->common.handle, (uint64_t)size));
    *error = dafs_share_class(fd->comm, *error);
}

/* By the name that MPI_File_delete() was given, or the one that the file was opened by. */
void dafs_adio_delete(const char *name, int *error)
{
    char *whole = dafs_whole_name(name);
    int status = adio_dafs_delete(whole ? whole : name);

    dafs_report("delete", whole ? whole : name, status);
    *error = dafs_class(status);
    free(whole);
}

int dafs_adio_feature(ADIO_File fd, int feature)
{
    switch (feature) {
    case ADIO_SHARED_FP:
        return !fd->fs_ptr || dafs_file_of(fd)->one_node;
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
