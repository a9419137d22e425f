/* libdafs_romio.so, to be preloaded. Stands before a few functions of ROMIO and MPI and hands files of dafs to libdafs_adio.so,
 * which is loaded at the first look at a file name by ROMIO. Needs no MPI library itself: mpirun and every shell below it are
 * preloaded too, and nothing happens there.
 *
 * Open MPI 4.1 does not ask ROMIO in MPI_File_get_info() and MPI_File_set_info(), and ROMIO tells an error of
 * MPI_File_preallocate() on one rank alone; hence these three. ROMIO 3.2.1 flattens types with a lower bound wrongly, and
 * takes memory that begins before its address for memory that begins there; hence two more, for all file systems. Another
 * makes it safe for threads to open files at a time.
 *
 * Files of dafs keep their individual pointers themselves, and know the places of a view: hence three more. ROMIO itself multiplies an
 * explicit offset by the size of an etype, and comes to another place where that is too large: hence those of MPI_File_read_at() and its
 * like.
 *
 * ROMIO keeps a shared file pointer in a local file and locks by a descriptor. For files of dafs the server does both: hence the
 * functions of the pointer, of the view that it begins anew with and of atomic mode. It finds a mistake in a view or a size on one rank
 * alone: hence those of MPI_File_set_view() and MPI_File_set_size(). It refuses MPI_File_sync() of a file that is only read: hence that. It
 * forgets the error of a read that it converts after, converts what was not there to be read, and has no room for the gaps of types: hence
 * that of the conversion, and of the room. Open MPI
 * tells of no error of MPI_File_close(): hence that.
 *
 * The ROMIO in MPICH 4.0 flattens some types wrongly, too; of the others it needs all but MPI_File_set_info(). Ours
 * stand before MPI's own functions there, for those that ROMIO has no name of its own for: atomic mode and MPI_File_read_ordered(). */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#include "driver.h"

#define EXPORT __attribute__((visibility("default")))

#ifdef DAFS_MPICH
#define LIBMPI "libmpi.so.12"
#else
#define LIBMPI "libmpi.so.40"
#endif

static const struct dafs_driver *driver;

/* ROMIO's own functions of the names that it calls here by. */
static struct {
    void (*resolve)(MPI_Comm, const char *, int *, ADIOI_Fns **, int *);
    adio_flatten_fn *flatten;
    void (*is_contiguous)(MPI_Datatype, int *);
    int (*parse_aggregators)(char *, void *, int *, int);
    void (*get_pointer)(ADIO_File, ADIO_Offset, ADIO_Offset *, int *);
    void (*set_pointer)(ADIO_File, ADIO_Offset, int *);
    void (*set_view)(ADIO_File, ADIO_Offset, MPI_Datatype, MPI_Datatype, MPI_Info, int *);
    void (*get_position)(ADIO_File, ADIO_Offset *);
    void (*get_end)(ADIO_File, ADIO_Offset *);
    void (*get_byte_offset)(ADIO_File, ADIO_Offset, ADIO_Offset *);
    /* From external32 to memory. */
    adio_convert_fn *convert_read;
    int (*full_size)(MPI_Datatype, MPI_Aint *);
#ifndef DAFS_MPICH
    adio_ordered_fn *read_ordered, *write_ordered;
    adio_ordered_begin_fn *read_ordered_begin, *write_ordered_begin;
    adio_shared_fn *read_shared, *write_shared;
    adio_ishared_fn *iread_shared, *iwrite_shared;
    adio_at_fn *read_at, *write_at;
    adio_iat_fn *iread_at, *iwrite_at;
    adio_seek_fn *seek_shared;
    adio_set_atomicity_fn *set_atomicity;
    adio_get_atomicity_fn *get_atomicity;
    adio_set_view_fn *file_set_view;
    adio_set_size_fn *set_size;
    adio_sync_fn *sync;
    adio_get_position_fn *file_get_position;
    adio_get_byte_offset_fn *file_get_byte_offset;
#endif
} romio;

static pthread_once_t start_once = PTHREAD_ONCE_INIT;
/* A place in ROMIO, for start(). */
static _Thread_local void *caller;

