/* A read that comes to the end of the file leaves alone what is behind its count: memory that MPI_Status does not tell of, and the gaps of
 * a type. MPI does not say so; programs that put a mark behind the last record rely on it. */
#include "check.h"

/* Elements that a rank asks for: few, and so many that they are not copied on their way. */
enum { FEW = 1000, MANY = 40000 };

enum kind {
    READ,
    READ_AT,
    READ_ALL,
    READ_AT_ALL,
    READ_SPLIT,
    READ_AT_SPLIT,
    IREAD,
    IREAD_AT,
    IREAD_ALL,
    IREAD_AT_ALL,
    KINDS,
    /* Of the shared pointer: each rank gets what comes next. */
    READ_SHARED = KINDS,
    IREAD_SHARED,
    READ_ORDERED,
    READ_ORDERED_SPLIT,
    ALL_KINDS
};

static const char *const names[ALL_KINDS] = {
    "read",     "read_at",      "read_all",    "read_at_all",  "read_all_begin", "read_at_all_begin",  "iread",
    "iread_at", "iread_all",    "iread_at_all", "read_shared", "iread_shared",   "read_ordered",       "read_ordered_begin"};

static int wait_for(int error, MPI_Request *request, MPI_Status *status)
{
    return error == MPI_SUCCESS ? MPI_Wait(request, status) : error;
}

static int read_by(enum kind kind, MPI_File fh, void *memory, int count, MPI_Datatype type, MPI_Status *status)
{
    MPI_Request request = MPI_REQUEST_NULL;
    int error;
    switch (kind) {
    case READ:
        return MPI_File_read(fh, memory, count, type, status);
    case READ_AT:
        return MPI_File_read_at(fh, 0, memory, count, type, status);
    case READ_ALL:
        return MPI_File_read_all(fh, memory, count, type, status);
    case READ_AT_ALL:
        return MPI_File_read_at_all(fh, 0, memory, count, type, status);
    case READ_SPLIT:
        error = MPI_File_read_all_begin(fh, memory, count, type);
        return error == MPI_SUCCESS ? MPI_File_read_all_end(fh, memory, status) : error;
    case READ_AT_SPLIT:
        error = MPI_File_read_at_all_begin(fh, 0, memory, count, type);
        return error == MPI_SUCCESS ? MPI_File_read_at_all_end(fh, memory, status) : error;
    case IREAD:
        return wait_for(MPI_File_iread(fh, memory, count, type, &request), &request, status);
    case IREAD_AT:
        return wait_for(MPI_File_iread_at(fh, 0, memory, count, type, &request), &request, status);
    case IREAD_ALL:
        return wait_for(MPI_File_iread_all(fh, memory, count, type, &request), &request, status);
    case IREAD_AT_ALL:
        return wait_for(MPI_File_iread_at_all(fh, 0, memory, count, type, &request), &request, status);
    case READ_SHARED:
        return MPI_File_read_shared(fh, memory, count, type, status);
    case IREAD_SHARED:
        return wait_for(MPI_File_iread_shared(fh, memory, count, type, &request), &request, status);
    case READ_ORDERED:
        return MPI_File_read_ordered(fh, memory, count, type, status);
    default:
        error = MPI_File_read_ordered_begin(fh, memory, count, type);
        return error == MPI_SUCCESS ? MPI_File_read_ordered_end(fh, memory, status) : error;
    }
}

struct asked {
    int count;
    /* Of the file, in all ints of all ranks. */
    int there;
    /* Ints of memory from one element to the next. */
    int step;
    const char *datarep;
    /* Each rank sees every so-manieth int. */
    int interleaved;
};

/* Looks at all memory: `found` elements, and poison. */
static void check_memory(const struct asked *asked, enum kind kind, const unsigned char *memory, size_t size, int found)
{
    int native = strcmp(asked->datarep, "native") == 0, wrong = 0;
    for (size_t i = 0; i < size && wrong < 2; i++) {
        size_t element = i / 4 / (size_t)asked->step, byte = i % 4;
        uint64_t place = 4 * (asked->interleaved ? element * (uint64_t)check.ranks + (uint64_t)check.rank : element);
        int is_data = i / 4 % (size_t)asked->step == 0 && element < (size_t)found;
        unsigned char wanted = is_data ? pattern(1, place + (native ? byte : 3 - byte)) : CHECK_POISON;
        /* What a shared pointer leads to depends on the order of ranks. */
        if (is_data && kind >= KINDS)
            continue;
        CHECK(memory[i] == wanted, "%s of %d, %s, step %d, %d in the file: byte %zu of %d found elements is %02x, not %02x",
              names[kind], asked->count, asked->datarep, asked->step, asked->there, i, found, memory[i], wanted);
        wrong += memory[i] != wanted;
    }
}

static void check_kind(const struct asked *asked, enum kind kind)
{
    size_t size = 4 * (size_t)asked->count * (size_t)asked->step;
    unsigned char *memory = malloc(size);
    MPI_Datatype element, tile;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_RDONLY);
    int found = -1, error;
    memset(memory, CHECK_POISON, size);
    MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)asked->step, &element);
    MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)(asked->interleaved ? check.ranks : 1), &tile);
    MPI_Type_commit(&element);
    MPI_Type_commit(&tile);
    CHECK_MPI(MPI_File_set_view(fh, asked->interleaved ? 4 * check.rank : 0, MPI_INT, tile, asked->datarep, MPI_INFO_NULL));
    error = read_by(kind, fh, memory, asked->count, element, &status);
    /* Where the library does not convert by this call, it moves nothing. */
    if (check_class_of(error) == MPI_ERR_UNSUPPORTED_DATAREP)
        found = 0;
    else if (CHECK_CLASS(error, MPI_SUCCESS) == MPI_SUCCESS)
        MPI_Get_elements(&status, element, &found);
    if (kind < KINDS && error == MPI_SUCCESS)
        CHECK_EQUAL(found, asked->interleaved ? (asked->there - check.rank + check.ranks - 1) / check.ranks : asked->there);
    check_memory(asked, kind, memory, size, found);
    MPI_Type_free(&element);
    MPI_Type_free(&tile);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* The file has a part of what is asked for, all of it but an element, or nothing. */
static void check_all(int count, const char *datarep)
{
    const int ranks = check.ranks;
    const int sizes[] = {0, count * ranks / 2, count * ranks - 1, count * ranks};
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        MPI_Barrier(MPI_COMM_WORLD);
        check_make(check.file, 1, 4 * sizes[size]);
        for (int step = 1; step <= 2; step++) {
            struct asked asked = {count, sizes[size], step, datarep, 1};
            for (int kind = 0; kind < KINDS; kind++)
                check_kind(&asked, kind);
            asked.interleaved = 0;
            for (int kind = KINDS; kind < ALL_KINDS; kind++)
                check_kind(&asked, kind);
        }
    }
}

static void run_few(void)
{
    check_all(FEW, "native");
}

static void run_many(void)
{
    check_all(MANY, "native");
}

static void run_converted(void)
{
    check_all(FEW, "external32");
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"few", 1, run_few, "reads of 4,000 bytes, of each kind, into memory with gaps and without"},
        {"many", 1, run_many, "the same of 160,000 bytes"},
        {"converted", 1, run_converted, "the same in a view of external32"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
