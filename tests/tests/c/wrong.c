/* Wrong arguments: handles of another kind and closed ones, threads that meet in one handle, ranges that overflow, pointers that cannot be,
 * calls at the very end of the process. usage: wrong URL EXPORT */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static int64_t session, root;

enum { SESSION = 1, DIRECTORY = 2, FILE_ = 4, LISTING = 8, CHAIN = 16, BATCH = 32, TYPE = 64, VIEW = 128, OP = 256, EXPORT = 512 };

static struct dafs_dirent entry = DAFS_DIRENT_INIT;
static struct dafs_info info = DAFS_INFO_INIT;
static struct stat found;
static char bytes[64];
static struct iovec whole = {bytes, 8};
static uint64_t id;
static struct dafs_op op = DAFS_OP_INIT;

/* Every call that takes a handle, with what it takes; whatever else it says of a handle that it takes, it is not EBADF. */
#define CALLS(H) \
    X(SESSION, dafs_session_info(H, &info)) X(SESSION, dafs_ping(H)) X(SESSION, dafs_mount(H, "nowhere")) X(SESSION, dafs_session_fd(H)) \
    X(SESSION, dafs_turn(H)) X(SESSION, dafs_next(H, &id)) X(SESSION, dafs_exports(H, NULL, 0)) X(SESSION, dafs_uncork(H)) \
    X(SESSION, dafs_provider(H, bytes, 64)) X(SESSION, dafs_view_make(H, type)) X(SESSION, dafs_pin(H, bytes, 8)) \
    X(DIRECTORY, dafs_fstatat(H, "x", &found, 0)) X(DIRECTORY, dafs_openat(H, "x", O_RDONLY, 0)) X(DIRECTORY, dafs_fsyncdir(H)) \
    X(DIRECTORY, dafs_opendirat(H, "x")) X(DIRECTORY, dafs_listat(H, "x", 0)) X(DIRECTORY, dafs_unlinkat(H, "x", 0)) \
    X(DIRECTORY, dafs_renameat(H, "x", root, "y", 0)) X(DIRECTORY, dafs_renameat(root, "x", H, "y", 0)) \
    X(DIRECTORY, dafs_submit_openat(H, "x", O_RDONLY | O_DIRECTORY, 0, &op)) X(DIRECTORY, dafs_getxattrat(H, "x", "user.x", NULL, 0)) \
    X(FILE_, dafs_fstat(H, &found)) X(FILE_, dafs_pread(H, bytes, 1, 0)) X(FILE_, dafs_pwrite(H, bytes, 1, 0)) X(FILE_, dafs_fsync(H)) \
    X(FILE_, dafs_append(H, bytes, 1)) X(FILE_, dafs_ftruncate(H, 1)) X(FILE_, dafs_preadv(H, &whole, 1, 0)) \
    X(FILE_, dafs_lseek(H, 0, SEEK_END)) X(FILE_, dafs_unlock(H, 0, 1)) X(FILE_, dafs_copy_file_range(H, 0, file, 100, 1)) \
    X(FILE_, dafs_submit_pread(H, NULL, 1, 0, &op)) X(FILE_, dafs_batch_pread(batch, H, bytes, 1, 0)) \
    X(LISTING, dafs_readdir(H, &entry)) X(CHAIN, dafs_chain_close(H)) X(CHAIN, dafs_chain_file(H)) X(CHAIN, dafs_chain_count(H, 0)) \
    X(CHAIN, dafs_submit_chain(H, &chained)) X(BATCH, dafs_batch_expedite(H)) X(BATCH, dafs_batch_result(H, 0, NULL)) \
    X(TYPE, dafs_type_contiguous(H, 1)) X(VIEW, dafs_view_size(H)) X(DIRECTORY | FILE_, dafs_chain_begin(H)) \
    X(EXPORT, dafs_open_token(H, bytes, "x", O_RDONLY))

