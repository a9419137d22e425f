/* Errors: each call that must fail does so by the class that MPI names, on every rank that made it, and hangs no other. */
#include "check.h"

static MPI_File open_expecting(const char *name, int amode, const int *classes, const char *file, int line)
{
    MPI_File fh = MPI_FILE_NULL;
    int error = MPI_File_open(MPI_COMM_WORLD, name, amode, check.info, &fh);
    check_class(error, "MPI_File_open", file, line, classes);
    if (error == MPI_SUCCESS)
        MPI_File_close(&fh);
    return fh;
}

/* All ranks open a file and are told one of the classes. */
#define OPEN_FAILS(name, amode, ...) open_expecting((name), (amode), (const int[]){__VA_ARGS__, -1}, __FILE__, __LINE__)

/* All ranks have the same class, as an open is collective. */
static void check_agreed(int error)
{
    int mine = check_class_of(error), low, high;
    MPI_Allreduce(&mine, &low, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&mine, &high, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    CHECK(low == high, "the ranks do not agree: %s here", check_class_name(mine));
}

static void run_open_missing(void)
{
    static const int amodes[] = {MPI_MODE_RDONLY, MPI_MODE_WRONLY, MPI_MODE_RDWR, MPI_MODE_RDWR | MPI_MODE_APPEND};
    for (size_t i = 0; i < sizeof amodes / sizeof amodes[0]; i++) {
        MPI_File fh = MPI_FILE_NULL;
        int error = MPI_File_open(MPI_COMM_WORLD, check.file, amodes[i], check.info, &fh);
        CHECK_CLASS(error, MPI_ERR_NO_SUCH_FILE);
        check_agreed(error);
        if (error == MPI_SUCCESS)
            CHECK_MPI(MPI_File_close(&fh));
    }
}

static void run_open_missing_directory(void)
{
    OPEN_FAILS(check_name(".missing/file"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_ERR_NO_SUCH_FILE);
    OPEN_FAILS(check_name(".missing/file"), MPI_MODE_RDONLY, MPI_ERR_NO_SUCH_FILE);
}

/* A file where a directory would have to be. */
static void run_open_below_file(void)
{
    check_make(check.file, 1, 10);
    OPEN_FAILS(check_name("/file"), MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_ERR_NO_SUCH_FILE, MPI_ERR_BAD_FILE);
}

static void run_exclusive(void)
{
    MPI_File fh;
    unsigned char memory[100];
    fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_close(&fh));
    check_make(check.file, 1, 100);
    MPI_File again = MPI_FILE_NULL;
    int error = MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_CREATE | MPI_MODE_EXCL | MPI_MODE_RDWR, check.info, &again);
    CHECK_CLASS(error, MPI_ERR_FILE_EXISTS);
    check_agreed(error);
    if (error == MPI_SUCCESS)
        CHECK_MPI(MPI_File_close(&again));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_EQUAL(check_reread(check.file, 0, memory, 100), 100);
    CHECK_PATTERN(memory, 1, 0, 100);
}

/* A file of 100 bytes that all ranks have open. */
static MPI_File open_100(int amode)
{
    check_make(check.file, 1, 100);
    return CHECK_OPEN(amode);
}