static void *load_driver(void)
{
    void *library = dlopen("libdafs_adio.so", RTLD_NOW | RTLD_LOCAL);
    void *function = library ? dlsym(library, "dafs_adio_driver") : NULL;

    if (!function)
        fprintf(stderr, "adio-dafs: not used: cannot load libdafs_adio.so: %s\n", dlerror());
    return function;
}

static void find_originals(void *component)
{
    *(void **)&romio.resolve = dlsym(component, "ADIO_ResolveFileType");
    *(void **)&romio.flatten = dlsym(component, "ADIOI_Flatten_datatype");
    *(void **)&romio.is_contiguous = dlsym(component, "ADIOI_Datatype_iscontig");
    *(void **)&romio.parse_aggregators = dlsym(component, "ADIOI_cb_config_list_parse");
    *(void **)&romio.get_pointer = dlsym(component, "ADIO_Get_shared_fp");
    *(void **)&romio.set_pointer = dlsym(component, "ADIO_Set_shared_fp");
    *(void **)&romio.set_view = dlsym(component, "ADIO_Set_view");
    *(void **)&romio.get_position = dlsym(component, "ADIOI_Get_position");
    *(void **)&romio.get_end = dlsym(component, "ADIOI_Get_eof_offset");
    *(void **)&romio.get_byte_offset = dlsym(component, "ADIOI_Get_byte_offset");
    *(void **)&romio.full_size = dlsym(component, "MPIU_datatype_full_size");
    *(void **)&romio.convert_read = dlsym(component, "MPIU_read_external32_conversion_fn");
#ifndef DAFS_MPICH
    *(void **)&romio.read_ordered = dlsym(component, "mca_io_romio_dist_MPI_File_read_ordered");
    *(void **)&romio.write_ordered = dlsym(component, "mca_io_romio_dist_MPI_File_write_ordered");
    *(void **)&romio.read_ordered_begin = dlsym(component, "mca_io_romio_dist_MPI_File_read_ordered_begin");
    *(void **)&romio.write_ordered_begin = dlsym(component, "mca_io_romio_dist_MPI_File_write_ordered_begin");
    *(void **)&romio.read_shared = dlsym(component, "mca_io_romio_dist_MPI_File_read_shared");
    *(void **)&romio.write_shared = dlsym(component, "mca_io_romio_dist_MPI_File_write_shared");
    *(void **)&romio.iread_shared = dlsym(component, "mca_io_romio_dist_MPI_File_iread_shared");
    *(void **)&romio.iwrite_shared = dlsym(component, "mca_io_romio_dist_MPI_File_iwrite_shared");
    *(void **)&romio.read_at = dlsym(component, "mca_io_romio_dist_MPI_File_read_at");
    *(void **)&romio.write_at = dlsym(component, "mca_io_romio_dist_MPI_File_write_at");
    *(void **)&romio.iread_at = dlsym(component, "mca_io_romio_dist_MPI_File_iread_at");
    *(void **)&romio.iwrite_at = dlsym(component, "mca_io_romio_dist_MPI_File_iwrite_at");
    *(void **)&romio.seek_shared = dlsym(component, "mca_io_romio_dist_MPI_File_seek_shared");
    *(void **)&romio.set_atomicity = dlsym(component, "mca_io_romio_dist_MPI_File_set_atomicity");
    *(void **)&romio.get_atomicity = dlsym(component, "mca_io_romio_dist_MPI_File_get_atomicity");
    *(void **)&romio.file_set_view = dlsym(component, "mca_io_romio_dist_MPI_File_set_view");
    *(void **)&romio.set_size = dlsym(component, "mca_io_romio_dist_MPI_File_set_size");
    *(void **)&romio.sync = dlsym(component, "mca_io_romio_dist_MPI_File_sync");
    *(void **)&romio.file_get_position = dlsym(component, "mca_io_romio_dist_MPI_File_get_position");
    *(void **)&romio.file_get_byte_offset = dlsym(component, "mca_io_romio_dist_MPI_File_get_byte_offset");
#endif
}

/* Finds ROMIO, and the driver beside this library. */
static void start(void)
{
    Dl_info library;
    void *component = dladdr(caller, &library) ? dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    dafs_driver_fn *driver_for;

    if (!component)
        return;
    find_originals(component);
    *(void **)&driver_for = load_driver();
    if (driver_for)
        driver = driver_for(component);
}

