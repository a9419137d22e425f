/* What dafs has beyond POSIX, one by one, and the nonblocking forms of calls with names. usage: more URL EXPORT */
#define _GNU_SOURCE
#include "check.h"
#include <string.h>
#include <sys/xattr.h>

static int64_t session, root;

static void check_session(const char *url, const char *export_name) {
    char names[256];
    ssize_t size = dafs_exports(session, NULL, 0);
    CHECK(size > 0 && dafs_exports(session, names, sizeof names) == size);
    FAILS(dafs_exports(session, names, 1), ERANGE);
    int is_found = 0;
    for (const char *name = names; name < names + size; name += strlen(name) + 1) is_found |= strcmp(name, export_name) == 0;
    CHECK(is_found && dafs_ping(session) > 0);
    struct dafs_info info = DAFS_INFO_INIT;
    CHECK(dafs_session_info(session, &info) == 0 && info.connected == 1 && info.reconnects == 0 && info.lease_ms > 0);
    /* A struct of a program that knows more is filled as far as this library goes. */
    struct { struct dafs_info known; char beyond[16]; } later = {DAFS_INFO_INIT, "beyond"};
    later.known.size = sizeof later;
    CHECK(dafs_session_info(session, &later.known) == 0 && later.known.slots == info.slots && strcmp(later.beyond, "beyond") == 0);
    CHECK(later.known.size == sizeof later);
    /* Settings that this library does not know are refused; zeros are not. */
    struct { struct dafs_options known; char beyond[16]; } options = {DAFS_OPTIONS_INIT, ""};
    options.known.size = sizeof options;
    int64_t other = dafs_connect(url, &options.known);
    CHECK(other > 0 && dafs_disconnect(other) == 0);
    options.beyond[3] = 1;
    FAILS(dafs_connect(url, &options.known), E2BIG);
}

static void check_attributes(int64_t file) {
    struct dafs_attributes one = DAFS_ATTRIBUTES_INIT, other = DAFS_ATTRIBUTES_INIT;
    struct stat stat;
    CHECK(dafs_fgetattr(file, &one) == 0 && dafs_getattrat(root, "more", &other, 0) == 0 && dafs_fstat(file, &stat) == 0);
    CHECK(one.ino == stat.st_ino && one.mode == stat.st_mode && one.bytes == (uint64_t)stat.st_size && one.change == other.change);
    CHECK(dafs_pwrite(file, "z", 1, 0) == 1 && dafs_fgetattr(file, &other) == 0 && other.change > one.change && other.ino == one.ino);
    one.size = 8;
    FAILS(dafs_fgetattr(file, &one), EINVAL);
    FAILS(dafs_getattrat(root, "more", NULL, 0), EFAULT);
    if (dafs_fsetxattr(file, "user.colour", "blue", 4, XATTR_CREATE) == 0) {
        char value[16], names[64];
        FAILS(dafs_fsetxattr(file, "user.colour", "red", 3, XATTR_CREATE), EEXIST);
        CHECK(dafs_fgetxattr(file, "user.colour", value, sizeof value) == 4 && memcmp(value, "blue", 4) == 0);
        CHECK(dafs_getxattrat(root, "more", "user.colour", NULL, 0) == 4);
        CHECK(dafs_flistxattr(file, names, sizeof names) == 12 && strcmp(names, "user.colour") == 0);
        CHECK(dafs_fremovexattr(file, "user.colour") == 0);
        FAILS(dafs_fgetxattr(file, "user.colour", value, sizeof value), ENODATA);
    } else {
        CHECK(errno == EOPNOTSUPP);
    }
    FAILS(dafs_fsetxattr(file, "user.colour", "red", 3, 77), EINVAL);
}

