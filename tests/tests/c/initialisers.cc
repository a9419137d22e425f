// The header and its initialisers are C++17 too.
#include <dafs.h>

int main() {
    dafs_options options = DAFS_OPTIONS_INIT;
    dafs_info info = DAFS_INFO_INIT;
    dafs_dirent entry = DAFS_DIRENT_INIT;
    dafs_op op = DAFS_OP_INIT;
    dafs_attributes attributes = DAFS_ATTRIBUTES_INIT;
    dafs_expected expected = DAFS_EXPECTED_INIT;
    dafs_flock lock = DAFS_FLOCK_INIT;
    dafs_view_place place = DAFS_VIEW_PLACE_INIT;
    dafs_batch_hints hints = DAFS_BATCH_HINTS_INIT;
    bool are = options.size == sizeof options && info.size == sizeof info && entry.size == sizeof entry && op.size == sizeof op;
    are = are && attributes.size == sizeof attributes && expected.size == sizeof expected && lock.size == sizeof lock;
    return are && place.size == sizeof place && hints.size == sizeof hints ? 0 : 1;
}
