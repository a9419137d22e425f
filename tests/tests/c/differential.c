/* Executes the operations of a file, one a line, and prints of each what its call returned, its errno and a sum of what it brought.
 * usage: differential URL EXPORT DIRECTORY FILE */
#define _GNU_SOURCE
#include "check.h"
#include <inttypes.h>
#include <string.h>

enum { SLOTS = 6, LIST_MAX = 64, ROOM = 1 << 20 };

static int64_t root, slots[SLOTS];
static unsigned char room[ROOM];

static void make(uint64_t seed, size_t len) {
    for (size_t at = 0; at < len; at++) room[at] = (unsigned char)(seed * 31 + at * 7 + at / 251);
}

static uint64_t sum_of(const void *from, size_t len) {
    const unsigned char *bytes = from;
    uint64_t sum = 0xcbf29ce484222325u;
    size_t at = 0;
    for (; at + 8 <= len; at += 8) {
        uint64_t word = 0;
        for (int i = 7; i >= 0; i--) word = word << 8 | bytes[at + (size_t)i];
        sum = (sum ^ word) * 0x100000001b3u;
    }
    for (; at < len; at++) sum = (sum ^ bytes[at]) * 0x100000001b3u;
    return sum;
}

static void answer(int64_t value, uint64_t sum) {
    if (value < 0) printf("-1 %d 0\n", errno);
    else printf("%" PRId64 " 0 %" PRIu64 "\n", value, sum);
}

static void answer_bytes(int64_t count) {
    answer(count, count < 0 ? 0 : sum_of(room, (size_t)count));
}

static void answer_attributes(int outcome, const struct stat *of) {
    uint64_t links = S_ISDIR(of->st_mode) ? 0 : (uint64_t)of->st_nlink, size = S_ISDIR(of->st_mode) ? 0 : (uint64_t)of->st_size;
    answer(outcome < 0 ? -1 : (int64_t)of->st_mode, size * 1000003 + links);
}

static uint64_t number(void) {
    const char *word = strtok(NULL, " \n");
    CHECK(word != NULL);
    return strtoull(word, NULL, 10);
}

static const char *name(void) {
    const char *word = strtok(NULL, " \n");
    CHECK(word != NULL);
    return strcmp(word, ".") == 0 ? "" : word;
}

static void list(int64_t file, int writes) {
    static struct dafs_extent extents[LIST_MAX];
    size_t cut = number(), total = 0;
    uint64_t seed = writes ? number() : 0;
    size_t count = number();
    CHECK(count <= LIST_MAX);
    for (size_t i = 0; i < count; i++) {
        extents[i].offset = number();
        extents[i].len = number();
        total += extents[i].len;
    }
    if (cut > total) cut = total;
    struct iovec pieces[2] = {{room, cut}, {room + cut, total - cut}};
    if (writes) {
        make(seed, total);
        answer(dafs_write_list(file, extents, count, pieces, 2), 0);
    } else {
        answer_bytes(dafs_read_list(file, extents, count, pieces, 2));
    }
}

static void list_names(const char *path) {
    int64_t listing = dafs_listat(root, path, 0);
    if (listing < 0) {
        answer(-1, 0);
        return;
    }
    struct dafs_dirent entry = DAFS_DIRENT_INIT;
    uint64_t count = 0, sum = 0;
    int more;
    while ((more = dafs_readdir(listing, &entry)) == 1) {
        count++;
        sum += sum_of(entry.name, strlen(entry.name)) * (2 * (uint64_t)entry.kind + 1);
    }
    answer(more < 0 ? -1 : (int64_t)count, sum);
    CHECK(dafs_close(listing) == 0);
}

static void list_xattrs(const char *path) {
    ssize_t size = dafs_listxattrat(root, path, (char *)room, ROOM);
    uint64_t count = 0, sum = 0;
    for (char *at = (char *)room; size > 0 && at < (char *)room + size; at += strlen(at) + 1) {
        count++;
        sum += sum_of(at, strlen(at));
    }
    answer(size < 0 ? -1 : (int64_t)count, sum);
}

static void head(const char *path, size_t len) {
    int64_t chain = dafs_chain_begin(root);
    CHECK(chain > 0 && dafs_chain_open(chain, path, O_RDONLY, 0) == 0);
    CHECK(dafs_chain_pread(chain, room, len, 0) == 0 && dafs_chain_close(chain) == 0);
    answer_bytes(dafs_chain_run(chain) < 0 ? -1 : dafs_chain_count(chain, 0));
    CHECK(dafs_close(chain) == 0);
}