static void check_kinds(int64_t file) {
    int64_t dir = dafs_opendirat(root, ""), listing = dafs_listat(root, "", 0);
    int64_t chain = dafs_chain_begin(file), batch = dafs_batch_begin(session);
    int64_t type = dafs_type_bytes(8), view = dafs_view_make(session, type), other = dafs_openat(root, "wrong", O_RDWR, 0);
    CHECK(dir > 0 && listing > 0 && chain > 0 && batch > 0 && type > 0 && view > 0 && other > 0);
    /* One that waits for a lock as long as this takes. */
    struct dafs_op waiting = DAFS_OP_INIT;
    CHECK(dafs_lock(file, 500, 1, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_submit_lock(other, 500, 1, DAFS_LOCK_EXCLUSIVE, &waiting) == 0);
    int64_t closed = dafs_type_bytes(1);
    CHECK(dafs_close(closed) == 0);
    struct { int kind; int64_t handle; } handles[] = {
        {SESSION, session}, {DIRECTORY | EXPORT, root}, {DIRECTORY, dir}, {FILE_, file}, {LISTING, listing}, {CHAIN, chain}, {BATCH, batch},
        {TYPE, type}, {VIEW, view}, {OP, waiting.handle}, {0, closed}, {0, 0}, {0, -1}, {0, INT64_MIN}, {0, INT64_MAX},
        {0, 1}, {0, file ^ ((int64_t)1 << 45)},
    };
    struct dafs_op chained = DAFS_OP_INIT;
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        int64_t handle = handles[i].handle;
        if (handle == 1 && handles[i].kind == 0 && (session == 1 || root == 1)) continue;
#define X(takes, call) \
    errno = 0; \
    if (!(handles[i].kind & (takes))) FAILS(call, EBADF); \
    else CHECK((long long)(call) != -1 || errno != EBADF);
        CALLS(handle)
#undef X
        /* An operation is not what another handle is either. */
        struct dafs_op forged = DAFS_OP_INIT;
        forged.handle = handle;
        if (handles[i].kind != OP) FAILS(dafs_wait(&forged), EBADF);
        if (handles[i].kind == 0 || handles[i].kind == SESSION || handles[i].kind == OP) FAILS(dafs_close(handle), EBADF);
        if (handles[i].kind != SESSION) FAILS(dafs_disconnect(handle), EBADF);
    }
    CHECK(dafs_wait(&chained) == -1 && errno == EINVAL);
    FAILS(dafs_cancel(&waiting), ECANCELED);
    CHECK(dafs_unlock(file, 500, 1) == 0);
    int64_t open[] = {dir, listing, chain, batch, type, view, other};
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++) CHECK(dafs_close(open[i]) == 0);
}

