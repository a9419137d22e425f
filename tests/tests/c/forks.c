/* fork() with a session open, and while other threads hold whatever this library locks. A child is refused what is its parent's, never
 * hangs, and may open a session of its own. usage: forks URL EXPORT */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 24, OWN_SESSIONS = 6, HANGS_S = 60 };

static const char *url, *export_name;
static int64_t session, root, file, listing, chain, batch, view;
static struct dafs_op op = DAFS_OP_INIT;
static char bytes[64];
static atomic_int is_over;

/* What the child is about to do, for who looks why it hangs. */
static const char *volatile step = "fork";

static void tell_step(int signal) {
    (void)signal;
    static const char words[] = "hangs in ";
    if (write(2, words, sizeof words - 1) < 0 || write(2, step, strlen(step)) < 0 || write(2, "\n", 1) < 0) _exit(9);
    _exit(8);
}

#define REFUSED(call) \
    do { \
        step = #call; \
        errno = 0; \
        if ((long long)(call) != -1 || errno != ENOTCONN || dafs_error_code() != DAFS_E_FORKED) { \
            fprintf(stderr, "%s:%d: %s: errno %d, %s\n", __FILE__, __LINE__, #call, errno, dafs_error()); \
            _exit(1); \
        } \
    } while (0)

static void check_refused(void) {
    struct stat found;
    struct dafs_op own = DAFS_OP_INIT;
    struct dafs_dirent entry = DAFS_DIRENT_INIT;
    struct dafs_info info = DAFS_INFO_INIT;
    struct dafs_view_place place = DAFS_VIEW_PLACE_INIT;
    struct iovec whole = {bytes, 8};
    uint64_t id;
    place.view = view;
    REFUSED(dafs_fstatat(root, "forks", &found, 0));
    REFUSED(dafs_mount(session, export_name));
    REFUSED(dafs_ping(session));
    REFUSED(dafs_session_info(session, &info));
    REFUSED(dafs_openat(root, "forks", O_RDWR, 0));
    REFUSED(dafs_pread(file, bytes, 10, 0));
    REFUSED(dafs_pwrite(file, bytes, 10, 0));
    REFUSED(dafs_append(file, bytes, 10));
    REFUSED(dafs_fsync(file));
    REFUSED(dafs_lock(file, 0, 1, DAFS_LOCK_SHARED));
    REFUSED(dafs_readdir(listing, &entry));
    REFUSED(dafs_chain_run(chain));
    REFUSED(dafs_batch_run(batch));
    REFUSED(dafs_view_read(file, &place, &whole, 1));
    REFUSED(dafs_session_fd(session));
    REFUSED(dafs_turn(session));
    REFUSED(dafs_next(session, &id));
    REFUSED(dafs_arm(session));
    REFUSED(dafs_pin(session, bytes, sizeof bytes));
    REFUSED(dafs_cork(session));
    if (dafs_alloc(session, 100) != NULL || errno != ENOTCONN) _exit(2);
    if (dafs_submit_pread(file, bytes, 10, 0, &own) == 0) REFUSED(dafs_wait(&own));
    else if (errno != ENOTCONN) _exit(3);
    /* An operation of the parent's. */
    REFUSED(dafs_wait(&op));
    step = "forgetting the parent's handles";
    if (dafs_close(file) != 0 || dafs_close(root) != 0 || dafs_close(chain) != 0 || dafs_disconnect(session) != 0) _exit(4);
}

static void check_own_session(void) {
    step = "a session of its own";
    int64_t own = dafs_connect(url, NULL), top = dafs_mount(own, export_name), opened = dafs_openat(top, "forks", O_RDONLY, 0);
    char *memory = dafs_alloc(own, 4096);
    if (opened < 0 || memory == NULL || dafs_pread(opened, memory, 6, 0) != 6 || memcmp(memory, "parent", 6) != 0) {
        fprintf(stderr, "the child's own session: %s\n", dafs_error());
        _exit(5);
    }
    if (dafs_pin(own, bytes, sizeof bytes) != 0 || dafs_unpin(bytes) != 0 || dafs_free(memory) != 0) _exit(6);
    if (dafs_close(opened) != 0 || dafs_disconnect(own) != 0) _exit(7);
}

static void *allocate(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        void *memory = dafs_alloc(session, 4096);
        CHECK(memory != NULL && dafs_free(memory) == 0);
    }
    return NULL;
}

static void *pin(void *unused) {
    (void)unused;
    static char own[4096];
    while (!atomic_load(&is_over)) CHECK(dafs_pin(session, own, sizeof own) == 0 && dafs_unpin(own) == 0);
    return NULL;
}

static void *make_handles(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        int64_t type = dafs_type_bytes(1);
        CHECK(type > 0 && dafs_close(type) == 0);
    }
    return NULL;
}

static void *read_on(void *unused) {
    (void)unused;
    char own[6];
    while (!atomic_load(&is_over)) CHECK(dafs_pread(file, own, 6, 0) == 6 && memcmp(own, "parent", 6) == 0);
    return NULL;
}

static void *connect_on(void *unused) {
    (void)unused;
    while (!atomic_load(&is_over)) {
        int64_t other = dafs_connect(url, NULL);
        CHECK(other > 0 && dafs_disconnect(other) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    url = argv[1];
    export_name = argv[2];
    CHECK((session = dafs_connect(url, NULL)) > 0 && (root = dafs_mount(session, export_name)) > 0);
    CHECK((file = dafs_openat(root, "forks", O_RDWR | O_CREAT | O_TRUNC, 0600)) > 0 && dafs_pwrite(file, "parent", 6, 0) == 6);
    int64_t other = dafs_openat(root, "forks", O_RDWR, 0), type = dafs_type_bytes(8);
    CHECK((listing = dafs_listat(root, "", 0)) > 0 && (chain = dafs_chain_begin(file)) > 0 && dafs_chain_fsync(chain) == 0);
    CHECK((batch = dafs_batch_begin(session)) > 0 && dafs_batch_pread(batch, file, bytes, 1, 0) == 0);
    CHECK((view = dafs_view_make(session, type)) > 0 && dafs_session_fd(session) >= 0);
    CHECK(dafs_lock(other, 0, 1, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_submit_lock(file, 0, 1, DAFS_LOCK_EXCLUSIVE, &op) == 0);
    void *(*const plays[])(void *) = {allocate, pin, make_handles, read_on, connect_on};
    enum { THREADS = sizeof plays / sizeof plays[0] };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, plays[i], NULL) == 0);
    for (int i = 0; i < FORKS; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            signal(SIGALRM, tell_step);
            alarm(HANGS_S);
            check_refused();
            if (i % (FORKS / OWN_SESSIONS) == 0) check_own_session();
            _exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            if (WIFEXITED(status)) fprintf(stderr, "child %d: status %d\n", i, WEXITSTATUS(status));
            else fprintf(stderr, "child %d: signal %d\n", i, WTERMSIG(status));
            exit(1);
        }
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    /* The parent goes on. */
    CHECK(dafs_unlock(other, 0, 1) == 0 && dafs_wait(&op) == 0 && dafs_chain_run(chain) == 0 && dafs_batch_run(batch) == 0);
    CHECK(dafs_pread(file, bytes, 10, 0) == 6 && dafs_disconnect(session) == 0);
    puts("passed");
    return 0;
}
