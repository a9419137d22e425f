/* Shared file pointers: OMPIO's, in memory that the ranks of one node share. Its other ways put files beside the file by POSIX
 * calls, or open two more files for each rank. Across nodes there is none, and hooks.c says so when one is asked for. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dafs_ompio.h"

/* OMPIO names the memory by what follows the last slash of the file's name. Two opens of one name would share their pointers, and
 * long names have no memory. */
static int open_pointer(ompi_communicator_t *comm, const char *name, int amode, opal_info_t *info, ompio_file_t *fh)
{
    struct dafs_ompio_file *file = dafs_file_of(fh);
    char own[64];

    (void)name;
    snprintf(own, sizeof own, "dafs-%016" PRIx64, file->common.serial);
    return file->library_pointer->sharedfp_file_open(comm, own, amode, info, fh);
}

void dafs_share_pointer(ompio_file_t *fh, struct dafs_ompio_file *file)
{
    file->library_pointer = fh->f_sharedfp;
    if (fh->f_sharedfp && strcmp(fh->f_sharedfp_component->mca_component_name, "sm") == 0) {
        file->pointer = *fh->f_sharedfp;
        file->pointer.sharedfp_file_open = open_pointer;
        fh->f_sharedfp = &file->pointer;
    } else {
        fh->f_sharedfp = NULL;
    }
}

void dafs_unshare_pointer(ompio_file_t *fh, struct dafs_ompio_file *file)
{
    fh->f_sharedfp = file->library_pointer;
}
