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

/* All ranks write the same strided bytes at once; what is there is one rank's. */
static void run_overlapping_writes(void)
{
    unsigned char *memory = check_alloc(BLOCKS * LEN);
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
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, type, "native", MPI_INFO_NULL));
    for (int round = 0; round < 30; round++) {
        memset(memory, 1 + check.rank, BLOCKS * LEN);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_write_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK_FILLED(memory, memory[0], 0, BLOCKS * LEN);
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, BLOCKS * LEN, MPI_BYTE, &status));
        CHECK(memory[0] >= 1 && memory[0] <= check.ranks, "nobody wrote 0x%02x", memory[0]);
        CHECK_FILLED(memory, memory[0], 0, BLOCKS * LEN);
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

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"set", 1, run_set, "set_atomicity succeeds or fails as MPI says, and the file stays usable"},
        {"overlapping_writes", 2, run_overlapping_writes, "overlapping strided writes do not mix"},
        {"visible", 2, run_visible, "writes are seen without sync"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
