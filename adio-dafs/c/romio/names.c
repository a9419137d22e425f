/* Which names are ours, and what ROMIO leaves of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dafs_romio.h"

/* The name that this thread asked the type of: ROMIO hands on what follows the first colon. */
static _Thread_local char *resolved;

char *dafs_whole_name(const char *stripped)
{
    char *name = resolved;
    size_t len = name ? strlen(name) : 0, stripped_len = strlen(stripped);

    if (!name || len < stripped_len || strcmp(name + len - stripped_len, stripped) != 0)
        return NULL;
    resolved = NULL;
    return name;
}

/* The name by which the library knows a file; NULL where it is not on a dafs server. ROMIO_FSTYPE_FORCE is ROMIO's way to say
 * which file system all names are of. */
static char *claimed_name(const char *name)
{
    const char *forced = getenv("ROMIO_FSTYPE_FORCE");
    const char *colon = strchr(name, ':');
    char *whole;

    if (adio_dafs_claims(name))
        return strdup(name);
    if (!forced || strncmp(forced, "dafs:", 5) != 0)
        return NULL;
    /* Instead of another type's prefix, by ROMIO's rule for what is one. */
    if (colon && colon > name + 1)
        name = colon + 1;
    return asprintf(&whole, "dafs:%s", name) < 0 ? NULL : whole;
}

/* ROMIO lets the first rank find the type of a local file, and the others wait for that. */
bool dafs_resolve(MPI_Comm comm, const char *name, int *error)
{
    int64_t claims[2];
    int rank = 0;

    free(resolved);
    resolved = name ? claimed_name(name) : NULL;
    claims[0] = resolved != NULL;
    claims[1] = -claims[0];
    *error = dafs_max(comm, claims, 2);
    if (*error == MPI_SUCCESS && claims[0] != -claims[1]) {
        PMPI_Comm_rank(comm, &rank);
        *error = dafs_claimed_by_some(name, rank);
    }
    return claims[0] || *error != MPI_SUCCESS;
}