static void check_data(int64_t file) {
    struct iovec pieces[2] = {{(void *)"abc", 3}, {(void *)"defgh", 5}};
    CHECK(dafs_pwritev2(file, pieces, 2, 0, RWF_DSYNC) == 8 && dafs_pwritev2(file, pieces, 1, 8, RWF_SYNC) == 3);
    FAILS(dafs_pwritev2(file, pieces, 2, 0, RWF_NOWAIT), EOPNOTSUPP);
    CHECK(dafs_fdatasync_range(file, 0, 8) == 0);
    int64_t target = dafs_openat(root, "copied", O_RDWR | O_CREAT | O_TRUNC, 0600);
    CHECK(dafs_copy_file_range(file, 2, target, 1, 100) == 9);
    char found[16];
    CHECK(dafs_pread(target, found, sizeof found, 0) == 10 && memcmp(found, "\0cdefghabc", 10) == 0);
    struct dafs_op op = DAFS_OP_INIT;
    CHECK(dafs_submit_copy_file_range(file, 0, target, 20, 4, &op) == 0 && dafs_wait(&op) == 4);
    FAILS(dafs_copy_file_range(file, -1, target, 0, 1), EINVAL);
    FAILS(dafs_copy_file_range(file, 0, root, 0, 1), EBADF);
    CHECK(dafs_close(target) == 0);
    /* Registered memory of one session is ordinary for another, and a list may lie in parts of it. */
    char *memory = dafs_alloc(session, 8192);
    struct iovec parts[3] = {{memory + 100, 4}, {memory, 2}, {memory + 8190, 2}};
    struct dafs_extent extent = {0, 8};
    CHECK(dafs_read_list(file, &extent, 1, parts, 3) == 8);
    CHECK(memcmp(memory + 100, "abcd", 4) == 0 && memcmp(memory, "ef", 2) == 0 && memcmp(memory + 8190, "gh", 2) == 0);
    CHECK(dafs_write_list(file, &extent, 1, parts, 3) == 8);
    CHECK(dafs_submit_read_list(file, &extent, 1, parts, 3, &op) == 0 && dafs_wait(&op) == 8);
    CHECK(dafs_submit_write_list(file, &extent, 1, parts, 3, &op) == 0 && dafs_wait(&op) == 8);
    parts[2].iov_len = 3;
    extent.len = 9;
    char *beside = malloc(3);
    parts[2].iov_base = beside;
    CHECK(dafs_read_list(file, &extent, 1, parts, 3) == 9 && memcmp(beside, "gha", 3) == 0);
    free(beside);
    CHECK(dafs_free(memory) == 0);
}

/* Memory of dafs_alloc() of a session that has ended serves another. */
static void check_foreign_memory(const char *url, int64_t file) {
    int64_t other = dafs_connect(url, NULL);
    char *memory = dafs_alloc(other, 100000);
    CHECK(other > 0 && memory != NULL);
    for (int round = 0; round < 2; round++) {
        memset(memory, 'f', 100000);
        CHECK(dafs_pwrite(file, memory, 100000, 0) == 100000);
        memset(memory, 0, 100000);
        struct dafs_op op = DAFS_OP_INIT;
        struct dafs_extent extent = {0, 100000};
        struct iovec whole = {memory, 100000};
        CHECK(dafs_pread(file, memory, 100000, 0) == 100000 && memory[99999] == 'f');
        CHECK(dafs_submit_pread(file, memory, 100000, 0, &op) == 0 && dafs_wait(&op) == 100000);
        CHECK(dafs_read_list(file, &extent, 1, &whole, 1) == 100000);
        CHECK(dafs_submit_read_list(file, &extent, 1, &whole, 1, &op) == 0 && dafs_wait(&op) == 100000);
        int64_t batch = dafs_batch_begin(session);
        memset(memory, 0, 100000);
        CHECK(dafs_batch_pread(batch, file, memory, 100000, 0) == 0 && dafs_batch_run(batch) == 0);
        CHECK(dafs_batch_result(batch, 0, NULL) == 100000 && memory[99999] == 'f' && dafs_close(batch) == 0);
        if (round == 0) CHECK(dafs_disconnect(other) == 0);
    }
    CHECK(dafs_free(memory) == 0);
}

