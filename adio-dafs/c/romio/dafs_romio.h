/* The ADIO driver: files of ROMIO on dafs servers. */
#ifndef DAFS_ROMIO_H
#define DAFS_ROMIO_H

#ifndef DAFS_MPICH
#include "ompi_config.h"

#include "mpi.h"

#if OMPI_MAJOR_VERSION != 4 || OMPI_MINOR_VERSION != 1
#error "adio-dafs: the ADIO driver is for Open MPI 4.1.x"
#endif
#endif

#include "../common/dafs_glue.h"
#include "adio.h"

/* An open file: ADIO's fs_ptr. */
struct dafs_romio_file {
    struct dafs_file common;
    /* What the program asked for before the file is open. */
    struct dafs_hints hints;
    /* The individual file pointer: bytes of the view's data before it. ROMIO has the byte of the file where that goes on (fp_ind), which
     * does not tell it where tiles interleave, and is no number behind the last. */
    uint64_t position;
    /* ROMIO is about to set the shared file pointer to where it begins. */
    bool begins;
    /* How ROMIO's last question for the shared file pointer ended: an MPI error class. */
    int pointer_error;
    /* The memory that ROMIO was given for the collective call under way, and whether it moves that rank's own data by it: then it does not
     * exchange. */
    const void *given;
    bool moves_own;
};

/* What is used of the loaded ROMIO. */
struct dafs_romio {
    ADIOI_Fns *ufs;
    void (*OpenColl)(ADIO_File, int, int, int *);
    void (*Get_shared_fp)(ADIO_File, ADIO_Offset, ADIO_Offset *, int *);
    adio_transfer_fn *ReadStridedColl;
    adio_transfer_fn *WriteStridedColl;
    void (*SetInfo)(ADIO_File, MPI_Info, int *);
    int (*IODone)(MPI_Request *, MPI_Status *, int *);
    void (*IOComplete)(MPI_Request *, MPI_Status *, int *);
    void (*Datatype_iscontig)(MPI_Datatype, int *);
    ADIOI_Flatlist_node *(*Flatten_and_find)(MPI_Datatype);
    void (*Delete_flattened)(MPI_Datatype);
    char *(*Strdup)(const char *);
    void *(*Malloc)(size_t, int, const char *);
    void (*Free)(void *, int, const char *);
    ADIOI_Flatlist_node **Flatlist;
    int (*file_set_info)(MPI_File, void *);
};

extern struct dafs_romio romio;
/* Our functions, as ROMIO calls them. */
extern ADIOI_Fns dafs_functions;

static inline struct dafs_romio_file *dafs_file_of(ADIO_File fd)
{
    return fd->fs_ptr;
}

/* names.c: true where a file is ours, and the name is kept for the call that follows; or where it is on some ranks alone. Collective. */
bool dafs_resolve(MPI_Comm comm, const char *name, int *error);
/* The whole name behind what ROMIO left of it, which the caller frees; NULL where ROMIO did not ask for its type. */
char *dafs_whole_name(const char *stripped);

/* file.c */
void dafs_adio_open(ADIO_File fd, int *error);
void dafs_adio_open_coll(ADIO_File fd, int rank, int amode, int *error);
void dafs_adio_close(ADIO_File fd, int *error);
void dafs_adio_fcntl(ADIO_File fd, int what, ADIO_Fcntl_t *arguments, int *error);
void dafs_adio_flush(ADIO_File fd, int *error);
bool dafs_adio_sync(ADIO_File fd, int *error);
void dafs_adio_resize(ADIO_File fd, ADIO_Offset size, int *error);
void dafs_adio_delete(const char *name, int *error);
int dafs_adio_feature(ADIO_File fd, int feature);
bool dafs_adio_set_atomicity(ADIO_File fd, int flag, int *error);
bool dafs_adio_get_atomicity(ADIO_File fd, int *flag);

/* info.c */
void dafs_adio_set_info(ADIO_File fd, MPI_Info info, int *error);
/* Beyond ADIO: see driver.h. */
bool dafs_mpi_get_info(MPI_File file, MPI_Info *info, int *class);
bool dafs_mpi_set_info(MPI_File file, MPI_Info info, int *class);
bool dafs_mpi_preallocate(MPI_File file, MPI_Offset size, int *class);
bool dafs_mpi_finish(MPI_File file, int *class);
bool dafs_adio_set_size(ADIO_File fd, MPI_Offset size, int *error);

/* mpi_file.c: ADIO's file of MPI's, NULL where it is not ours; and the other way, MPI_FILE_NULL where it is not known. */
ADIO_File dafs_adio_of_mpi(MPI_File file);
MPI_File dafs_mpi_of_adio(ADIO_File fd);
/* Has the file's error handler deal with a class, as MPI's functions do, and returns what they would. */
int dafs_mpi_return(MPI_File file, int class, const char *function);
/* True where all processes of a communicator are on one node, so that ROMIO can share a file pointer among them. Collective. */
bool dafs_on_one_node(MPI_Comm comm);

