/* Bytes in a row: sizes, pointers, ends, holes, far offsets, and what is done to a file as a whole. */
#include "access.h"

#define MIB (1 << 20)

static const int sizes[] = {0,         1,         4095,    4096,    4097,        65535,
                            65536,     65537,     MIB - 1, MIB,     MIB + 1,     17 * MIB};
#define SIZES ((int)(sizeof sizes / sizeof sizes[0]))

static int next_rank(void)
{
    return (check.rank + 1) % check.ranks;
}

/* Writes by write_at, each rank behind the other, and reads what the next rank wrote. Memory and file are shifted. */
static void move_sizes(size_t memory_shift, MPI_Offset file_shift)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int i = 0; i < SIZES; i++) {
        int len = sizes[i];
        MPI_Offset mine = file_shift + (MPI_Offset)check.rank * len, theirs = file_shift + (MPI_Offset)next_rank() * len;
        unsigned char *memory = guarded_alloc((size_t)len, memory_shift);
        MPI_Status status;
        pattern_fill(memory, (uint64_t)i, (uint64_t)mine, (size_t)len);
        CHECK_MPI(MPI_File_write_at(fh, mine, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, (uint64_t)i, (uint64_t)mine, (size_t)len);
        check_publish(fh);
        memset(memory, CHECK_POISON, (size_t)len);
        CHECK_MPI(MPI_File_read_at(fh, theirs, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, (uint64_t)i, (uint64_t)theirs, (size_t)len);
        GUARDED_FREE(memory, (size_t)len, memory_shift);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_sizes(void)
{
    move_sizes(0, 0);
}

static void run_unaligned(void)
{
    move_sizes(1, 3);
    move_sizes(7, 4093);
}

/* Individual pointers: each call goes on where the last one ended. */
static void run_pointers(void)
{
    enum { CALLS = 40, SPAN = 1 << 18 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset start = (MPI_Offset)check.rank * SPAN, theirs = (MPI_Offset)next_rank() * SPAN, at, position;
    unsigned char *memory = check_alloc(SPAN);
    MPI_Status status;
    CHECK_MPI(MPI_File_seek(fh, start, MPI_SEEK_SET));
    at = start;
    for (int i = 0; i < CALLS; i++) {
        int len = i * 317 % 5000;
        pattern_fill(memory, 1, (uint64_t)at, (size_t)len);
        CHECK_MPI(MPI_File_write(fh, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        at += len;
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, at);
    }
    check_publish(fh);
    CHECK_MPI(MPI_File_seek(fh, theirs, MPI_SEEK_SET));
    for (MPI_Offset read = 0; read < at - start; read += 777) {
        int len = at - start - read < 777 ? (int)(at - start - read) : 777;
        CHECK_MPI(MPI_File_read(fh, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, 1, (uint64_t)(theirs + read), (size_t)len);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

static void run_seek(void)
{
    static const struct {
        int whence, by, result;
    } steps[] = {
        {MPI_SEEK_SET, 100, 100},  {MPI_SEEK_CUR, 50, 150},   {MPI_SEEK_CUR, -149, 1}, {MPI_SEEK_END, 0, 10000},
        {MPI_SEEK_END, -10, 9990}, {MPI_SEEK_CUR, -9990, 0},  {MPI_SEEK_SET, 0, 0},    {MPI_SEEK_END, 500, 10500},
        {MPI_SEEK_CUR, -600, 9900}, {MPI_SEEK_SET, 9999, 9999},
    };
    MPI_File fh;
    MPI_Status status;
    check_make(check.file, 2, 10000);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        unsigned char byte = 0;
        MPI_Offset position;
        CHECK_MPI(MPI_File_seek(fh, steps[i].by, steps[i].whence));
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, steps[i].result);
        CHECK_MPI(MPI_File_read(fh, &byte, 1, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, steps[i].result < 10000);
        if (steps[i].result < 10000)
            CHECK_PATTERN(&byte, 2, (uint64_t)steps[i].result, 1);
        CHECK_MPI(MPI_File_seek(fh, steps[i].result, MPI_SEEK_SET));
    }
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_end_of_file(void)
{
    static const struct {
        int offset, len, got;
    } reads[] = {
        {0, 5000, 5000}, {0, 5001, 5000}, {4999, 1, 1}, {4999, 2, 1}, {5000, 1, 0}, {5001, 10, 0}, {100000, 4096, 0}, {1, 65536, 4999},
    };
    MPI_File fh;
    check_make(check.file, 2, 5000);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (size_t i = 0; i < sizeof reads / sizeof reads[0]; i++) {
        unsigned char *memory = guarded_alloc((size_t)reads[i].len, 0);
        MPI_Status status;
        CHECK_MPI(MPI_File_read_at(fh, reads[i].offset, memory, reads[i].len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, reads[i].got);
        CHECK_PATTERN(memory, 2, (uint64_t)reads[i].offset, (size_t)reads[i].got);
        GUARDED_FREE(memory, (size_t)reads[i].len, 0);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* The end may move meanwhile: what is told is there from the beginning on. */
static void end_of_file_by_pointer(int (*read)(MPI_File, void *, int, MPI_Datatype, MPI_Status *))
{
    enum { SIZE = 1000, LEN = 12288 };
    unsigned char memory[LEN];
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 2, SIZE);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    CHECK_MPI(read(fh, memory, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, SIZE);
    CHECK_PATTERN(memory, 2, 0, SIZE);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_end_of_file_by_pointer(void)
{
    end_of_file_by_pointer(MPI_File_read);
}

static void run_end_of_file_by_pointer_of_all(void)
{
    end_of_file_by_pointer(MPI_File_read_all);
}

/* Partial elements at the end of a file are counted in bytes. */
static void run_partial_element(void)
{
    MPI_File fh;
    MPI_Status status;
    unsigned char memory[16];
    int count = 0;
    check_make(check.file, 2, 10);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    CHECK_MPI(MPI_File_read_at(fh, 0, memory, 4, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_BYTE, 10);
    MPI_Get_count(&status, MPI_INT, &count);
    CHECK_EQUAL(count, MPI_UNDEFINED);
    CHECK_PATTERN(memory, 2, 0, 10);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A pointer stands between two elements also where the file ended within one, and has grown since. */
static void run_pointer_behind_partial_element(void)
{
    MPI_File fh;
    MPI_Status status;
    MPI_Offset position = -1;
    unsigned char memory[16];
    check_make(check.file, 2, 10);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_read(fh, memory, 3, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_BYTE, 10);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 3);
    MPI_Barrier(MPI_COMM_WORLD);
    pattern_fill(memory, 3, 8, 16);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write_at(fh, 2, memory, 4, MPI_INT, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_read(fh, memory, 1, MPI_INT, &status));
    CHECK_PATTERN(memory, 3, 12, 4);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Memory that a type names by addresses, from MPI_BOTTOM on. */
static void run_bottom(void)
{
    enum { LEN = 1000 };
    unsigned char first[LEN], second[LEN];
    MPI_Offset at = (MPI_Offset)check.rank * 2 * LEN;
    MPI_Aint places[2];
    MPI_Datatype type;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Get_address(first, &places[0]);
    MPI_Get_address(second, &places[1]);
    MPI_Type_create_hindexed(2, (int[]){LEN, LEN}, places, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    for (int how = AT; how < ACCESS_COUNT; how++) {
        int before = check.failures;
        pattern_fill(first, (uint64_t)how, (uint64_t)at, LEN);
        pattern_fill(second, (uint64_t)how, (uint64_t)at + LEN, LEN);
        CHECK_MPI(MPI_File_seek(fh, at, MPI_SEEK_SET));
        CHECK_MPI(access_run((enum access)how, 1, fh, at, MPI_BOTTOM, 1, type, &status));
        CHECK_COUNT(&status, MPI_BYTE, 2 * LEN);
        memset(first, CHECK_POISON, LEN);
        memset(second, CHECK_POISON, LEN);
        CHECK_MPI(MPI_File_seek(fh, at, MPI_SEEK_SET));
        CHECK_MPI(access_run((enum access)how, 0, fh, at, MPI_BOTTOM, 1, type, &status));
        CHECK_COUNT(&status, MPI_BYTE, 2 * LEN);
        CHECK_PATTERN(first, (uint64_t)how, (uint64_t)at, LEN);
        CHECK_PATTERN(second, (uint64_t)how, (uint64_t)at + LEN, LEN);
        CHECK(check.failures == before, "that was %s", access_names[how]);
    }
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Type_free(&type);
}

static void run_holes(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    const int first = MIB, second = 3 * MIB + 1, len = 5000, all = 3 * MIB + 1 + 5000;
    unsigned char *memory = check_alloc((size_t)all);
    MPI_Status status;
    pattern_fill(memory, 3, 0, (size_t)len);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write_at(fh, first, memory, len, MPI_BYTE, &status));
    if (check.rank == check.ranks - 1)
        CHECK_MPI(MPI_File_write_at(fh, second, memory, len, MPI_BYTE, &status));
    check_publish(fh);
    memset(memory, CHECK_POISON, (size_t)all);
    CHECK_MPI(MPI_File_read_at(fh, 0, memory, all, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, all);
    CHECK_FILLED(memory, 0, 0, (size_t)first);
    CHECK_PATTERN(memory + first, 3, 0, (size_t)len);
    CHECK_FILLED(memory + first + len, 0, (uint64_t)(first + len), (size_t)(second - first - len));
    CHECK_PATTERN(memory + second, 3, 0, (size_t)len);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Data on both sides of a far boundary; nothing lands at the offset's lower bits. */
static void move_far(MPI_Offset boundary)
{
    enum { LEN = 65536 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset mine = boundary - LEN / 2 + (MPI_Offset)check.rank * LEN, position, size;
    MPI_Offset theirs = boundary - LEN / 2 + (MPI_Offset)next_rank() * LEN;
    unsigned char *memory = check_alloc(LEN);
    MPI_Status status;
    pattern_fill(memory, 4, (uint64_t)mine, LEN);
    CHECK_MPI(MPI_File_write_at(fh, mine, memory, LEN, MPI_BYTE, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_get_size(fh, &size));
    CHECK_EQUAL(size, boundary - LEN / 2 + (MPI_Offset)check.ranks * LEN);
    CHECK_MPI(MPI_File_seek(fh, theirs, MPI_SEEK_SET));
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, theirs);
    CHECK_MPI(MPI_File_read(fh, memory, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_PATTERN(memory, 4, (uint64_t)theirs, LEN);
    CHECK_MPI(MPI_File_read_at(fh, 0, memory, LEN, MPI_BYTE, &status));
    CHECK_FILLED(memory, 0, 0, LEN);
    CHECK_MPI(MPI_File_close(&fh));
    check_remove(check.file);
    free(memory);
}

static void run_beyond_4gib(void)
{
    move_far((MPI_Offset)1 << 31);
    move_far((MPI_Offset)1 << 32);
    move_far(((MPI_Offset)5 << 32) + 12345);
}

static void run_near_1tib(void)
{
    move_far(((MPI_Offset)1 << 40) - 1);
}

static void append_with(int amode, int before)
{
    MPI_File fh = CHECK_OPEN(amode | MPI_MODE_APPEND);
    unsigned char memory[1000];
    MPI_Offset position;
    MPI_Status status;
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, before);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, before);
    MPI_Barrier(MPI_COMM_WORLD);
    pattern_fill(memory, 2, (uint64_t)before, sizeof memory);
    if (check.rank == check.ranks - 1)
        CHECK_MPI(MPI_File_write(fh, memory, sizeof memory, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
}

static void run_append(void)
{
    unsigned char *memory = check_alloc(8000);
    check_make(check.file, 2, 5000);
    append_with(MPI_MODE_RDWR, 5000);
    append_with(MPI_MODE_WRONLY, 6000);
    CHECK_EQUAL(check_reread(check.file, 0, memory, 8000), 7000);
    CHECK_PATTERN(memory, 2, 0, 7000);
    free(memory);
}

/* An open keeps what is in the file. */
static void run_open_keeps_content(void)
{
    unsigned char memory[3000];
    check_make(check.file, 2, 3000);
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_WRONLY);
    CHECK_MPI(MPI_File_close(&fh));
    CHECK_EQUAL(check_reread(check.file, 0, memory, 3000), 3000);
    CHECK_PATTERN(memory, 2, 0, 3000);
}

static void run_set_size(void)
{
    static const int steps[] = {9000, 100, 70000, 0, 4096};
    MPI_File fh;
    unsigned char *memory = check_alloc(70000);
    int kept = 5000;
    check_make(check.file, 2, 5000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        MPI_Offset size;
        MPI_Status status;
        CHECK_MPI(MPI_File_set_size(fh, steps[i]));
        check_publish(fh);
        CHECK_MPI(MPI_File_get_size(fh, &size));
        CHECK_EQUAL(size, steps[i]);
        kept = steps[i] < kept ? steps[i] : kept;
        memset(memory, CHECK_POISON, 70000);
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, 70000, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, steps[i]);
        CHECK_PATTERN(memory, 2, 0, (size_t)kept);
        CHECK_FILLED(memory + kept, 0, (uint64_t)kept, (size_t)(steps[i] - kept));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Preallocates and looks at the size, which is the larger one, and at the content, which stays. */
static void preallocate(const int (*steps)[2], int count)
{
    MPI_File fh;
    unsigned char memory[5000];
    check_make(check.file, 2, 5000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (int i = 0; i < count; i++) {
        MPI_Offset size;
        MPI_Status status;
        CHECK_MPI(MPI_File_preallocate(fh, steps[i][0]));
        check_publish(fh);
        CHECK_MPI(MPI_File_get_size(fh, &size));
        CHECK_EQUAL(size, steps[i][1]);
        CHECK_MPI(MPI_File_read_at(fh, 0, memory, sizeof memory, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, 5000);
        CHECK_PATTERN(memory, 2, 0, 5000);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_preallocate(void)
{
    preallocate((const int[][2]){{5001, 5001}, {3 * MIB, 3 * MIB}, {20 * MIB, 20 * MIB}}, 3);
}

static void run_preallocate_less(void)
{
    preallocate((const int[][2]){{0, 5000}, {1, 5000}, {4999, 5000}, {5000, 5000}}, 4);
}

/* What is synced is there for another open, before the file is closed. */
static void run_sync(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char memory[20000];
    MPI_Status status;
    for (int round = 0; round < 5; round++) {
        pattern_fill(memory, (uint64_t)(10 + round), (uint64_t)check.rank, sizeof memory);
        CHECK_MPI(MPI_File_write_at(fh, check.rank * (MPI_Offset)sizeof memory, memory, sizeof memory, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_sync(fh));
        MPI_Barrier(MPI_COMM_WORLD);
        CHECK_EQUAL(check_reread(check.file, next_rank() * (MPI_Offset)sizeof memory, memory, sizeof memory), sizeof memory);
        CHECK_PATTERN(memory, (uint64_t)(10 + round), (uint64_t)next_rank(), sizeof memory);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_delete(void)
{
    MPI_File fh = MPI_FILE_NULL;
    CHECK_CLASS(MPI_File_delete(check_name(".missing"), MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    check_make(check.file, 2, 100);
    if (check.rank == check.ranks - 1)
        CHECK_MPI(MPI_File_delete(check.file, MPI_INFO_NULL));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_CLASS(MPI_File_delete(check.file, MPI_INFO_NULL), MPI_ERR_NO_SUCH_FILE);
    CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_RDONLY, check.info, &fh), MPI_ERR_NO_SUCH_FILE);
}

static void run_zero_counts(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype empty;
    MPI_Offset size;
    MPI_Status status;
    unsigned char byte = 7;
    MPI_Type_contiguous(0, MPI_INT, &empty);
    MPI_Type_commit(&empty);
    CHECK_MPI(MPI_File_write_at(fh, 5000, &byte, 0, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, 0);
    CHECK_MPI(MPI_File_write_at(fh, 5000, NULL, 0, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_INT, 0);
    CHECK_MPI(MPI_File_write_at(fh, 5000, &byte, 3, empty, &status));
    CHECK_COUNT(&status, MPI_BYTE, 0);
    CHECK_MPI(MPI_File_write_at_all(fh, 7000, NULL, 0, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, 0);
    CHECK_MPI(MPI_File_write_all(fh, &byte, 2, empty, &status));
    CHECK_MPI(MPI_File_read_at(fh, 0, &byte, 0, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, 0);
    CHECK_MPI(MPI_File_read(fh, &byte, 4, empty, &status));
    CHECK_COUNT(&status, MPI_BYTE, 0);
    CHECK_MPI(MPI_File_read_at_all(fh, 0, NULL, 0, MPI_BYTE, &status));
    CHECK_EQUAL(byte, 7);
    CHECK_MPI(MPI_File_get_size(fh, &size));
    CHECK_EQUAL(size, 0);
    MPI_Type_free(&empty);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Small writes in a random order, read in another. */
static void run_many_small(void)
{
    enum { WRITES = 1000, SLOT = 100 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    static int order[WRITES];
    uint64_t state = check.seed;
    MPI_Status status;
    unsigned char memory[SLOT];
    random_order(&state, order, WRITES);
    for (int i = 0; i < WRITES; i++) {
        int len = order[i] % SLOT + 1;
        MPI_Offset at = ((MPI_Offset)order[i] * check.ranks + check.rank) * SLOT;
        pattern_fill(memory, (uint64_t)check.rank, (uint64_t)at, (size_t)len);
        CHECK_MPI(MPI_File_write_at(fh, at, memory, len, MPI_BYTE, &status));
    }
    check_publish(fh);
    random_order(&state, order, WRITES);
    for (int i = 0; i < WRITES; i++) {
        int len = order[i] % SLOT + 1;
        MPI_Offset at = ((MPI_Offset)order[i] * check.ranks + next_rank()) * SLOT;
        CHECK_MPI(MPI_File_read_at(fh, at, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, (uint64_t)next_rank(), (uint64_t)at, (size_t)len);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* One rank writes over its own bytes again and again: each read sees what was written last. */
static void run_overwrite(void)
{
    enum { SPAN = 100000, ROUNDS = 200 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char *model = check_alloc(SPAN), *got = check_alloc(SPAN);
    MPI_Offset start = (MPI_Offset)check.rank * SPAN;
    uint64_t state = check.seed + (uint64_t)check.rank;
    MPI_Status status;
    pattern_fill(model, 5, 0, SPAN);
    CHECK_MPI(MPI_File_write_at(fh, start, model, SPAN, MPI_BYTE, &status));
    for (int i = 0; i < ROUNDS; i++) {
        int at = random_below(&state, SPAN), len = random_below(&state, SPAN - at) / 4;
        pattern_fill(model + at, (uint64_t)(100 + i), 0, (size_t)len);
        CHECK_MPI(MPI_File_write_at(fh, start + at, model + at, len, MPI_BYTE, &status));
        at = random_below(&state, SPAN - 1000);
        CHECK_MPI(MPI_File_read_at(fh, start + at, got, 1000, MPI_BYTE, &status));
        CHECK_BYTES(got, model + at, (uint64_t)(start + at), 1000);
    }
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, start, got, SPAN), SPAN);
    CHECK_BYTES(got, model, (uint64_t)start, SPAN);
    CHECK_MPI(MPI_File_close(&fh));
    free(model);
    free(got);
}

/* What MPI tells of an open file. */
static void run_attributes(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_UNIQUE_OPEN);
    int amode = 0, size = 0, atomic = 1;
    MPI_Group group;
    CHECK_MPI(MPI_File_get_amode(fh, &amode));
    CHECK_EQUAL(amode, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_UNIQUE_OPEN);
    CHECK_MPI(MPI_File_get_group(fh, &group));
    MPI_Group_size(group, &size);
    CHECK_EQUAL(size, check.ranks);
    MPI_Group_free(&group);
    CHECK_MPI(MPI_File_get_atomicity(fh, &atomic));
    CHECK_EQUAL(atomic, 0);
    CHECK_MPI(MPI_File_close(&fh));
    CHECK(fh == MPI_FILE_NULL, "the handle is not MPI_FILE_NULL after close");
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"sizes", 1, run_sizes, "0 bytes to 17 MiB, around powers of two"},
        {"unaligned", 1, run_unaligned, "the same at odd places in memory and file"},
        {"pointers", 1, run_pointers, "individual file pointers go on where the last call ended"},
        {"seek", 1, run_seek, "MPI_SEEK_SET, MPI_SEEK_CUR, MPI_SEEK_END"},
        {"end_of_file", 1, run_end_of_file, "reads at the end of the file and beyond"},
        {"end_of_file_by_pointer", 1, run_end_of_file_by_pointer, "one read by the file pointer, across the end"},
        {"end_of_file_by_pointer_of_all", 1, run_end_of_file_by_pointer_of_all, "the same by a collective call"},
        {"partial_element", 1, run_partial_element, "a file that ends within an element"},
        {"pointer_behind_partial_element", 1, run_pointer_behind_partial_element, "where the pointer is then"},
        {"bottom", 1, run_bottom, "memory from MPI_BOTTOM on, in all ways"},
        {"holes", 1, run_holes, "holes read as zeros"},
        {"beyond_4gib", 1, run_beyond_4gib, "offsets around 2 GiB, 4 GiB and 20 GiB"},
        {"near_1tib", 1, run_near_1tib, "offsets around 1 TiB"},
        {"append", 1, run_append, "MPI_MODE_APPEND"},
        {"open_keeps_content", 1, run_open_keeps_content, "MPI_MODE_CREATE does not truncate"},
        {"set_size", 1, run_set_size, "growing and cutting"},
        {"preallocate", 1, run_preallocate, "a file grows and keeps its content"},
        {"preallocate_less", 1, run_preallocate_less, "a file is large enough already"},
        {"sync", 1, run_sync, "another open sees what was synced"},
        {"delete", 1, run_delete, "files that are there and that are not"},
        {"zero_counts", 1, run_zero_counts, "nothing is moved and the file stays empty"},
        {"many_small", 1, run_many_small, "1000 writes of 1 to 100 bytes in random order"},
        {"overwrite", 1, run_overwrite, "overlapping writes of one rank"},
        {"attributes", 1, run_attributes, "access mode, group, atomicity"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