static void check_ranges(int64_t file) {
    CHECK(dafs_pwrite(file, bytes, 10, 0) == 10);
    struct dafs_extent beyond[3] = {{UINT64_MAX, 1}, {UINT64_MAX - 5, 10}, {5, UINT64_MAX}};
    for (int i = 0; i < 3; i++) {
        FAILS(dafs_read_list(file, &beyond[i], 1, &whole, 1), EINVAL);
        FAILS(dafs_write_list(file, &beyond[i], 1, &whole, 1), EINVAL);
        CHECK(dafs_submit_read_list(file, &beyond[i], 1, &whole, 1, &op) == 0);
        FAILS(dafs_wait(&op), EINVAL);
    }
    struct dafs_extent two[2] = {{0, UINT64_MAX / 2 + 5}, {0, UINT64_MAX / 2 + 5}};
    FAILS(dafs_read_list(file, two, 2, &whole, 1), EINVAL);
    struct dafs_extent small = {0, 4};
    FAILS(dafs_read_list(file, &small, 1, &whole, 1), EINVAL);
    FAILS(dafs_read_list(file, &small, 1, NULL, 1), EFAULT);
    FAILS(dafs_read_list(file, NULL, 1, &whole, 1), EFAULT);
    FAILS(dafs_read_list(file, &small, SIZE_MAX, &whole, 1), EFAULT);
    FAILS(dafs_read_list(file, &small, 1, &whole, -1), EINVAL);
    struct iovec odd[3] = {{bytes, SIZE_MAX}, {NULL, 5}, {bytes, 4}};
    FAILS(dafs_preadv(file, &odd[0], 1, 0), EFAULT);
    FAILS(dafs_pwritev(file, &odd[1], 1, 0), EFAULT);
    FAILS(dafs_submit_pwritev(file, &odd[1], 2, 0, &op), EFAULT);
    FAILS(dafs_append(file, bytes, SIZE_MAX), EFAULT);
    FAILS(dafs_pread(file, bytes, 5, INT64_MIN), EINVAL);
    CHECK(dafs_pread(file, bytes, 5, INT64_MAX - 5) <= 0);
    CHECK(dafs_pwrite(file, bytes, 5, INT64_MAX - 2) == -1 && dafs_pwrite(file, bytes, 1, INT64_MAX) == -1);
    CHECK(dafs_ftruncate(file, INT64_MAX) == -1 || dafs_ftruncate(file, 10) == 0);
    FAILS(dafs_ftruncate(file, -1), EINVAL);
    CHECK(dafs_fallocate(file, 0, INT64_MAX - 1, INT64_MAX - 1) == -1);
    FAILS(dafs_lock(file, -1, 1, DAFS_LOCK_SHARED), EINVAL);
    CHECK(dafs_lock(file, INT64_MAX, INT64_MAX, DAFS_LOCK_SHARED) == 0 && dafs_unlock(file, INT64_MAX, INT64_MAX) == 0);
    CHECK(dafs_copy_file_range(file, INT64_MAX, file, 0, SIZE_MAX) <= 0);
    /* Pieces of memory may overlap. */
    struct iovec over[2] = {{bytes, 4}, {bytes + 2, 4}};
    CHECK(dafs_preadv(file, over, 2, 0) == 8);
    struct dafs_extent eight = {0, 8};
    CHECK(dafs_read_list(file, &eight, 1, over, 2) == 8);
    /* Pointers that are not aligned, and NULL. */
    char *room = malloc(sizeof found + sizeof op + 8);
    FAILS(dafs_fstat(file, (struct stat *)(void *)(room + 1)), EFAULT);
    FAILS(dafs_wait((struct dafs_op *)(void *)(room + 2)), EFAULT);
    FAILS(dafs_session_info(session, (struct dafs_info *)(void *)(room + 1)), EFAULT);
    free(room);
    FAILS(dafs_wait(NULL), EFAULT);
    FAILS(dafs_test(NULL), EFAULT);
    FAILS(dafs_wait_any(NULL, 1), EFAULT);
    FAILS(dafs_next(session, NULL), EFAULT);
    FAILS(dafs_flock_set(file, NULL), EFAULT);
    FAILS(dafs_batch_wait_some(root, NULL, 1), EFAULT);
    FAILS(dafs_readlinkat(root, NULL, bytes, 5), EFAULT);
    FAILS(dafs_share(file, O_RDWR, 0, NULL), EFAULT);
    FAILS(dafs_replaceat(root, "x", NULL, 5, 0600), EFAULT);
    FAILS(dafs_view_read(file, NULL, &whole, 1), EFAULT);
    struct dafs_op old = DAFS_OP_INIT;
    old.size = 3;
    FAILS(dafs_wait(&old), EINVAL);
    struct { struct dafs_op known; char beyond[16]; } later = {DAFS_OP_INIT, "beyond"};
    later.known.size = sizeof later;
    CHECK(dafs_submit_pread(file, bytes, 4, 0, &later.known) == 0 && dafs_wait(&later.known) == 4 && strcmp(later.beyond, "beyond") == 0);
}

static atomic_int entries_seen, is_done;
static int64_t shared_handle, locked;
static struct dafs_op shared_op = DAFS_OP_INIT;

static void *list(void *unused) {
    (void)unused;
    struct dafs_dirent one = DAFS_DIRENT_INIT;
    for (;;) {
        int more = dafs_readdir(shared_handle, &one);
        if (more == 0) return NULL;
        CHECK(more == 1 || errno == EBUSY);
        atomic_fetch_add(&entries_seen, more == 1);
    }
}

static void *wait_for_lock(void *unused) {
    (void)unused;
    struct dafs_op own = shared_op;
    /* The main thread tests it meanwhile. */
    while (dafs_wait(&own) != 0) CHECK(errno == EBUSY);
    return NULL;
}

static void *run_chain(void *unused) {
    (void)unused;
    /* The main thread asks whether it runs. */
    while (dafs_chain_run(shared_handle) != 0) CHECK(errno == EBUSY);
    return NULL;
}

