/* Nonblocking transfers: what OMPIO asks of a request of its, for both components. */
#include <stdlib.h>

#include "dafs_ompio.h"

/* A nonblocking transfer. */
struct pending {
    struct dafs_ompio_file *file;
    ompi_file_t *fp;
    /* NULL where it could not be started, for the reason in status. */
    adio_dafs_request *request;
    int status;
    /* Part of a collective call. */
    bool collective;
    uint64_t wanted;
    bool done;
};

/* Moves the transfer along, and at its end sets the status. Never blocks. */
bool dafs_request_progress(mca_ompio_request_t *request)
{
    struct pending *pending = request->req_data;
    ompi_status_public_t *status = &request->req_ompi.req_status;
    uint64_t moved = 0;
    int done = 1;

    if (pending->request)
        pending->status = adio_dafs_request_test(pending->request, &done, &moved);
    if (!done)
        return false;
    pending->done = true;
    status->MPI_ERROR = dafs_settle(&pending->file->common, pending->collective, pending->status, pending->wanted, &moved);
    status->_ucount = moved;
    /* OMPIO converts so much of a read in a view of another representation, and nothing for what is none. */
    if (request->req_tbuf && moved < request->req_size) {
        request->req_size = moved;
        if (moved == 0)
            request->req_type = MCA_OMPIO_REQUEST_WRITE;
    }
    if (pending->fp)
        dafs_info_refresh(pending->fp, pending->file);
    return true;
}

/* A program may free a request that has not ended; its data is moved all the same. */
void dafs_request_free(mca_ompio_request_t *request)
{
    struct pending *pending = request->req_data;
    uint64_t moved;

    if (!pending)
        return;
    if (pending->request && !pending->done)
        adio_dafs_request_wait(pending->request, &moved);
    if (pending->request)
        adio_dafs_request_free(pending->request);
    free(pending);
    request->req_data = NULL;
}

/* OMPIO does not look at what this returns. Whatever goes wrong is told at the request's end, which is to come. */
int dafs_request_start(ompio_file_t *fh, mca_ompio_request_t *request, const adio_dafs_transfer *transfer, uint64_t wanted)
{
    ompi_request_t *super = &request->req_ompi;
    struct pending *pending = calloc(1, sizeof *pending);

    /* Whom an error is told. */
    super->req_mpi_object.file = fh->f_fh ? fh->f_fh : &ompi_mpi_file_null.file;
    if (!pending) {
        super->req_status.MPI_ERROR = MPI_ERR_NO_MEM;
        ompi_request_complete(super, false);
        return OMPI_ERR_OUT_OF_RESOURCE;
    }
    pending->file = dafs_file_of(fh);
    pending->fp = fh->f_fh;
    pending->collective = transfer->collective;
    pending->wanted = wanted;
    pending->status = adio_dafs_transfer_submit(pending->file->common.handle, transfer, &pending->request);
    /* The words are this thread's. */
    if (dafs_tell(&pending->file->common, pending->status) != MPI_SUCCESS)
        pending->request = NULL;
    request->req_data = pending;
    request->req_progress_fn = dafs_request_progress;
    request->req_free_fn = dafs_request_free;
    return OMPI_SUCCESS;
}