static void check_names(void) {
    /* A directory by O_DIRECTORY; a symbolic link is followed unless O_NOFOLLOW says otherwise. */
    CHECK(dafs_mkdirat(root, "sub", 0755) == 0 && dafs_symlinkat("sub", root, "to-sub") == 0);
    int64_t sub = dafs_openat(root, "to-sub", O_RDONLY | O_DIRECTORY, 0);
    CHECK(sub > 0);
    CHECK(dafs_openat(root, "to-sub", O_RDONLY | O_DIRECTORY | O_NOFOLLOW, 0) == -1 && (errno == ENOTDIR || errno == ELOOP));
    FAILS(dafs_openat(root, "more", O_RDONLY | O_DIRECTORY, 0), ENOTDIR);
    FAILS(dafs_openat(root, "sub", O_RDWR | O_DIRECTORY, 0), EINVAL);
    /* A file without a name. */
    int64_t unnamed = dafs_openat(sub, "", O_TMPFILE | O_RDWR, 0640);
    if (unnamed > 0) {
        struct stat found;
        CHECK(dafs_pwrite(unnamed, "whole", 5, 0) == 5 && dafs_flinkat(unnamed, sub, "named", 0) == 0 && dafs_fsync(unnamed) == 0);
        FAILS(dafs_flinkat(unnamed, sub, "named", 0), EEXIST);
        CHECK(dafs_fstatat(root, "sub/named", &found, 0) == 0 && found.st_size == 5 && (found.st_mode & 07777) == 0640);
        CHECK(dafs_close(unnamed) == 0);
    } else {
        CHECK(errno == EOPNOTSUPP);
    }
    FAILS(dafs_openat(sub, "", O_TMPFILE | O_RDWR | O_EXCL, 0640), EINVAL);
    struct stat found;
    CHECK(dafs_replaceat(sub, "named", "first", 5, 0600) == 0 && dafs_replaceat(sub, "named", "second", 6, 0640) == 0);
    CHECK(dafs_fstatat(sub, "named", &found, 0) == 0 && found.st_size == 6 && (found.st_mode & 07777) == 0640);
    CHECK(dafs_unlinkat(sub, "named", 0) == 0);
    /* Without blocking. */
    struct dafs_op op = DAFS_OP_INIT;
    CHECK(dafs_submit_openat(sub, "one", O_RDWR | O_CREAT | O_EXCL, 0600, &op) == 0);
    int64_t file = dafs_wait(&op);
    CHECK(file > 0 && dafs_submit_openat(sub, "one", O_RDWR | O_CREAT | O_EXCL, 0600, &op) == 0);
    FAILS(dafs_wait(&op), EEXIST);
    CHECK(strstr(dafs_error(), "one") != NULL);
    CHECK(dafs_submit_append(file, "12345", 5, &op) == 0 && dafs_wait(&op) == 0);
    CHECK(dafs_submit_append(file, "6", 1, &op) == 0 && dafs_wait(&op) == 5);
    CHECK(dafs_submit_ftruncate(file, 3, &op) == 0 && dafs_wait(&op) == 0 && dafs_submit_fdatasync(file, &op) == 0 && dafs_wait(&op) == 0);
    memset(&found, 0, sizeof found);
    CHECK(dafs_submit_fstat(file, &found, &op) == 0 && dafs_wait(&op) == 0 && found.st_size == 3);
    memset(&found, 0, sizeof found);
    CHECK(dafs_submit_fstatat(root, "sub/one", &found, 0, &op) == 0 && dafs_wait(&op) == 0 && found.st_size == 3);
    char left[2] = "", right[4] = "";
    struct iovec pieces[2] = {{left, 2}, {right, 4}};
    CHECK(dafs_submit_preadv(file, pieces, 2, 0, &op) == 0 && dafs_wait(&op) == 3 && memcmp(left, "12", 2) == 0 && right[0] == '3');
    CHECK(dafs_submit_pwritev(file, pieces, 2, 3, &op) == 0 && dafs_wait(&op) == 6);
    CHECK(dafs_submit_mkdirat(sub, "deep", 0700, &op) == 0 && dafs_wait(&op) == 0);
    CHECK(dafs_submit_renameat(sub, "one", root, "sub/deep/two", 0, &op) == 0 && dafs_wait(&op) == 0);
    CHECK(dafs_submit_unlinkat(sub, "deep", AT_REMOVEDIR, &op) == 0);
    FAILS(dafs_wait(&op), ENOTEMPTY);
    CHECK(dafs_submit_unlinkat(sub, "deep/two", 0, &op) == 0 && dafs_wait(&op) == 0);
    CHECK(dafs_submit_unlinkat(sub, "deep", AT_REMOVEDIR, &op) == 0 && dafs_wait(&op) == 0);
    FAILS(dafs_submit_openat(sub, "x", O_RDONLY | O_DIRECTORY, 0, &op), EINVAL);
    FAILS(dafs_submit_fstat(file, NULL, &op), EFAULT);
    FAILS(dafs_submit_renameat(sub, "x", file, "y", 0, &op), EBADF);
    CHECK(dafs_close(file) == 0 && dafs_close(sub) == 0);
    CHECK(dafs_unlinkat(root, "sub", AT_REMOVEDIR) == 0 && dafs_unlinkat(root, "to-sub", 0) == 0);
}

