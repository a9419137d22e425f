/* What libdafs_romio.so, which is preloaded, asks of libdafs_adio.so. */
#ifndef DAFS_DRIVER_H
#define DAFS_DRIVER_H

#include <stdbool.h>

#include "adio.h"

struct dafs_driver {
    /* True where a file of this name is ours, and then its type and functions. */
    bool (*resolve)(const char *name, int *type, ADIOI_Fns **functions);
    /* Gives ROMIO a flattened type to keep. */
    adio_flatten_fn *flatten_datatype;
    /* True where instances of a type are one piece of memory that begins at their address. */
    bool (*is_contiguous)(MPI_Datatype type);
    /* Each returns true where the file is ours, and then what MPI's function of that name is to return. */
    bool (*get_info)(MPI_File file, MPI_Info *info, int *class);
    bool (*set_info)(MPI_File file, MPI_Info info, int *class);
    bool (*preallocate)(MPI_File file, MPI_Offset size, int *class);
};

/* The driver for a ROMIO component that is loaded; NULL where it is not the one that this was compiled for. */
typedef const struct dafs_driver *dafs_driver_fn(void *romio);

#endif
