/* Every call of libdafs, on an export, and what each says of wrong arguments. usage: calls URL EXPORT */
#define _GNU_SOURCE
#include "check.h"
#include <poll.h>
#include <string.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

static void check_data(int64_t root) {
    int64_t file = dafs_openat(root, "data", O_RDWR | O_CREAT | O_EXCL, 0640);
    CHECK(file > 0);
    FAILS(dafs_openat(root, "data", O_RDWR | O_CREAT | O_EXCL, 0640), EEXIST);
    CHECK(dafs_pwrite(file, "0123456789", 10, 0) == 10);
    char buffer[32] = {0};
    CHECK(dafs_pread(file, buffer, sizeof buffer, 4) == 6 && memcmp(buffer, "456789", 6) == 0);
    CHECK(dafs_pread(file, buffer, sizeof buffer, 10) == 0);
    struct iovec out[2] = {{(void *)"ab", 2}, {(void *)"cde", 3}};
    CHECK(dafs_pwritev(file, out, 2, 10) == 5);
    char left[3], right[12];
    struct iovec in[2] = {{left, 3}, {right, 12}};
    CHECK(dafs_preadv(file, in, 2, 0) == 15 && memcmp(left, "012", 3) == 0 && memcmp(right, "3456789abcde", 12) == 0);
    CHECK(dafs_append(file, "xyz", 3) == 15);
    struct dafs_extent extents[2] = {{1, 2}, {15, 3}};
    char listed[5];
    struct iovec whole = {listed, 5};
    CHECK(dafs_read_list(file, extents, 2, &whole, 1) == 5 && memcmp(listed, "12xyz", 5) == 0);
    memcpy(listed, "AB!?.", 5);
    CHECK(dafs_write_list(file, extents, 2, &whole, 1) == 5);
    CHECK(dafs_pread(file, buffer, 18, 0) == 18 && memcmp(buffer, "0AB3456789abcde!?.", 18) == 0);
    CHECK(dafs_fsync(file) == 0 && dafs_fdatasync(file) == 0);
    CHECK(dafs_ftruncate(file, 5) == 0 && dafs_lseek(file, 0, SEEK_END) == 5);
    CHECK(dafs_fallocate(file, 0, 0, 8192) == 0 && dafs_lseek(file, 0, SEEK_END) == 8192);
    CHECK(dafs_lseek(file, 0, SEEK_DATA) == 0);
    CHECK(dafs_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL) == 0);
    struct stat found;
    CHECK(dafs_fstat(file, &found) == 0 && S_ISREG(found.st_mode) && found.st_size == 8192 && found.st_nlink == 1);
    CHECK((found.st_mode & 07777) == 0640);
    CHECK(dafs_fchmod(file, 0600) == 0 && dafs_fstat(file, &found) == 0 && (found.st_mode & 07777) == 0600);
    CHECK(dafs_fchown(file, (uint32_t)-1, (uint32_t)-1) == 0);
    struct timespec times[2] = {{1000, 5}, {2000, 0}};
    CHECK(dafs_futimens(file, times) == 0 && dafs_fstat(file, &found) == 0 && found.st_mtime == 2000);

    FAILS(dafs_pread(file, NULL, 10, 0), EFAULT);
    FAILS(dafs_pread(file, buffer, 10, -1), EINVAL);
    FAILS(dafs_pwritev(file, out, -1, 0), EINVAL);
    FAILS(dafs_pwritev(file, NULL, 1, 0), EFAULT);
    FAILS(dafs_lseek(file, 0, SEEK_CUR), EINVAL);
    FAILS(dafs_fallocate(file, 1 << 20, 0, 1), EOPNOTSUPP);
    FAILS(dafs_fallocate(file, 0, 0, 0), EINVAL);
    FAILS(dafs_fstat(file, NULL), EFAULT);
    FAILS(dafs_fadvise(file, 0, 0, 77), EINVAL);
    times[0].tv_nsec = 1000000000;
    FAILS(dafs_futimens(file, times), EINVAL);
    FAILS(dafs_openat(root, "data", O_PATH, 0), EINVAL);
    FAILS(dafs_openat(root, NULL, O_RDONLY, 0), EFAULT);
    int64_t made = dafs_openat(root, "made", O_RDONLY | O_CREAT, 0644);
    CHECK(made > 0 && dafs_pread(made, buffer, 1, 0) == 0);
    FAILS(dafs_pwrite(made, "x", 1, 0), EBADF);
    FAILS(dafs_openat(root, "made", O_RDONLY | O_CREAT | O_EXCL, 0644), EEXIST);
    CHECK(dafs_close(made) == 0 && dafs_unlinkat(root, "made", 0) == 0);
    FAILS(dafs_openat(root, "nowhere", O_RDONLY, 0), ENOENT);
    CHECK(strstr(dafs_error(), "nowhere") != NULL && dafs_error_code() == DAFS_E_PLAIN);
    int64_t reader = dafs_openat(root, "data", O_RDONLY, 0);
    CHECK(reader > 0);
    FAILS(dafs_pwrite(reader, "x", 1, 0), EBADF);
    CHECK(dafs_close(reader) == 0);
    FAILS(dafs_close(reader), EBADF);
    FAILS(dafs_pread(reader, buffer, 1, 0), EBADF);
    FAILS(dafs_pread(root, buffer, 1, 0), EBADF);
    FAILS(dafs_openat(file, "x", O_RDONLY, 0), EBADF);
    for (int64_t wrong = -2; wrong < 3; wrong++) {
        int64_t handle = wrong == 2 ? INT64_MAX : wrong == 1 ? file + ((int64_t)1 << 40) : wrong;
        FAILS(dafs_fsync(handle), EBADF);
    }
    CHECK(dafs_close(file) == 0);
}

