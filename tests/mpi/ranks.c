/* What ranks do to one another's files, and many opens: other communicators, several files, many times. */
#include "check.h"

#include <dirent.h>

static unsigned char memory[200000];

/* An open file that another rank deletes goes on by the handle, or its operations fail; nobody hangs, nothing is garbage. */
static void run_deleted_while_open(void)
{
    enum { LEN = 50000 };
    MPI_Status status;
    MPI_File fh, again = MPI_FILE_NULL;
    int error, got = -1, deleted = 0;
    check_make(check.file, 1, LEN);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    if (check.rank == check.ranks - 1)
        deleted = CHECK_CLASS(MPI_File_delete(check.file, MPI_INFO_NULL), MPI_SUCCESS, MPI_ERR_FILE_IN_USE) == MPI_SUCCESS;
    MPI_Bcast(&deleted, 1, MPI_INT, check.ranks - 1, MPI_COMM_WORLD);
    memset(memory, CHECK_POISON, LEN);
    error = MPI_File_read_at(fh, 0, memory, LEN, MPI_BYTE, &status);
    if (CHECK_CLASS(error, MPI_SUCCESS, MPI_ERR_NO_SUCH_FILE, MPI_ERR_IO) == MPI_SUCCESS) {
        MPI_Get_count(&status, MPI_BYTE, &got);
        CHECK_EQUAL(got, LEN);
        CHECK_PATTERN(memory, 1, 0, LEN);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (deleted) {
        CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_RDONLY, check.info, &again), MPI_ERR_NO_SUCH_FILE);
    }
    pattern_fill(memory, 2, (uint64_t)check.rank * 100, 100);
    error = MPI_File_write_at(fh, check.rank * 100, memory, 100, MPI_BYTE, &status);
    CHECK_CLASS(error, MPI_SUCCESS, MPI_ERR_NO_SUCH_FILE, MPI_ERR_IO);
    CHECK_CLASS(MPI_File_close(&fh), MPI_SUCCESS, MPI_ERR_NO_SUCH_FILE, MPI_ERR_IO);
}

/* What a read that met a cut may give: the old bytes, and beyond the new end old bytes, zeros of a page that is being cut, or less. */
static void check_cut(const unsigned char *got, int len, int size)
{
    CHECK(len >= size && len <= (int)sizeof memory, "%d bytes, of %d that stay", len, size);
    CHECK_PATTERN(got, 1, 0, (size_t)(len < size ? len : size));
    for (int i = size; i < len && i < (int)sizeof memory; i++)
        if (got[i] != 0 && got[i] != pattern(1, (uint64_t)i)) {
            CHECK(0, "offset %d, beyond the new end %d: expected 0x%02x or 0, got 0x%02x", i, size, pattern(1, (uint64_t)i), got[i]);
            break;
        }
}

