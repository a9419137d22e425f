/* libdafs_romio.so, to be preloaded. Stands before a few functions of ROMIO and MPI and hands files of dafs to libdafs_adio.so,
 * which is loaded at the first look at a file name by ROMIO. Needs no MPI library itself: mpirun and every shell below it are
 * preloaded too, and nothing happens there.
 *
 * Open MPI 4.1 does not ask ROMIO in MPI_File_get_info() and MPI_File_set_info(), and ROMIO tells an error of
 * MPI_File_preallocate() on one rank alone; hence these three. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "driver.h"

#define EXPORT __attribute__((visibility("default")))

static const struct dafs_driver *driver;
static pthread_once_t driver_once = PTHREAD_ONCE_INIT;
/* What ROMIO's component was loaded as. */
static void *romio;

/* Beside this library, by its run path. */
static void load_driver(void)
{
    void *library = dlopen("libdafs_adio.so", RTLD_NOW | RTLD_LOCAL);
    dafs_driver_fn *start = library ? (dafs_driver_fn *)dlsym(library, "dafs_adio_driver") : NULL;

    if (!start)
        fprintf(stderr, "adio-dafs: not used: cannot load libdafs_adio.so: %s\n", dlerror());
    else
        driver = start(romio);
}

/* The caller is ROMIO: nobody else knows this function. */
EXPORT void ADIO_ResolveFileType(MPI_Comm comm, const char *name, int *type, ADIOI_Fns **functions, int *error)
{
    void (*original)(MPI_Comm, const char *, int *, ADIOI_Fns **, int *);
    Dl_info caller;

    if (!romio && dladdr(__builtin_return_address(0), &caller))
        romio = dlopen(caller.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    pthread_once(&driver_once, load_driver);
    if (driver && driver->resolve(name, type, functions)) {
        *error = MPI_SUCCESS;
        return;
    }
    *(void **)&original = romio ? dlsym(romio, "ADIO_ResolveFileType") : NULL;
    if (original && original != ADIO_ResolveFileType)
        original(comm, name, type, functions, error);
    else
        *error = MPI_ERR_INTERN;
}

/* The MPI library's function. A language's binding may have loaded the library for itself alone. */
static void *of_mpi(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    void *library = found ? NULL : dlopen("libmpi.so.40", RTLD_LAZY | RTLD_NOLOAD);

    return library ? dlsym(library, name) : found;
}

static int get_info(MPI_File file, MPI_Info *info)
{
    int (*original)(MPI_File, MPI_Info *);
    int class;

    if (driver && driver->get_info(file, info, &class))
        return class;
    *(void **)&original = of_mpi("PMPI_File_get_info");
    return original ? original(file, info) : MPI_ERR_INTERN;
}

static int set_info(MPI_File file, MPI_Info info)
{
    int (*original)(MPI_File, MPI_Info);
    int class;

    *(void **)&original = of_mpi("PMPI_File_set_info");
    class = original ? original(file, info) : MPI_ERR_INTERN;
    if (class == MPI_SUCCESS && driver)
        driver->set_info(file, info, &class);
    return class;
}

static int preallocate(MPI_File file, MPI_Offset size)
{
    int (*original)(MPI_File, MPI_Offset);
    int class;

    if (driver && driver->preallocate(file, size, &class))
        return class;
    *(void **)&original = of_mpi("PMPI_File_preallocate");
    return original ? original(file, size) : MPI_ERR_INTERN;
}

/* Programs call the one name, bindings of Fortran the other. */
EXPORT int MPI_File_get_info(MPI_File file, MPI_Info *info)
{
    return get_info(file, info);
}

EXPORT int PMPI_File_get_info(MPI_File file, MPI_Info *info)
{
    return get_info(file, info);
}

EXPORT int MPI_File_set_info(MPI_File file, MPI_Info info)
{
    return set_info(file, info);
}

EXPORT int PMPI_File_set_info(MPI_File file, MPI_Info info)
{
    return set_info(file, info);
}

EXPORT int MPI_File_preallocate(MPI_File file, MPI_Offset size)
{
    return preallocate(file, size);
}

EXPORT int PMPI_File_preallocate(MPI_File file, MPI_Offset size)
{
    return preallocate(file, size);
}
