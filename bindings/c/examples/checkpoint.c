/* Writes a checkpoint: the old one stays whole until the new one is durable, whatever fails meanwhile.
 *
 *     cc checkpoint.c $(pkg-config --cflags --libs dafs) -o checkpoint
 *     ./checkpoint dafs+tcp://127.0.0.1:12049 scratch state.ckpt 64
 */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE = 1 << 20, DEPTH = 8 };

static void fail(const char *what) {
    fprintf(stderr, "checkpoint: cannot %s: %s\n", what, dafs_error());
    exit(1);
}

/* Stands for the state of a computation: the byte at a place. */
static unsigned char state(int64_t at) {
    return (unsigned char)(at * 7 + at / PIECE);
}

/* Writes all of it, several pieces at a time, each from registered memory. */
static void write_all(int64_t session, int64_t file, int64_t size) {
    char *memory = dafs_alloc(session, (size_t)PIECE * DEPTH);
    if (memory == NULL) fail("get memory");
    struct dafs_op ops[DEPTH];
    for (int64_t piece = 0; piece < size / PIECE + DEPTH; piece++) {
        struct dafs_op *op = &ops[piece % DEPTH];
        char *bytes = memory + piece % DEPTH * PIECE;
        /* The memory of a piece is the program's again when that has ended. */
        if (piece >= DEPTH && (piece - DEPTH) * PIECE < size && dafs_wait(op) != PIECE) fail("write");
        if (piece * PIECE >= size) continue;
        for (int64_t at = 0; at < PIECE; at++) bytes[at] = (char)state(piece * PIECE + at);
        *op = (struct dafs_op)DAFS_OP_INIT;
        if (dafs_submit_pwrite(file, bytes, PIECE, piece * PIECE, op) < 0) fail("write");
    }
    dafs_free(memory);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: checkpoint URL EXPORT PATH MIB\n");
        return 2;
    }
    int64_t size = atoll(argv[4]) * PIECE;
    char new_path[4096];
    snprintf(new_path, sizeof new_path, "%s.new", argv[3]);
    int64_t session = dafs_connect(argv[1], NULL);
    if (session < 0) fail("connect");
    int64_t root = dafs_mount(session, argv[2]);
    if (root < 0) fail("mount");
    int64_t file = dafs_openat(root, new_path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (file < 0) fail("make the new file");

    write_all(session, file, size);
    /* A server that was restarted meanwhile may have lost what was not durable, and says so: it is written again. */
    while (dafs_fsync(file) < 0) {
        if (dafs_error_code() != DAFS_E_WRITES_LOST) fail("make it durable");
        write_all(session, file, size);
    }
    if (dafs_close(file) < 0) fail("close");
    /* From here on whoever opens the path gets the new one. */
    if (dafs_renameat(root, new_path, root, argv[3], 0) < 0) fail("rename");
    /* The name is durable too; a path in a directory would need that opened. */
    if (dafs_fsyncdir(root) < 0) fail("make the name durable");

    printf("%lld bytes in %s\n", (long long)size, argv[3]);
    dafs_close(root);
    dafs_disconnect(session);
    return 0;
}