static void *read_until_closed(void *unused) {
    (void)unused;
    char one[16];
    while (dafs_pread(shared_handle, one, sizeof one, 0) >= 0) {
    }
    CHECK(errno == EBADF);
    return NULL;
}

static void *close_it(void *unused) {
    (void)unused;
    if (dafs_close(shared_handle) == 0) atomic_fetch_add(&is_done, 1);
    else CHECK(errno == EBADF);
    return NULL;
}

static void check_threads(int64_t file) {
    enum { NAMES = 300, THREADS = 4 };
    pthread_t threads[THREADS];
    CHECK(dafs_mkdirat(root, "many", 0755) == 0);
    int64_t many = dafs_opendirat(root, "many");
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        CHECK(dafs_mkdirat(many, name, 0755) == 0);
    }
    /* Each entry goes to one thread; who comes while another one is there is told so. */
    shared_handle = dafs_listat(many, "", 0);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, list, NULL);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(atomic_load(&entries_seen) == NAMES && dafs_close(shared_handle) == 0);
    for (int i = 0; i < NAMES; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        CHECK(dafs_unlinkat(many, name, AT_REMOVEDIR) == 0);
    }
    CHECK(dafs_close(many) == 0 && dafs_unlinkat(root, "many", AT_REMOVEDIR) == 0);

    /* While one thread waits for an operation, it is not another's. */
    locked = dafs_openat(root, "wrong", O_RDWR, 0);
    CHECK(dafs_lock(locked, 0, 1, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_submit_lock(file, 0, 1, DAFS_LOCK_EXCLUSIVE, &shared_op) == 0);
    pthread_create(&threads[0], NULL, wait_for_lock, NULL);
    struct dafs_op copy = shared_op;
    int ended;
    while ((ended = dafs_test(&copy)) == 0) sched_yield();
    CHECK(ended == -1 && errno == EBUSY);
    FAILS(dafs_wait(&copy), EBUSY);
    FAILS(dafs_cancel(&copy), EBUSY);
    CHECK(dafs_unlock(locked, 0, 1) == 0 && pthread_join(threads[0], NULL) == 0);
    FAILS(dafs_wait(&copy), EBADF);

    /* While one thread runs a chain, nobody else adds to it, or closes it. */
    shared_handle = dafs_chain_begin(locked);
    CHECK(dafs_chain_lock(shared_handle, 0, 1, DAFS_LOCK_EXCLUSIVE) == 0);
    struct dafs_flock conflict = DAFS_FLOCK_INIT;
    pthread_create(&threads[0], NULL, run_chain, NULL);
    while (dafs_chain_count(shared_handle, 0) != -1 || errno != EBUSY) sched_yield();
    FAILS(dafs_chain_run(shared_handle), EBUSY);
    FAILS(dafs_close(shared_handle), EBUSY);
    CHECK(dafs_unlock(file, 0, 1) == 0 && pthread_join(threads[0], NULL) == 0 && dafs_close(shared_handle) == 0);
    CHECK(dafs_flock_test(file, &conflict) == -1 || conflict.kind == DAFS_LOCK_SHARED);

    /* One closes what others read from, and of many that close it one does. */
    for (int round = 0; round < 50; round++) {
        shared_handle = dafs_openat(root, "wrong", O_RDWR, 0);
        atomic_store(&is_done, 0);
        for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, i < 2 ? read_until_closed : close_it, NULL);
        for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
        CHECK(atomic_load(&is_done) == 1);
    }
    CHECK(dafs_close(locked) == 0);
}

/* What the main thread has of its own is gone by now. */
static void late(void) {
    errno = 0;
    if (dafs_close(12345) != -1 || errno != EBADF || dafs_error()[0] == 0 || dafs_lost(NULL, 0) != 0) _exit(77);
}

int main(int argc, char **argv) {
    atexit(late);
    CHECK(argc == 3 && (session = dafs_connect(argv[1], NULL)) > 0 && (root = dafs_mount(session, argv[2])) > 0);
    int64_t file = dafs_openat(root, "wrong", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file > 0);
    check_kinds(file);
    check_ranges(file);
    check_threads(file);
    CHECK(dafs_close(file) == 0 && dafs_close(root) == 0 && dafs_disconnect(session) == 0);
    puts("passed");
    return 0;
}
