/* The OMPIO components: fs (open, close, size, hints), which also puts functions of ours before some of OMPIO's for each file
 * (hooks.c), and fbtl (data). Both hang on struct dafs_ompio_file, which fs makes at open. */
#ifndef DAFS_OMPIO_H
#define DAFS_OMPIO_H

#include "ompi_config.h"

#include "mpi.h"

#if OMPI_MAJOR_VERSION != 4 || OMPI_MINOR_VERSION != 1
#error "adio-dafs: the OMPIO components are for Open MPI 4.1.x"
#endif

#include "ompi/communicator/communicator.h"
#include "ompi/constants.h"
#include "ompi/file/file.h"
#include "ompi/mca/common/ompio/common_ompio.h"
#include "ompi/mca/common/ompio/common_ompio_request.h"
#include "ompi/mca/io/io.h"
#include "opal/util/info.h"
#include "opal/util/info_subscriber.h"

#include "../common/dafs_glue.h"

/* What fs writes into f_fstype, and fbtl looks for. Not one of Open MPI's own. */
#define DAFS_FSTYPE ((enum ompio_fs_type)4242)

/* A counter that MPI_File_get_info() shows. */
struct dafs_stat {
    char key[DAFS_KEY_SIZE];
    /* The info's entry, which stays while the file is open; NULL for one that MPI_File_set_info() may remove. */
    opal_info_entry_t *entry;
    /* The room for digits that was put into the entry; another value there means that MPI_File_set_info() replaced it. */
    char *digits;
    size_t len;
};

struct dafs_ompio_file {
    struct dafs_file common;
    /* Held while a call of OMPIO runs that tells an error only by way of `common`. OMPIO lets one at a time in anyway. Also while the file
     * pointer moves, and while `view` is made. */
    pthread_mutex_t call_lock;
    /* The rank's view, as the library has it; `view_numbers` is NULL where it is not known. */
    adio_dafs_view view;
    int64_t *view_numbers;
    /* What was wrong with this rank's beginning of the split call that is under way: an MPI error class. */
    int split_error;
    /* The file is being opened at its end: OMPIO is about to ask for it on each rank. */
    bool opens_at_end;
    /* OMPIO's own functions. */
    mca_io_base_module_2_0_0_t ompio;
    /* OMPIO's shared file pointer, and what stands before it. */
    mca_sharedfp_base_module_t *library_pointer;
    mca_sharedfp_base_module_t pointer;
    /* Keeps `stats` from threads that make progress. */
    pthread_mutex_t info_lock;
    struct dafs_stat stats[ADIO_DAFS_COUNTERS_MAX];
    /* The numbers that stand in the file's info. */
    uint64_t shown[ADIO_DAFS_COUNTERS_MAX];
    size_t stat_count;
    /* Keys are subscribed to. */
    bool info_started;
    /* Hints changed: what the info shows is to be made anew. */
    atomic_bool info_stale;
};

/* The file of OMPIO's handle. */
static inline struct dafs_ompio_file *dafs_file_of(ompio_file_t *fh)
{
    return fh->f_fs_ptr;
}

/* OMPIO's handle of MPI's. */
static inline ompio_file_t *dafs_handle_of(ompi_file_t *fp)
{
    return &((mca_common_ompio_data_t *)fp->f_io_selected_data)->ompio_fh;
}

/* hooks.c: puts our functions before OMPIO's for this file. */
void dafs_hook(ompi_file_t *fp, struct dafs_ompio_file *file);

/* progress.c: to be held while OMPIO makes a request, which then gets a guard for when it is freed. */
void dafs_list_lock(void);
void dafs_list_unlock(void);
void dafs_guard(ompi_request_t *request);

/* request.c */
int dafs_request_start(ompio_file_t *fh, mca_ompio_request_t *request, const adio_dafs_transfer *transfer, uint64_t wanted);
bool dafs_request_progress(mca_ompio_request_t *request);
void dafs_request_free(mca_ompio_request_t *request);

/* info.c */
/* Hints of an info, appended. */
void dafs_hints_of_info(struct dafs_hints *hints, opal_info_t *info);
/* Takes hints away that ask for no buffer and no process to exchange data, which OMPIO divides by: 0 asks for what it does without them. */
void dafs_info_drop_zeros(opal_info_t *info);
/* Has MPI_File_set_info() tell us, and shows hints and counters to MPI_File_get_info(). */
void dafs_info_start(ompi_file_t *fp, struct dafs_ompio_file *file);
/* Brings the counters in the info up to date, which MPI_File_get_info() reads without asking anybody. */
void dafs_info_refresh(ompi_file_t *fp, struct dafs_ompio_file *file);

/* shared_pointer.c: puts our open before OMPIO's for this file, or takes its shared pointer away; and undoes that. */
void dafs_share_pointer(ompio_file_t *fh, struct dafs_ompio_file *file);
void dafs_unshare_pointer(ompio_file_t *fh, struct dafs_ompio_file *file);

/* fs_module.c */
int dafs_fs_sync(ompio_file_t *fh);
extern mca_fs_base_module_1_0_0_t dafs_fs_module;
/* Their opens fail: only some ranks have the name on dafs; the ranks gave differing amodes. */
extern mca_fs_base_module_1_0_0_t dafs_fs_claimed_by_some, dafs_fs_differing;
/* What fs_file_delete() is asked to remove for MPI_MODE_DELETE_ON_CLOSE: the file is gone already. */
extern const char dafs_deleted[];

#endif
