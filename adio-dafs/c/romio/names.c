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

bool dafs_resolve(const char *name)
{
    free(resolved);
    resolved = name ? claimed_name(name) : NULL;
    return resolved != NULL;
}