/* The file behind a handle of ROMIO's, NULL where it is not ours: its files for its own shared pointers come by the same ways. */
struct dafs_file *dafs_ours(ADIO_File fd);

/* shared_pointer.c: see driver.h. */
bool dafs_get_pointer(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *position, int *error);
bool dafs_set_pointer(ADIO_File fd, ADIO_Offset position, int *error);
bool dafs_seek_pointer(ADIO_File fd, MPI_Offset *offset, int *whence, int *error);
bool dafs_refuses(ADIO_File fd, bool writes, bool converts, int *error);
bool dafs_order(ADIO_File fd, int count, MPI_Datatype type, int *error);
void dafs_ordered(void);
bool dafs_adio_check_view(ADIO_File fd, MPI_Offset disp, MPI_Datatype etype, MPI_Datatype filetype, const char *datarep, int *error);
void dafs_view_changed(ADIO_File fd, int *error);

/* transfer.c */
adio_transfer_fn dafs_adio_read_contig, dafs_adio_write_contig, dafs_adio_read_strided, dafs_adio_write_strided;
adio_transfer_fn dafs_adio_read_coll, dafs_adio_write_coll;
/* See driver.h. */
/* A request tells the error of this thread's read, and the conversion that follows need not. */
void dafs_error_told(void);
int dafs_convert(adio_convert_fn *convert, void *buf, MPI_Datatype type, int count, void *read);
/* Bytes, for whoever wants a status. */
void dafs_set_status(MPI_Status *status, uint64_t bytes);

/* layout.c: a transfer between memory and the view, and the individual file pointer. */
struct dafs_layout {
    adio_dafs_memory memory;
    adio_dafs_view view;
    adio_dafs_segment segment;
    adio_dafs_transfer transfer;
    uint64_t bytes;
    /* The block of a type that has no gaps. */
    int64_t whole[2][2];
    /* The memory's type, where ROMIO flattened it for us. */
    MPI_Datatype flattened;
};
/* Memory and file without gaps; offset is a byte of the file. */
void dafs_layout_contig(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                        int pointer, ADIO_Offset offset);
/* As the view has it; offset counts etypes. */
void dafs_layout_strided(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                         int pointer, ADIO_Offset offset);
void dafs_layout_free(struct dafs_layout *layout);
/* Memory as MPI describes it, with room for one block. What ROMIO has flattened for it goes by dafs_memory_free(). */
adio_dafs_memory dafs_memory_of(void *buf, int count, MPI_Datatype type, int64_t whole[2], MPI_Datatype *flattened);
void dafs_memory_free(MPI_Datatype flattened);
/* See driver.h. */
int dafs_full_size(MPI_Datatype type, MPI_Aint *size);
/* Bytes from its lowest to its highest, and where the lowest is from its address. */
uint64_t dafs_memory_span(int count, MPI_Datatype type, int64_t *low);
/* The file's view, with room for one block. */
adio_dafs_view dafs_view_of(ADIO_File fd, int64_t whole[2]);
/* The offset is one that ROMIO was told where the shared file pointer could not be had; it goes on with it. */
bool dafs_is_nowhere(const struct dafs_layout *layout);
/* The same of so many bytes in an exchange, from bytes of the view's data on. */
bool dafs_is_outside_view(ADIO_File fd, uint64_t position, uint64_t bytes);
ADIO_Offset dafs_adio_seek(ADIO_File fd, ADIO_Offset offset, int whence, int *error);
/* The individual file pointer goes on behind so many bytes of the view's data, to the next etype. */
void dafs_advance(ADIO_File fd, uint64_t bytes);
/* Places of the view, for ROMIO: see driver.h. */
bool dafs_get_position(ADIO_File fd, ADIO_Offset *etypes);
bool dafs_get_end(ADIO_File fd, ADIO_Offset *etypes);
bool dafs_get_byte_offset(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *byte);
bool dafs_is_outside_by_etypes(ADIO_File fd, ADIO_Offset etypes);
bool dafs_is_sequential(ADIO_File fd);

/* flatten.c: see driver.h. */
adio_flatten_fn dafs_flatten_datatype;
bool dafs_is_contiguous(MPI_Datatype type);

/* request.c */
adio_request_fn dafs_adio_iread_contig, dafs_adio_iwrite_contig, dafs_adio_iread_strided, dafs_adio_iwrite_strided;
adio_request_fn dafs_adio_iread_coll, dafs_adio_iwrite_coll;
/* Waits for the requests of a file that is about to be closed. */
void dafs_requests_end(struct dafs_romio_file *file);

#endif