static void check_names(int64_t root) {
    CHECK(dafs_mkdirat(root, "dir", 0755) == 0);
    FAILS(dafs_mkdirat(root, "dir", 0755), EEXIST);
    int64_t dir = dafs_opendirat(root, "dir");
    CHECK(dir > 0);
    int64_t file = dafs_openat(dir, "one", O_WRONLY | O_CREAT, 0644);
    CHECK(file > 0 && dafs_close(file) == 0);
    CHECK(dafs_linkat(dir, "one", root, "two") == 0);
    CHECK(dafs_symlinkat("dir/one", root, "link") == 0);
    char target[64];
    CHECK(dafs_readlinkat(root, "link", target, sizeof target) == 7 && memcmp(target, "dir/one", 7) == 0);
    CHECK(dafs_readlinkat(root, "link", target, 3) == 3);
    struct stat found;
    CHECK(dafs_fstatat(root, "link", &found, 0) == 0 && S_ISREG(found.st_mode) && found.st_nlink == 2);
    CHECK(dafs_fstatat(root, "link", &found, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(found.st_mode));
    FAILS(dafs_fstatat(root, "link", &found, 4096), EINVAL);
    CHECK(dafs_renameat(root, "two", dir, "three", 0) == 0);
    FAILS(dafs_renameat(dir, "one", root, "data", DAFS_RENAME_NOREPLACE), EEXIST);
    FAILS(dafs_renameat(dir, "one", root, NULL, 0), EFAULT);
    CHECK(dafs_accessat(root, "dir/one", F_OK) == 0 && dafs_accessat(root, "dir/one", R_OK | W_OK) == 0);
    FAILS(dafs_accessat(root, "dir/one", 99), EINVAL);
    CHECK(dafs_fchmodat(root, "dir/one", 0400) == 0 && dafs_fstatat(dir, "three", &found, 0) == 0);
    CHECK((found.st_mode & 07777) == 0400);
    CHECK(dafs_fchownat(root, "dir/one", (uint32_t)-1, (uint32_t)-1, 0) == 0);
    CHECK(dafs_utimensat(root, "dir/one", NULL, 0) == 0);
    CHECK(dafs_fsyncdir(dir) == 0);
    struct statvfs space;
    CHECK(dafs_statvfsat(root, "", &space) == 0 && space.f_blocks > 0 && space.f_namemax == 255);

    char value[16];
    CHECK(dafs_setxattrat(root, "dir/one", "user.a", "xyz", 3, 0) == 0 || errno == EOPNOTSUPP || errno == EACCES);
    if (dafs_getxattrat(root, "dir/one", "user.a", NULL, 0) == 3) {
        CHECK(dafs_getxattrat(root, "dir/one", "user.a", value, sizeof value) == 3 && memcmp(value, "xyz", 3) == 0);
        FAILS(dafs_getxattrat(root, "dir/one", "user.a", value, 2), ERANGE);
        FAILS(dafs_setxattrat(root, "dir/one", "user.a", "q", 1, XATTR_CREATE), EEXIST);
        CHECK(dafs_listxattrat(root, "dir/one", NULL, 0) >= 7);
        CHECK(dafs_removexattrat(root, "dir/one", "user.a") == 0);
        FAILS(dafs_getxattrat(root, "dir/one", "user.a", value, 2), ENODATA);

        /* A file whose data is on other servers. */
        int64_t striped = dafs_openat(root, "striped", O_WRONLY | O_CREAT, 0600);
        CHECK(dafs_close(striped) == 0 && dafs_fchmodat(root, "striped", 01600) == 0);
        striped = dafs_openat(root, "striped", O_RDONLY, 0);
        CHECK(striped > 0 && dafs_close(striped) == 0);
        CHECK(dafs_setxattrat(root, "striped", "user.dafs.layout", "1", 1, 0) == 0);
        FAILS(dafs_openat(root, "striped", O_RDONLY, 0), EOPNOTSUPP);
        FAILS(dafs_openat(root, "striped", O_WRONLY | O_CREAT, 0600), EOPNOTSUPP);
        CHECK(dafs_unlinkat(root, "striped", 0) == 0);
    }

    int64_t listing = dafs_listat(root, "dir", 0);
    CHECK(listing > 0);
    struct dafs_dirent entry = DAFS_DIRENT_INIT;
    int seen = 0;
    uint64_t behind_first = 0;
    while (dafs_readdir(listing, &entry) == 1) {
        CHECK((strcmp(entry.name, "one") == 0 || strcmp(entry.name, "three") == 0) && entry.kind == DT_REG);
        if (seen++ == 0) behind_first = entry.cookie;
    }
    CHECK(seen == 2 && dafs_readdir(listing, &entry) == 0);
    struct dafs_dirent old = {.size = 8};
    FAILS(dafs_readdir(listing, &old), EINVAL);
    FAILS(dafs_readdir(root, &entry), EBADF);
    CHECK(dafs_close(listing) == 0);
    listing = dafs_listat(dir, "", behind_first);
    CHECK(listing > 0 && dafs_readdir(listing, &entry) == 1 && dafs_readdir(listing, &entry) == 0);
    CHECK(dafs_close(listing) == 0);

    FAILS(dafs_unlinkat(root, "dir", AT_REMOVEDIR), ENOTEMPTY);
    CHECK(dafs_unlinkat(dir, "one", 0) == 0 && dafs_unlinkat(root, "dir/three", 0) == 0);
    CHECK(dafs_unlinkat(root, "dir", AT_REMOVEDIR) == 0 && dafs_unlinkat(root, "link", 0) == 0);
    FAILS(dafs_unlinkat(root, "link", 77), EINVAL);
    CHECK(dafs_close(dir) == 0);
}

static void check_locks(int64_t root) {
    int64_t one = dafs_openat(root, "data", O_RDWR, 0), other = dafs_openat(root, "data", O_RDWR, 0);
    CHECK(one > 0 && other > 0);
    CHECK(dafs_lock(one, 0, 10, DAFS_LOCK_EXCLUSIVE) == 0);
    FAILS(dafs_trylock(other, 9, 1, DAFS_LOCK_SHARED), EAGAIN);
    CHECK(dafs_trylock(other, 10, 0, DAFS_LOCK_SHARED) == 0);
    CHECK(dafs_unlock(one, 0, 10) == 0 && dafs_trylock(other, 9, 1, DAFS_LOCK_SHARED) == 0);
    FAILS(dafs_lock(one, 0, 10, 7), EINVAL);
    CHECK(dafs_close(one) == 0 && dafs_close(other) == 0);
}

static void check_memory_and_operations(int64_t session, int64_t root) {
    enum { PIECE = 100000, COUNT = 8 };
    char *registered = dafs_alloc(session, (size_t)PIECE * COUNT);
    CHECK(registered != NULL && registered[PIECE - 1] == 0);
    char *pinned = malloc((size_t)PIECE * COUNT);
    CHECK(dafs_pin(session, pinned, (size_t)PIECE * COUNT) == 0);
    for (int i = 0; i < PIECE * COUNT; i++) registered[i] = (char)(i * 7 + i / 251);
    int64_t file = dafs_openat(root, "ops", O_RDWR | O_CREAT, 0600);
    CHECK(file > 0);
    struct dafs_op ops[COUNT];
    struct dafs_op *all[COUNT + 1];
    for (int i = 0; i < COUNT; i++) {
        ops[i] = (struct dafs_op)DAFS_OP_INIT;
        all[i] = &ops[i];
        CHECK(dafs_submit_pwrite(file, registered + i * PIECE, PIECE, (int64_t)i * PIECE, &ops[i]) == 0);
    }
    all[COUNT] = NULL;
    for (int i = 0; i < COUNT; i++) {
        ssize_t place = dafs_wait_any(all, COUNT + 1);
        CHECK(place >= 0 && ops[place].result == PIECE && ops[place].handle == -1);
    }
    FAILS(dafs_wait_any(all, COUNT + 1), ENOENT);
    CHECK(dafs_submit_fsync(file, &ops[0]) == 0 && dafs_wait(&ops[0]) == 0);
    FAILS(dafs_wait(&ops[0]), EBADF);
    int fd = dafs_session_fd(session);
    CHECK(fd >= 0 && dafs_session_fd(session) == fd);
    for (int i = 0; i < COUNT; i++) {
        char *memory = i % 2 ? pinned : registered;
        memset(memory + i * PIECE, 0, PIECE);
        CHECK(dafs_submit_pread(file, memory + i * PIECE, PIECE, (int64_t)i * PIECE, &ops[i]) == 0 && ops[i].id != 0);
    }
    int told = 0;
    while (told < COUNT) {
        while (dafs_turn(session) == 1) {
        }
        uint64_t id;
        while (dafs_next(session, &id) == 1) {
            int found = 0;
            for (int i = 0; i < COUNT; i++) found += ops[i].id == id;
            CHECK(found == 1);
            told++;
        }
        struct pollfd watched = {.fd = fd, .events = POLLIN};
        if (told < COUNT && dafs_arm(session) == 1) CHECK(poll(&watched, 1, 30000) == 1);
    }
    for (int i = 0; i < COUNT; i++) {
        CHECK(dafs_test(&ops[i]) == 1 && ops[i].result == PIECE);
        const char *memory = i % 2 ? pinned : registered;
        for (int at = i * PIECE; at < (i + 1) * PIECE; at++) CHECK(memory[at] == (char)(at * 7 + at / 251));
    }
    struct dafs_extent extents[2] = {{0, 5}, {PIECE, 5}};
    char listed[10];
    struct iovec whole = {listed, 10};
    CHECK(dafs_submit_read_list(file, extents, 2, &whole, 1, &ops[0]) == 0 && dafs_wait(&ops[0]) == 10);
    CHECK(listed[5] == (char)(PIECE * 7 + PIECE / 251));
    CHECK(dafs_submit_write_list(file, extents, 2, &whole, 1, &ops[0]) == 0);
    int64_t outcome = dafs_cancel(&ops[0]);
    CHECK(outcome == 10 || (outcome == -1 && errno == ECANCELED && ops[0].error == ECANCELED));
    CHECK(dafs_submit_pread(file, registered, 10, (int64_t)PIECE * COUNT, &ops[0]) == 0 && dafs_wait(&ops[0]) == 0);

    struct dafs_op old = {.size = 8};
    FAILS(dafs_submit_pread(file, registered, 10, 0, &old), EINVAL);
    FAILS(dafs_submit_pread(file, registered, 10, 0, NULL), EFAULT);
    FAILS(dafs_submit_pread(file, NULL, 10, 0, &ops[0]), EFAULT);
    FAILS(dafs_submit_pread(file, registered, 10, -7, &ops[0]), EINVAL);
    FAILS(dafs_test(&ops[0]), EBADF);
    FAILS(dafs_unpin(registered), EINVAL);
    FAILS(dafs_free(pinned), EINVAL);
    CHECK(dafs_unpin(pinned) == 0 && dafs_free(registered) == 0 && dafs_free(NULL) == 0);
    free(pinned);
    CHECK(dafs_close(file) == 0);
}

static void check_fork(int64_t session, int64_t root) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct stat found;
        int failed = dafs_fstatat(root, "data", &found, 0) == -1 && errno == ENOTCONN;
        _exit(failed && dafs_error_code() == DAFS_E_FORKED ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct stat found;
    CHECK(dafs_fstatat(root, "data", &found, 0) == 0);
    char provider[8];
    CHECK(dafs_provider(session, provider, sizeof provider) == 0 && provider[0] != 0);
    FAILS(dafs_provider(session, provider, 1), ERANGE);
}

int main(int argc, char **argv) {
    CHECK(argc == 3 && dafs_version() == DAFS_VERSION_MAJOR * 1000 + DAFS_VERSION_MINOR);
    umask(022);
    FAILS(dafs_connect(NULL, NULL), EFAULT);
    FAILS(dafs_connect("http://x", NULL), EINVAL);
    struct dafs_options options = DAFS_OPTIONS_INIT;
    options.background = 9;
    FAILS(dafs_connect(argv[1], &options), EINVAL);
    options.background = DAFS_BACKGROUND_DEFAULT;
    options.method = "telepathy";
    FAILS(dafs_connect(argv[1], &options), EINVAL);
    options.method = "inline";
    int64_t inlined = dafs_connect(argv[1], &options);
    CHECK(inlined > 0 && dafs_disconnect(inlined) == 0);
    options = (struct dafs_options)DAFS_OPTIONS_INIT;
    options.credits = 4097;
    FAILS(dafs_connect(argv[1], &options), EINVAL);
    options = (struct dafs_options)DAFS_OPTIONS_INIT;
    options.wait = 3;
    FAILS(dafs_connect(argv[1], &options), EINVAL);
    options.wait = DAFS_WAIT_EVENT;
    options.sieve = DAFS_SIEVE_OFF;
    options.background = 9;
    /* An older program knows less of the options. */
    options.size = offsetof(struct dafs_options, background);
    int64_t session = dafs_connect(argv[1], &options);
    CHECK(session > 0);
    FAILS(dafs_mount(session, "nowhere"), ENOENT);
    int64_t root = dafs_mount(session, argv[2]);
    CHECK(root > 0);
    check_data(root);
    check_names(root);
    check_locks(root);
    check_memory_and_operations(session, root);
    check_fork(session, root);
    CHECK(dafs_lost(NULL, 0) == 0);
    FAILS(dafs_close(session), EBADF);
    CHECK(dafs_disconnect(session) == 0);
    FAILS(dafs_disconnect(session), EBADF);
    struct stat found;
    FAILS(dafs_fstatat(root, "data", &found, 0), ENOTCONN);
    CHECK(dafs_close(root) == 0);
    puts("passed");
    return 0;
}
