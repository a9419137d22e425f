/* Hints: from MPI_Info to the file, and back with the counters. */
#include <stdlib.h>

#include "dafs_romio.h"

static void hints_of_info(struct dafs_hints *hints, MPI_Info info)
{
    char key[DAFS_KEY_SIZE], value[DAFS_VALUE_SIZE];
    int count = 0, found;

    PMPI_Info_get_nkeys(info, &count);
    for (int i = 0; i < count; i++) {
        PMPI_Info_get_nthkey(info, i, key);
        PMPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
        if (found)
            dafs_hints_add(hints, key, value);
    }
}

/* ROMIO divides by the size of its buffer. 0 asks for the default. */
static MPI_Info without_zeros(MPI_Info info)
{
    static const char *const keys[] = {"cb_buffer_size", "cb_nodes"};
    char value[DAFS_VALUE_SIZE];
    MPI_Info own = MPI_INFO_NULL;

    if (info == MPI_INFO_NULL || PMPI_Info_dup(info, &own) != MPI_SUCCESS)
        return MPI_INFO_NULL;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        int found = 0;

        PMPI_Info_get(own, keys[i], MPI_MAX_INFO_VAL, value, &found);
        if (found && strtol(value, NULL, 10) <= 0)
            PMPI_Info_delete(own, keys[i]);
    }
    return own;
}

/* ROMIO calls this once before the open, where hints are kept for it. */
void dafs_adio_set_info(ADIO_File fd, MPI_Info info, int *error)
{
    struct dafs_hints hints = {0};
    MPI_Info own;

    if (info != MPI_INFO_NULL)
        hints_of_info(&hints, info);
    if (hints.count && !fd->fs_ptr)
        fd->fs_ptr = calloc(1, sizeof(struct dafs_romio_file));
    if (hints.count && fd->fs_ptr) {
        struct dafs_romio_file *file = dafs_file_of(fd);

        if (file->common.handle)
            adio_dafs_set_hints(file->common.handle, hints.list, hints.count);
        for (size_t i = 0; !file->common.handle && i < hints.count; i++)
            dafs_hints_add(&file->hints, hints.list[i].key, hints.list[i].value);
    }
    dafs_hints_free(&hints);
    own = without_zeros(info);
    romio.SetInfo(fd, own, error);
    if (own != MPI_INFO_NULL)
        PMPI_Info_free(&own);
}

/* ROMIO's hints, and over them ours, for these are in force. */
bool dafs_mpi_get_info(MPI_File file, MPI_Info *info, int *class)
{
    char key[DAFS_KEY_SIZE], value[DAFS_VALUE_SIZE];
    ADIO_File fd = dafs_adio_of_mpi(file);
    int found = 1;

    if (!fd || !info)
        return false;
    *class = PMPI_Info_dup(fd->info, info);
    for (size_t i = 0; *class == MPI_SUCCESS; i++) {
        int status = adio_dafs_hint_at(dafs_file_of(fd)->common.handle, i, key, sizeof key, value, sizeof value, &found);

        if (status != ADIO_DAFS_OK || !found)
            break;
        PMPI_Info_set(*info, key, value);
    }
    *class = dafs_mpi_return(file, *class, "MPI_File_get_info");
    return true;
}

static int by_first(ADIO_File fd, MPI_Offset size, int (*act)(adio_dafs_file *, uint64_t))
{
    int rank = 0;

    if (fd->access_mode & MPI_MODE_SEQUENTIAL)
        return MPI_ERR_UNSUPPORTED_OPERATION;
    PMPI_Comm_rank(fd->comm, &rank);
    return dafs_act_by_first(&dafs_file_of(fd)->common, fd->comm, rank, size, act);
}

bool dafs_adio_set_size(ADIO_File fd, MPI_Offset size, int *error)
{
    if (!dafs_ours(fd))
        return false;
    *error = by_first(fd, size, adio_dafs_resize);
    return true;
}

bool dafs_mpi_finish(MPI_File file, int *class)
{
    ADIO_File fd = dafs_adio_of_mpi(file);
    int rank = 0;

    if (!fd || !dafs_ours(fd))
        return false;
    dafs_requests_end(dafs_file_of(fd));
    PMPI_Comm_rank(fd->comm, &rank);
    *class = dafs_mpi_return(file, dafs_finish_together(&dafs_file_of(fd)->common, fd->comm, rank), "MPI_File_close");
    return true;
}

/* ROMIO's is told to the first rank alone. */
bool dafs_mpi_preallocate(MPI_File file, MPI_Offset size, int *class)
{
    ADIO_File fd = dafs_adio_of_mpi(file);

    if (!fd)
        return false;
    *class = dafs_mpi_return(file, by_first(fd, size, adio_dafs_preallocate), "MPI_File_preallocate");
    return true;
}