static int of_file(const char *what) {
    static const char *const known[] = {"close",    "read",     "write", "readlist", "writelist", "append",
                                        "truncate", "allocate", "seek",  "sync",     "fstat",     "copy"};
    size_t which = 0, count = sizeof known / sizeof known[0];
    while (which < count && strcmp(known[which], what) != 0) which++;
    if (which == count) return 0;
    size_t slot = number();
    int64_t file = slots[slot], offset, len;
    struct stat found;
    memset(&found, 0, sizeof found);
    switch (which) {
    case 0:
        slots[slot] = -1;
        answer(dafs_close(file), 0);
        break;
    case 1:
        offset = (int64_t)number();
        answer_bytes(dafs_pread(file, room, number(), offset));
        break;
    case 2:
        offset = (int64_t)number();
        len = (int64_t)number();
        make(number(), (size_t)len);
        answer(dafs_pwrite(file, room, (size_t)len, offset), 0);
        break;
    case 3:
    case 4:
        list(file, which == 4);
        break;
    case 5:
        len = (int64_t)number();
        make(number(), (size_t)len);
        answer(dafs_append(file, room, (size_t)len), 0);
        break;
    case 6:
        answer(dafs_ftruncate(file, (int64_t)number()), 0);
        break;
    case 7: {
        int mode = (int)number();
        offset = (int64_t)number();
        answer(dafs_fallocate(file, mode, offset, (int64_t)number()), 0);
        break;
    }
    case 8:
        offset = (int64_t)number();
        answer(dafs_lseek(file, offset, (int)number()), 0);
        break;
    case 9:
        answer(dafs_fsync(file), 0);
        break;
    case 10:
        answer_attributes(dafs_fstat(file, &found), &found);
        break;
    default: {
        offset = (int64_t)number();
        int64_t to = slots[number()], target = (int64_t)number();
        answer(dafs_copy_file_range(file, offset, to, target, number()), 0);
    }
    }
    return 1;
}

static void of_names(const char *what) {
    const char *path = name(), *other;
    struct stat found;
    memset(&found, 0, sizeof found);
    if (strcmp(what, "stat") == 0) {
        answer_attributes(dafs_fstatat(root, path, &found, number() ? 0 : AT_SYMLINK_NOFOLLOW), &found);
    } else if (strcmp(what, "rename") == 0) {
        other = name();
        answer(dafs_renameat(root, path, root, other, number() ? 0 : DAFS_RENAME_NOREPLACE), 0);
    } else if (strcmp(what, "link") == 0) {
        answer(dafs_linkat(root, path, root, name()), 0);
    } else if (strcmp(what, "symlink") == 0) {
        answer(dafs_symlinkat(path, root, name()), 0);
    } else if (strcmp(what, "readlink") == 0) {
        answer_bytes(dafs_readlinkat(root, path, (char *)room, ROOM));
    } else if (strcmp(what, "unlink") == 0) {
        answer(dafs_unlinkat(root, path, number() ? AT_REMOVEDIR : 0), 0);
    } else if (strcmp(what, "mkdir") == 0) {
        answer(dafs_mkdirat(root, path, (uint32_t)number()), 0);
    } else if (strcmp(what, "setxattr") == 0) {
        other = name();
        size_t len = number();
        make(number(), len);
        answer(dafs_setxattrat(root, path, other, room, len, (int)number()), 0);
    } else if (strcmp(what, "getxattr") == 0) {
        answer_bytes(dafs_getxattrat(root, path, name(), room, ROOM));
    } else if (strcmp(what, "listxattr") == 0) {
        list_xattrs(path);
    } else if (strcmp(what, "removexattr") == 0) {
        answer(dafs_removexattrat(root, path, name()), 0);
    } else if (strcmp(what, "list") == 0) {
        list_names(path);
    } else if (strcmp(what, "chmod") == 0) {
        answer(dafs_fchmodat(root, path, (uint32_t)number()), 0);
    } else {
        CHECK(strcmp(what, "head") == 0);
        head(path, number());
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 5);
    /* What is written between the parts of a list would be data where a hole was. */
    struct dafs_options options = DAFS_OPTIONS_INIT;
    options.sieve = DAFS_SIEVE_OFF;
    int64_t session = dafs_connect(argv[1], &options), export = dafs_mount(session, argv[2]);
    CHECK(export > 0 && (root = dafs_opendirat(export, argv[3])) > 0);
    for (int i = 0; i < SLOTS; i++) slots[i] = -1;
    FILE *operations = fopen(argv[4], "r");
    CHECK(operations != NULL);
    static char line[8192];
    while (fgets(line, sizeof line, operations) != NULL) {
        const char *what = strtok(line, " \n");
        CHECK(what != NULL);
        if (strcmp(what, "open") == 0) {
            size_t slot = number();
            if (slots[slot] > 0) CHECK(dafs_close(slots[slot]) == 0);
            const char *path = name();
            int flags = (int)number();
            slots[slot] = dafs_openat(root, path, flags, (uint32_t)number());
            answer(slots[slot] < 0 ? -1 : 0, 0);
        } else if (!of_file(what)) {
            of_names(what);
        }
    }
    fclose(operations);
    CHECK(dafs_disconnect(session) == 0);
    return 0;
}
