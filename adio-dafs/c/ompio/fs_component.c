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

/* Where only some ranks have the name on dafs, all come to our fs_open(), which then fails: the others would wait for them elsewhere.
 * Removing a file, OMPIO has no communicator. */
static struct mca_fs_base_module_1_0_0_t *file_query(ompio_file_t *fh, int *priority)
{
    int64_t claims = adio_dafs_claims(fh->f_filename) || strcmp(fh->f_filename, dafs_deleted) == 0;

    if (fh->f_comm != MPI_COMM_NULL)
        dafs_max(fh->f_comm, &claims, 1);
    if (!claims)
        return NULL;
    *priority = PRIORITY;
    return &dafs_fs_module;
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