/* Nobody but ROMIO knows the functions that begin with this. */
#define START()                                                                                                                    \
    do {                                                                                                                           \
        caller = __builtin_return_address(0);                                                                                      \
        pthread_once(&start_once, start);                                                                                          \
    } while (0)

EXPORT void ADIO_ResolveFileType(MPI_Comm comm, const char *name, int *type, ADIOI_Fns **functions, int *error)
{
    START();
    if (driver && driver->resolve(comm, name, type, functions, error))
        return;
    if (romio.resolve)
        romio.resolve(comm, name, type, functions, error);
    else
        *error = MPI_ERR_INTERN;
}

#ifdef DAFS_MPICH
EXPORT ADIOI_Flatlist_node *ADIOI_Flatten_datatype(MPI_Datatype type)
{
    START();
    if (driver)
        return driver->flatten_datatype(type);
    return romio.flatten ? romio.flatten(type) : NULL;
}
#else
EXPORT void ADIOI_Flatten_datatype(MPI_Datatype type)
{
    START();
    if (driver)
        driver->flatten_datatype(type);
    else if (romio.flatten)
        romio.flatten(type);
}
#endif

EXPORT void ADIOI_Datatype_iscontig(MPI_Datatype type, int *contiguous)
{
    START();
    if (driver)
        *contiguous = driver->is_contiguous(type);
    else if (romio.is_contiguous)
        romio.is_contiguous(type, contiguous);
}

#ifndef DAFS_MPICH
/* Says which processes of an open exchange data, by the hint cb_config_list. ROMIO's parser has its state in one place for the process, and
 * threads that open files at a time would crash in it. */
EXPORT int ADIOI_cb_config_list_parse(char *list, void *names, int *ranks, int count)
{
    static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
    int found;

    START();
    if (!romio.parse_aggregators)
        return 0;
    pthread_mutex_lock(&one_at_a_time);
    found = romio.parse_aggregators(list, names, ranks, count);
    pthread_mutex_unlock(&one_at_a_time);
    return found;
}
#endif

/* --- Places in a view. ROMIO's own search for ever in a view without bytes, and do not know the pointer of a file of dafs. --- */

EXPORT void ADIOI_Get_position(ADIO_File fd, ADIO_Offset *etypes)
{
    START();
    if (!(driver && driver->get_position(fd, etypes)) && romio.get_position)
        romio.get_position(fd, etypes);
}

EXPORT void ADIOI_Get_eof_offset(ADIO_File fd, ADIO_Offset *etypes)
{
    START();
    if (!(driver && driver->get_end(fd, etypes)) && romio.get_end)
        romio.get_end(fd, etypes);
}

EXPORT void ADIOI_Get_byte_offset(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *byte)
{
    START();
    if (!(driver && driver->get_byte_offset(fd, etypes, byte)) && romio.get_byte_offset)
        romio.get_byte_offset(fd, etypes, byte);
}

#ifndef DAFS_MPICH
/* This and the next of ROMIO's return success in any case. */
EXPORT int mca_io_romio_dist_MPI_File_get_position(ADIO_File fd, MPI_Offset *etypes)
{
    START();
    if (driver && driver->is_sequential(fd))
        return MPI_ERR_UNSUPPORTED_OPERATION;
    return romio.file_get_position ? romio.file_get_position(fd, etypes) : MPI_ERR_INTERN;
}

EXPORT int mca_io_romio_dist_MPI_File_get_byte_offset(ADIO_File fd, MPI_Offset etypes, MPI_Offset *byte)
{
    START();
    if (driver && driver->is_sequential(fd))
        return MPI_ERR_UNSUPPORTED_OPERATION;
    if (driver && driver->get_byte_offset(fd, etypes, byte))
        return *byte < 0 ? MPI_ERR_ARG : MPI_SUCCESS;
    return romio.file_get_byte_offset ? romio.file_get_byte_offset(fd, etypes, byte) : MPI_ERR_INTERN;
}

