/* What ROMIO 3.2.1 in Open MPI 4.1 looks like to a file system driver. It installs no headers for one, so this declares what is
 * used, by the layout of that version; driver.c looks at running ROMIO's own tables before it trusts it. */
#ifndef DAFS_ADIO_H
#define DAFS_ADIO_H

/* MPICH's ROMIO has its own header, in MPICH's source. */
#ifdef DAFS_MPICH
#include "../mpich/adio.h"
#else

#include <mpi.h>

typedef long long ADIO_Offset;
typedef struct ADIOI_FileD *ADIO_File;

/* At the beginning of each open file. */
#define ADIOI_FILE_COOKIE 2487376

/* Which file pointer an operation uses. */
#define ADIO_EXPLICIT_OFFSET 100
#define ADIO_INDIVIDUAL 101

/* Fcntl */
#define ADIO_FCNTL_SET_ATOMICITY 180
#define ADIO_FCNTL_SET_DISKSPACE 188
#define ADIO_FCNTL_GET_FSIZE 200

/* Feature */
#define ADIO_LOCKS 300
#define ADIO_SHARED_FP 301
#define ADIO_ATOMIC_MODE 302
#define ADIO_DATA_SIEVING_WRITES 303
#define ADIO_SCALABLE_OPEN 304
#define ADIO_UNLINK_AFTER_CLOSE 305
#define ADIO_TWO_PHASE 306
#define ADIO_SCALABLE_RESIZE 307

/* File system types: ROMIO's for local files, and ours. */
#define ADIO_UFS 152
#define ADIO_DAFS 4242

typedef struct {
    ADIO_Offset disp;
    MPI_Datatype etype;
    MPI_Datatype filetype;
    MPI_Info info;
    int atomicity;
    ADIO_Offset fsize;
    ADIO_Offset diskspace;
} ADIO_Fcntl_t;

typedef void adio_transfer_fn(ADIO_File, void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Status *, int *);
typedef void adio_flatten_fn(MPI_Datatype);
/* MPI_File_read_ordered() and its like, as ROMIO calls its own. */
typedef int adio_ordered_fn(ADIO_File, void *, int, MPI_Datatype, MPI_Status *);
typedef int adio_ordered_begin_fn(ADIO_File, void *, int, MPI_Datatype);
/* MPI_File_read_shared() and MPI_File_iread_shared() and their like. */
typedef int adio_shared_fn(ADIO_File, void *, int, MPI_Datatype, MPI_Status *);
typedef int adio_ishared_fn(ADIO_File, void *, int, MPI_Datatype, MPI_Request *);
/* MPI_File_read_at() and MPI_File_iread_at() and their like. */
typedef int adio_at_fn(ADIO_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Status *);
typedef int adio_iat_fn(ADIO_File, MPI_Offset, void *, int, MPI_Datatype, MPI_Request *);
typedef int adio_seek_fn(ADIO_File, MPI_Offset, int);
typedef int adio_set_atomicity_fn(ADIO_File, int);
typedef int adio_get_atomicity_fn(ADIO_File, int *);
typedef int adio_set_size_fn(ADIO_File, MPI_Offset);
typedef int adio_sync_fn(ADIO_File);
typedef int adio_get_position_fn(ADIO_File, MPI_Offset *);
typedef int adio_get_byte_offset_fn(ADIO_File, MPI_Offset, MPI_Offset *);
typedef int adio_set_view_fn(ADIO_File, MPI_Offset, MPI_Datatype, MPI_Datatype, const char *, MPI_Info);
/* From what a file holds to memory. */
typedef int adio_convert_fn(void *, MPI_Datatype, int, void *);
typedef void adio_request_fn(ADIO_File, void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Request *, int *);

/* A driver's functions, in ROMIO's order. */
typedef struct ADIOI_Fns {
    void (*Open)(ADIO_File, int *);
    void (*OpenColl)(ADIO_File, int, int, int *);
    adio_transfer_fn *ReadContig;
    adio_transfer_fn *WriteContig;
    adio_transfer_fn *ReadStridedColl;
    adio_transfer_fn *WriteStridedColl;
    ADIO_Offset (*SeekIndividual)(ADIO_File, ADIO_Offset, int, int *);
    void (*Fcntl)(ADIO_File, int, ADIO_Fcntl_t *, int *);
    void (*SetInfo)(ADIO_File, MPI_Info, int *);
    adio_transfer_fn *ReadStrided;
    adio_transfer_fn *WriteStrided;
    void (*Close)(ADIO_File, int *);
    adio_request_fn *IreadContig;
    adio_request_fn *IwriteContig;
    int (*ReadDone)(MPI_Request *, MPI_Status *, int *);
    int (*WriteDone)(MPI_Request *, MPI_Status *, int *);
    void (*ReadComplete)(MPI_Request *, MPI_Status *, int *);
    void (*WriteComplete)(MPI_Request *, MPI_Status *, int *);
    adio_request_fn *IreadStrided;
    adio_request_fn *IwriteStrided;
    void (*Flush)(ADIO_File, int *);
    void (*Resize)(ADIO_File, ADIO_Offset, int *);
    void (*Delete)(const char *, int *);
    int (*Feature)(ADIO_File, int);
    const char *fsname;
    adio_request_fn *IreadStridedColl;
    adio_request_fn *IwriteStridedColl;
} ADIOI_Fns;

/* An open file. */
struct ADIOI_FileD {
    int cookie;
    int fd_sys;
    int null_fd;
    int fd_direct;
    int direct_read;
    int direct_write;
    unsigned d_mem;
    unsigned d_miniosz;
    long blksize;
    /* The individual file pointer: a byte of the file. */
    ADIO_Offset fp_ind;
    ADIO_Offset fp_sys_posn;
    ADIOI_Fns *fns;
    MPI_Comm comm;
    int is_open;
    int is_agg;
    char *filename;
    int file_system;
    int access_mode;
    int orig_access_mode;
    ADIO_Offset disp;
    MPI_Datatype etype;
    MPI_Datatype filetype;
    MPI_Count etype_size;
    void *hints;
    MPI_Info info;
    int split_coll_count;
    MPI_Status split_status;
    MPI_Datatype split_datatype;
    char *shared_fp_fname;
    ADIO_File shared_fp_fd;
    int async_count;
    int perm;
    int atomicity;
    int fortran_handle;
    MPI_Errhandler err_handler;
    void *fs_ptr;
    ADIO_Offset *file_realm_st_offs;
    MPI_Datatype *file_realm_types;
    int my_cb_nodes_index;
    char *io_buf;
    MPI_Win io_buf_window;
    int *io_buf_put_amounts;
    MPI_Win io_buf_put_amounts_window;
    /* The view's representation: ROMIO converts in some of its calls. */
    int is_external32;
};

/* A flattened datatype, in a list of all. */
typedef struct ADIOI_Fl_node {
    MPI_Datatype type;
    MPI_Count count;
    ADIO_Offset *blocklens;
    ADIO_Offset *indices;
    /* Blocks that mark bounds: none. */
    ADIO_Offset lb_idx;
    ADIO_Offset ub_idx;
    struct ADIOI_Fl_node *next;
} ADIOI_Flatlist_node;

#endif
#endif
