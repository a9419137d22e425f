/* Nonblocking transfers: requests of Open MPI's own kind for files, so that an error goes to the file's handler. (That of a
 * generalized request goes to MPI_COMM_WORLD's, which ends the program.) Open MPI's progress moves them along. */
#include <pthread.h>

#include "dafs_romio.h"
#include "ompi/file/file.h"
#include "ompi/request/request.h"
#include "opal/runtime/opal_progress.h"

struct dafs_adio_request {
    ompi_request_t super;
    /* Of the list of those under way. */
    struct dafs_adio_request *next;
    struct dafs_romio_file *file;
    ADIO_File fd;
    adio_dafs_request *transfer;
    uint64_t wanted;
};
typedef struct dafs_adio_request dafs_adio_request;

OBJ_CLASS_DECLARATION(dafs_adio_request);

/* Those under way hold a reference each. The lock is never held while a call blocks. */
static dafs_adio_request *under_way;
static pthread_mutex_t under_way_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_size_t under_way_count;

/* Ends a request, which no list has any more. Gives up the list's reference. */
static void end(dafs_adio_request *request, int status, uint64_t moved)
{
    ompi_status_public_t *told = &request->super.req_status;

    told->MPI_ERROR = dafs_settle(&request->file->common, false, status, request->wanted, &moved);
    told->_ucount = moved;
    if (told->MPI_ERROR != MPI_SUCCESS)
        request->super.req_mpi_object.file = dafs_mpi_of_adio(request->fd);
    ompi_request_complete(&request->super, true);
    OBJ_RELEASE(request);
}

/* Takes a request off the list; false where it has ended. */
static bool take(dafs_adio_request *wanted)
{
    bool found = false;

    pthread_mutex_lock(&under_way_lock);
    for (dafs_adio_request **place = &under_way; *place && !found; place = found ? place : &(*place)->next) {
        found = *place == wanted;
        if (found)
            *place = wanted->next;
    }
    pthread_mutex_unlock(&under_way_lock);
    if (found)
        atomic_fetch_sub(&under_way_count, 1);
    return found;
}

/* Called by Open MPI again and again, by any thread. One at a time is enough. */
static int progress(void)
{
    struct ended {
        dafs_adio_request *request;
        int status;
        uint64_t moved;
    } ended[16];
    int count = 0;
    bool failed = false;

    if (atomic_load(&under_way_count) == 0 || pthread_mutex_trylock(&under_way_lock) != 0)
        return 0;
    /* What a failure is for is told by its words, which the next failure of this thread replaces. */
    for (dafs_adio_request **place = &under_way; *place && count < 16 && !failed;) {
        uint64_t moved = 0;
        int done = 0;
        int status = adio_dafs_request_test((*place)->transfer, &done, &moved);

        if (done) {
            failed = status != ADIO_DAFS_OK;
            ended[count++] = (struct ended){*place, status, moved};
            *place = (*place)->next;
        } else {
            place = &(*place)->next;
        }
    }
    pthread_mutex_unlock(&under_way_lock);
    atomic_fetch_sub(&under_way_count, (size_t)count);
    for (int i = 0; i < count; i++)
        end(ended[i].request, ended[i].status, ended[i].moved);
    return count;
}

static void wait_for(dafs_adio_request *request)
{
    uint64_t moved = 0;
    int status = adio_dafs_request_wait(request->transfer, &moved);

    end(request, status, moved);
}

/* A program may free a request that has not ended; its data is moved all the same. */
static int request_free(ompi_request_t **handle)
{
    dafs_adio_request *request = (dafs_adio_request *)*handle;

    if (take(request))
        wait_for(request);
    OBJ_RELEASE(request);
    *handle = MPI_REQUEST_NULL;
    return OMPI_SUCCESS;
}

static int request_cancel(ompi_request_t *request, int flag)
{
    (void)request;
    (void)flag;
    return OMPI_SUCCESS;
}

static void request_construct(dafs_adio_request *request)
{
    OMPI_REQUEST_INIT(&request->super, false);
    request->super.req_free = request_free;
    request->super.req_cancel = request_cancel;
    request->super.req_type = OMPI_REQUEST_IO;
    request->super.req_status = ompi_status_empty;
    request->super.req_mpi_object.file = &ompi_mpi_file_null.file;
    request->transfer = NULL;
}

static void request_destruct(dafs_adio_request *request)
{
    if (request->transfer)
        adio_dafs_request_free(request->transfer);
    OMPI_REQUEST_FINI(&request->super);
}

OBJ_CLASS_INSTANCE(dafs_adio_request, ompi_request_t, request_construct, request_destruct);

