/* Collective calls: blocking, split and nonblocking, with ranks that move much, little and nothing.
 *
 * Each pattern of access is a case for each of the three families: the name's ending says which.
 */
#include "access.h"

/* What one rank moves: blocks of bytes of the file, in order, from memory without holes. */
struct part {
    int blocks;
    MPI_Offset first;  /* Byte of the file. */
    int len;           /* Of each block. */
    MPI_Offset stride; /* From one block to the next. */
};

typedef struct part pattern_of_rank(int rank);

static MPI_Offset part_bytes(struct part part)
{
    return (MPI_Offset)part.blocks * part.len;
}

/* The bytes of a part; each holds the pattern of the file's place. */
static void part_fill(unsigned char *memory, struct part part, uint64_t tag)
{
    for (int i = 0; i < part.blocks; i++)
        pattern_fill(memory + (size_t)i * (size_t)part.len, tag, (uint64_t)(part.first + i * part.stride), (size_t)part.len);
}

static void part_set_view(MPI_File fh, struct part part)
{
    MPI_Datatype type;
    if (part.blocks == 0 || part.len == 0) {
        CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        return;
    }
    MPI_Type_create_hvector(part.blocks, part.len, (MPI_Aint)part.stride, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, part.first, MPI_BYTE, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
}

/* Reads the blocks of every rank by an open of this rank's own, and compares them. */
static void part_check_all(pattern_of_rank *pattern_of)
{
    for (int rank = 0; rank < check.ranks; rank++) {
        struct part part = pattern_of(rank);
        unsigned char *memory = check_alloc((size_t)part.len);
        MPI_File fh = check_open_as(MPI_COMM_SELF, check.file, MPI_MODE_RDONLY, __FILE__, __LINE__);
        for (int i = 0; i < part.blocks; i += 1 + part.blocks / 64) {
            MPI_Offset at = part.first + i * part.stride;
            MPI_Status status;
            CHECK_MPI(MPI_File_read_at(fh, at, memory, part.len, MPI_BYTE, &status));
            CHECK_COUNT(&status, MPI_BYTE, part.len);
            CHECK_PATTERN(memory, (uint64_t)rank + 1, (uint64_t)at, (size_t)part.len);
        }
        CHECK_MPI(MPI_File_close(&fh));
        free(memory);
    }
}

static struct part nobody(int rank)
{
    (void)rank;
    return (struct part){0, 0, 0, 0};
}

/* Moves the pattern once: by a view and a pointer, or, where each rank has one block, by offsets. */
static void part_move(MPI_File fh, pattern_of_rank *pattern_of, enum access how, int writes, uint64_t tag_rank)
{
    struct part part = pattern_of((int)tag_rank);
    size_t bytes = (size_t)part_bytes(part);
    unsigned char *memory = guarded_alloc(bytes, 0), *want = check_alloc(bytes);
    int by_pointer = access_has_pointer(how);
    MPI_Status status;
    part_fill(want, part, tag_rank + 1);
    if (writes)
        memcpy(memory, want, bytes);
    part_set_view(fh, part);
    CHECK_MPI(access_run(how, writes, fh, 0, memory, (int)bytes, MPI_BYTE, &status));
    if (bytes != 0 || pattern_of == nobody) /* The count of nothing has a case of its own: libraries get it wrong. */
        CHECK_COUNT(&status, MPI_BYTE, (int)bytes);
    CHECK_BYTES(memory, want, 0, bytes);
    if (by_pointer) {
        MPI_Offset position = -1;
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, bytes);
    }
    GUARDED_FREE(memory, bytes, 0);
    free(want);
}

/* Writes a pattern, compares the file, and reads the own part and the one of the next rank. */
static void move(pattern_of_rank *pattern_of, enum access at, enum access pointer)
{
    for (int i = 0; i < 2; i++) {
        enum access how = i == 0 ? at : pointer;
        int before = check.failures;
        MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
        part_move(fh, pattern_of, how, 1, (uint64_t)check.rank);
        check_publish(fh);
        part_check_all(pattern_of);
        MPI_Barrier(MPI_COMM_WORLD);
        part_move(fh, pattern_of, how, 0, (uint64_t)check.rank);
        part_move(fh, pattern_of, how, 0, (uint64_t)((check.rank + 1) % check.ranks));
        CHECK_MPI(MPI_File_close(&fh));
        CHECK(check.failures == before, "that was %s", access_names[how]);
        check_remove(check.file);
    }
}

/* --- Patterns --- */

static struct part equal(int rank)
{
    return (struct part){1, (MPI_Offset)rank * 100000, 100000, 0};
}

