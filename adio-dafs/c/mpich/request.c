/* Nonblocking transfers: requests that MPICH polls while the program tests or waits. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "../romio/dafs_romio.h"

struct request {
    /* Of the list of those under way. */
    struct request *next;
    struct dafs_romio_file *file;
    adio_dafs_request *transfer;
    uint64_t wanted;
    MPI_Request handle;
    /* The outcome. */
    int class;
    uint64_t moved;
};

/* The lock is never held while a call blocks. */
static struct request *under_way;
static pthread_mutex_t under_way_lock = PTHREAD_MUTEX_INITIALIZER;

/* Takes a request off the list; false where it has ended. The lock is held. */
static bool take(struct request *wanted)
{
    struct request **place = &under_way;

    while (*place && *place != wanted)
        place = &(*place)->next;
    if (!*place)
        return false;
    *place = wanted->next;
    return true;
}

static bool take_locked(struct request *wanted)
{
    bool taken;

    pthread_mutex_lock(&under_way_lock);
    taken = take(wanted);
    pthread_mutex_unlock(&under_way_lock);
    return taken;
}

/* Ends a request, which the list has no more. */
static void end(struct request *request, int status, uint64_t moved)
{
    request->class = dafs_settle(&request->file->common, false, status, request->wanted, &moved);
    request->moved = moved;
    PMPI_Grequest_complete(request->handle);
}

static void wait_for(struct request *request)
{
    uint64_t moved = 0;
    int status = adio_dafs_request_wait(request->transfer, &moved);

    end(request, status, moved);
}

/* MPICH polls requests that have ended, too, and without a pause: the threads that move the data get theirs here. */
static int on_poll(void *state, MPI_Status *status)
{
    struct request *request = state, *still;
    uint64_t moved = 0;
    int done = 0, outcome = ADIO_DAFS_OK;

    (void)status;
    pthread_mutex_lock(&under_way_lock);
    for (still = under_way; still && still != request; still = still->next)
        ;
    if (still)
        outcome = adio_dafs_request_test(request->transfer, &done, &moved);
    if (done)
        take(request);
    pthread_mutex_unlock(&under_way_lock);
    if (done)
        end(request, outcome, moved);
    else if (still)
        sched_yield();
    return MPI_SUCCESS;
}

static int on_wait(int count, void **states, double timeout, MPI_Status *status)
{
    (void)timeout;
    (void)status;
    for (int i = 0; i < count; i++) {
        if (take_locked(states[i]))
            wait_for(states[i]);
    }
    return MPI_SUCCESS;
}

static int on_query(void *state, MPI_Status *status)
{
    struct request *request = state;

    status->MPI_SOURCE = MPI_UNDEFINED;
    status->MPI_TAG = MPI_UNDEFINED;
    PMPI_Status_set_cancelled(status, 0);
    dafs_set_status(status, request->moved);
    return request->class;
}

/* A program may free a request that has not ended; its data is moved all the same. */
static int on_free(void *state)
{
    struct request *request = state;

    if (take_locked(request))
        wait_for(request);
    adio_dafs_request_free(request->transfer);
    free(request);
    return MPI_SUCCESS;
}

static int on_cancel(void *state, int complete)
{
    (void)state;
    (void)complete;
    return MPI_SUCCESS;
}

/* Starts a request; where it cannot be, nothing is under way. */
static int start(ADIO_File fd, const struct dafs_layout *layout, MPI_Request *handle)
{
    struct request *request = calloc(1, sizeof *request);
    int status;

    if (!request)
        return MPI_ERR_NO_MEM;
    request->file = dafs_file_of(fd);
    request->wanted = layout->bytes;
    status = ADIO_DAFS_ERR_ARG;
    if (!dafs_is_nowhere(layout))
        status = adio_dafs_transfer_submit(request->file->common.handle, &layout->transfer, &request->transfer);
    if (status != ADIO_DAFS_OK) {
        dafs_report(status);
        free(request);
        return dafs_class(status);
    }
    PMPIX_Grequest_start(on_query, on_free, on_cancel, on_poll, on_wait, request, &request->handle);
    *handle = request->handle;
    pthread_mutex_lock(&under_way_lock);
    request->next = under_way;
    under_way = request;
    pthread_mutex_unlock(&under_way_lock);
    return MPI_SUCCESS;
}

/* Starts a layout and frees it. The individual file pointer moves at once. */
static void submit(ADIO_File fd, struct dafs_layout *layout, int pointer, MPI_Request *handle, int *error)
{
    *error = layout->bytes ? start(fd, layout, handle) : MPI_SUCCESS;
    /* This tells the file's error handler, too. */
    if (*error != MPI_SUCCESS || !layout->bytes)
        MPIO_Completed_request_create(&fd, 0, error, handle);
    if (pointer == ADIO_INDIVIDUAL)
        dafs_advance(fd, layout->bytes);
    dafs_layout_free(layout);
}

void dafs_requests_end(struct dafs_romio_file *file)
{
    struct request *request;

    do {
        pthread_mutex_lock(&under_way_lock);
        for (request = under_way; request && request->file != file; request = request->next)
            ;
        if (request)
            take(request);
        pthread_mutex_unlock(&under_way_lock);
        if (request)
            wait_for(request);
    } while (request);
}

/* ROMIO does not convert what these move. */
static bool is_converted(ADIO_File fd, MPI_Request *handle, int *error)
{
    if (!fd->is_external32)
        return false;
    *error = MPI_ERR_UNSUPPORTED_DATAREP;
    MPIO_Completed_request_create(&fd, 0, error, handle);
    return true;
}

static void contig(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                   MPI_Request *request, int *error)
{
    struct dafs_layout layout;

    if (is_converted(fd, request, error))
        return;
    dafs_layout_contig(&layout, fd, direction, buf, count, type, pointer, offset);
    submit(fd, &layout, pointer, request, error);
}

static void strided(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                    MPI_Request *request, int *error)
{
    struct dafs_layout layout;

    if (is_converted(fd, request, error))
        return;
    dafs_layout_strided(&layout, fd, direction, buf, count, type, pointer, offset);
    submit(fd, &layout, pointer, request, error);
}

void dafs_adio_iread_contig(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                            MPI_Request *request, int *error)
{
    contig(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, request, error);
}

void dafs_adio_iwrite_contig(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                             MPI_Request *request, int *error)
{
    contig(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, request, error);
}

void dafs_adio_iread_strided(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                             MPI_Request *request, int *error)
{
    strided(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, request, error);
}

void dafs_adio_iwrite_strided(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset, MPI_Request *request,
                              int *error)
{
    strided(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, request, error);
}

/* The exchange runs here: in ROMIO's own nonblocking one an error of one rank would not reach the others. */
static void together(ADIO_File fd, adio_transfer_fn *run, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                     MPI_Request *handle, int *error)
{
    MPI_Status status = {0};
    MPI_Count moved = 0;

    *handle = MPI_REQUEST_NULL;
    run(fd, buf, count, type, pointer, offset, &status, error);
    /* ROMIO tells the file's error handler. */
    if (*error != MPI_SUCCESS)
        return;
    PMPI_Get_elements_x(&status, MPI_BYTE, &moved);
    MPIO_Completed_request_create(&fd, moved, error, handle);
}

void dafs_adio_iread_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                          MPI_Request *request, int *error)
{
    together(fd, dafs_adio_read_coll, buf, count, type, pointer, offset, request, error);
}

void dafs_adio_iwrite_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                           MPI_Request *request, int *error)
{
    together(fd, dafs_adio_write_coll, buf, count, type, pointer, offset, request, error);
}