static void register_progress(void)
{
    opal_progress_register(progress);
}

static dafs_adio_request *request_new(ADIO_File fd, uint64_t wanted)
{
    dafs_adio_request *request = OBJ_NEW(dafs_adio_request);

    if (!request)
        return NULL;
    request->super.req_state = OMPI_REQUEST_ACTIVE;
    request->file = dafs_file_of(fd);
    request->fd = fd;
    request->wanted = wanted;
    /* That of the list, or of end(). */
    OBJ_RETAIN(request);
    return request;
}

static void start(dafs_adio_request *request, const struct dafs_layout *layout)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int status = ADIO_DAFS_OK;

    if (dafs_is_nowhere(layout))
        status = ADIO_DAFS_ERR_ARG;
    else if (layout->bytes)
        status = adio_dafs_transfer_submit(request->file->common.handle, &layout->transfer, &request->transfer);
    if (status != ADIO_DAFS_OK || !layout->bytes) {
        request->transfer = NULL;
        end(request, status, 0);
        return;
    }
    pthread_mutex_lock(&under_way_lock);
    request->next = under_way;
    under_way = request;
    pthread_mutex_unlock(&under_way_lock);
    atomic_fetch_add(&under_way_count, 1);
    pthread_once(&once, register_progress);
}

/* Starts a layout and frees it. The individual file pointer moves at once. */
static void submit(ADIO_File fd, struct dafs_layout *layout, int pointer, MPI_Request *handle, int *error)
{
    dafs_adio_request *request = request_new(fd, layout->bytes);

    *error = request ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (request) {
        *handle = &request->super;
        start(request, layout);
        if (pointer == ADIO_INDIVIDUAL)
            dafs_advance(fd, layout->bytes);
    }
    dafs_layout_free(layout);
}

void dafs_requests_end(struct dafs_romio_file *file)
{
    dafs_adio_request *request;

    do {
        pthread_mutex_lock(&under_way_lock);
        for (request = under_way; request && request->file != file; request = request->next)
            ;
        pthread_mutex_unlock(&under_way_lock);
        if (request && take(request))
            wait_for(request);
    } while (request);
}

/* ROMIO does not convert what these move. */
static bool is_converted(ADIO_File fd, int *error)
{
    *error = fd->is_external32 ? MPI_ERR_UNSUPPORTED_DATAREP : MPI_SUCCESS;
    return fd->is_external32;
}

static void contig(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                   MPI_Request *request, int *error)
{
    struct dafs_layout layout;

    if (is_converted(fd, error))
        return;
    dafs_layout_contig(&layout, fd, direction, buf, count, type, pointer, offset);
    submit(fd, &layout, pointer, request, error);
}

static void strided(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                    MPI_Request *request, int *error)
{
    struct dafs_layout layout;

    if (is_converted(fd, error))
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

void dafs_adio_iwrite_strided(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                              MPI_Request *request, int *error)
{
    strided(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, request, error);
}

/* ROMIO converts what these calls move as soon as they return. So the blocking exchange runs here; the request that comes back has ended,
 * and its outcome is that of all. */
static void together(ADIO_File fd, adio_transfer_fn *run, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                     MPI_Request *handle, int *error)
{
    dafs_adio_request *request = request_new(fd, 0);
    MPI_Status status = ompi_status_empty;
    int class = MPI_SUCCESS;

    run(fd, buf, count, type, pointer, offset, &status, &class);
    dafs_error_told();
    *error = request ? MPI_SUCCESS : MPI_ERR_NO_MEM;
    if (!request)
        return;
    request->super.req_status._ucount = status._ucount;
    request->super.req_status.MPI_ERROR = class;
    if (class != MPI_SUCCESS)
        request->super.req_mpi_object.file = dafs_mpi_of_adio(fd);
    ompi_request_complete(&request->super, false);
    *handle = &request->super;
    OBJ_RELEASE(request);
}

/* ROMIO 3.2.1 has no nonblocking exchange, and calls NULL with its own drivers. Nor may a nonblocking call wait for other ranks: each moves
 * its own data. */
void dafs_adio_iread_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                          MPI_Request *request, int *error)
{
    if (fd->is_external32)
        together(fd, dafs_adio_read_coll, buf, count, type, pointer, offset, request, error);
    else
        strided(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, request, error);
}

void dafs_adio_iwrite_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                           MPI_Request *request, int *error)
{
    if (fd->is_external32)
        together(fd, dafs_adio_write_coll, buf, count, type, pointer, offset, request, error);
    else
        strided(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, request, error);
}