static void run_write_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_write(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_write_at(fh, 0, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_read_at(fh, 0, memory, 100, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 0, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_write_all_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_write_at_all(fh, 0, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_write_all(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, 100, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 0, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_write_shared_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_write_shared(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_write_ordered_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_write_ordered(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

static void check_size(MPI_File fh, MPI_Offset want)
{
    MPI_Offset size = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_get_size(fh, &size));
    CHECK_EQUAL(size, want);
}

static void check_pointer_shared(MPI_File fh, MPI_Offset want)
{
    MPI_Offset position = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, want);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void run_set_size_read_only(void)
{
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_set_size(fh, 10), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    check_size(fh, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_preallocate_read_only(void)
{
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    CHECK_CLASS(MPI_File_preallocate(fh, 1000), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    check_size(fh, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_nonblocking_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    int error = MPI_File_iwrite_at(fh, 0, memory, 10, MPI_BYTE, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_read_write_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_WRONLY);
    CHECK_CLASS(MPI_File_read(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_read_at(fh, 0, memory, 10, MPI_BYTE, &status), MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_write_at(fh, 100 + 10 * check.rank, memory, 10, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_read_all_write_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_WRONLY);
    CHECK_CLASS(MPI_File_read_at_all(fh, 0, memory, 10, MPI_BYTE, &status), MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_nonblocking_write_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_File fh = open_100(MPI_MODE_WRONLY);
    int error = MPI_File_iread_at(fh, 0, memory, 10, MPI_BYTE, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_ACCESS);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Calls of the shared pointer that the amode forbids fail, and the pointer stays. */
static void run_shared_write_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_WRONLY);
    int error;
    CHECK_CLASS(MPI_File_read_shared(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_ACCESS);
    error = MPI_File_iread_shared(fh, memory, 10, MPI_BYTE, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_read_ordered(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_ACCESS);
    error = MPI_File_read_ordered_begin(fh, memory, 10, MPI_BYTE);
    CHECK_CLASS(error, MPI_ERR_ACCESS);
    if (error == MPI_SUCCESS)
        CHECK_MPI(MPI_File_read_ordered_end(fh, memory, &status));
    check_pointer_shared(fh, 0);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_shared_read_only(void)
{
    unsigned char memory[100] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDONLY);
    int error = MPI_File_iwrite_shared(fh, memory, 10, MPI_BYTE, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_write_shared(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    CHECK_CLASS(MPI_File_write_ordered(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    error = MPI_File_write_ordered_begin(fh, memory, 10, MPI_BYTE);
    CHECK_CLASS(error, MPI_ERR_READ_ONLY, MPI_ERR_ACCESS);
    if (error == MPI_SUCCESS)
        CHECK_MPI(MPI_File_write_ordered_end(fh, memory, &status));
    check_pointer_shared(fh, 0);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A strided write to a file that is open for writing alone; what lies between stays. */
static void run_strided_write_only(void)
{
    enum { BLOCKS = 30 };
    unsigned char memory[BLOCKS * 10], got[BLOCKS * 100], want[BLOCKS * 100];
    MPI_Datatype type;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, BLOCKS * 100);
    pattern_fill(want, 1, 0, sizeof want);
    for (int block = 0; block < BLOCKS; block++)
        for (int rank = 0; rank < check.ranks && rank < 10; rank++)
            pattern_fill(want + block * 100 + rank * 10, (uint64_t)(2 + rank), (uint64_t)block * 10, 10);
    pattern_fill(memory, (uint64_t)(2 + check.rank), 0, sizeof memory);
    fh = CHECK_OPEN(MPI_MODE_WRONLY);
    MPI_Type_vector(BLOCKS, 10, 100, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 10 * check.rank, MPI_BYTE, type, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_write(fh, memory, sizeof memory, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Type_free(&type);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_EQUAL(check_reread(check.file, 0, got, sizeof got), sizeof got);
    CHECK_BYTES(got, want, 0, sizeof got);
}

static void run_access_modes(void)
{
    static const struct {
        int amode;
        const char *words;
    } bad[] = {
        {0, "nothing"},
        {MPI_MODE_CREATE, "CREATE alone"},
        {MPI_MODE_RDONLY | MPI_MODE_WRONLY, "RDONLY and WRONLY"},
        {MPI_MODE_RDONLY | MPI_MODE_RDWR, "RDONLY and RDWR"},
        {MPI_MODE_WRONLY | MPI_MODE_RDWR, "WRONLY and RDWR"},
        {MPI_MODE_RDONLY | MPI_MODE_CREATE, "RDONLY and CREATE"},
        {MPI_MODE_RDONLY | MPI_MODE_EXCL, "RDONLY and EXCL"},
        {MPI_MODE_RDWR | MPI_MODE_SEQUENTIAL, "RDWR and SEQUENTIAL"},
    };
    check_make(check.file, 1, 10);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int before = check.failures;
        OPEN_FAILS(check.file, bad[i].amode, MPI_ERR_AMODE);
        CHECK(check.failures == before, "that was %s", bad[i].words);
    }
}

/* The ranks do not agree on the mode: nothing is made. */
static void run_differing_amodes(void)
{
    int amode = MPI_MODE_CREATE | (check.rank == 0 ? MPI_MODE_WRONLY : MPI_MODE_RDWR);
    OPEN_FAILS(check.file, amode, MPI_ERR_NOT_SAME);
    OPEN_FAILS(check.file, MPI_MODE_RDONLY, MPI_ERR_NO_SUCH_FILE);
}

static void run_negative_offset(void)
{
    unsigned char memory[10] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_read_at(fh, -1, memory, 10, MPI_BYTE, &status), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_write_at(fh, -1, memory, 10, MPI_BYTE, &status), MPI_ERR_ARG);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_negative_offset_nonblocking(void)
{
    unsigned char memory[10] = {0};
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_File fh = open_100(MPI_MODE_RDWR);
    int error = MPI_File_iread_at(fh, -1, memory, 10, MPI_BYTE, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_ARG);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_negative_seek(void)
{
    MPI_File fh = open_100(MPI_MODE_RDWR);
    CHECK_FAILS(MPI_File_seek(fh, -1, MPI_SEEK_SET));
    CHECK_FAILS(MPI_File_seek(fh, -101, MPI_SEEK_END));
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_bad_arguments(void)
{
    unsigned char memory[10] = {0};
    MPI_Status status;
    MPI_File fh = open_100(MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_write_at(fh, 0, memory, -1, MPI_BYTE, &status), MPI_ERR_COUNT, MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_read_at(fh, 0, memory, 1, MPI_DATATYPE_NULL, &status), MPI_ERR_TYPE);
    CHECK_CLASS(MPI_File_set_size(fh, -1), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_preallocate(fh, -1), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_seek(fh, 0, 12345), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_set_view(fh, -1, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL), MPI_ERR_ARG);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Sizes that differ between the ranks: nothing is done. */
static void run_differing_sizes(void)
{
    MPI_Offset mine = check.rank == 0 ? 10 : 1000;
    MPI_File fh = open_100(MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_set_size(fh, mine), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    check_size(fh, 100);
    mine = check.rank == 0 ? 1000 : 10;
    CHECK_CLASS(MPI_File_preallocate(fh, mine), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    check_size(fh, 100);
    mine = check.rank == 0 ? 1000 : -1;
    CHECK_CLASS(MPI_File_set_size(fh, mine), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_preallocate(fh, mine), MPI_ERR_NOT_SAME, MPI_ERR_ARG);
    check_size(fh, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_null_handle(void)
{
    MPI_File fh = MPI_FILE_NULL;
    MPI_Offset size;
    CHECK_CLASS(MPI_File_get_size(fh, &size), MPI_ERR_FILE);
    CHECK_CLASS(MPI_File_close(&fh), MPI_ERR_FILE);
}

/* The directory that the file is in, opened as a file. */
static void run_directory(void)
{
    static const int amodes[] = {MPI_MODE_RDONLY, MPI_MODE_RDWR, MPI_MODE_CREATE | MPI_MODE_RDWR};
    char name[4096], *slash;
    snprintf(name, sizeof name, "%s", check.file);
    slash = strrchr(name, '/');
    CHECK(slash != NULL, "the file's name has no directory");
    if (slash == NULL)
        return;
    *slash = '\0';
    for (size_t i = 0; i < sizeof amodes / sizeof amodes[0]; i++) {
        MPI_File fh = MPI_FILE_NULL;
        int error = MPI_File_open(MPI_COMM_WORLD, name, amodes[i], check.info, &fh);
        CHECK(error != MPI_SUCCESS, "a directory was opened, access mode %d", amodes[i]);
        check_agreed(error);
        if (error == MPI_SUCCESS)
            CHECK_MPI(MPI_File_close(&fh));
    }
    CHECK_FAILS(MPI_File_delete(name, MPI_INFO_NULL));
}

static void run_long_name(void)
{
    char name[3000];
    snprintf(name, sizeof name, "%s.", check.file);
    memset(name + strlen(name), 'x', 300);
    name[strlen(check.file) + 301] = '\0';
    OPEN_FAILS(name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_ERR_BAD_FILE);
    OPEN_FAILS(name, MPI_MODE_RDONLY, MPI_ERR_BAD_FILE);
}

static void run_long_path(void)
{
    char *name = check_alloc(9000);
    snprintf(name, 9000, "%s", check.file);
    for (size_t len = strlen(name); len + 10 < 8000; len += 10)
        snprintf(name + len, 11, "/xxxxxxxxx");
    OPEN_FAILS(name, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_ERR_BAD_FILE);
    free(name);
}

static void run_empty_name(void)
{
    MPI_File fh = MPI_FILE_NULL;
    int error = MPI_File_open(MPI_COMM_WORLD, "", MPI_MODE_CREATE | MPI_MODE_RDWR, check.info, &fh);
    CHECK(error != MPI_SUCCESS, "a file without a name was opened");
    if (error == MPI_SUCCESS)
        CHECK_MPI(MPI_File_close(&fh));
}

/* --- Error handlers --- */

static int handled, handled_class;

static void on_file_error(MPI_File *fh, int *error, ...)
{
    (void)fh;
    handled++;
    MPI_Error_class(*error, &handled_class);
}

static void run_handlers(void)
{
    MPI_Errhandler handler, mine;
    unsigned char byte = 0;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 10);
    CHECK_MPI(MPI_File_get_errhandler(MPI_FILE_NULL, &handler));
    CHECK(handler == MPI_ERRORS_RETURN, "MPI_FILE_NULL has another handler than MPI_ERRORS_RETURN");
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    CHECK_MPI(MPI_File_get_errhandler(fh, &handler));
    CHECK(handler == MPI_ERRORS_RETURN, "a file begins with another handler than MPI_ERRORS_RETURN");
    MPI_File_create_errhandler(on_file_error, &mine);
    CHECK_MPI(MPI_File_set_errhandler(fh, mine));
    handled = 0;
    CHECK_FAILS(MPI_File_write_at(fh, 0, &byte, 1, MPI_BYTE, &status));
    CHECK_EQUAL(handled, 1);
    CHECK(handled_class == MPI_ERR_READ_ONLY || handled_class == MPI_ERR_ACCESS, "the handler got %s", check_class_name(handled_class));
    CHECK_MPI(MPI_File_call_errhandler(fh, MPI_ERR_NO_SPACE));
    CHECK_EQUAL(handled, 2);
    CHECK_EQUAL(handled_class, MPI_ERR_NO_SPACE);
    MPI_Errhandler_free(&mine);
    CHECK_MPI(MPI_File_close(&fh));
}

/* One rank makes nothing but mistakes; the others' independent calls are not touched. */
static void run_one_rank_fails(void)
{
    enum { ROUNDS = 50, LEN = 1000 };
    unsigned char memory[LEN];
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 10);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (int i = 0; i < ROUNDS; i++) {
        MPI_Offset at = ((MPI_Offset)i * check.ranks + check.rank) * LEN;
        if (check.rank == 0) {
            CHECK_FAILS(MPI_File_read_at(fh, 0, memory, -1, MPI_BYTE, &status));
            CHECK_FAILS(MPI_File_write_at(fh, 0, memory, LEN, MPI_DATATYPE_NULL, &status));
            continue;
        }
        pattern_fill(memory, 9, (uint64_t)at, LEN);
        CHECK_MPI(MPI_File_write_at(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_read_at(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_PATTERN(memory, 9, (uint64_t)at, LEN);
    }
    check_publish(fh);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Only shared pointers are for a file that is open in sequence. */
static void run_sequential(void)
{
    unsigned char memory[100] = {0};
    MPI_Offset position;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 1000);
    fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
    CHECK_CLASS(MPI_File_read_at(fh, 0, memory, 10, MPI_BYTE, &status), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_read(fh, memory, 10, MPI_BYTE, &status), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_seek(fh, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_get_position(fh, &position), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_get_byte_offset(fh, 0, &position), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_get_position_shared(fh, &position), MPI_ERR_UNSUPPORTED_OPERATION);
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_read_ordered(fh, memory, 100, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, (uint64_t)check.rank * 100, 100);
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_WRONLY | MPI_MODE_SEQUENTIAL);
    CHECK_CLASS(MPI_File_set_size(fh, 10), MPI_ERR_UNSUPPORTED_OPERATION);
    CHECK_CLASS(MPI_File_preallocate(fh, 10000), MPI_ERR_UNSUPPORTED_OPERATION);
    check_size(fh, 1000);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"open_missing", 1, run_open_missing, "MPI_ERR_NO_SUCH_FILE on all ranks"},
        {"open_missing_directory", 1, run_open_missing_directory, "MPI_ERR_NO_SUCH_FILE for a directory that is not there"},
        {"open_below_file", 1, run_open_below_file, "a file where a directory would have to be"},
        {"exclusive", 1, run_exclusive, "MPI_ERR_FILE_EXISTS on all ranks"},
        {"write_read_only", 1, run_write_read_only, "writes to a file that is open for reading"},
        {"write_all_read_only", 1, run_write_all_read_only, "the same, collective"},
        {"write_shared_read_only", 1, run_write_shared_read_only, "the same by the shared pointer"},
        {"write_ordered_read_only", 1, run_write_ordered_read_only, "the same in rank order"},
        {"nonblocking_read_only", 1, run_nonblocking_read_only, "a nonblocking write to such a file"},
        {"set_size_read_only", 1, run_set_size_read_only, "set_size of such a file"},
        {"preallocate_read_only", 1, run_preallocate_read_only, "preallocate of such a file"},
        {"read_write_only", 1, run_read_write_only, "MPI_ERR_ACCESS for reads of a file that is open for writing"},
        {"read_all_write_only", 1, run_read_all_write_only, "the same, collective"},
        {"nonblocking_write_only", 1, run_nonblocking_write_only, "a nonblocking read of such a file"},
        {"shared_write_only", 1, run_shared_write_only, "reads of it by the shared pointer, which stays"},
        {"shared_read_only", 1, run_shared_read_only, "writes by the shared pointer to a file that is open for reading"},
        {"strided_write_only", 1, run_strided_write_only, "strided writes to such a file succeed"},
        {"access_modes", 1, run_access_modes, "MPI_ERR_AMODE for modes that exclude one another"},
        {"differing_amodes", 2, run_differing_amodes, "MPI_ERR_NOT_SAME for modes that differ between the ranks"},
        {"negative_offset", 1, run_negative_offset, "MPI_ERR_ARG"},
        {"negative_offset_nonblocking", 1, run_negative_offset_nonblocking, "MPI_ERR_ARG from the call or its request"},
        {"negative_seek", 1, run_negative_seek, "a pointer cannot be below 0"},
        {"bad_arguments", 1, run_bad_arguments, "counts, types, sizes, displacements"},
        {"differing_sizes", 2, run_differing_sizes, "set_size and preallocate by ranks that do not agree"},
        {"null_handle", 1, run_null_handle, "MPI_ERR_FILE"},
        {"directory", 1, run_directory, "a directory is no file"},
        {"long_name", 1, run_long_name, "MPI_ERR_BAD_FILE for a name of more than 255 bytes"},
        {"long_path", 1, run_long_path, "MPI_ERR_BAD_FILE for a path of more than 4096 bytes"},
        {"empty_name", 1, run_empty_name, "a name of no bytes"},
        {"handlers", 1, run_handlers, "error handlers of files"},
        {"one_rank_fails", 2, run_one_rank_fails, "a rank's mistakes do not touch the others"},
        {"sequential", 1, run_sequential, "MPI_MODE_SEQUENTIAL"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