static struct part different_sizes(int rank)
{
    static const int lens[] = {1, 70001, 4096, 1000000};
    return (struct part){1, (MPI_Offset)rank * 1000000 + 17, lens[rank % 4], 0};
}

static struct part some_without_data(int rank)
{
    return rank % 2 ? (struct part){1, (MPI_Offset)rank * 50000, 50000, 0} : (struct part){0, 0, 0, 0};
}

static struct part only_the_last(int rank)
{
    return rank == check.ranks - 1 ? (struct part){300, 12345, 333, 1000} : (struct part){0, 0, 0, 0};
}

/* Columns of a matrix: each rank has a run of each row. */
static struct part block_column(int rank)
{
    return (struct part){512, (MPI_Offset)rank * 256, 256, 256 * (MPI_Offset)check.ranks};
}

/* Columns with room between them that nobody writes. */
static struct part sparse_columns(int rank)
{
    return (struct part){200, 8 + (MPI_Offset)rank * 100, 90, 100 * (MPI_Offset)check.ranks + 3000};
}

static struct part single_bytes(int rank)
{
    return (struct part){3000, rank, 1, check.ranks};
}

/* Ranks in the opposite order. */
static struct part reversed(int rank)
{
    return (struct part){1, (MPI_Offset)(check.ranks - 1 - rank) * 65537, 65537, 0};
}

/* More than the buffers of two-phase I/O hold. */
static struct part large(int rank)
{
    return (struct part){24, (MPI_Offset)rank * 262144, 262144, 262144 * (MPI_Offset)check.ranks};
}

/* Ranks that are GiBs apart, beyond 4 GiB. */
static struct part far_apart(int rank)
{
    return (struct part){5, ((MPI_Offset)rank << 32) + ((MPI_Offset)3 << 31) + 1, 3000, 10000};
}

#define PATTERN(name)                                   \
    static void run_##name(void)                        \
    {                                                   \
        move(name, AT_ALL, ALL);                        \
    }                                                   \
    static void run_##name##_split(void)                \
    {                                                   \
        move(name, AT_ALL_SPLIT, ALL_SPLIT);            \
    }                                                   \
    static void run_##name##_nonblocking(void)          \
    {                                                   \
        move(name, IAT_ALL, IALL);                      \
    }

PATTERN(equal)
PATTERN(different_sizes)
PATTERN(some_without_data)
PATTERN(only_the_last)
PATTERN(nobody)
PATTERN(block_column)
PATTERN(sparse_columns)
PATTERN(single_bytes)
PATTERN(reversed)
PATTERN(large)
PATTERN(far_apart)

/* --- Cases of their own --- */

