/* The fs module: what OMPIO does with a file besides moving data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dafs_ompio.h"
#include "ompi/mca/fs/base/base.h"

const char dafs_deleted[] = "dafs:\n";

static struct dafs_ompio_file *file_new(void)
{
    struct dafs_ompio_file *file = calloc(1, sizeof *file);

    if (file) {
        pthread_mutex_init(&file->call_lock, NULL);
        pthread_mutex_init(&file->info_lock, NULL);
    }
    return file;
}

static void file_free(struct dafs_ompio_file *file)
{
    pthread_mutex_destroy(&file->call_lock);
    pthread_mutex_destroy(&file->info_lock);
    free(file->view_numbers);
    free(file);
}

/* Opens. Where the file is opened at its end, OMPIO moves the individual pointer there: see fs_get_size(). */
static int open_at_begin_or_end(const struct dafs_opening *opening, struct dafs_file *file)
{
    int class = dafs_open_together(opening, file);
    uint64_t size;

    if (class != MPI_SUCCESS || !(opening->amode & MPI_MODE_APPEND))
        return class;
    class = dafs_begin_at_end(file, opening->comm, opening->rank, &size);
    if (class != MPI_SUCCESS)
        dafs_close_together(file, opening->comm, opening->rank, false);
    return class;
}

/* OMPIO closes what it could not open, and would remove it then: perhaps a file that MPI_MODE_EXCL is to protect. */
static int refused(ompio_file_t *fh, int class)
{
    fh->f_amode &= ~MPI_MODE_DELETE_ON_CLOSE;
    return class;
}

static int fs_open_by_some(ompi_communicator_t *comm, const char *name, int amode, opal_info_t *info, ompio_file_t *fh)
{
    (void)comm, (void)amode, (void)info;
    fh->f_filename = name;
    return refused(fh, dafs_claimed_by_some(name, fh->f_rank));
}

static int fs_open_differing(ompi_communicator_t *comm, const char *name, int amode, opal_info_t *info, ompio_file_t *fh)
{
    (void)comm, (void)amode, (void)info;
    fh->f_filename = name;
    return refused(fh, MPI_ERR_NOT_SAME);
}

/* OMPIO's amode may have been changed from "write only"; f_amode is what the program gave. */
static int fs_open(ompi_communicator_t *comm, const char *name, int amode, opal_info_t *info, ompio_file_t *fh)
{
    struct dafs_ompio_file *file = file_new();
    /* A rank without memory takes part all the same, for the others wait for it. */
    struct dafs_file none = {0};
    struct dafs_hints hints = {0};
    struct dafs_opening opening = {fh->f_comm, fh->f_rank, fh->f_size, name, fh->f_amode, &hints, file ? MPI_SUCCESS : MPI_ERR_NO_MEM};
    int class;

    (void)comm;
    (void)amode;
    fh->f_filename = name;
    fh->fd = -1;
    dafs_hints_of_info(&hints, info);
    dafs_info_drop_zeros(fh->f_info);
    if (fh->f_bytes_per_agg <= 0)
        fh->f_bytes_per_agg = OMPIO_MCA_GET(fh, bytes_per_agg);
    class = open_at_begin_or_end(&opening, file ? &file->common : &none);
    dafs_hints_free(&hints);
    if (class != MPI_SUCCESS) {
        if (file)
            file_free(file);
        return refused(fh, class);
    }
    fh->f_fs_ptr = file;
    file->opens_at_end = fh->f_amode & MPI_MODE_APPEND;
    dafs_share_pointer(fh, file);
    if (fh->f_fh) {
        dafs_hook(fh->f_fh, file);
        dafs_info_start(fh->f_fh, file);
    }
    return OMPI_SUCCESS;
}

/* OMPIO would remove its own idea of the full name, on each rank. */
static void hide_removed(ompio_file_t *fh)
{
    char *deleted = strdup(dafs_deleted);

    if (deleted) {
        free(fh->f_fullfilename);
        fh->f_fullfilename = deleted;
    }
}

static int fs_close(ompio_file_t *fh)
{
    struct dafs_ompio_file *file = dafs_file_of(fh);
    bool removes = fh->f_amode & MPI_MODE_DELETE_ON_CLOSE;
    int class;

    /* The open failed. */
    if (!file)
        return OMPI_SUCCESS;
    fh->f_fs_ptr = NULL;
    dafs_unshare_pointer(fh, file);
    class = dafs_close_together(&file->common, fh->f_comm, fh->f_rank, removes);
    file_free(file);
    if (removes)
        hide_removed(fh);
    return class;
}

static int fs_delete(char *name, opal_info_t *info)
{
    int status;

    (void)info;
    if (strcmp(name, dafs_deleted) == 0)
        return OMPI_SUCCESS;
    status = adio_dafs_delete(name);
    dafs_report(status);
    return dafs_class(status);
}

static int fs_set_size(ompio_file_t *fh, OMPI_MPI_OFFSET_TYPE size)
{
    struct dafs_file *file = &dafs_file_of(fh)->common;
    int class = MPI_SUCCESS;

    if (fh->f_rank == 0)
        class = dafs_tell(file, adio_dafs_resize(file->handle, (uint64_t)size));
    return dafs_share_class(fh->f_comm, class);
}

/* At the open the ranks begin at the end that they have agreed on, though the file may grow meanwhile. */
static int fs_get_size(ompio_file_t *fh, OMPI_MPI_OFFSET_TYPE *size)
{
    struct dafs_ompio_file *file = dafs_file_of(fh);
    uint64_t bytes = file->common.pointer_begin;
    int status = file->opens_at_end ? ADIO_DAFS_OK : adio_dafs_size(file->common.handle, &bytes);

    file->opens_at_end = false;
    *size = (OMPI_MPI_OFFSET_TYPE)bytes;
    return dafs_tell(&file->common, status);
}

int dafs_fs_sync(ompio_file_t *fh)
{
    int status = adio_dafs_sync(dafs_file_of(fh)->common.handle);

    dafs_report(status);
    return dafs_max_class(fh->f_comm, dafs_class(status));
}

/* After the queries: another component's may have written there. Those of sharedfp come next, and try files beside the file by
 * POSIX calls, with names that they print into 256 bytes. The name comes back at the open. */
static int module_init(ompio_file_t *fh)
{
    fh->f_fstype = DAFS_FSTYPE;
    fh->f_filename = "/dev/null/dafs";
    return OMPI_SUCCESS;
}

static int module_finalize(ompio_file_t *fh)
{
    (void)fh;
    return OMPI_SUCCESS;
}

mca_fs_base_module_1_0_0_t dafs_fs_module = {
    .fs_module_init = module_init,
    .fs_module_finalize = module_finalize,
    .fs_file_open = fs_open,
    .fs_file_close = fs_close,
    .fs_file_delete = fs_delete,
    .fs_file_set_size = fs_set_size,
    .fs_file_get_size = fs_get_size,
    .fs_file_sync = dafs_fs_sync,
};

mca_fs_base_module_1_0_0_t dafs_fs_claimed_by_some = {
    .fs_module_init = module_init,
    .fs_module_finalize = module_finalize,
    .fs_file_open = fs_open_by_some,
    .fs_file_close = fs_close,
};

mca_fs_base_module_1_0_0_t dafs_fs_differing = {
    .fs_module_init = module_init,
    .fs_module_finalize = module_finalize,
    .fs_file_open = fs_open_differing,
    .fs_file_close = fs_close,
};
