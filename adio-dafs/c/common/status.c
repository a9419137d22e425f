/* Outcomes: MPI error classes, and words for people. */
#include <stdio.h>

#include "dafs_glue.h"

int dafs_class(int status)
{
    switch (status) {
    case ADIO_DAFS_OK:
        return MPI_SUCCESS;
    case ADIO_DAFS_ERR_ARG:
        return MPI_ERR_ARG;
    case ADIO_DAFS_ERR_AMODE:
        return MPI_ERR_AMODE;
    case ADIO_DAFS_ERR_NO_SUCH_FILE:
        return MPI_ERR_NO_SUCH_FILE;
    case ADIO_DAFS_ERR_FILE_EXISTS:
        return MPI_ERR_FILE_EXISTS;
    case ADIO_DAFS_ERR_BAD_FILE:
        return MPI_ERR_BAD_FILE;
    case ADIO_DAFS_ERR_ACCESS:
        return MPI_ERR_ACCESS;
    case ADIO_DAFS_ERR_READ_ONLY:
        return MPI_ERR_READ_ONLY;
    case ADIO_DAFS_ERR_NO_SPACE:
        return MPI_ERR_NO_SPACE;
    case ADIO_DAFS_ERR_QUOTA:
        return MPI_ERR_QUOTA;
    case ADIO_DAFS_ERR_FILE_IN_USE:
        return MPI_ERR_FILE_IN_USE;
    case ADIO_DAFS_ERR_NO_MEMORY:
        return MPI_ERR_NO_MEM;
    case ADIO_DAFS_ERR_UNSUPPORTED:
        return MPI_ERR_UNSUPPORTED_OPERATION;
    case ADIO_DAFS_ERR_IO:
        return MPI_ERR_IO;
    default:
        return MPI_ERR_INTERN;
    }
}

void dafs_keep_words(char words[DAFS_WORDS_SIZE])
{
    snprintf(words, DAFS_WORDS_SIZE, "%s", adio_dafs_last_error());
}

/* The MPI error class alone says what it failed of. */
static bool is_plain(int status)
{
    switch (status) {
    case ADIO_DAFS_OK:
    case ADIO_DAFS_ERR_AMODE:
    case ADIO_DAFS_ERR_NO_SUCH_FILE:
    case ADIO_DAFS_ERR_FILE_EXISTS:
    case ADIO_DAFS_ERR_READ_ONLY:
    case ADIO_DAFS_ERR_NO_SPACE:
    case ADIO_DAFS_ERR_QUOTA:
        return true;
    default:
        return false;
    }
}

void dafs_report(int status)
{
    if (!is_plain(status))
        fprintf(stderr, "adio-dafs: %s\n", adio_dafs_last_error());
}

int dafs_tell(struct dafs_file *file, int status)
{
    if (!is_plain(status) && !atomic_exchange(&file->failure_told, true))
        dafs_report(status);
    return dafs_class(status);
}
