/* The fs component: claims files of dafs servers by their names, unless the running Open MPI is not the one that this was
 * compiled for. */
#include <stdio.h>
#include <string.h>

#include "dafs_ompio.h"
#include "ompi/mca/fs/base/base.h"
#include "opal/mca/base/base.h"

/* More than that of any of Open MPI's own, which are 10 to 20. */
#define PRIORITY 90

#define TEXT(x) #x
#define VERSION_TEXT(major, minor, release) TEXT(major) "." TEXT(minor) "." TEXT(release)
#define BUILT_FOR VERSION_TEXT(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION)

/* OMPIO's structures are its own business from one release to the next, so nothing less than the same release will do. */
static bool version_matches(void)
{
    static const char expected[] = "Open MPI v" BUILT_FOR;
    char running[MPI_MAX_LIBRARY_VERSION_STRING];
    int len = 0, rank = 0;

    MPI_Get_library_version(running, &len);
    if (strncmp(running, expected, sizeof expected - 1) == 0 && running[sizeof expected - 1] == ',')
        return true;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    running[strcspn(running, ",")] = 0;
    if (rank == 0)
        fprintf(stderr, "adio-dafs: not used: built for Open MPI " BUILT_FOR ", but this is %s; run cargo xtask mpi install again\n",
                running);
    return false;
}

static int open_component(void)
{
    return version_matches() && dafs_abi_matches() ? OMPI_SUCCESS : OMPI_ERR_NOT_AVAILABLE;
}

static int init_query(bool progress_threads, bool mpi_threads)
{
    (void)progress_threads;
    (void)mpi_threads;
    return OMPI_SUCCESS;
}

static struct mca_fs_base_module_1_0_0_t *file_query(ompio_file_t *fh, int *priority)
{
    if (!adio_dafs_claims(fh->f_filename) && strcmp(fh->f_filename, dafs_deleted) != 0)
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
