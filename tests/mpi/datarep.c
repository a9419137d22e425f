/* Data representations: native as memory has it; external32 big-endian, or refused by MPI's error. */
#include "check.h"

/* Sets a view; 0, on all ranks, where the representation is refused as MPI says. */
static int set_view(MPI_File fh, MPI_Datatype type, const char *datarep)
{
    int error_class =
        CHECK_CLASS(MPI_File_set_view(fh, 0, type, type, datarep, MPI_INFO_NULL), MPI_SUCCESS, MPI_ERR_UNSUPPORTED_DATAREP);
    int mine = error_class == MPI_SUCCESS, all;
    MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 0 || all == check.ranks, "%d of %d ranks have %s", all, check.ranks, datarep);
    if (check.rank == 0)
        printf("%s: %s\n", datarep, mine ? "supported" : "refused");
    return all == check.ranks;
}

static void check_datarep(MPI_File fh, const char *want)
{
    char datarep[MPI_MAX_DATAREP_STRING] = "";
    MPI_Datatype etype, filetype;
    MPI_Offset displacement;
    CHECK_MPI(MPI_File_get_view(fh, &displacement, &etype, &filetype, datarep));
    CHECK(strcmp(datarep, want) == 0, "data representation: expected %s, got %s", want, datarep);
}

static void run_native(void)
{
    int values[4] = {1, 0x01020304, -1, 1 << check.rank}, got[4];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Status status;
    check_datarep(fh, "native");
    CHECK(set_view(fh, MPI_INT, "native"), "native is refused");
    CHECK_MPI(MPI_File_write_at(fh, 4 * check.rank, values, 4, MPI_INT, &status));
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, 16 * check.rank, got, 16), 16);
    CHECK_BYTES(got, values, 0, 16);
    check_datarep(fh, "native");
    CHECK_MPI(MPI_File_close(&fh));
}

/* Writes doubles and reads them; the bytes are MPI's business. */
static void round_trip(const char *datarep)
{
    double values[50], got[50];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Status status;
    if (!set_view(fh, MPI_DOUBLE, datarep)) {
        check_datarep(fh, "native");
        CHECK_MPI(MPI_File_close(&fh));
        return;
    }
    check_datarep(fh, datarep);
    for (int i = 0; i < 50; i++)
        values[i] = i * 1.25 - check.rank;
    CHECK_MPI(MPI_File_write_at(fh, 50 * check.rank, values, 50, MPI_DOUBLE, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_read_at_all(fh, 50 * check.rank, got, 50, MPI_DOUBLE, &status));
    CHECK_COUNT(&status, MPI_DOUBLE, 50);
    CHECK_BYTES(got, values, 0, sizeof values);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_internal(void)
{
    round_trip("internal");
}

static void run_external32(void)
{
    round_trip("external32");
}

/* external32 is big-endian in the file. */
static void run_external32_bytes(void)
{
    int values[2] = {0x01020304, -2};
    unsigned char want[8] = {1, 2, 3, 4, 0xff, 0xff, 0xff, 0xfe}, got[8];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Aint extent = 0;
    MPI_Status status;
    if (!set_view(fh, MPI_INT, "external32")) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("external32 is refused");
    }
    CHECK_MPI(MPI_File_get_type_extent(fh, MPI_LONG_DOUBLE, &extent));
    CHECK_EQUAL(extent, 16);
    CHECK_MPI(MPI_File_write_at(fh, 2 * check.rank, values, 2, MPI_INT, &status));
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, 8 * check.rank, got, 8), 8);
    CHECK_BYTES(got, want, 0, 8);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_unknown(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "no such thing", MPI_INFO_NULL), MPI_ERR_UNSUPPORTED_DATAREP);
    check_datarep(fh, "native");
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"native", 1, run_native, "bytes as memory has them"},
        {"internal", 1, run_internal, "what is written is read, or it is refused"},
        {"external32", 1, run_external32, "the same"},
        {"external32_bytes", 1, run_external32_bytes, "big-endian in the file"},
        {"unknown", 1, run_unknown, "MPI_ERR_UNSUPPORTED_DATAREP"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
