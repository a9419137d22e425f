/* The shared pointer of a file that is there and may not be changed: shared out among the ranks, or refused to all alike. */
#include "check.h"

#define ROUNDS 20
#define LEN 100

/* What the file holds, from an offset on. */
static void check_given(const unsigned char *memory, MPI_Offset offset)
{
    for (int i = 0; i < LEN; i++)
        if (memory[i] != (unsigned char)(offset + i)) {
            CHECK(0, "offset %lld: got 0x%02x", (long long)offset + i, memory[i]);
            return;
        }
}

/* All calls fail, on all ranks, and nobody waits for another. */
static void check_refused(MPI_File fh)
{
    unsigned char memory[LEN];
    MPI_Status status;
    MPI_Offset position;
    CHECK_CLASS(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_read_ordered_begin(fh, memory, LEN, MPI_BYTE), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK(MPI_File_read_shared(fh, memory, LEN, MPI_BYTE, &status) != MPI_SUCCESS, "read_shared succeeded");
    CHECK(MPI_File_get_position_shared(fh, &position) != MPI_SUCCESS, "get_position_shared succeeded");
    /* Other calls are none the worse for it. */
    CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, LEN, MPI_BYTE, &status));
    check_given(memory, 0);
}

static void run_given(void)
{
    unsigned char memory[LEN];
    MPI_Status status;
    MPI_Offset position = -1;
    MPI_File fh = CHECK_OPEN(MPI_MODE_RDONLY);
    if (check_flag("--refused")) {
        check_refused(fh);
        CHECK_MPI(MPI_File_close(&fh));
        return;
    }
    CHECK_MPI(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status));
    check_given(memory, LEN * (MPI_Offset)check.rank);
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_MPI(MPI_File_read_shared(fh, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
        /* Whichever of the records it is. */
        check_given(memory, memory[0]);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, LEN * (ROUNDS + 1) * check.ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_seek_shared(fh, 5 * LEN, MPI_SEEK_SET));
    CHECK_MPI(MPI_File_read_ordered_begin(fh, memory, LEN, MPI_BYTE));
    CHECK_MPI(MPI_File_read_ordered_end(fh, memory, &status));
    check_given(memory, LEN * (MPI_Offset)(5 + check.rank));
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_APPEND);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, 7000);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"given", 1, run_given, "a file of 7,000 bytes, each the low byte of its offset"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "--refused", MPI_THREAD_SINGLE);
}
