/* The fs component: claims files of dafs servers by their names, unless the running Open MPI is not the one that this was
 * compiled for. */
#include <string.h>

#include "dafs_ompio.h"
#include "ompi/mca/fs/base/base.h"
#include "opal/mca/base/base.h"

/* More than that of any of Open MPI's own, which are 10 to 20. */
#define PRIORITY 90

static int open_component(void)
{
    return dafs_fits() ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE;
}

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void)progress_threads;
    (void)mpi_threads;
    return OMPI_SUCCESS;
}

/* OMPIO does not look whether all ranks gave the same amode. Where only some have the name on dafs, all take a module of ours that fails:
 * the others would wait for them elsewhere. Removing a file, OMPIO has no communicator. */
static struct mca_fs_base_module_1_0_0_t *file_query(ompio_file_t *fh, int *priority)
{
    int64_t claims = adio_dafs_claims(fh->f_filename) || strcmp(fh->f_filename, dafs_deleted) == 0;
    int64_t values[4] = {claims, -claims, fh->f_amode, -fh->f_amode};

    if (fh->f_comm != MPI_COMM_NULL)
        dafs_max(fh->f_comm, values, 4);
    if (!values[0])
        return NULL;
    *priority = PRIORITY;
    if (values[0] != -values[1])
        return &dafs_fs_claimed_by_some;
    return values[2] != -values[3] ? &dafs_fs_differing : &dafs_fs_module;
}

static int file_unquery(ompio_file_t *fh)
{
    (void)fh;
    return OMPI_SUCCESS;
}

__attribute__((visibility("default"))) mca_fs_base_component_2_0_0_t mca_fs_dafs_component = {
    .fsm_version =
        {
            MCA_FS_BASE_VERSION_2_0_0,
            .mca_component_name = "dafs",
            MCA_BASE_MAKE_VERSION(component, OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION),
            .mca_open_component = open_component,
        },
    .fsm_data = {MCA_BASE_METADATA_PARAM_NONE},
    .fsm_init_query = init_query,
    .fsm_file_query = file_query,
    .fsm_file_unquery = file_unquery,
};
