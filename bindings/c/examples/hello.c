/* Writes a file on a dafs server and reads it back.
 *
 *     cc hello.c $(pkg-config --cflags --libs dafs) -o hello
 *     ./hello dafs+tcp://127.0.0.1:12049 scratch
 */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what) {
    fprintf(stderr, "hello: cannot %s: %s\n", what, dafs_error());
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: hello URL EXPORT\n");
        return 2;
    }
    int64_t session = dafs_connect(argv[1], NULL);
    if (session < 0) fail("connect");
    int64_t root = dafs_mount(session, argv[2]);
    if (root < 0) fail("mount");
    int64_t file = dafs_openat(root, "hello.txt", O_RDWR | O_CREAT | O_TRUNC, 0666);
    if (file < 0) fail("open hello.txt");

    const char text[] = "Hello from C.\n";
    if (dafs_pwrite(file, text, strlen(text), 0) != (ssize_t)strlen(text)) fail("write");
    if (dafs_fsync(file) < 0) fail("make it durable");

    char buffer[64];
    ssize_t count = dafs_pread(file, buffer, sizeof buffer, 0);
    if (count < 0) fail("read");
    fwrite(buffer, 1, (size_t)count, stdout);

    dafs_close(file);
    dafs_close(root);
    dafs_disconnect(session);
    return 0;
}