/* A place that there is not would come to ROMIO's driver as another. */
static int at(adio_at_fn *original, ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    if (driver && driver->is_outside(fd, etypes))
        return MPI_ERR_ARG;
    return original ? original(fd, etypes, buf, count, type, status) : MPI_ERR_INTERN;
}

static int iat(adio_iat_fn *original, ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type, MPI_Request *request)
{
    if (driver && driver->is_outside(fd, etypes))
        return MPI_ERR_ARG;
    return original ? original(fd, etypes, buf, count, type, request) : MPI_ERR_INTERN;
}

EXPORT int mca_io_romio_dist_MPI_File_read_at(ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type,
                                              MPI_Status *status)
{
    START();
    return at(romio.read_at, fd, etypes, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_write_at(ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type,
                                               MPI_Status *status)
{
    START();
    return at(romio.write_at, fd, etypes, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_iread_at(ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type,
                                               MPI_Request *request)
{
    START();
    return iat(romio.iread_at, fd, etypes, buf, count, type, request);
}

EXPORT int mca_io_romio_dist_MPI_File_iwrite_at(ADIO_File fd, MPI_Offset etypes, void *buf, int count, MPI_Datatype type,
                                                MPI_Request *request)
{
    START();
    return iat(romio.iwrite_at, fd, etypes, buf, count, type, request);
}

/* In ROMIO's a rank whose size cannot be returns alone, and the others wait for it. */
EXPORT int mca_io_romio_dist_MPI_File_set_size(ADIO_File fd, MPI_Offset size)
{
    int error = MPI_ERR_INTERN;

    START();
    if (driver && driver->set_size(fd, size, &error))
        return error;
    return romio.set_size ? romio.set_size(fd, size) : error;
}

/* ROMIO's refuses a file that is only read, where a reader needs it to see what others synced. */
EXPORT int mca_io_romio_dist_MPI_File_sync(ADIO_File fd)
{
    int error = MPI_ERR_INTERN;

    START();
    if (driver && driver->sync(fd, &error))
        return error;
    return romio.sync ? romio.sync(fd) : error;
}
#endif

/* --- The shared file pointer, views and atomic mode --- */

EXPORT void ADIO_Get_shared_fp(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *position, int *error)
{
    START();
    if (driver && driver->get_pointer(fd, etypes, position, error))
        return;
    if (romio.get_pointer)
        romio.get_pointer(fd, etypes, position, error);
    else
        *error = MPI_ERR_INTERN;
}

EXPORT void ADIO_Set_shared_fp(ADIO_File fd, ADIO_Offset position, int *error)
{
    START();
    if (driver && driver->set_pointer(fd, position, error))
        return;
    if (romio.set_pointer)
        romio.set_pointer(fd, position, error);
    else
        *error = MPI_ERR_INTERN;
}

/* The pointer begins anew with each view, and the server may be told of it. */
EXPORT void ADIO_Set_view(ADIO_File fd, ADIO_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, MPI_Info info, int *error)
{
    START();
    if (!romio.set_view) {
        *error = MPI_ERR_INTERN;
        return;
    }
    romio.set_view(fd, disp, etype, filetype, info, error);
    if (driver)
        driver->view_changed(fd, error);
}

#ifndef DAFS_MPICH
/* In atomic mode ROMIO would lock by a descriptor, and wait in nonblocking calls. Files of dafs lock by themselves, and ROMIO does not know
 * of their mode. */
EXPORT int mca_io_romio_dist_MPI_File_set_atomicity(ADIO_File fd, int flag)
{
    int error = MPI_ERR_INTERN;

    START();
    if (driver && driver->set_atomicity(fd, flag, &error))
        return error;
    return romio.set_atomicity ? romio.set_atomicity(fd, flag) : error;
}

EXPORT int mca_io_romio_dist_MPI_File_get_atomicity(ADIO_File fd, int *flag)
{
    START();
    if (driver && driver->get_atomicity(fd, flag))
        return MPI_SUCCESS;
    return romio.get_atomicity ? romio.get_atomicity(fd, flag) : MPI_ERR_INTERN;
}

EXPORT int mca_io_romio_dist_MPI_File_set_view(ADIO_File fd, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype,
                                               const char *datarep, MPI_Info info)
{
    int error = MPI_ERR_INTERN;

    START();
    if (driver && driver->check_view(fd, disp, etype, filetype, datarep, &error))
        return error;
    if (romio.file_set_view)
        error = romio.file_set_view(fd, disp, etype, filetype, datarep, info);
    if (driver)
        driver->ordered();
    return error;
}

/* ROMIO lets one rank at a time at the pointer, and leaves all behind it waiting when it fails. Here each has its place before. */
static int ordered(adio_ordered_fn *original, ADIO_File fd, bool writes, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    int error = MPI_ERR_INTERN;

    /* ROMIO converts in the one direction. */
    if (driver && driver->refuses(fd, writes, writes, &error))
        return error;
    if (driver && driver->order(fd, count, type, &error))
        return error;
    if (original)
        error = original(fd, buf, count, type, status);
    if (driver)
        driver->ordered();
    return error;
}

static int ordered_begin(adio_ordered_begin_fn *original, ADIO_File fd, bool writes, void *buf, int count, MPI_Datatype type)
{
    int error = MPI_ERR_INTERN;

    if (driver && driver->refuses(fd, writes, true, &error))
        return error;
    if (driver && driver->order(fd, count, type, &error))
        return error;
    if (original)
        error = original(fd, buf, count, type);
    if (driver)
        driver->ordered();
    return error;
}

EXPORT int mca_io_romio_dist_MPI_File_read_ordered(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    START();
    return ordered(romio.read_ordered, fd, false, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_write_ordered(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    START();
    return ordered(romio.write_ordered, fd, true, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_read_ordered_begin(ADIO_File fd, void *buf, int count, MPI_Datatype type)
{
    START();
    return ordered_begin(romio.read_ordered_begin, fd, false, buf, count, type);
}

EXPORT int mca_io_romio_dist_MPI_File_write_ordered_begin(ADIO_File fd, void *buf, int count, MPI_Datatype type)
{
    START();
    return ordered_begin(romio.write_ordered_begin, fd, true, buf, count, type);
}

/* ROMIO moves the pointer before it finds that the amode forbids the call, or does not find it. */
static int shared(adio_shared_fn *original, ADIO_File fd, bool writes, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    int error = MPI_ERR_INTERN;

    if (driver && driver->refuses(fd, writes, true, &error))
        return error;
    return original ? original(fd, buf, count, type, status) : MPI_ERR_INTERN;
}

static int ishared(adio_ishared_fn *original, ADIO_File fd, bool writes, void *buf, int count, MPI_Datatype type, MPI_Request *request)
{
    int error = MPI_ERR_INTERN;

    if (driver && driver->refuses(fd, writes, false, &error))
        return error;
    return original ? original(fd, buf, count, type, request) : MPI_ERR_INTERN;
}

EXPORT int mca_io_romio_dist_MPI_File_read_shared(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    START();
    return shared(romio.read_shared, fd, false, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_write_shared(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    START();
    return shared(romio.write_shared, fd, true, buf, count, type, status);
}

EXPORT int mca_io_romio_dist_MPI_File_iread_shared(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Request *request)
{
    START();
    return ishared(romio.iread_shared, fd, false, buf, count, type, request);
}

EXPORT int mca_io_romio_dist_MPI_File_iwrite_shared(ADIO_File fd, void *buf, int count, MPI_Datatype type, MPI_Request *request)
{
    START();
    return ishared(romio.iwrite_shared, fd, true, buf, count, type, request);
}

EXPORT int mca_io_romio_dist_MPI_File_seek_shared(ADIO_File fd, MPI_Offset offset, int whence)
{
    int error = MPI_ERR_INTERN;

    START();
    if (driver && driver->seek_pointer(fd, &offset, &whence, &error))
        return error;
    return romio.seek_shared ? romio.seek_shared(fd, offset, whence) : error;
}
#endif

/* ROMIO makes room for so much of each instance that it converts. */
EXPORT int MPIU_datatype_full_size(MPI_Datatype type, MPI_Aint *size)
{
    START();
    if (driver)
        return driver->full_size(type, size);
    return romio.full_size ? romio.full_size(type, size) : MPI_ERR_INTERN;
}

/* ROMIO takes the outcome of this for that of the read. */
EXPORT int MPIU_read_external32_conversion_fn(void *memory, MPI_Datatype type, int count, void *read)
{
    START();
    if (!romio.convert_read)
        return MPI_ERR_INTERN;
    return driver ? driver->convert(romio.convert_read, memory, type, count, read) : romio.convert_read(memory, type, count, read);
}

/* The MPI library's function. A language's binding may have loaded the library for itself alone. */
static void *of_mpi(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    void *library = found ? NULL : dlopen(LIBMPI, RTLD_LAZY | RTLD_NOLOAD);

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

#ifndef DAFS_MPICH
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

EXPORT int MPI_File_set_info(MPI_File file, MPI_Info info)
{
    return set_info(file, info);
}

EXPORT int PMPI_File_set_info(MPI_File file, MPI_Info info)
{
    return set_info(file, info);
}
#endif

static int preallocate(MPI_File file, MPI_Offset size)
{
    int (*original)(MPI_File, MPI_Offset);
    int class;

    if (driver && driver->preallocate(file, size, &class))
        return class;
    *(void **)&original = of_mpi("PMPI_File_preallocate");
    return original ? original(file, size) : MPI_ERR_INTERN;
}

/* The library's returns success, whatever became of the data. */
static int close_file(MPI_File *file)
{
    int (*original)(MPI_File *);
    int class = MPI_SUCCESS, closed;

    if (driver && file)
        driver->finish(*file, &class);
    *(void **)&original = of_mpi("PMPI_File_close");
    closed = original ? original(file) : MPI_ERR_INTERN;
    return class != MPI_SUCCESS ? class : closed;
}

EXPORT int MPI_File_close(MPI_File *file)
{
    return close_file(file);
}

EXPORT int PMPI_File_close(MPI_File *file)
{
    return close_file(file);
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

EXPORT int MPI_File_preallocate(MPI_File file, MPI_Offset size)
{
    return preallocate(file, size);
}

EXPORT int PMPI_File_preallocate(MPI_File file, MPI_Offset size)
{
    return preallocate(file, size);
}

#ifdef DAFS_MPICH
/* ROMIO would lock too, and run nonblocking calls as blocking ones. It is not told of the mode. */
static int set_atomicity(MPI_File file, int flag)
{
    int (*original)(MPI_File, int);
    int error;

    if (driver && driver->set_atomicity(file, flag, &error))
        return error;
    *(void **)&original = of_mpi("PMPI_File_set_atomicity");
    return original ? original(file, flag) : MPI_ERR_INTERN;
}

static int get_atomicity(MPI_File file, int *flag)
{
    int (*original)(MPI_File, int *);

    if (driver && driver->get_atomicity(file, flag))
        return MPI_SUCCESS;
    *(void **)&original = of_mpi("PMPI_File_get_atomicity");
    return original ? original(file, flag) : MPI_ERR_INTERN;
}

/* ROMIO does not convert what this reads. */
static int read_ordered(MPI_File file, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    int (*original)(MPI_File, void *, int, MPI_Datatype, MPI_Status *);
    int error;

    if (driver && driver->refuses(file, false, false, &error))
        return error;
    *(void **)&original = of_mpi("PMPI_File_read_ordered");
    return original ? original(file, buf, count, type, status) : MPI_ERR_INTERN;
}

EXPORT int MPI_File_set_atomicity(MPI_File file, int flag)
{
    return set_atomicity(file, flag);
}

EXPORT int PMPI_File_set_atomicity(MPI_File file, int flag)
{
    return set_atomicity(file, flag);
}

EXPORT int MPI_File_get_atomicity(MPI_File file, int *flag)
{
    return get_atomicity(file, flag);
}

EXPORT int PMPI_File_get_atomicity(MPI_File file, int *flag)
{
    return get_atomicity(file, flag);
}

EXPORT int MPI_File_read_ordered(MPI_File file, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    return read_ordered(file, buf, count, type, status);
}

EXPORT int PMPI_File_read_ordered(MPI_File file, void *buf, int count, MPI_Datatype type, MPI_Status *status)
{
    return read_ordered(file, buf, count, type, status);
}
#endif
