/* Atomic mode: refused by MPI's error for it, or kept: overlapping writes do not mix. */
#include "check.h"

#define BLOCKS 200
#define LEN 512

/* Sets atomic mode and tries it. 0, on all ranks, where it is refused as MPI says. */
static int is_atomic(MPI_File fh)
{
    unsigned char byte = 1;
    MPI_Status status;
    int flag = -1, mine, all;
    int error_class = CHECK_CLASS(MPI_File_set_atomicity(fh, 1), MPI_SUCCESS, MPI_ERR_UNSUPPORTED_OPERATION);
    const char *where = "MPI_File_set_atomicity";
    if (error_class == MPI_SUCCESS) {
        CHECK_MPI(MPI_File_get_atomicity(fh, &flag));
        CHECK_EQUAL(flag, 1);
        error_class = MPI_File_write_at(fh, check.rank, &byte, 1, MPI_BYTE, &status);
        error_class = CHECK_CLASS(error_class, MPI_SUCCESS, MPI_ERR_UNSUPPORTED_OPERATION);
        where = "the first write after it";
    }
    mine = error_class == MPI_SUCCESS;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 0 || all == check.ranks, "%d of %d ranks have atomic mode", all, check.ranks);
    if (check.rank == 0)
        printf("atomic mode: %s\n", mine ? "supported" : where);
    return all == check.ranks;
}

/* A refusal leaves the mode as it was and the file usable. */
static void run_set(void)
{
    unsigned char memory[LEN];
    MPI_Offset at = LEN * (MPI_Offset)check.rank;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    int flag = -1;
    is_atomic(fh);
    CHECK_MPI(MPI_File_set_atomicity(fh, 0));
    CHECK_MPI(MPI_File_get_atomicity(fh, &flag));
    CHECK_EQUAL(flag, 0);
    pattern_fill(memory, 1, (uint64_t)at, LEN);
    CHECK_MPI(MPI_File_write_at(fh, at, memory, LEN, MPI_BYTE, &status));
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, at, memory, LEN), LEN);
    CHECK_PATTERN(memory, 1, (uint64_t)at, LEN);
    CHECK_MPI(MPI_File_close(&fh));
}

/* All ranks write the same strided bytes at once, the odd ones from the second block on; what is there of both is one rank's. */
static void run_overlapping_writes(void)
{
    enum { SHARED = (BLOCKS - 1) * LEN };
    const int odd = check.rank % 2;
    unsigned char *memory = check_alloc(BLOCKS * LEN), *shared = memory + (odd ? 0 : LEN);
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype type;
    MPI_Status status;
    if (!is_atomic(fh)) {
        CHECK_MPI(MPI_File_close(&fh));
        free(memory);
        check_skip("atomic mode is refused");
    }
    MPI_Type_vector(BLOCKS, LEN, 3 * LEN, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, odd * 3 * LEN, MPI_BYTE, type, "native", MPI_INFO_NULL));
    for (int round = 0; round < 30; round++) {
        memset(memory, 1 + check.rank, BLOCKS * LEN);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_write_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK_FILLED(shared, shared[0], 0, SHARED);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK(shared[0] >= 1 && shared[0] <= check.ranks, "nobody wrote 0x%02x", shared[0]);
        CHECK_FILLED(shared, shared[0], 0, SHARED);
    }
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* A write is visible to the others once it is done, without sync. */
static void run_visible(void)
{
    unsigned char memory[LEN];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Status status;
    if (!is_atomic(fh)) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("atomic mode is refused");
    }
    for (int round = 0; round < 50; round++) {
        MPI_Offset mine = LEN * (MPI_Offset)check.rank, theirs = LEN * (MPI_Offset)((check.rank + 1) % check.ranks);
        pattern_fill(memory, (uint64_t)round, (uint64_t)mine, LEN);
        CHECK_MPI(MPI_File_write_at(fh, mine, memory, LEN, MPI_BYTE, &status));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_read_at(fh, theirs, memory, LEN, MPI_BYTE, &status));
        CHECK_PATTERN(memory, (uint64_t)round, (uint64_t)theirs, LEN);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Opens the file, in atomic mode; leaves the case where that is refused. */