/* All ranks read the same bytes, and bytes that overlap. */
static void run_overlapping_reads(void)
{
    enum { SIZE = 300000, LEN = 120000 };
    unsigned char *memory = check_alloc(LEN);
    MPI_File fh;
    check_make(check.file, 50, SIZE);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (int step = 0; step <= 50000; step += 12500) {
        MPI_Offset at = (MPI_Offset)check.rank * step;
        MPI_Status status;
        CHECK_MPI(MPI_File_read_at_all(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
        CHECK_PATTERN(memory, 50, (uint64_t)at, LEN);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Reads at the end of a file: the ranks get what is left, or nothing. */
static void run_end_of_file(void)
{
    enum { LEN = 1000 };
    const int size = LEN * check.ranks - LEN / 2;
    unsigned char memory[LEN];
    MPI_Offset at = (MPI_Offset)check.rank * LEN;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 50, size);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (int i = 0; i < 3; i++, at += LEN) {
        int want = at >= size ? 0 : size - at < LEN ? (int)(size - at) : LEN;
        CHECK_MPI(MPI_File_read_at_all(fh, at, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, want);
        CHECK_PATTERN(memory, 50, (uint64_t)at, (size_t)want);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Each second rank reads into memory with gaps, the others into memory without: one rank meets the end, those behind it get nothing. */
static void run_end_of_file_mixed(void)
{
    enum { LEN = 100, SIZE = 150, BLOCKS = LEN / 2 };
    unsigned char memory[2 * LEN], packed[LEN];
    MPI_Datatype gaps;
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 50, SIZE);
    MPI_Type_vector(BLOCKS, 2, 4, MPI_BYTE, &gaps);
    MPI_Type_commit(&gaps);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (int whole = 0; whole < 2; whole++) {
        MPI_Offset at = LEN * (1 + (MPI_Offset)check.rank);
        int want = check.rank == 0 ? SIZE - LEN : 0;
        memset(memory, CHECK_POISON, sizeof memory);
        if (check.rank % 2 == whole)
            CHECK_MPI(MPI_File_read_at_all(fh, at, memory, LEN, MPI_BYTE, &status));
        else
            CHECK_MPI(MPI_File_read_at_all(fh, at, memory, 1, gaps, &status));
        CHECK_COUNT(&status, MPI_BYTE, want);
        for (int i = 0; i < LEN; i++)
            packed[i] = memory[check.rank % 2 == whole ? i : i / 2 * 4 + i % 2];
        CHECK_PATTERN(packed, 50, (uint64_t)at, (size_t)want);
    }
    MPI_Type_free(&gaps);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Ranks write columns with gaps behind the end of the file, after they have moved other data: the gaps are zeros. */
static void run_gaps_behind_the_end(void)
{
    enum { LEN = 100, BLOCKS = 100, STRIDE = 3 * LEN, EXTENT = STRIDE * BLOCKS };
    unsigned char memory[LEN * BLOCKS], want[EXTENT], got[EXTENT];
    int writers = check.ranks < 2 ? 1 : 2, bytes = check.rank < writers ? LEN * BLOCKS : 0;
    MPI_Datatype columns, type;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_vector(BLOCKS, LEN, check.ranks * LEN, MPI_BYTE, &columns);
    MPI_Type_commit(&columns);
    CHECK_MPI(MPI_File_set_view(fh, LEN * check.rank, MPI_BYTE, columns, "native", MPI_INFO_NULL));
    memset(memory, CHECK_POISON, sizeof memory);
    for (int i = 0; i < 3; i++)
        CHECK_MPI(MPI_File_write_at_all(fh, i * LEN * BLOCKS, memory, LEN * BLOCKS, MPI_BYTE, &status));
    MPI_Type_free(&columns);
    CHECK_MPI(MPI_File_set_size(fh, 0));
    MPI_Type_vector(BLOCKS, LEN, STRIDE, MPI_BYTE, &columns);
    MPI_Type_create_resized(columns, 0, EXTENT, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, LEN * check.rank, MPI_BYTE, type, "native", MPI_INFO_NULL));
    pattern_fill(memory, (uint64_t)check.rank, 0, sizeof memory);
    CHECK_MPI(MPI_File_write_all(fh, memory, bytes, MPI_BYTE, &status));
    check_publish(fh);
    memset(want, 0, sizeof want);
    for (int rank = 0; rank < writers; rank++)
        for (int i = 0; i < BLOCKS; i++)
            pattern_fill(want + i * STRIDE + rank * LEN, (uint64_t)rank, (uint64_t)(i * LEN), LEN);
    CHECK_EQUAL(check_reread(check.file, 0, got, sizeof got), EXTENT - (3 - writers) * LEN);
    CHECK_BYTES(got, want, 0, EXTENT - (size_t)(3 - writers) * LEN);
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Type_free(&columns);
    MPI_Type_free(&type);
}

/* The file grows while the ranks read at its end: what a status counts is there. */
static void run_end_moves(void)
{
    enum { LEN = 3000, ROUNDS = 40 };
    const int step = LEN * check.ranks / 2 + 1;
    unsigned char *memory = check_alloc(LEN), *more = check_alloc((size_t)step);
    MPI_File other, fh;
    check_make(check.file, 50, step);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    other = check_open_as(MPI_COMM_SELF, check.file, MPI_MODE_RDWR, __FILE__, __LINE__);
    for (int round = 1; round <= ROUNDS; round++) {
        MPI_Offset end = (MPI_Offset)round * step, at = end - step + (MPI_Offset)check.rank * LEN;
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Status status;
        int count = -1, least = at >= end ? 0 : end - at < LEN ? (int)(end - at) : LEN;
        pattern_fill(more, 50, (uint64_t)end, (size_t)step);
        if (check.rank == check.ranks - 1)
            CHECK_MPI(MPI_File_iwrite_at(other, end, more, step, MPI_BYTE, &request));
        memset(memory, CHECK_POISON, LEN);
        CHECK_MPI(MPI_File_read_at_all(fh, at, memory, LEN, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count >= least && count <= LEN, "count: expected %d to %d, got %d", least, LEN, count);
        if (count > 0)
            CHECK_PATTERN(memory, 50, (uint64_t)at, (size_t)count);
        CHECK_MPI(MPI_Wait(&request, &status));
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&other));
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
    free(more);
}

/* Many collective calls one after the other, each of other sizes, with messages between. */
static void run_sequence(void)
{
    enum { ROUNDS = 60, SLOT = 3000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char memory[SLOT];
    MPI_Status status;
    for (int round = 0; round < ROUNDS; round++) {
        int len = (round * 631 + check.rank * 977) % SLOT, sum = 0;
        MPI_Offset at = ((MPI_Offset)round * check.ranks + check.rank) * SLOT;
        pattern_fill(memory, (uint64_t)round, (uint64_t)at, (size_t)len);
        CHECK_MPI(MPI_File_write_at_all(fh, at, memory, len, MPI_BYTE, &status));
        if (len != 0)
            CHECK_COUNT(&status, MPI_BYTE, len);
        MPI_Allreduce(&round, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK_EQUAL(sum, round * check.ranks);
    }
    check_publish(fh);
    for (int round = 0; round < ROUNDS; round++) {
        int rank = (check.rank + round) % check.ranks, len = (round * 631 + rank * 977) % SLOT;
        MPI_Offset at = ((MPI_Offset)round * check.ranks + rank) * SLOT;
        CHECK_MPI(MPI_File_read_at_all(fh, at, memory, len, MPI_BYTE, &status));
        if (len != 0)
            CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, (uint64_t)round, (uint64_t)at, (size_t)len);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Between begin and end of a split call the rank computes, sends messages, and uses another file. */
static void run_split_with_work(void)
{
    enum { LEN = 50000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_File other = check_open_as(MPI_COMM_SELF, check.file, MPI_MODE_RDWR, __FILE__, __LINE__);
    MPI_Offset at = (MPI_Offset)check.rank * LEN, behind = (MPI_Offset)(check.ranks + check.rank) * LEN;
    unsigned char *memory = check_alloc(LEN), *small = check_alloc(LEN);
    MPI_Status status;
    int sum = 0;
    pattern_fill(memory, 1, (uint64_t)at, LEN);
    pattern_fill(small, 2, (uint64_t)behind, LEN);
    CHECK_MPI(MPI_File_write_at_all_begin(fh, at, memory, LEN, MPI_BYTE));
    CHECK_MPI(MPI_File_write_at(other, behind, small, LEN, MPI_BYTE, &status));
    MPI_Allreduce(&check.rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_write_at_all_end(fh, memory, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_MPI(MPI_File_close(&other));
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, at, small, LEN), LEN);
    CHECK_PATTERN(small, 1, (uint64_t)at, LEN);
    CHECK_EQUAL(check_reread(check.file, behind, small, LEN), LEN);
    CHECK_PATTERN(small, 2, (uint64_t)behind, LEN);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
    free(small);
}

/* A nonblocking call waits for no other rank: the last rank makes its own only when the others have told it that theirs were made. */
static void run_begun_in_turn(void)
{
    enum { LEN = 5000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset at = (MPI_Offset)check.rank * LEN;
    unsigned char memory[LEN];
    for (int writes = 1; writes >= 0; writes--) {
        MPI_Request request = MPI_REQUEST_NULL;
        MPI_Status status;
        pattern_fill(memory, writes ? 1 : 2, (uint64_t)at, LEN);
        if (check.rank == check.ranks - 1)
            for (int rank = 0; rank < check.rank; rank++)
                MPI_Recv(NULL, 0, MPI_BYTE, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (writes)
            CHECK_MPI(MPI_File_iwrite_at_all(fh, at, memory, LEN, MPI_BYTE, &request));
        else
            CHECK_MPI(MPI_File_iread_at_all(fh, at, memory, LEN, MPI_BYTE, &request));
        if (check.rank != check.ranks - 1)
            MPI_Send(NULL, 0, MPI_BYTE, check.ranks - 1, 0, MPI_COMM_WORLD);
        CHECK_MPI(MPI_Wait(&request, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
        CHECK_PATTERN(memory, 1, (uint64_t)at, LEN);
        check_publish(fh);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Several nonblocking collective calls on one file at once, completed in another order than started. */
static void run_outstanding_nonblocking(void)
{
    enum { CALLS = 8, LEN = 20000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char *memory = check_alloc(CALLS * LEN);
    MPI_Request requests[CALLS];
    MPI_Status status;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < CALLS; i++) {
            MPI_Offset at = ((MPI_Offset)i * check.ranks + check.rank) * LEN;
            if (round == 0) {
                pattern_fill(memory + i * LEN, 1, (uint64_t)at, LEN);
                CHECK_MPI(MPI_File_iwrite_at_all(fh, at, memory + i * LEN, LEN, MPI_BYTE, &requests[i]));
            } else {
                CHECK_MPI(MPI_File_iread_at_all(fh, at, memory + i * LEN, LEN, MPI_BYTE, &requests[i]));
            }
        }
        for (int i = CALLS - 1; i >= 0; i--) {
            MPI_Offset at = ((MPI_Offset)i * check.ranks + check.rank) * LEN;
            CHECK_MPI(MPI_Wait(&requests[i], &status));
            CHECK_COUNT(&status, MPI_BYTE, LEN);
            CHECK_PATTERN(memory + i * LEN, 1, (uint64_t)at, LEN);
        }
        check_publish(fh);
        memset(memory, CHECK_POISON, CALLS * LEN);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* In a view without a byte all places are the first one. */
static void seek_nowhere(MPI_File fh)
{
    static const int whences[] = {MPI_SEEK_SET, MPI_SEEK_CUR, MPI_SEEK_END};
    MPI_Offset position = -1, byte = -1;
    for (int i = 0; i < 3; i++) {
        CHECK_MPI(MPI_File_seek(fh, 0, whences[i]));
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, 0);
    }
    CHECK_MPI(MPI_File_get_byte_offset(fh, 0, &byte));
    CHECK_EQUAL(byte, 100 * check.rank);
}

/* Each second rank has a view without a byte in it, as a part of an array that it has nothing of. */
static void run_empty_views(void)
{
    enum { LEN = 100, BLOCKS = 40 };
    int empty = check.rank % 2, bytes = empty ? 0 : LEN * BLOCKS;
    unsigned char memory[LEN * BLOCKS], want[LEN * BLOCKS];
    MPI_Datatype type;
    MPI_Offset position = -1;
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    if (empty)
        MPI_Type_contiguous(0, MPI_BYTE, &type);
    else
        MPI_Type_vector(BLOCKS, LEN, LEN * check.ranks, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, LEN * check.rank, MPI_BYTE, type, "native", MPI_INFO_NULL));
    pattern_fill(want, (uint64_t)check.rank, 0, sizeof want);
    CHECK_MPI(MPI_File_write_all(fh, want, bytes, MPI_BYTE, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, bytes);
    if (empty)
        seek_nowhere(fh);
    memset(memory, CHECK_POISON, sizeof memory);
    CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, bytes, MPI_BYTE, &status));
    CHECK_BYTES(memory, want, 0, (size_t)bytes);
    CHECK_FILLED(memory + bytes, CHECK_POISON, 0, sizeof memory - (size_t)bytes);
    CHECK_EQUAL(check_reread(check.file, 0, memory, LEN), LEN);
    CHECK_PATTERN(memory, 0, 0, LEN);
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Type_free(&type);
}

#define CASES(name, what)                                                             \
    {#name, 1, run_##name, what}, {#name "_split", 1, run_##name##_split, what ", by begin and end"}, \
    {                                                                                 \
        #name "_nonblocking", 1, run_##name##_nonblocking, what ", by iwrite and iread" \
    }

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASES(equal, "a block of each rank"),
        CASES(different_sizes, "1 byte to 1 MB"),
        CASES(some_without_data, "each second rank moves nothing"),
        CASES(only_the_last, "one rank moves all"),
        CASES(nobody, "no rank moves anything, and the statuses say so"),
        CASES(block_column, "columns of a matrix"),
        CASES(sparse_columns, "columns with gaps"),
        CASES(single_bytes, "bytes of the ranks by turns"),
        CASES(reversed, "ranks in the opposite order"),
        CASES(large, "6 MiB of each rank, by turns"),
        CASES(far_apart, "ranks that lie 4 GiB apart"),
        {"overlapping_reads", 1, run_overlapping_reads, "ranks read the same bytes"},
        {"end_of_file", 1, run_end_of_file, "ranks read at the end of the file and beyond"},
        {"end_of_file_mixed", 1, run_end_of_file_mixed, "the same into memory with gaps and without"},
        {"end_moves", 1, run_end_moves, "the same while the file grows"},
        {"gaps_behind_the_end", 1, run_gaps_behind_the_end, "gaps behind the end of the file become zeros"},
        {"empty_views", 1, run_empty_views, "views without a byte"},
        {"sequence", 1, run_sequence, "60 calls of all sizes, with messages between"},
        {"split_with_work", 1, run_split_with_work, "work between begin and end"},
        {"begun_in_turn", 2, run_begun_in_turn, "nonblocking calls that the ranks make one after the other"},
        {"outstanding_nonblocking", 1, run_outstanding_nonblocking, "8 nonblocking collective calls at once"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
