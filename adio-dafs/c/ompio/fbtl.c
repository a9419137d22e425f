/* The fbtl component and module: OMPIO's list of segments, as one transfer. */
#include "dafs_ompio.h"
#include "ompi/mca/fbtl/base/base.h"

#define PRIORITY 90

/* OMPIO's segments are ours, but for the type of the offset. */
_Static_assert(sizeof(mca_common_ompio_io_array_t) == sizeof(adio_dafs_segment), "segment");
_Static_assert(offsetof(mca_common_ompio_io_array_t, memory_address) == offsetof(adio_dafs_segment, memory), "segment");
_Static_assert(offsetof(mca_common_ompio_io_array_t, offset) == offsetof(adio_dafs_segment, offset), "segment");
_Static_assert(offsetof(mca_common_ompio_io_array_t, length) == offsetof(adio_dafs_segment, len), "segment");

static adio_dafs_transfer transfer_of(const ompio_file_t *fh, int direction, uint64_t *wanted)
{
    adio_dafs_transfer transfer = {
        .direction = direction,
        .collective = dafs_file_of((ompio_file_t *)fh)->common.collective != DAFS_CALL_OWN,
        .segments = (const adio_dafs_segment *)fh->f_io_array,
        .segment_count = (size_t)fh->f_num_of_io_entries,
    };

    *wanted = 0;
    for (size_t i = 0; i < transfer.segment_count; i++)
        *wanted += transfer.segments[i].len;
    return transfer;
}

/* Returns the bytes that moved, also after an error, which hooks.c finds in the file: OMPIO moves what is large in several pieces, and goes
 * on after an error, or an end of the file, as if it had not been. What comes after it is not moved: the file may have grown. */
static ssize_t run(ompio_file_t *fh, int direction)
{
    struct dafs_file *file = &dafs_file_of(fh)->common;
    uint64_t wanted, moved = 0;
    adio_dafs_transfer transfer = transfer_of(fh, direction, &wanted);
    bool exchanges = file->collective && !dafs_is_alone(file);
    int class;

    if ((!exchanges && file->ended) || (!file->collective && atomic_load(&file->error) != MPI_SUCCESS))
        return 0;
    class = dafs_transfer(file, &transfer, wanted, &moved);
    if (class != MPI_SUCCESS)
        atomic_store(&file->error, class);
    file->ended = direction == ADIO_DAFS_READ && moved < wanted;
    return (ssize_t)moved;
}

static ssize_t read_now(ompio_file_t *fh)
{
    return run(fh, ADIO_DAFS_READ);
}

static ssize_t write_now(ompio_file_t *fh)
{
    return run(fh, ADIO_DAFS_WRITE);
}

static ssize_t start(ompio_file_t *fh, ompi_request_t *request, int direction)
{
    uint64_t wanted;
    adio_dafs_transfer transfer = transfer_of(fh, direction, &wanted);

    return dafs_request_start(fh, (mca_ompio_request_t *)request, &transfer, wanted);
}

static ssize_t read_start(ompio_file_t *fh, ompi_request_t *request)
{
    return start(fh, request, ADIO_DAFS_READ);
}

static ssize_t write_start(ompio_file_t *fh, ompi_request_t *request)
{
    return start(fh, request, ADIO_DAFS_WRITE);
}

static int module_init(ompio_file_t *fh)
{
    (void)fh;
    return OMPI_SUCCESS;
}

static mca_fbtl_base_module_1_0_0_t module = {
    .fbtl_module_init = module_init,
    .fbtl_module_finalize = module_init,
    .fbtl_preadv = read_now,
    .fbtl_ipreadv = read_start,
    .fbtl_pwritev = write_now,
    .fbtl_ipwritev = write_start,
    .fbtl_progress = dafs_request_progress,
    .fbtl_request_free = dafs_request_free,
};

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void)progress_threads;
    (void)mpi_threads;
    return OMPI_SUCCESS;
}

/* For files of our fs component, which has looked at versions. */
static mca_fbtl_base_module_1_0_0_t *file_query(ompio_file_t *fh, int *priority)
{
    if (fh->f_fstype != DAFS_FSTYPE)
        return NULL;
    *priority = PRIORITY;
    return &module;
}

static int file_unquery(ompio_file_t *fh)
{
    (void)fh;
    return OMPI_SUCCESS;
}

__attribute__((visibility("default"))) mca_fbtl_base_component_2_0_0_t mca_fbtl_dafs_component = {
    .fbtlm_version =
        {
            MCA_FBTL_BASE_VERSION_2_0_0,
            .mca_component_name = "dafs",
            MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION),
        },
    .fbtlm_data = {MCA_BASE_METADATA_PARAM_NONE},
    .fbtlm_init_query = init_query,
    .fbtlm_file_query = file_query,
    .fbtlm_file_unquery = file_unquery,
};