static MPI_File open_atomic(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    if (!is_atomic(fh)) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("atomic mode is refused");
    }
    return fh;
}

/* What was read is one rank's write, or what was there before the first. */
static void check_whole(const unsigned char *memory, size_t len, int before)
{
    int mark = memory[0] & 0x0f;
    CHECK(mark >= (before ? 0 : 1) && mark <= check.ranks, "nobody wrote 0x%02x", memory[0]);
    CHECK_FILLED(memory, memory[0], 0, len);
}

/* A mark of this rank and a round, from which a mixture is told. */
static int mark(int round)
{
    return (round % 15) << 4 | (1 + check.rank);
}

/* All ranks write one range and read it meanwhile: small ones, which go with their lock, and larger ones than a request carries. */
static void run_contiguous(void)
{
    static const int lens[] = {8, 4096, 100000, 3000000};
    unsigned char *memory = check_alloc(3000000);
    MPI_File fh = open_atomic();
    MPI_Status status;
    for (int k = 0; k < 4; k++) {
        MPI_Barrier(MPI_COMM_WORLD);
        if (check.rank == 0) {
            memset(memory, 0, (size_t)lens[k]);
            CHECK_MPI(MPI_File_write_at(fh, 5, memory, lens[k], MPI_BYTE, &status));
        }
        MPI_Barrier(MPI_COMM_WORLD);
        for (int round = 0; round < (lens[k] > 1000000 ? 5 : 40); round++) {
            memset(memory, mark(round), (size_t)lens[k]);
            CHECK_MPI(MPI_File_write_at(fh, 5, memory, lens[k], MPI_BYTE, &status));
            CHECK_COUNT(&status, MPI_BYTE, lens[k]);
            memset(memory, CHECK_POISON, (size_t)lens[k]);
            CHECK_MPI(MPI_File_read_at(fh, 5, memory, lens[k], MPI_BYTE, &status));
            CHECK_COUNT(&status, MPI_BYTE, lens[k]);
            check_whole(memory, (size_t)lens[k], 0);
        }
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Half of the ranks write, the others read; a read sees a write as a whole. */
static void run_reads_beside_writes(void)
{
    unsigned char *memory = check_alloc(BLOCKS * LEN);
    MPI_File fh = open_atomic();
    MPI_Datatype type;
    MPI_Status status;
    memset(memory, 0, BLOCKS * LEN);
    MPI_Type_vector(BLOCKS, LEN, 2 * LEN, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 100, MPI_BYTE, type, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_write_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < 30; round++) {
        if (check.rank % 2 == 0) {
            memset(memory, mark(round), BLOCKS * LEN);
            CHECK_MPI(MPI_File_write_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        } else {
            CHECK_MPI(MPI_File_read_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
            check_whole(memory, BLOCKS * LEN, 1);
        }
    }
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Several requests of each rank for one range at once, and a call that waits beside them. */
static void run_nonblocking(void)
{
    enum { REQUESTS = 6, SIZE = BLOCKS * LEN };
    unsigned char *memory = check_alloc((REQUESTS + 1) * SIZE);
    MPI_File fh = open_atomic();
    MPI_Request requests[REQUESTS];
    MPI_Status statuses[REQUESTS], status;
    MPI_Datatype type;
    MPI_Type_vector(BLOCKS, LEN, 2 * LEN, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, type, "native", MPI_INFO_NULL));
    memset(memory, mark(0), SIZE);
    CHECK_MPI(MPI_File_write_at(fh, 0, memory, SIZE, MPI_BYTE, &status));
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < 6; round++) {
        for (int i = 0; i < REQUESTS; i++) {
            unsigned char *own = memory + i * SIZE;
            memset(own, i % 2 ? CHECK_POISON : mark(round), SIZE);
            if (i % 2)
                CHECK_MPI(MPI_File_iread_at(fh, 0, own, SIZE, MPI_BYTE, &requests[i]));
            else
                CHECK_MPI(MPI_File_iwrite_at(fh, 0, own, SIZE, MPI_BYTE, &requests[i]));
        }
        CHECK_MPI(MPI_File_read_at(fh, 0, memory + REQUESTS * SIZE, SIZE, MPI_BYTE, &status));
        check_whole(memory + REQUESTS * SIZE, SIZE, 0);
        CHECK_MPI(MPI_Waitall(REQUESTS, requests, statuses));
        for (int i = 0; i < REQUESTS; i++) {
            CHECK_COUNT(&statuses[i], MPI_BYTE, SIZE);
            check_whole(memory + i * SIZE, SIZE, 0);
        }
    }
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Reads that meet the end of the file tell what they found, nonblocking ones too. */
static void run_end_of_file(void)
{
    unsigned char memory[100];
    MPI_Request request;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 150);
    fh = open_atomic();
    /* Where each rank wrote a byte to try it. */
    check_publish(fh);
    CHECK_MPI(MPI_File_read_at(fh, 100, memory, 100, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, 50);
    CHECK_MPI(MPI_File_iread_at(fh, 100, memory, 100, MPI_BYTE, &request));
    CHECK_MPI(MPI_Wait(&request, &status));
    CHECK_COUNT(&status, MPI_BYTE, 50);
    CHECK_PATTERN(memory, 1, 100, 50);
    CHECK_MPI(MPI_File_seek(fh, 140, MPI_SEEK_SET));
    CHECK_MPI(MPI_File_iread(fh, memory, 100, MPI_BYTE, &request));
    CHECK_MPI(MPI_Wait(&request, &status));
    CHECK_COUNT(&status, MPI_BYTE, 10);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Requests that nobody tests while this rank waits for another. */
static void run_nonblocking_untested(void)
{
    enum { SIZE = 50000 };
    unsigned char *memory = check_alloc(2 * SIZE);
    MPI_File fh = open_atomic(), again = CHECK_OPEN(MPI_MODE_RDWR);
    MPI_Request request;
    MPI_Status status;
    CHECK_MPI(MPI_File_set_atomicity(again, 1));
    for (int round = 0; round < 20; round++) {
        memset(memory, mark(round), 2 * SIZE);
        CHECK_MPI(MPI_File_iwrite_at(fh, 0, memory, SIZE, MPI_BYTE, &request));
        /* By another file of the same process, over the same bytes. */
        CHECK_MPI(MPI_File_write_at(again, 100, memory + SIZE, SIZE, MPI_BYTE, &status));
        CHECK_MPI(MPI_Wait(&request, &status));
        CHECK_COUNT(&status, MPI_BYTE, SIZE);
    }
    CHECK_MPI(MPI_File_close(&again));
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Collective calls over bytes that all ranks share. */
static void run_collective(void)
{
    unsigned char *memory = check_alloc(BLOCKS * LEN);
    MPI_File fh = open_atomic();
    MPI_Datatype type;
    MPI_Status status;
    MPI_Type_vector(BLOCKS, LEN, 2 * LEN, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, type, "native", MPI_INFO_NULL));
    for (int round = 0; round < 15; round++) {
        memset(memory, mark(round), BLOCKS * LEN);
        if (round % 3 == 0) {
            CHECK_MPI(MPI_File_write_at_all(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        } else if (round % 3 == 1) {
            CHECK_MPI(MPI_File_write_at_all_begin(fh, 0, memory, BLOCKS * LEN, MPI_BYTE));
            CHECK_MPI(MPI_File_write_at_all_end(fh, memory, &status));
        } else {
            CHECK_MPI(MPI_File_seek(fh, 0, MPI_SEEK_SET));
            CHECK_MPI(MPI_File_write_all(fh, memory, BLOCKS * LEN, MPI_BYTE, &status));
        }
        CHECK_COUNT(&status, MPI_BYTE, BLOCKS * LEN);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        check_whole(memory, BLOCKS * LEN, 0);
        CHECK(memory[0] >> 4 == round, "a write of round %d, and not of %d, is there", memory[0] >> 4, round);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* On and off again; each open begins without. */
static void run_toggle(void)
{
    unsigned char memory[LEN];
    MPI_Offset at = LEN * (MPI_Offset)check.rank;
    MPI_Status status;
    MPI_File fh = open_atomic();
    int flag = -1;
    for (int round = 0; round < 10; round++) {
        CHECK_MPI(MPI_File_set_atomicity(fh, round % 2 ? 7 : 0));
        CHECK_MPI(MPI_File_get_atomicity(fh, &flag));
        CHECK(!flag == !(round % 2), "round %d: atomicity is %d", round, flag);
        pattern_fill(memory, (uint64_t)round, (uint64_t)at, LEN);
        CHECK_MPI(MPI_File_write_at(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_read_at(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_PATTERN(memory, (uint64_t)round, (uint64_t)at, LEN);
    }
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_get_atomicity(fh, &flag));
    CHECK_EQUAL(flag, 0);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A file that is open one way alone is locked that way alone. */
static void run_one_way(void)
{
    unsigned char memory[2 * LEN];
    MPI_Status status;
    MPI_File fh = open_atomic();
    pattern_fill(memory, 1, 0, 2 * LEN);
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_WRONLY);
    CHECK_MPI(MPI_File_set_atomicity(fh, 1));
    CHECK_MPI(MPI_File_write_at(fh, 0, memory, 2 * LEN, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    CHECK_MPI(MPI_File_set_atomicity(fh, 1));
    CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, LEN, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 0, LEN);
    /* The end of the file ends a read. */
    CHECK_MPI(MPI_File_read_at(fh, LEN, memory, 2 * LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_CLASS(MPI_File_write_at(fh, 0, memory, LEN, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Ranks that ask for different modes get an error, and the mode stays. */
static void run_differing(void)
{
    MPI_File fh = open_atomic();
    int flag = -1;
    if (check.expect_dafs)
        CHECK_CLASS(MPI_File_set_atomicity(fh, check.rank != 0), MPI_ERR_NOT_SAME);
    else
        CHECK_CLASS(MPI_File_set_atomicity(fh, check.rank != 0), MPI_ERR_NOT_SAME, MPI_ERR_ARG, MPI_SUCCESS);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_set_atomicity(fh, 1));
    CHECK_MPI(MPI_File_get_atomicity(fh, &flag));
    CHECK_EQUAL(flag, 1);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"set", 1, run_set, "set_atomicity succeeds or fails as MPI says, and the file stays usable"},
        {"overlapping_writes", 2, run_overlapping_writes, "overlapping strided writes do not mix"},
        {"visible", 2, run_visible, "writes are seen without sync"},
        {"contiguous", 1, run_contiguous, "overlapping writes of 8 bytes to 3 MB do not mix"},
        {"reads_beside_writes", 2, run_reads_beside_writes, "a strided read sees a strided write as a whole"},
        {"nonblocking", 1, run_nonblocking, "several requests of each rank for one range"},
        {"end_of_file", 1, run_end_of_file, "reads end at the end of the file"},
        {"nonblocking_untested", 1, run_nonblocking_untested, "a call that waits for a request's range does not hang"},
        {"collective", 1, run_collective, "collective writes of the same bytes"},
        {"toggle", 1, run_toggle, "the mode is set and told, again and again"},
        {"one_way", 1, run_one_way, "files that are open for reading or writing alone"},
        {"differing", 2, run_differing, "ranks that ask for different modes"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
