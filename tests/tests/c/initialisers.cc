// The header and its initialisers are C++17 too.
#include <dafs.h>

int main() {
    dafs_options options = DAFS_OPTIONS_INIT;
    dafs_dirent entry = DAFS_DIRENT_INIT;
    dafs_op op = DAFS_OP_INIT;
    return options.size == sizeof options && entry.size == sizeof entry && op.size == sizeof op ? 0 : 1;
}
