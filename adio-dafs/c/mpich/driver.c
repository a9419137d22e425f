/* The driver as MPICH's ROMIO wants it. MPICH is compiled with its symbols visible, so the linker finds what is used of ROMIO. */
#include "../romio/dafs_romio.h"
#include "../romio/driver.h"

typedef void romio_write_fn(ADIO_File, const void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Status *, int *);
typedef void romio_iwrite_fn(ADIO_File, const void *, int, MPI_Datatype, int, ADIO_Offset, MPI_Request *, int *);

/* ROMIO keeps a flattened type with the type. */
static void keep_flattened(MPI_Datatype type)
{
    (void)type;
}

struct dafs_romio romio = {
    .ufs = &ADIO_UFS_operations,
    .OpenColl = ADIOI_GEN_OpenColl,
    .ReadStridedColl = ADIOI_GEN_ReadStridedColl,
    .WriteStridedColl = (adio_transfer_fn *)ADIOI_GEN_WriteStridedColl,
    .SetInfo = ADIOI_GEN_SetInfo,
    .Flatten_and_find = dafs_flatten_datatype,
    .Delete_flattened = keep_flattened,
    .Strdup = ADIOI_Strdup,
    .Free = ADIOI_Free_fn,
};

/* ROMIO locks in atomic mode before it calls us, and we lock ourselves. */
static int no_lock(ADIO_File fd, int command, int type, ADIO_Offset offset, int whence, ADIO_Offset len)
{
    (void)fd, (void)command, (void)type, (void)offset, (void)whence, (void)len;
    return MPI_SUCCESS;
}

ADIOI_Fns dafs_functions = {
    .ADIOI_xxx_Open = dafs_adio_open,
    .ADIOI_xxx_OpenColl = dafs_adio_open_coll,
    .ADIOI_xxx_ReadContig = dafs_adio_read_contig,
    .ADIOI_xxx_WriteContig = (romio_write_fn *)dafs_adio_write_contig,
    .ADIOI_xxx_ReadStridedColl = dafs_adio_read_coll,
    .ADIOI_xxx_WriteStridedColl = (romio_write_fn *)dafs_adio_write_coll,
    .ADIOI_xxx_SeekIndividual = dafs_adio_seek,
    .ADIOI_xxx_Fcntl = dafs_adio_fcntl,
    .ADIOI_xxx_SetInfo = dafs_adio_set_info,
    .ADIOI_xxx_ReadStrided = dafs_adio_read_strided,
    .ADIOI_xxx_WriteStrided = (romio_write_fn *)dafs_adio_write_strided,
    .ADIOI_xxx_Close = dafs_adio_close,
    .ADIOI_xxx_IreadContig = dafs_adio_iread_contig,
    .ADIOI_xxx_IwriteContig = (romio_iwrite_fn *)dafs_adio_iwrite_contig,
    .ADIOI_xxx_ReadDone = ADIOI_GEN_IODone,
    .ADIOI_xxx_WriteDone = ADIOI_GEN_IODone,
    .ADIOI_xxx_ReadComplete = ADIOI_GEN_IOComplete,
    .ADIOI_xxx_WriteComplete = ADIOI_GEN_IOComplete,
    .ADIOI_xxx_IreadStrided = dafs_adio_iread_strided,
    .ADIOI_xxx_IwriteStrided = (romio_iwrite_fn *)dafs_adio_iwrite_strided,
    .ADIOI_xxx_Flush = dafs_adio_flush,
    .ADIOI_xxx_Resize = dafs_adio_resize,
    .ADIOI_xxx_Delete = dafs_adio_delete,
    .ADIOI_xxx_Feature = dafs_adio_feature,
    .fsname = "dafs: files on a dafs server",
    .ADIOI_xxx_IreadStridedColl = dafs_adio_iread_coll,
    .ADIOI_xxx_IwriteStridedColl = (romio_iwrite_fn *)dafs_adio_iwrite_coll,
    .ADIOI_xxx_SetLock = no_lock,
};

static bool resolve(MPI_Comm comm, const char *name, int *type, ADIOI_Fns **functions, int *error)
{
    if (!dafs_resolve(comm, name, error))
        return false;
    *type = ADIO_DAFS;
    *functions = &dafs_functions;
    return true;
}

ADIO_File dafs_adio_of_mpi(MPI_File file)
{
    return file != MPI_FILE_NULL && file->cookie == ADIOI_FILE_COOKIE && file->fns == &dafs_functions ? file : NULL;
}

int dafs_mpi_return(MPI_File file, int class, const char *function)
{
    (void)function;
    return class == MPI_SUCCESS ? class : MPIO_Err_return_file(file, class);
}

/* In MPICH these stand before MPI's own functions, whose errors go to the file's error handler. */
static bool refuses(ADIO_File fd, bool writes, bool converts, int *error)
{
    bool refused = dafs_refuses(fd, writes, converts, error);

    if (refused)
        *error = dafs_mpi_return(fd, *error, NULL);
    return refused;
}

static bool set_atomicity(ADIO_File fd, int flag, int *error)
{
    bool is_ours = dafs_adio_set_atomicity(fd, flag, error);

    if (is_ours)
        *error = dafs_mpi_return(fd, *error, NULL);
    return is_ours;
}

bool dafs_on_one_node(MPI_Comm comm)
{
    MPI_Comm node = MPI_COMM_NULL;
    int size = 0, here = -1;

    PMPI_Comm_size(comm, &size);
    if (PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node) != MPI_SUCCESS)
        return false;
    PMPI_Comm_size(node, &here);
    PMPI_Comm_free(&node);
    return here == size;
}

__attribute__((visibility("default"))) const struct dafs_driver *dafs_adio_driver(void *library)
{
    static const struct dafs_driver driver = {
        .resolve = resolve,
        .flatten_datatype = dafs_flatten_datatype,
        .is_contiguous = dafs_is_contiguous,
        .get_info = dafs_mpi_get_info,
        .preallocate = dafs_mpi_preallocate,
        .finish = dafs_mpi_finish,
        .get_pointer = dafs_get_pointer,
        .set_pointer = dafs_set_pointer,
        .refuses = refuses,
        .convert = dafs_convert,
        .full_size = dafs_full_size,
        .set_atomicity = set_atomicity,
        .get_atomicity = dafs_adio_get_atomicity,
        .view_changed = dafs_view_changed,
        .get_position = dafs_get_position,
        .get_end = dafs_get_end,
        .get_byte_offset = dafs_get_byte_offset,
    };

    (void)library;
    return dafs_fits() ? &driver : NULL;
}
