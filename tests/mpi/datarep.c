/* Data representations: native as memory has it; external32 big-endian, or refused by MPI's error. */
#include "access.h"

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
    MPI_Status status;
    if (!set_view(fh, MPI_INT, "external32")) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("external32 is refused");
    }
    CHECK_MPI(MPI_File_write_at(fh, 2 * check.rank, values, 2, MPI_INT, &status));
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, 8 * check.rank, got, 8), 8);
    CHECK_BYTES(got, want, 0, 8);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A call converts or refuses; it never moves bytes as memory has them. The file then has the rank's two values, for a read. */
static void check_written(MPI_File fh, int class, const int *values)
{
    unsigned char got[8] = {0}, want[8];
    MPI_Status status;
    check_publish(fh);
    for (int i = 0; i < 8; i++)
        want[i] = (unsigned char)((unsigned)values[i / 4] >> (24 - 8 * (i % 4)));
    if (class == MPI_SUCCESS) {
        CHECK_EQUAL(check_reread(check.file, 8 * check.rank, got, 8), 8);
        CHECK_BYTES(got, want, 0, 8);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_write_at(fh, 2 * check.rank, values, 2, MPI_INT, &status));
    check_publish(fh);
}

static void check_read(int class, const int *got, const int *want)
{
    if (class == MPI_SUCCESS)
        CHECK_BYTES(got, want, 0, 8);
    MPI_Barrier(MPI_COMM_WORLD);
}

#define CONVERTS_OR_REFUSES(call) CHECK_CLASS(call, MPI_SUCCESS, MPI_ERR_UNSUPPORTED_DATAREP)

static void external32_by(MPI_File fh, enum access how)
{
    int values[2] = {0x01020304 + (int)how, -2 - check.rank}, got[2] = {0}, class, before = check.failures;
    MPI_Status status;
    CHECK_MPI(MPI_File_seek(fh, 2 * check.rank, MPI_SEEK_SET));
    class = CONVERTS_OR_REFUSES(access_run(how, 1, fh, 2 * check.rank, values, 2, MPI_INT, &status));
    check_written(fh, class, values);
    CHECK_MPI(MPI_File_seek(fh, 2 * check.rank, MPI_SEEK_SET));
    class = CONVERTS_OR_REFUSES(access_run(how, 0, fh, 2 * check.rank, got, 2, MPI_INT, &status));
    check_read(class, got, values);
    CHECK(check.failures == before, "that was %s", access_names[how]);
}

static void external32_ordered(MPI_File fh)
{
    int values[2] = {0x0a0b0c0d, 7 + check.rank}, got[2] = {0}, class;
    MPI_Status status;
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    class = CONVERTS_OR_REFUSES(MPI_File_write_ordered(fh, values, 2, MPI_INT, &status));
    check_written(fh, class, values);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    class = CONVERTS_OR_REFUSES(MPI_File_read_ordered(fh, got, 2, MPI_INT, &status));
    check_read(class, got, values);
}

/* One rank alone, for the pointer goes on with each. */
static void external32_shared(MPI_File fh)
{
    int values[2] = {0x0a0b0c0d, 9}, got[2] = {0}, class;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    class = CONVERTS_OR_REFUSES(MPI_File_iwrite_shared(fh, values, 2, MPI_INT, &request));
    if (class == MPI_SUCCESS)
        CHECK_MPI(MPI_Wait(&request, &status));
    check_written(fh, class, values);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    class = CONVERTS_OR_REFUSES(MPI_File_iread_shared(fh, got, 2, MPI_INT, &request));
    if (class == MPI_SUCCESS)
        CHECK_MPI(MPI_Wait(&request, &status));
    check_read(class, got, values);
}

static void run_external32_everywhere(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    if (!set_view(fh, MPI_INT, "external32")) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("external32 is refused");
    }
    for (int how = AT; how < ACCESS_COUNT; how++)
        external32_by(fh, (enum access)how);
    external32_ordered(fh);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    if (check.ranks == 1)
        external32_shared(fh);
    CHECK_MPI(MPI_File_close(&fh));
}

/* The error of a read is not lost in the conversion: there is no such place. */
static void run_external32_error(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype type;
    MPI_Status status;
    int value = 0, error;
    MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)1 << 62, &type);
    MPI_Type_commit(&type);
    error = MPI_File_set_view(fh, 0, MPI_INT, type, "external32", MPI_INFO_NULL);
    MPI_Type_free(&type);
    if (error != MPI_SUCCESS) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("external32 is refused");
    }
    CHECK_CLASS(MPI_File_read_at(fh, 2, &value, 1, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_read_at_all(fh, 2, &value, 1, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_MPI(MPI_File_read_at(fh, 0, &value, 1, MPI_INT, &status));
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
        {"external32_everywhere", 1, run_external32_everywhere, "no call moves bytes as memory has them"},
        {"external32_error", 1, run_external32_error, "the error of a read"},
        {"unknown", 1, run_unknown, "MPI_ERR_UNSUPPORTED_DATAREP"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
