/* The header and its initialisers are C99. */
#define _POSIX_C_SOURCE 200809L
#include <dafs.h>

int main(void) {
    struct dafs_options options = DAFS_OPTIONS_INIT;
    struct dafs_info info = DAFS_INFO_INIT;
    struct dafs_dirent entry = DAFS_DIRENT_INIT;
    struct dafs_op op = DAFS_OP_INIT;
    struct dafs_attributes attributes = DAFS_ATTRIBUTES_INIT;
    struct dafs_expected expected = DAFS_EXPECTED_INIT;
    struct dafs_flock lock = DAFS_FLOCK_INIT;
    struct dafs_view_place place = DAFS_VIEW_PLACE_INIT;
    struct dafs_batch_hints hints = DAFS_BATCH_HINTS_INIT;
    int are = options.size == sizeof options && info.size == sizeof info && entry.size == sizeof entry && op.size == sizeof op;
    are = are && attributes.size == sizeof attributes && expected.size == sizeof expected && lock.size == sizeof lock;
    return are && place.size == sizeof place && hints.size == sizeof hints ? 0 : 1;
}
