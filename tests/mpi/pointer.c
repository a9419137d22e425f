/* The shared pointer of a file that is there and may not be changed: shared out among the ranks, or refused to all alike. */
#include "check.h"

#define ROUNDS 20
#define LEN 100
/* What the file has. */
#define SIZE 7000

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

/* One ordered read of all ranks, whole or split. */
static void read_ordered(MPI_File fh, void *memory, int count, MPI_Datatype type, MPI_Status *status, int split)
{
    if (!split) {
        CHECK_MPI(MPI_File_read_ordered(fh, memory, count, type, status));
        return;
    }
    CHECK_MPI(MPI_File_read_ordered_begin(fh, memory, count, type));
    CHECK_MPI(MPI_File_read_ordered_end(fh, memory, status));
}

/* All ranks read on until none finds a byte any more, as a loop over a whole file does. */
static void check_to_the_end(MPI_File fh, int split)
{
    enum { PIECE = 1000 };
    unsigned char memory[PIECE];
    int found = 1;
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    for (MPI_Offset round = 0; found > 0; round++) {
        MPI_Offset at = (round * check.ranks + check.rank) * PIECE;
        int want = at >= SIZE ? 0 : at + PIECE > SIZE ? (int)(SIZE - at) : PIECE;
        MPI_Status status;
        read_ordered(fh, memory, PIECE, MPI_BYTE, &status, split);
        CHECK_COUNT(&status, MPI_BYTE, want);
        for (int i = 0; i < want; i++)
            CHECK(memory[i] == (unsigned char)(at + i), "offset %lld: got 0x%02x", (long long)at + i, memory[i]);
        MPI_Allreduce(&want, &found, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    }
}

/* Columns of a matrix of 3 rows, whose tiles interleave: an exchange, which goes by the order of the file, reads other bytes. */
static void check_columns(MPI_File fh, int split)
{
    enum { INTS = 25, ROW = 800 };
    unsigned char memory[INTS * 4];
    MPI_Datatype column, type;
    MPI_Status status;
    MPI_Type_create_hvector(3, 1, ROW, MPI_INT, &column);
    MPI_Type_create_resized(column, 0, 4, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_INT, type, "native", MPI_INFO_NULL));
    for (int round = 0; round < 3; round++) {
        read_ordered(fh, memory, INTS, MPI_INT, &status, split);
        CHECK_COUNT(&status, MPI_INT, INTS);
        for (int i = 0; i < INTS; i++) {
            int number = (round * check.ranks + check.rank) * INTS + i, at = number % 3 * ROW + number / 3 * 4;
            CHECK(memory[i * 4] == (unsigned char)at, "number %d: got 0x%02x", number, memory[i * 4]);
        }
    }
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    MPI_Type_free(&column);
    MPI_Type_free(&type);
}

/* All ranks seek, and are told where that is. */
static void check_seek(MPI_File fh, MPI_Offset offset, int whence, MPI_Offset want)
{
    MPI_Offset position = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_seek_shared(fh, offset, whence));
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, want);
}

/* What names no place is refused to all ranks alike, and the pointer stays. */
static void check_seeks_refused(MPI_File fh)
{
    static const struct {
        MPI_Offset offset;
        int whence;
    } bad[] = {{-1, MPI_SEEK_SET}, {-SIZE - 1, MPI_SEEK_END}, {-101, MPI_SEEK_CUR}, {INT64_MAX, MPI_SEEK_CUR}, {0, -77}};
    check_seek(fh, 100, MPI_SEEK_SET, 100);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK_CLASS(MPI_File_seek_shared(fh, bad[i].offset, bad[i].whence), MPI_ERR_ARG);
        check_seek(fh, 0, MPI_SEEK_CUR, 100);
    }
}

/* The end is that of a view of every other int, which begins anywhere. */
static void check_seeks_in_view(MPI_File fh, MPI_Offset displacement)
{
    const MPI_Offset end = (SIZE - displacement) / 8, at = end - check.ranks;
    unsigned char memory[4];
    MPI_Datatype type;
    MPI_Status status;
    MPI_Type_create_resized(MPI_INT, 0, 8, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, displacement, MPI_INT, type, "native", MPI_INFO_NULL));
    check_seek(fh, 0, MPI_SEEK_END, end);
    check_seek(fh, -end, MPI_SEEK_CUR, 0);
    check_seek(fh, at - end, MPI_SEEK_END, at);
    CHECK_MPI(MPI_File_read_ordered(fh, memory, 1, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_INT, 1);
    CHECK_EQUAL(memory[0], (unsigned char)(displacement + 8 * (at + check.rank)));
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
}

/* A file that may be written, in a directory that may not. */
static void run_writable(void)
{
    unsigned char memory[LEN];
    MPI_File fh = CHECK_OPEN(MPI_MODE_RDWR);
    MPI_Status status;
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Offset at = ((MPI_Offset)i * check.ranks + check.rank) * LEN;
        for (int k = 0; k < LEN; k++)
            memory[k] = (unsigned char)(at + k);
        CHECK_MPI(MPI_File_write_ordered(fh, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_MPI(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status));
        check_given(memory, ((MPI_Offset)i * check.ranks + check.rank) * LEN);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* A view of a sequential file begins where the pointer is. */
static void check_sequential_refused(void)
{
    unsigned char memory[LEN];
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
    CHECK_CLASS(MPI_File_set_view(fh, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_READ_ONLY,
                MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

/* The same of one whose pointer there is. The second view begins behind what was read by the first. */
static void check_sequential(void)
{
    enum { INTS = LEN / 4 };
    unsigned char memory[LEN];
    MPI_Datatype pair, type;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
    CHECK_MPI(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status));
    MPI_Type_contiguous(1, MPI_INT, &pair);
    MPI_Type_create_resized(pair, 0, 8, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, MPI_DISPLACEMENT_CURRENT, MPI_INT, type, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_read_ordered(fh, memory, INTS, MPI_INT, &status));
    for (int i = 0; i < INTS; i++) {
        int at = LEN * check.ranks + 8 * (INTS * check.rank + i);
        CHECK(memory[i * 4] == (unsigned char)at, "int %d: got 0x%02x", i, memory[i * 4]);
    }
    CHECK_MPI(MPI_File_set_view(fh, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_read_ordered(fh, memory, LEN, MPI_BYTE, &status));
    check_given(memory, (LEN + 8 * INTS) * (MPI_Offset)check.ranks + LEN * (MPI_Offset)check.rank);
    MPI_Type_free(&pair);
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
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
        check_sequential_refused();
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
    for (int split = 0; split < 2; split++) {
        check_to_the_end(fh, split);
        check_columns(fh, split);
    }
    check_seeks_refused(fh);
    check_seeks_in_view(fh, 0);
    check_seeks_in_view(fh, 1000);
    CHECK_MPI(MPI_File_close(&fh));
    check_sequential();
    fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_APPEND);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, SIZE);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"given", 1, run_given, "a file of 7,000 bytes, each the low byte of its offset"},
        {"writable", 1, run_writable, "a file that may be written, in a directory that may not"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "--refused", MPI_THREAD_SINGLE);
}
