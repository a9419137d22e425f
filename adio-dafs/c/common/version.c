/* Whether this fits the MPI library that runs, and the driver's library. */
#include <stdio.h>
#include <string.h>

#include "dafs_glue.h"

#define TEXT(x) #x
#define VERSION_TEXT(major, minor, release) TEXT(major) "." TEXT(minor) "." TEXT(release)
/* As the library says it, up to the first comma or line end. */
#ifdef DAFS_MPICH
#define BUILT_FOR "MPICH Version:\t" MPICH_VERSION
#define REMEDY "compile it for this one"
#else
#define BUILT_FOR "Open MPI v" VERSION_TEXT(OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION, OMPI_RELEASE_VERSION)
#define REMEDY "run cargo xtask mpi install again"
#endif

void dafs_refuse(const char *why)
{
    int rank = 0;

    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 0)
        fprintf(stderr, "adio-dafs: not used: %s; " REMEDY "\n", why);
}

/* Structures inside an MPI library are its own business from one release to the next, so nothing less than the same will do. */
static bool version_matches(void)
{
    char running[MPI_MAX_LIBRARY_VERSION_STRING], why[MPI_MAX_LIBRARY_VERSION_STRING + 128];
    int len = 0;

    PMPI_Get_library_version(running, &len);
    running[strcspn(running, ",\n")] = 0;
    if (strcmp(running, BUILT_FOR) == 0)
        return true;
    snprintf(why, sizeof why, "built for " BUILT_FOR ", but this is %s", running);
    dafs_refuse(why);
    return false;
}

bool dafs_fits(void)
{
    char why[96];
    int found = adio_dafs_abi_version();

    if (!version_matches())
        return false;
    if (found == ADIO_DAFS_ABI_VERSION)
        return true;
    snprintf(why, sizeof why, "built for interface %d of libadio_dafs.so, which has %d", ADIO_DAFS_ABI_VERSION, found);
    dafs_refuse(why);
    return false;
}
