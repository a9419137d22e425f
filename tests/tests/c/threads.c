/* Sixteen threads share a session and a file, by blocking and by nonblocking calls, each with pieces of its own, while the connection is
 * broken again and again. usage: threads URL EXPORT */
#include <dafs.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { THREADS = 16, ROUNDS = 60, PIECE = 5000, CUTS = 6, FDS = 128 };

static int64_t session, file;
static atomic_int rounds_done;

static void fail(const char *what, int thread, int round) {
    fprintf(stderr, "thread %d, round %d: %s: %s\n", thread, round, what, dafs_error());
    exit(1);
}

static void *play(void *argument) {
    int thread = (int)(intptr_t)argument;
    char *memory = thread % 3 == 0 ? dafs_alloc(session, PIECE) : malloc(PIECE);
    char *expected = malloc(PIECE);
    for (int round = 0; round < ROUNDS; round++) {
        int64_t offset = (int64_t)(round * THREADS + thread) * PIECE;
        memset(memory, thread * ROUNDS + round, PIECE);
        memset(expected, thread * ROUNDS + round, PIECE);
        struct dafs_op op = DAFS_OP_INIT;
        if (round % 2) {
            if (dafs_pwrite(file, memory, PIECE, offset) != PIECE) fail("write", thread, round);
        } else {
            if (dafs_submit_pwrite(file, memory, PIECE, offset, &op) < 0) fail("submit", thread, round);
            if (dafs_wait(&op) != PIECE) fail("wait", thread, round);
        }
        memset(memory, 0, PIECE);
        if (round % 3) {
            if (dafs_pread(file, memory, PIECE, offset) != PIECE) fail("read", thread, round);
        } else {
            int ended;
            if (dafs_submit_pread(file, memory, PIECE, offset, &op) < 0) fail("submit", thread, round);
            while ((ended = dafs_test(&op)) == 0) {
            }
            if (ended != 1 || op.result != PIECE) fail("test", thread, round);
        }
        if (memcmp(memory, expected, PIECE) != 0) fail("another's data", thread, round);
        /* The error of a thread is its own. */
        char path[32];
        snprintf(path, sizeof path, "missing-%d", thread);
        struct stat found;
        if (dafs_fstatat(file, path, &found, 0) != -1 || errno != EBADF) fail("stat", thread, round);
        atomic_fetch_add(&rounds_done, 1);
    }
    if (thread % 3 == 0) dafs_free(memory);
    else free(memory);
    free(expected);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3 || (session = dafs_connect(argv[1], NULL)) < 0) fail("connect", -1, 0);
    int64_t root = dafs_mount(session, argv[2]);
    if (root < 0 || (file = dafs_openat(root, "threads", O_RDWR | O_CREAT, 0600)) < 0) fail("open", -1, 0);
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, play, (void *)(intptr_t)i);
    for (int cut = 1; cut <= CUTS; cut++) {
        while (atomic_load(&rounds_done) < THREADS * ROUNDS * cut / (CUTS + 1)) sched_yield();
        for (int fd = 3; fd < FDS; fd++) shutdown(fd, SHUT_RDWR);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (dafs_fsync(file) < 0) fail("fsync", -1, 0);
    dafs_disconnect(session);
    puts("passed");
    return 0;
}
