/* What libdafs_romio.so, which is preloaded, asks of libdafs_adio.so. */
#ifndef DAFS_DRIVER_H
#define DAFS_DRIVER_H

#include <stdbool.h>

#include "adio.h"

struct dafs_driver {
    /* True where a file of this name is ours, and then its type and functions; or where it is so on some ranks alone, which is an error of
     * all. Collective. */
    bool (*resolve)(MPI_Comm comm, const char *name, int *type, ADIOI_Fns **functions, int *error);
    /* Gives ROMIO a flattened type to keep. */
    adio_flatten_fn *flatten_datatype;
    /* True where instances of a type are one piece of memory that begins at their address. */
    bool (*is_contiguous)(MPI_Datatype type);
    /* Each returns true where the file is ours, and then what MPI's function of that name is to return. */
    bool (*get_info)(MPI_File file, MPI_Info *info, int *class);
    bool (*set_info)(MPI_File file, MPI_Info info, int *class);
    bool (*preallocate)(MPI_File file, MPI_Offset size, int *class);
    /* Before a file is closed. MPI_File_close() then returns the class, which the file's error handler was told. */
    bool (*finish)(MPI_File file, int *class);
    /* Of ROMIO's function: the same. */
    bool (*set_size)(ADIO_File fd, MPI_Offset size, int *error);
    bool (*sync)(ADIO_File fd, int *error);
    /* What ROMIO asks of the shared file pointer. Each returns true where the server keeps it, or where the call failed. */
    bool (*get_pointer)(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *position, int *error);
    bool (*set_pointer)(ADIO_File fd, ADIO_Offset position, int *error);
    /* Where it returns false, ROMIO is to seek to what it has made of these. */
    bool (*seek_pointer)(ADIO_File fd, MPI_Offset *offset, int *whence, int *error);
    /* Before a call of the pointer: true where the amode forbids it, or where ROMIO would have to convert what it moves and does not. */
    bool (*refuses)(ADIO_File fd, bool writes, bool converts, int *error);
    /* Before an ordered call: gives each rank its place, which get_pointer() then tells ROMIO. True where it failed. */
    bool (*order)(ADIO_File fd, int count, MPI_Datatype type, int *error);
    /* After it, and after a change of the view: a place that ROMIO did not ask for is of no use any more. */
    void (*ordered)(void);
    /* Converts what this thread read, by ROMIO's function: the error of the read, or else that of the conversion. */
    int (*convert)(adio_convert_fn *original, void *memory, MPI_Datatype type, int count, void *read);
    /* Room for each instance of a type that ROMIO converts. */
    int (*full_size)(MPI_Datatype type, MPI_Aint *size);
    /* Sets and tells atomic mode: true where the file is ours. */
    bool (*set_atomicity)(ADIO_File fd, int flag, int *error);
    bool (*get_atomicity)(ADIO_File fd, int *flag);
    /* Before the view changes: true where it cannot be, for all processes. */
    bool (*check_view)(ADIO_File fd, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep, int *error);
    /* The view has changed: by all processes, error is that of ROMIO before and of the call after. */
    void (*view_changed)(ADIO_File fd, int *error);
    /* Places of the view in etypes: the individual file pointer, the end of the file, and which byte one is. True where the file is
     * ours. */
    bool (*get_position)(ADIO_File fd, ADIO_Offset *etypes);
    bool (*get_end)(ADIO_File fd, ADIO_Offset *etypes);
    bool (*get_byte_offset)(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *byte);
    /* The file is ours, and its view has no such place, which ROMIO would take for another. */
    bool (*is_outside)(ADIO_File fd, ADIO_Offset etypes);
    /* The file is ours, and has its shared pointer alone. */
    bool (*is_sequential)(ADIO_File fd);
};

/* The driver for a ROMIO component that is loaded; NULL where it is not the one that this was compiled for. */
typedef const struct dafs_driver *dafs_driver_fn(void *romio);

#endif
