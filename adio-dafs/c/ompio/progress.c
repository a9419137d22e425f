/* OMPIO keeps its requests in one list, which its progress walks and every new or freed request changes, all without a lock: with
 * MPI_THREAD_MULTIPLE that ends a program. For requests of our files there is one. What remains without are those that a
 * collective call makes for itself. */
#include "dafs_ompio.h"
#include "opal/runtime/opal_progress.h"

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static ompi_request_free_fn_t ompio_free;

/* In OMPIO's place. Whoever finds another thread at it has nothing to do. */
static int guarded_progress(void)
{
    int count;

    if (pthread_mutex_trylock(&list_lock) != 0)
        return 0;
    count = mca_common_ompio_progress();
    pthread_mutex_unlock(&list_lock);
    return count;
}

static void take_over(void)
{
    if (mca_common_ompio_progress_is_registered)
        opal_progress_unregister(mca_common_ompio_progress);
    mca_common_ompio_progress_is_registered = true;
    opal_progress_register(guarded_progress);
}

void dafs_list_lock(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, take_over);
    pthread_mutex_lock(&list_lock);
}

void dafs_list_unlock(void)
{
    pthread_mutex_unlock(&list_lock);
}

static int guarded_free(ompi_request_t **request)
{
    int code;

    dafs_list_lock();
    code = ompio_free(request);
    dafs_list_unlock();
    return code;
}

void dafs_guard(ompi_request_t *request)
{
    if (request->req_free == guarded_free)
        return;
    /* The same for all of OMPIO's. */
    ompio_free = request->req_free;
    request->req_free = guarded_free;
}
