/* Puts the driver under a ROMIO that is loaded. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "dafs_romio.h"
#include "driver.h"

struct dafs_romio romio;

ADIOI_Fns dafs_functions = {
    .Open = dafs_adio_open,
    .OpenColl = dafs_adio_open_coll,
    .ReadContig = dafs_adio_read_contig,
    .WriteContig = dafs_adio_write_contig,
    .ReadStridedColl = dafs_adio_read_coll,
    .WriteStridedColl = dafs_adio_write_coll,
    .SeekIndividual = dafs_adio_seek,
    .Fcntl = dafs_adio_fcntl,
    .SetInfo = dafs_adio_set_info,
    .ReadStrided = dafs_adio_read_strided,
    .WriteStrided = dafs_adio_write_strided,
    .Close = dafs_adio_close,
    .IreadContig = dafs_adio_iread_contig,
    .IwriteContig = dafs_adio_iwrite_contig,
    .IreadStrided = dafs_adio_iread_strided,
    .IwriteStrided = dafs_adio_iwrite_strided,
    .Flush = dafs_adio_flush,
    .Resize = dafs_adio_resize,
    .Delete = dafs_adio_delete,
    .Feature = dafs_adio_feature,
    .fsname = "dafs: files on a dafs server",
    .IreadStridedColl = dafs_adio_iread_coll,
    .IwriteStridedColl = dafs_adio_iwrite_coll,
};

static bool resolve(MPI_Comm comm, const char *name, int *type, ADIOI_Fns **functions, int *error)
{
    if (!dafs_resolve(comm, name, error))
        return false;
    *type = ADIO_DAFS;
    *functions = &dafs_functions;
    return true;
}

static bool find(void *library, const char *name, void *place)
{
    *(void **)place = dlsym(library, name);
    return *(void **)place != NULL;
}

static bool find_all(void *library)
{
    return find(library, "ADIO_UFS_operations", &romio.ufs) && find(library, "ADIOI_GEN_OpenColl", &romio.OpenColl) &&
           find(library, "ADIO_Get_shared_fp", &romio.Get_shared_fp) &&
           find(library, "ADIOI_GEN_ReadStridedColl", &romio.ReadStridedColl) &&
           find(library, "ADIOI_GEN_WriteStridedColl", &romio.WriteStridedColl) &&
           find(library, "ADIOI_GEN_SetInfo", &romio.SetInfo) &&
           find(library, "ADIOI_FAKE_IODone", &romio.IODone) && find(library, "ADIOI_FAKE_IOComplete", &romio.IOComplete) &&
           find(library, "ADIOI_Datatype_iscontig", &romio.Datatype_iscontig) &&
           find(library, "ADIOI_Flatten_and_find", &romio.Flatten_and_find) &&
           find(library, "ADIOI_Delete_flattened", &romio.Delete_flattened) && find(library, "ADIOI_Strdup", &romio.Strdup) &&
           find(library, "ADIOI_Malloc_fn", &romio.Malloc) && find(library, "ADIOI_Free_fn", &romio.Free) &&
           find(library, "ADIOI_Flatlist", &romio.Flatlist) && find(library, "mca_io_romio321_file_set_info", &romio.file_set_info);
}

/* ROMIO's table for local files, seen through our layout, has its functions where they belong. */
static bool layout_matches(void *library)
{
    const ADIOI_Fns *ufs = romio.ufs;
    void *flush, *feature, *strided, *seek;

    return find(library, "ADIOI_GEN_Flush", &flush) && find(library, "ADIOI_GEN_Feature", &feature) &&
           find(library, "ADIOI_GEN_WriteStrided", &strided) && find(library, "ADIOI_GEN_SeekIndividual", &seek) &&
           ufs->OpenColl == romio.OpenColl &&
           ufs->WriteStridedColl == romio.WriteStridedColl && (void *)ufs->SeekIndividual == seek &&
           ufs->SetInfo == romio.SetInfo && (void *)ufs->WriteStrided == strided && (void *)ufs->Flush == flush &&
           (void *)ufs->Feature == feature && strncmp(ufs->fsname, "UFS:", 4) == 0;
}

__attribute__((visibility("default"))) const struct dafs_driver *dafs_adio_driver(void *library)
{
    static const struct dafs_driver driver = {
        .resolve = resolve,
        .flatten_datatype = dafs_flatten_datatype,
        .is_contiguous = dafs_is_contiguous,
        .get_info = dafs_mpi_get_info,
        .set_info = dafs_mpi_set_info,
        .preallocate = dafs_mpi_preallocate,
        .finish = dafs_mpi_finish,
        .set_size = dafs_adio_set_size,
        .sync = dafs_adio_sync,
        .get_pointer = dafs_get_pointer,
        .set_pointer = dafs_set_pointer,
        .seek_pointer = dafs_seek_pointer,
        .refuses = dafs_refuses,
        .order = dafs_order,
        .ordered = dafs_ordered,
        .convert = dafs_convert,
        .full_size = dafs_full_size,
        .set_atomicity = dafs_adio_set_atomicity,
        .get_atomicity = dafs_adio_get_atomicity,
        .check_view = dafs_adio_check_view,
        .view_changed = dafs_view_changed,
        .get_position = dafs_get_position,
        .get_end = dafs_get_end,
        .get_byte_offset = dafs_get_byte_offset,
        .is_outside = dafs_is_outside_by_etypes,
        .is_sequential = dafs_is_sequential,
    };

    if (!dafs_fits())
        return NULL;
    if (!find_all(library) || !layout_matches(library)) {
        dafs_refuse("built for ROMIO 3.2.1, which this Open MPI has not");
        return NULL;
    }
    dafs_functions.ReadDone = dafs_functions.WriteDone = romio.IODone;
    dafs_functions.ReadComplete = dafs_functions.WriteComplete = romio.IOComplete;
    return &driver;
}