/* One rank cuts a file while the others read it. */
static void run_cut_while_read(void)
{
    enum { LEN = 200000, ROUNDS = 60 };
    MPI_File fh, own;
    MPI_Status status;
    check_make(check.file, 1, LEN);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        int got = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        if (check.rank == 0) {
            own = check_open_as(MPI_COMM_SELF, check.file, MPI_MODE_RDWR, __FILE__, __LINE__);
            CHECK_MPI(MPI_File_set_size(own, LEN - round * 3333));
            CHECK_MPI(MPI_File_close(&own));
        } else {
            memset(memory, CHECK_POISON, LEN);
            CHECK_MPI(MPI_File_read_at(fh, 0, memory, LEN, MPI_BYTE, &status));
            MPI_Get_count(&status, MPI_BYTE, &got);
            check_cut(memory, got, LEN - round * 3333);
        }
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* All ranks have the file open together, and one of them once more by itself. */
static void run_self_and_world(void)
{
    enum { LEN = 30000 };
    MPI_Status status;
    MPI_File all = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR), own = MPI_FILE_NULL;
    MPI_Offset mine = (MPI_Offset)check.rank * LEN, behind = (MPI_Offset)check.ranks * LEN;
    if (check.rank == 0)
        own = check_open_as(MPI_COMM_SELF, check.file, MPI_MODE_RDWR, __FILE__, __LINE__);
    pattern_fill(memory, 1, (uint64_t)mine, LEN);
    CHECK_MPI(MPI_File_write_at_all(all, mine, memory, LEN, MPI_BYTE, &status));
    if (check.rank == 0) {
        pattern_fill(memory, 2, 0, LEN);
        CHECK_MPI(MPI_File_write_at(own, behind, memory, LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_sync(own));
    }
    check_publish(all);
    CHECK_MPI(MPI_File_read_at_all(all, behind, memory, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_PATTERN(memory, 2, 0, LEN);
    if (check.rank == 0) {
        CHECK_MPI(MPI_File_sync(own));
        CHECK_MPI(MPI_File_read_at(own, behind - LEN, memory, LEN, MPI_BYTE, &status));
        CHECK_PATTERN(memory, 1, (uint64_t)(behind - LEN), LEN);
        CHECK_MPI(MPI_File_close(&own));
    }
    CHECK_MPI(MPI_File_close(&all));
}

/* Each rank opens a file of its own. */
static void run_own_files(void)
{
    enum { LEN = 40000 };
    char suffix[30];
    MPI_Status status;
    MPI_File fh;
    snprintf(suffix, sizeof suffix, ".%d", check.rank);
    fh = check_open_as(MPI_COMM_SELF, check_name(suffix), MPI_MODE_CREATE | MPI_MODE_RDWR, __FILE__, __LINE__);
    pattern_fill(memory, (uint64_t)check.rank, 0, LEN);
    CHECK_MPI(MPI_File_write_all(fh, memory, LEN, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(suffix, sizeof suffix, ".%d", (check.rank + 1) % check.ranks);
    CHECK_EQUAL(check_reread(check_name(suffix), 0, memory, LEN), LEN);
    CHECK_PATTERN(memory, (uint64_t)((check.rank + 1) % check.ranks), 0, LEN);
    MPI_Barrier(MPI_COMM_WORLD);
    if (!check.keep)
        CHECK_MPI(MPI_File_delete(check_name(suffix), MPI_INFO_NULL));
}

/* Even and odd ranks have files of their own, and the last rank none. */
static void run_subsets(void)
{
    enum { LEN = 10000 };
    int half = check.rank == check.ranks - 1 && check.ranks > 2 ? MPI_UNDEFINED : check.rank % 2, rank, ranks;
    char suffix[30];
    MPI_Comm comm;
    MPI_Status status;
    MPI_File fh;
    MPI_Comm_split(MPI_COMM_WORLD, half, -check.rank, &comm); /* In the opposite order. */
    if (comm == MPI_COMM_NULL)
        return;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    snprintf(suffix, sizeof suffix, ".half%d", half);
    fh = check_open_as(comm, check_name(suffix), MPI_MODE_CREATE | MPI_MODE_RDWR, __FILE__, __LINE__);
    pattern_fill(memory, (uint64_t)half, (uint64_t)rank * LEN, LEN);
    CHECK_MPI(MPI_File_write_at_all(fh, (MPI_Offset)rank * LEN, memory, LEN, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(comm);
    CHECK_EQUAL(check_reread(check_name(suffix), 0, memory, LEN * ranks), LEN * ranks);
    CHECK_PATTERN(memory, (uint64_t)half, 0, (size_t)(LEN * ranks));
    MPI_Barrier(comm);
    if (rank == 0 && !check.keep)
        CHECK_MPI(MPI_File_delete(check_name(suffix), MPI_INFO_NULL));
    MPI_Comm_free(&comm);
}

/* A communicator may be freed while a file of it is open. */
static void run_communicator_freed(void)
{
    MPI_Comm comm;
    MPI_Status status;
    MPI_File fh;
    MPI_Offset at = (MPI_Offset)check.rank * 1000;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    fh = check_open_as(comm, check.file, MPI_MODE_CREATE | MPI_MODE_RDWR, __FILE__, __LINE__);
    MPI_Comm_free(&comm);
    pattern_fill(memory, 1, (uint64_t)at, 1000);
    CHECK_MPI(MPI_File_write_at_all(fh, at, memory, 1000, MPI_BYTE, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, 1000 * check.ranks, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 0, 1000 * (size_t)check.ranks);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Several files are open at once, and written and read by turns. */
static void run_several_files(void)
{
    enum { FILES = 8, ROUNDS = 10, LEN = 5000 };
    MPI_File files[FILES];
    MPI_Status status;
    char suffix[30];
    for (int i = 0; i < FILES; i++) {
        snprintf(suffix, sizeof suffix, ".%d", i);
        files[i] = check_open_as(MPI_COMM_WORLD, check_name(suffix), MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE,
                                 __FILE__, __LINE__);
    }
    for (int k = 0; k < ROUNDS * FILES; k++) {
        MPI_Offset at = ((MPI_Offset)(k / FILES) * check.ranks + check.rank) * LEN;
        pattern_fill(memory, (uint64_t)(k % FILES), (uint64_t)at, LEN);
        CHECK_MPI(MPI_File_write_at(files[k % FILES], at, memory, LEN, MPI_BYTE, &status));
    }
    for (int i = 0; i < FILES; i++)
        check_publish(files[i]);
    for (int i = FILES - 1; i >= 0; i--) {
        int bytes = ROUNDS * LEN * check.ranks;
        unsigned char *all = check_alloc((size_t)bytes);
        CHECK_MPI(MPI_File_read_at(files[i], 0, all, bytes, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, bytes);
        CHECK_PATTERN(all, (uint64_t)i, 0, (size_t)bytes);
        free(all);
        CHECK_MPI(MPI_File_close(&files[i]));
    }
}

/* One file is open twice: what one writes and syncs the other reads. */
static void run_opened_twice(void)
{
    enum { LEN = 10000 };
    MPI_File writer = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR), reader = CHECK_OPEN(MPI_MODE_RDWR);
    MPI_Offset mine = (MPI_Offset)check.rank * LEN, theirs = (MPI_Offset)((check.rank + 1) % check.ranks) * LEN;
    MPI_Status status;
    for (int round = 0; round < 10; round++) {
        pattern_fill(memory, (uint64_t)round, (uint64_t)mine, LEN);
        CHECK_MPI(MPI_File_write_at(writer, mine, memory, LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_sync(writer));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_sync(reader));
        CHECK_MPI(MPI_File_read_at(reader, theirs, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
        CHECK_PATTERN(memory, (uint64_t)round, (uint64_t)theirs, LEN);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&writer));
    CHECK_MPI(MPI_File_read_at(reader, theirs, memory, LEN, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 9, (uint64_t)theirs, LEN);
    CHECK_MPI(MPI_File_close(&reader));
}

/* One file is open twice, once to be read alone: what one writes and syncs the other reads, after a sync of its own. */
static void run_sync_read_only(void)
{
    enum { LEN = 1000 };
    MPI_File writer = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR), reader = CHECK_OPEN(MPI_MODE_RDONLY);
    MPI_Offset mine = (MPI_Offset)check.rank * LEN, theirs = (MPI_Offset)((check.rank + 1) % check.ranks) * LEN;
    MPI_Status status;
    pattern_fill(memory, 1, (uint64_t)mine, LEN);
    CHECK_MPI(MPI_File_write_at(writer, mine, memory, LEN, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_sync(writer));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_sync(reader));
    CHECK_MPI(MPI_File_read_at(reader, theirs, memory, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_PATTERN(memory, 1, (uint64_t)theirs, LEN);
    CHECK_MPI(MPI_File_close(&reader));
    CHECK_MPI(MPI_File_close(&writer));
}

static void run_delete_on_close(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    MPI_Status status;
    pattern_fill(memory, 1, 0, 1000);
    CHECK_MPI(MPI_File_write_at(fh, 1000 * check.rank, memory, 1000, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_read_at(fh, 1000 * check.rank, memory, 1000, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 0, 1000);
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_RDONLY, check.info, &fh), MPI_ERR_NO_SUCH_FILE);
}

/* Descriptors that this process has open. */
static int descriptors(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int count = 0;
    CHECK(dir != NULL, "/proc/self/fd cannot be opened");
    if (dir == NULL)
        return 0;
    while (readdir(dir) != NULL)
        count++;
    closedir(dir);
    return count;
}

/* Opens and closes the file, with a read of it. */
static void reopen(int times)
{
    MPI_Status status;
    for (int i = 0; i < times; i++) {
        MPI_File fh = CHECK_OPEN(i % 2 ? MPI_MODE_RDONLY : MPI_MODE_RDWR);
        CHECK_MPI(MPI_File_read_at(fh, 10 * check.rank, memory, 100, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, 100);
        CHECK_PATTERN(memory, 1, 10 * (uint64_t)check.rank, 100);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* Opens leave no descriptor behind; the first ones may, as libraries keep connections. */
static void run_reopen(void)
{
    int before;
    check_make(check.file, 1, 1000);
    reopen(20);
    before = descriptors();
    reopen(200);
    /* Ranks may connect to each other late, once; what an open leaves is left each time. */
    if (descriptors() != before) {
        before = descriptors();
        reopen(200);
    }
    CHECK_EQUAL(descriptors(), before);
}

/* Opens that fail leave no descriptor behind either. */
static void run_failing_opens(void)
{
    int before = 0;
    for (int i = 0; i < 120; i++) {
        MPI_File fh = MPI_FILE_NULL;
        if (i == 20)
            before = descriptors();
        CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_RDONLY, check.info, &fh), MPI_ERR_NO_SUCH_FILE);
    }
    CHECK_EQUAL(descriptors(), before);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"deleted_while_open", 1, run_deleted_while_open, "another rank deletes the file"},
        {"cut_while_read", 2, run_cut_while_read, "another rank cuts the file"},
        {"self_and_world", 1, run_self_and_world, "opens by MPI_COMM_SELF and MPI_COMM_WORLD"},
        {"own_files", 1, run_own_files, "each rank has a file of its own"},
        {"subsets", 1, run_subsets, "communicators of some ranks"},
        {"communicator_freed", 1, run_communicator_freed, "the communicator is freed while the file is open"},
        {"several_files", 1, run_several_files, "8 files at once"},
        {"opened_twice", 1, run_opened_twice, "one file is open twice"},
        {"sync_read_only", 1, run_sync_read_only, "the same, once to be read alone"},
        {"delete_on_close", 1, run_delete_on_close, "MPI_MODE_DELETE_ON_CLOSE"},
        {"reopen", 1, run_reopen, "200 opens leave no descriptor behind"},
        {"failing_opens", 1, run_failing_opens, "100 failing opens leave no descriptor behind"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