static void check_locks(int64_t file) {
    int64_t other = dafs_openat(root, "more", O_RDWR, 0);
    struct dafs_flock lock = DAFS_FLOCK_INIT, found;
    lock.kind = DAFS_LOCK_EXCLUSIVE;
    lock.offset = 10;
    lock.len = 10;
    lock.owner = 5;
    CHECK(dafs_flock_set(file, &lock) == 0);
    found = lock;
    found.offset = 0;
    found.len = 0;
    CHECK(dafs_flock_test(other, &found) == 1 && found.offset == 10 && found.len == 10 && found.owner == 5 && found.broken == 0);
    CHECK(found.kind == DAFS_LOCK_EXCLUSIVE);
    /* The same owner does not conflict, another does. */
    lock.flags = DAFS_LOCK_NOWAIT;
    CHECK(dafs_flock_set(file, &lock) == 0);
    lock.owner = 6;
    FAILS(dafs_flock_set(file, &lock), EAGAIN);
    lock.owner = 5;
    struct dafs_op op = DAFS_OP_INIT;
    CHECK(dafs_submit_lock(other, 0, 0, DAFS_LOCK_SHARED, &op) == 0 && dafs_test(&op) == 0);
    CHECK(dafs_flock_unset(file, &lock) == 0 && dafs_wait(&op) == 0 && dafs_unlock(other, 0, 0) == 0);
    CHECK(dafs_flock_test(other, &found) == 0);
    CHECK(dafs_lock(file, 0, 0, DAFS_LOCK_EXCLUSIVE) == 0 && dafs_submit_lock(other, 0, 0, DAFS_LOCK_SHARED, &op) == 0);
    FAILS(dafs_cancel(&op), ECANCELED);
    CHECK(op.error == ECANCELED && dafs_unlock(file, 0, 0) == 0);
    lock.flags = 1u << 20;
    FAILS(dafs_flock_set(file, &lock), EINVAL);
    lock.flags = 0;
    lock.kind = 9;
    FAILS(dafs_flock_test(file, &lock), EINVAL);
    CHECK(dafs_close(other) == 0);
    /* Deny modes bind opens. */
    int64_t alone = dafs_openat(root, "denied", O_RDWR | O_CREAT | DAFS_O_DENY_READ | DAFS_O_DENY_WRITE, 0600);
    CHECK(alone > 0);
    FAILS(dafs_openat(root, "denied", O_RDONLY, 0), EBUSY);
    CHECK(dafs_close(alone) == 0 && (alone = dafs_openat(root, "denied", O_RDONLY | DAFS_O_DENY_WRITE, 0)) > 0);
    FAILS(dafs_openat(root, "denied", O_WRONLY, 0), EBUSY);
    CHECK(dafs_close(alone) == 0);
}

static void check_tokens(const char *url, const char *export_name, int64_t file) {
    char token[DAFS_TOKEN_SIZE], found[4];
    int64_t other = dafs_connect(url, NULL), theirs = dafs_mount(other, export_name);
    CHECK(theirs > 0 && dafs_share(file, O_RDONLY, 0, token) == 0);
    int64_t opened = dafs_open_token(theirs, token, "more", O_RDONLY);
    CHECK(opened > 0 && dafs_pread(opened, found, 4, 0) == 4);
    FAILS(dafs_pwrite(opened, "x", 1, 0), EBADF);
    token[0] ^= 1;
    FAILS(dafs_open_token(theirs, token, "more", O_RDONLY), ESTALE);
    FAILS(dafs_open_token(theirs, NULL, "more", O_RDONLY), EFAULT);
    FAILS(dafs_open_token(opened, token, "more", O_RDONLY), EBADF);
    FAILS(dafs_share(file, 3, 0, token), EINVAL);
    CHECK(dafs_close(opened) == 0 && dafs_close(theirs) == 0 && dafs_disconnect(other) == 0);
}

static void check_corks(int64_t file) {
    enum { COUNT = 8 };
    struct dafs_op ops[COUNT];
    char bytes[COUNT];
    CHECK(dafs_cork(session) == 0);
    for (int i = 0; i < COUNT; i++) {
        ops[i] = (struct dafs_op)DAFS_OP_INIT;
        CHECK(dafs_submit_pread(file, &bytes[i], 1, i, &ops[i]) == 0);
    }
    CHECK(dafs_uncork(session) == 0);
    FAILS(dafs_uncork(session), EINVAL);
    FAILS(dafs_cork(file), EBADF);
    for (int i = 0; i < COUNT; i++) CHECK(dafs_wait(&ops[i]) == 1);
}

int main(int argc, char **argv) {
    umask(022);
    CHECK(argc == 3 && (session = dafs_connect(argv[1], NULL)) > 0 && (root = dafs_mount(session, argv[2])) > 0);
    int64_t file = dafs_openat(root, "more", O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0644);
    CHECK(file > 0 && dafs_pwrite(file, "0123456789", 10, 0) == 10);
    check_session(argv[1], argv[2]);
    check_attributes(file);
    check_data(file);
    check_foreign_memory(argv[1], file);
    check_names();
    check_locks(file);
    check_tokens(argv[1], argv[2], file);
    check_corks(file);
    CHECK(dafs_close(file) == 0 && dafs_close(root) == 0 && dafs_disconnect(session) == 0);
    puts("passed");
    return 0;
}
