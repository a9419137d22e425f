/* Chains, batches and views, blocking and not. usage: groups URL EXPORT */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <string.h>

static int64_t session, root;

static void fill(char *bytes, size_t count) {
    for (size_t at = 0; at < count; at++) bytes[at] = (char)(at * 7 + at / 251);
}

static void check_chains(void) {
    char head[8] = {0};
    int64_t chain = dafs_chain_begin(root);
    CHECK(chain > 0);
    FAILS(dafs_chain_run(chain), EINVAL);
    CHECK(dafs_chain_open(chain, "chained", O_RDWR | O_CREAT, 0640) == 0);
    CHECK(dafs_chain_pwrite(chain, "0123456789", 10, 0) == 0 && dafs_chain_pread(chain, head, 8, 4) == 0);
    CHECK(dafs_chain_fsync(chain) == 0 && dafs_chain_close(chain) == 0);
    FAILS(dafs_chain_count(chain, 0), ENOENT);
    CHECK(dafs_chain_run(chain) == 0);
    CHECK(dafs_chain_count(chain, 0) == 10 && dafs_chain_count(chain, 1) == 6 && memcmp(head, "456789", 6) == 0);
    FAILS(dafs_chain_count(chain, 2), ENOENT);
    FAILS(dafs_chain_file(chain), ENOENT);
    /* Again, without blocking. */
    memset(head, 0, sizeof head);
    struct dafs_op op = DAFS_OP_INIT;
    CHECK(dafs_submit_chain(chain, &op) == 0);
    FAILS(dafs_chain_run(chain), EBUSY);
    FAILS(dafs_chain_close(chain), EBUSY);
    FAILS(dafs_close(chain), EBUSY);
    CHECK(dafs_wait(&op) == 0 && dafs_chain_count(chain, 1) == 6 && memcmp(head, "456789", 6) == 0);
    CHECK(dafs_close(chain) == 0);
    FAILS(dafs_chain_run(chain), EBADF);

    /* It leaves a file open, which is given once. */
    chain = dafs_chain_begin(root);
    CHECK(dafs_chain_lookup(chain, "/") == 0 && dafs_chain_open(chain, "chained", O_RDWR, 0) == 0 && dafs_chain_run(chain) == 0);
    struct dafs_attributes seen = DAFS_ATTRIBUTES_INIT;
    CHECK(dafs_chain_attributes(chain, &seen) == 0 && seen.bytes == 10 && S_ISREG(seen.mode) && (seen.mode & 07777) == 0640);
    int64_t file = dafs_chain_file(chain);
    CHECK(file > 0);
    FAILS(dafs_chain_file(chain), ENOENT);
    CHECK(dafs_close(chain) == 0);

    /* Only where nobody has changed the file. */
    struct dafs_expected expected = DAFS_EXPECTED_INIT;
    chain = dafs_chain_begin(file);
    FAILS(dafs_chain_verify(chain, &expected, 0), EINVAL);
    expected.mask = DAFS_EXPECT_CHANGE | DAFS_EXPECT_IDENTITY | DAFS_EXPECT_BYTES | DAFS_EXPECT_MTIME;
    expected.change = seen.change;
    expected.ino = seen.ino;
    expected.generation = seen.generation;
    expected.bytes = seen.bytes;
    expected.mtime = seen.mtime;
    CHECK(dafs_chain_verify(chain, &expected, 0) == 0 && dafs_chain_ftruncate(chain, 5) == 0);
    CHECK(dafs_chain_fadvise(chain, 0, 0, POSIX_FADV_DONTNEED) == 0 && dafs_chain_run(chain) == 0);
    FAILS(dafs_chain_run(chain), ECANCELED);
    CHECK(dafs_error_code() == DAFS_E_NOT_SAME && dafs_close(chain) == 0);
    chain = dafs_chain_begin(file);
    CHECK(dafs_chain_verify(chain, &expected, 1) == 0 && dafs_chain_ftruncate(chain, 3) == 0 && dafs_chain_run(chain) == 0);
    CHECK(dafs_close(chain) == 0 && dafs_lseek(file, 0, SEEK_END) == 3);

    /* Under a lock, in one round trip; it is given back where the chain breaks off. */
    int64_t other = dafs_openat(root, "chained", O_RDWR, 0);
    chain = dafs_chain_begin(file);
    CHECK(dafs_chain_lock(chain, 0, 8, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_chain_pwrite(chain, "locked", 6, 0) == 0);
    CHECK(dafs_chain_unlock(chain, 0, 8) == 0 && dafs_chain_run(chain) == 0 && dafs_chain_count(chain, 0) == 6);
    CHECK(dafs_submit_chain(chain, &op) == 0 && dafs_wait(&op) == 0 && dafs_close(chain) == 0);
    CHECK(dafs_trylock(other, 0, 8, DAFS_LOCK_EXCLUSIVE) == 0);
    chain = dafs_chain_begin(file);
    CHECK(dafs_chain_trylock(chain, 7, 0, DAFS_LOCK_SHARED) == 0 && dafs_chain_pwrite(chain, "never", 5, 0) == 0);
    FAILS(dafs_chain_run(chain), EAGAIN);
    CHECK(dafs_submit_chain(chain, &op) == 0);
    FAILS(dafs_wait(&op), EAGAIN);
    CHECK(dafs_unlock(other, 0, 8) == 0 && dafs_close(chain) == 0);
    chain = dafs_chain_begin(file);
    CHECK(dafs_chain_lock(chain, 0, 8, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_chain_verify(chain, &expected, 0) == 0);
    CHECK(dafs_submit_chain(chain, &op) == 0);
    FAILS(dafs_wait(&op), ECANCELED);
    CHECK(dafs_error_code() == DAFS_E_NOT_SAME && op.error_code == DAFS_E_NOT_SAME);
    CHECK(dafs_lock(other, 0, 8, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_close(other) == 0 && dafs_close(chain) == 0);

    /* A file without a name gets one; what the server cannot make it refuses. */
    chain = dafs_chain_begin(root);
    CHECK(dafs_chain_open(chain, "", O_TMPFILE | O_RDWR, 0600) == 0 && dafs_chain_pwrite(chain, "new", 3, 0) == 0);
    CHECK(dafs_chain_fsync(chain) == 0 && dafs_chain_flinkat(chain, root, "chained", DAFS_LINK_REPLACE) == 0);
    CHECK(dafs_chain_fsync(chain) == 0 && dafs_chain_close(chain) == 0);
    if (dafs_chain_run(chain) == 0) {
        struct stat found;
        CHECK(dafs_fstatat(root, "chained", &found, 0) == 0 && found.st_size == 3);
    } else {
        CHECK(errno == EOPNOTSUPP);
    }
    FAILS(dafs_chain_flinkat(chain, root, "x", 2), EINVAL);
    FAILS(dafs_chain_flinkat(chain, file, "x", 0), EBADF);
    FAILS(dafs_chain_open(chain, "x", O_RDONLY | O_DIRECTORY, 0), EINVAL);
    FAILS(dafs_chain_open(chain, "x", O_RDONLY | O_CREAT, 0), EINVAL);
    CHECK(dafs_close(chain) == 0);
    FAILS(dafs_chain_begin(session), EBADF);

    /* What it begins at was closed; a request that it may not have; more than a message holds. */
    chain = dafs_chain_begin(file);
    CHECK(dafs_chain_open(chain, "chained", O_RDONLY, 0) == 0);
    FAILS(dafs_chain_run(chain), EINVAL);
    CHECK(dafs_close(chain) == 0 && (chain = dafs_chain_begin(file)) > 0);
    struct dafs_info info = DAFS_INFO_INIT;
    CHECK(dafs_session_info(session, &info) == 0 && info.slots > 0 && info.read_inline_max > 0 && info.connected == 1);
    char *large = malloc((size_t)info.read_inline_max + 1);
    CHECK(dafs_chain_pread(chain, large, (size_t)info.read_inline_max + 1, 0) == 0);
    FAILS(dafs_chain_run(chain), EINVAL);
    CHECK(dafs_close(chain) == 0 && (chain = dafs_chain_begin(file)) > 0);
    CHECK(dafs_chain_pread(chain, large, info.read_inline_max, 0) == 0 && dafs_chain_run(chain) == 0 && dafs_close(file) == 0);
    FAILS(dafs_chain_run(chain), EBADF);
    CHECK(dafs_close(chain) == 0);
    free(large);
}

static void check_batches(void) {
    enum { FILES = 3, EACH = 8, SMALL = 700, LARGE = 300000 };
    int64_t files[FILES];
    char *memory = malloc((size_t)FILES * LARGE), *registered = dafs_alloc(session, (size_t)FILES * LARGE);
    fill(memory, (size_t)FILES * LARGE);
    int64_t batch = dafs_batch_begin(session);
    CHECK(batch > 0);
    FAILS(dafs_batch_run(batch), EINVAL);
    for (int i = 0; i < FILES; i++) {
        char name[16];
        snprintf(name, sizeof name, "batched-%d", i);
        CHECK((files[i] = dafs_openat(root, name, O_RDWR | O_CREAT | O_TRUNC, 0600)) > 0);
        CHECK(dafs_batch_pwrite(batch, files[i], memory + (size_t)i * LARGE, LARGE, 0) == i);
    }
    FAILS(dafs_batch_result(batch, 0, NULL), ENOENT);
    CHECK(dafs_batch_run(batch) == 0);
    for (size_t i = 0; i < FILES; i++) CHECK(dafs_batch_result(batch, i, NULL) == LARGE);
    FAILS(dafs_batch_result(batch, FILES, NULL), ENOENT);

    /* It begins anew: small reads, into memory of both kinds, and lists; one meets the end of its file. */
    memset(registered, 0, (size_t)FILES * LARGE);
    char *read = calloc(FILES * EACH, SMALL);
    for (int i = 0; i < FILES * EACH; i++) {
        char *to = i % 2 ? registered + i * SMALL : read + i * SMALL;
        CHECK(dafs_batch_pread(batch, files[i % FILES], to, SMALL, (int64_t)i * 1000) == i);
    }
    struct dafs_extent extents[2] = {{5, 10}, {LARGE - 4, 10}};
    char listed[20];
    struct iovec pieces[2] = {{listed, 3}, {listed + 3, 17}};
    CHECK(dafs_batch_read_list(batch, files[0], extents, 2, pieces, 2) == FILES * EACH);
    CHECK(dafs_batch_pread(batch, files[1], registered + 2 * LARGE, LARGE, 0) == FILES * EACH + 1);
    CHECK(dafs_batch_run(batch) == 0);
    for (int i = 0; i < FILES * EACH; i++) {
        const char *found = i % 2 ? registered + i * SMALL : read + i * SMALL;
        int64_t end;
        CHECK(dafs_batch_result(batch, (size_t)i, &end) == SMALL && end == -1);
        CHECK(memcmp(found, memory + (size_t)(i % FILES) * LARGE + i * 1000, SMALL) == 0);
    }
    int64_t end = 0;
    CHECK(dafs_batch_result(batch, FILES * EACH, &end) == 14 && end == LARGE);
    CHECK(memcmp(listed, memory + 5, 10) == 0 && memcmp(listed + 10, memory + LARGE - 4, 4) == 0);
    CHECK(memcmp(registered + 2 * LARGE, memory + LARGE, LARGE) == 0);

    /* Without blocking: told of some, then all. */
    struct dafs_batch_hints hints = DAFS_BATCH_HINTS_INIT;
    hints.completions = 2;
    hints.window_us = 100;
    uint64_t id = 0;
    size_t told[4];
    int told_of[FILES * 2] = {0}, count = 0;
    for (int i = 0; i < FILES * 2; i++) CHECK(dafs_batch_pread(batch, files[i % FILES], read + i * SMALL, SMALL, i) == i);
    CHECK(dafs_batch_submit(batch, &hints, &id) == 0);
    FAILS(dafs_batch_pread(batch, files[0], read, SMALL, 0), EBUSY);
    FAILS(dafs_batch_submit(batch, NULL, NULL), EBUSY);
    FAILS(dafs_close(batch), EBUSY);
    CHECK(dafs_batch_expedite(batch) == 0);
    for (ssize_t some; (some = dafs_batch_wait_some(batch, told, 4)) != 0;) {
        CHECK(some > 0 && some <= 4);
        for (ssize_t i = 0; i < some; i++) CHECK(told[i] < FILES * 2 && told_of[told[i]]++ == 0);
        count += (int)some;
    }
    CHECK(count == FILES * 2 && dafs_batch_wait(batch) == 0);
    FAILS(dafs_batch_wait(batch), ENOENT);
    FAILS(dafs_batch_test(batch), ENOENT);
    for (int i = 0; i < FILES * 2; i++) {
        CHECK(dafs_batch_result(batch, (size_t)i, NULL) == SMALL);
        CHECK(memcmp(read + i * SMALL, memory + (size_t)(i % FILES) * LARGE + i, SMALL) == 0);
    }

    /* From an event loop. */
    int fd = dafs_session_fd(session);
    CHECK(fd >= 0 && dafs_batch_pwrite(batch, files[2], registered, LARGE, LARGE) == 0);
    CHECK(dafs_batch_submit(batch, NULL, &id) == 0 && id != 0);
    for (int ended; (ended = dafs_batch_test(batch)) != 1;) {
        CHECK(ended == 0);
        while (dafs_turn(session) == 1) {
        }
        uint64_t found;
        int is_told = 0;
        while (dafs_next(session, &found) == 1) is_told |= found == id;
        struct pollfd watched = {.fd = fd, .events = POLLIN};
        if (!is_told && dafs_arm(session) == 1) CHECK(poll(&watched, 1, 30000) == 1);
    }
    CHECK(dafs_batch_result(batch, 0, NULL) == LARGE && dafs_lseek(files[2], 0, SEEK_END) == 2 * LARGE);

    /* One operation fails, the others do not; and what cannot be is refused as a whole. */
    int64_t reader = dafs_openat(root, "batched-0", O_RDONLY, 0);
    CHECK(dafs_batch_pwrite(batch, reader, "x", 1, 0) == 0 && dafs_batch_pread(batch, reader, listed, 5, 0) == 1);
    CHECK(dafs_batch_run(batch) == 0 && dafs_batch_result(batch, 1, NULL) == 5);
    FAILS(dafs_batch_result(batch, 0, NULL), EBADF);
    CHECK(dafs_batch_read_list(batch, reader, extents, 2, pieces, 1) == 0);
    FAILS(dafs_batch_run(batch), EINVAL);
    FAILS(dafs_batch_result(batch, 0, NULL), ENOENT);
    struct dafs_extent beyond = {UINT64_MAX - 1, 3};
    CHECK(dafs_batch_read_list(batch, reader, &beyond, 1, pieces, 1) == 0);
    FAILS(dafs_batch_run(batch), EINVAL);
    FAILS(dafs_batch_pread(batch, root, listed, 1, 0), EBADF);
    FAILS(dafs_batch_pread(batch, reader, NULL, 1, 0), EFAULT);
    FAILS(dafs_batch_pread(batch, reader, listed, 1, -1), EINVAL);
    FAILS(dafs_batch_begin(root), EBADF);
    FAILS(dafs_batch_run(reader), EBADF);
    CHECK(dafs_close(batch) == 0 && dafs_close(reader) == 0 && dafs_free(registered) == 0);
    for (int i = 0; i < FILES; i++) CHECK(dafs_close(files[i]) == 0);
    free(memory);
    free(read);
}

static void check_views(void) {
    enum { ROWS = 50, COLUMNS = 64, CELL = 8 };
    size_t all = (size_t)ROWS * COLUMNS * CELL;
    char *matrix = malloc(all), *column = dafs_alloc(session, (size_t)ROWS * CELL);
    fill(matrix, all);
    int64_t file = dafs_openat(root, "viewed", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(file > 0 && dafs_pwrite(file, matrix, all, 0) == (ssize_t)all);
    /* A column, described in three ways. */
    int64_t cell = dafs_type_bytes(CELL);
    struct dafs_subarray dimensions[2] = {{ROWS, ROWS, 0}, {COLUMNS, 1, 5}};
    int64_t types[3] = {
        dafs_type_resized(cell, 0, COLUMNS * CELL),
        dafs_type_hvector(cell, ROWS, 1, COLUMNS * CELL),
        dafs_type_subarray(cell, DAFS_ORDER_C, dimensions, 2),
    };
    for (int i = 0; i < 3; i++) {
        int64_t view = dafs_view_make(session, types[i]);
        CHECK(view > 0 && dafs_view_size(view) == (i == 0 ? CELL : ROWS * CELL));
        int64_t extent;
        CHECK(dafs_view_extent(view, &extent) == 0 && (i != 0 || extent == COLUMNS * CELL));
        struct dafs_view_place place = DAFS_VIEW_PLACE_INIT;
        place.view = view;
        place.displacement = i == 2 ? 0 : 5 * CELL;
        struct iovec whole = {column, ROWS * CELL};
        char ordinary[ROWS * CELL];
        struct iovec pieces[2] = {{ordinary, 11}, {ordinary + 11, sizeof ordinary - 11}};
        memset(column, 0, ROWS * CELL);
        memset(ordinary, 0, sizeof ordinary);
        CHECK(dafs_view_read(file, &place, &whole, 1) == ROWS * CELL && dafs_view_read(file, &place, pieces, 2) == ROWS * CELL);
        for (int row = 0; row < ROWS; row++) {
            const char *expected = matrix + ((size_t)row * COLUMNS + 5) * CELL;
            CHECK(memcmp(column + row * CELL, expected, CELL) == 0 && memcmp(ordinary + row * CELL, expected, CELL) == 0);
        }
        /* From the middle of the data on, without blocking, and written back. */
        struct dafs_op op = DAFS_OP_INIT;
        struct iovec half = {column, ROWS / 2 * CELL};
        place.place = ROWS / 2 * CELL;
        CHECK(dafs_submit_view_read(file, &place, &half, 1, &op) == 0 && dafs_wait(&op) == ROWS / 2 * CELL);
        CHECK(memcmp(column, ordinary + ROWS / 2 * CELL, ROWS / 2 * CELL) == 0);
        CHECK(dafs_view_write(file, &place, &half, 1) == ROWS / 2 * CELL);
        CHECK(dafs_submit_view_write(file, &place, &half, 1, &op) == 0 && dafs_wait(&op) == ROWS / 2 * CELL);
        half.iov_base = ordinary + ROWS / 2 * CELL;
        CHECK(dafs_submit_view_write(file, &place, &half, 1, &op) == 0 && dafs_wait(&op) == ROWS / 2 * CELL);
        CHECK(dafs_submit_view_read(file, &place, &half, 1, &op) == 0 && dafs_wait(&op) == ROWS / 2 * CELL);
        CHECK(dafs_view_write(file, &place, &half, 1) == ROWS / 2 * CELL);
        place.group = 77;
        place.group_size = 1;
        CHECK(dafs_view_read(file, &place, &half, 1) == ROWS / 2 * CELL);
        place.displacement = UINT64_MAX;
        FAILS(dafs_view_read(file, &place, &half, 1), EINVAL);
        place.size = 8;
        FAILS(dafs_view_read(file, &place, &half, 1), EINVAL);
        CHECK(dafs_close(view) == 0);
        place.size = sizeof place;
        FAILS(dafs_view_read(file, &place, &half, 1), EBADF);
    }
    char *back = malloc(all);
    CHECK(dafs_pread(file, back, all, 0) == (ssize_t)all && memcmp(back, matrix, all) == 0);
    /* The other constructors, by the sizes and extents that MPI gives them. */
    struct dafs_block blocks[2] = {{1, 0}, {2, 3}};
    int64_t displacements[3] = {0, 4, 2};
    struct dafs_struct_block members[2] = {{1, 0, cell}, {2, 32, types[0]}};
    struct dafs_darray dealt[2] = {{10, 0, DAFS_DISTRIBUTE_BLOCK, 2}, {9, 2, DAFS_DISTRIBUTE_CYCLIC, 3}};
    struct { int64_t type, size; } made[] = {
        {dafs_type_contiguous(cell, 5), 5 * CELL},
        {dafs_type_vector(cell, 4, 2, 3), 8 * CELL},
        {dafs_type_indexed(cell, blocks, 2), 3 * CELL},
        {dafs_type_hindexed(cell, blocks, 1), CELL},
        {dafs_type_indexed_block(cell, 1, displacements, 3), 3 * CELL},
        {dafs_type_hindexed_block(cell, 1, displacements, 1), CELL},
        {dafs_type_struct(members, 2), 3 * CELL},
        {dafs_type_darray(cell, 6, 0, DAFS_ORDER_FORTRAN, dealt, 2), 5 * 4 * CELL},
    };
    for (size_t i = 0; i < sizeof made / sizeof made[0]; i++) {
        int64_t view = dafs_view_make(session, made[i].type);
        CHECK(view > 0 && dafs_view_size(view) == made[i].size && dafs_close(view) == 0 && dafs_close(made[i].type) == 0);
    }
    int64_t odd = dafs_type_subarray(cell, DAFS_ORDER_C, (struct dafs_subarray[]){{4, 5, 0}}, 1);
    FAILS(dafs_view_make(session, odd), EINVAL);
    FAILS(dafs_type_subarray(cell, 9, dimensions, 2), EINVAL);
    dealt[0].distribution = 9;
    FAILS(dafs_type_darray(cell, 6, 0, DAFS_ORDER_C, dealt, 2), EINVAL);
    FAILS(dafs_type_indexed(cell, NULL, 2), EFAULT);
    FAILS(dafs_type_contiguous(file, 2), EBADF);
    FAILS(dafs_view_make(session, file), EBADF);
    FAILS(dafs_view_make(file, cell), EBADF);
    int64_t deep = dafs_type_bytes(1), next;
    int levels = 0;
    while ((next = dafs_type_contiguous(deep, 1)) > 0) {
        CHECK(dafs_close(deep) == 0 && levels++ < 5000);
        deep = next;
    }
    CHECK(errno == EINVAL && levels == 4095 && dafs_close(deep) == 0);
    CHECK(dafs_close(odd) == 0 && dafs_close(cell) == 0 && dafs_close(file) == 0 && dafs_free(column) == 0);
    for (int i = 0; i < 3; i++) CHECK(dafs_close(types[i]) == 0);
    free(matrix);
    free(back);
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && (session = dafs_connect(argv[1], NULL)) > 0 && (root = dafs_mount(session, argv[2])) > 0);
    check_chains();
    check_batches();
    check_views();
    CHECK(dafs_close(root) == 0 && dafs_disconnect(session) == 0);
    puts("passed");
    return 0;
}
