/* Reads a file in pieces of 64 KiB, sixteen at a time, from an event loop of poll(2), without a thread of the library's.
 *
 *     cc poll.c $(pkg-config --cflags --libs dafs) -o poll
 *     ./poll dafs+tcp://127.0.0.1:12049 scratch big.bin
 */
#include <dafs.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 64 << 10, DEPTH = 16 };

static void fail(const char *what) {
    fprintf(stderr, "poll: cannot %s: %s\n", what, dafs_error());
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: poll URL EXPORT PATH\n");
        return 2;
    }
    struct dafs_options options = DAFS_OPTIONS_INIT;
    options.background = DAFS_BACKGROUND_NONE;
    int64_t session = dafs_connect(argv[1], &options);
    if (session < 0) fail("connect");
    int64_t root = dafs_mount(session, argv[2]);
    if (root < 0) fail("mount");
    int64_t file = dafs_openat(root, argv[3], O_RDONLY, 0);
    if (file < 0) fail("open");
    int64_t size = dafs_lseek(file, 0, SEEK_END);
    if (size < 0) fail("find the size");

    /* Registered memory: the server puts the data there itself. */
    char *memory = dafs_alloc(session, (size_t)PIECE * DEPTH);
    if (memory == NULL) fail("get memory");
    struct dafs_op ops[DEPTH];
    int in_flight = 0;
    int64_t next = 0, done = 0;
    unsigned long sum = 0;
    for (int i = 0; i < DEPTH; i++) {
        ops[i] = (struct dafs_op)DAFS_OP_INIT;
        ops[i].result = -1;
    }
    struct pollfd watched = {.fd = dafs_session_fd(session), .events = POLLIN};
    if (watched.fd < 0) fail("watch the session");
    while (done < size) {
        for (int i = 0; i < DEPTH && next < size; i++) {
            if (ops[i].handle > 0) continue;
            if (dafs_submit_pread(file, memory + (size_t)i * PIECE, PIECE, next, &ops[i]) < 0) fail("read");
            next += PIECE;
            in_flight++;
        }
        while (dafs_turn(session) == 1) {
        }
        int progress = 0;
        for (int i = 0; i < DEPTH; i++) {
            if (ops[i].handle <= 0 || dafs_test(&ops[i]) != 1) continue;
            if (ops[i].result < 0) {
                fprintf(stderr, "poll: cannot read: %s\n", strerror(ops[i].error));
                return 1;
            }
            for (int64_t at = 0; at < ops[i].result; at++) sum += (unsigned char)memory[(size_t)i * PIECE + (size_t)at];
            done += ops[i].result;
            progress = 1;
            in_flight--;
        }
        uint64_t ended;
        while (dafs_next(session, &ended) == 1) {
        }
        if (!progress && in_flight > 0 && dafs_arm(session) == 1 && poll(&watched, 1, -1) < 0 && errno != EINTR) {
            perror("poll");
            return 1;
        }
    }
    printf("%lld bytes, sum %lu\n", (long long)done, sum);
    dafs_free(memory);
    dafs_close(file);
    dafs_close(root);
    dafs_disconnect(session);
    return 0;
}
