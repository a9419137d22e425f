/* Reads a column of a matrix of doubles, stored row by row, in one request: a list of extents.
 *
 *     cc column.c $(pkg-config --cflags --libs dafs) -o column
 *     ./column dafs+tcp://127.0.0.1:12049 scratch matrix.bin 1000 5
 */
#include <dafs.h>
#include <stdio.h>
#include <stdlib.h>

static void fail(const char *what) {
    fprintf(stderr, "column: cannot %s: %s\n", what, dafs_error());
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: column URL EXPORT PATH COLUMNS COLUMN\n");
        return 2;
    }
    uint64_t columns = strtoull(argv[4], NULL, 10), column = strtoull(argv[5], NULL, 10);
    if (columns == 0 || column >= columns) {
        fprintf(stderr, "column: there is no column %s of %s\n", argv[5], argv[4]);
        return 2;
    }
    int64_t session = dafs_connect(argv[1], NULL);
    if (session < 0) fail("connect");
    int64_t root = dafs_mount(session, argv[2]);
    if (root < 0) fail("mount");
    int64_t file = dafs_openat(root, argv[3], O_RDONLY, 0);
    if (file < 0) fail("open");
    int64_t size = dafs_lseek(file, 0, SEEK_END);
    if (size < 0) fail("find the size");

    size_t rows = (size_t)size / sizeof(double) / columns;
    struct dafs_extent *extents = malloc((rows + 1) * sizeof *extents);
    double *values = malloc((rows + 1) * sizeof *values);
    if (extents == NULL || values == NULL) return 1;
    for (size_t row = 0; row < rows; row++) {
        extents[row].offset = (row * columns + column) * sizeof(double);
        extents[row].len = sizeof(double);
    }
    /* Byte n of the extents, in their order, becomes byte n of the memory. */
    struct iovec memory = {values, rows * sizeof *values};
    if (dafs_read_list(file, extents, rows, &memory, 1) != (ssize_t)memory.iov_len) fail("read");

    double sum = 0;
    for (size_t row = 0; row < rows; row++) sum += values[row];
    printf("%zu rows, sum %.1f\n", rows, sum);
    free(extents);
    free(values);
    dafs_close(file);
    dafs_close(root);
    dafs_disconnect(session);
    return 0;
}
