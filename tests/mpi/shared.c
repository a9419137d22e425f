/* The shared file pointer: records of all ranks that do not tear, are all there, and in rank order where that is promised. */
#include "check.h"

/* Records that each rank writes. */
#define RECORDS 50

/* A record: who wrote it, its number, its length with this head, and a pattern. */
struct head {
    int rank, number, len;
};
#define RECORD_MAX 2000

static int record_len(int rank, int number)
{
    return (int)sizeof(struct head) + (rank * 311 + number * 173) % (RECORD_MAX - (int)sizeof(struct head));
}

/* Puts a record into memory of RECORD_MAX bytes and returns its length. */
static int record_make(unsigned char *memory, int rank, int number, int len)
{
    struct head head = {rank, number, len};
    memcpy(memory, &head, sizeof head);
    pattern_fill(memory + sizeof head, (uint64_t)rank, (uint64_t)number * RECORD_MAX, (size_t)len - sizeof head);
    return len;
}

/* Compares a record with what its head says; returns its length, or 0. */
static int record_check(const unsigned char *memory, int left, struct head *head)
{
    if (left < (int)sizeof *head)
        return 0;
    memcpy(head, memory, sizeof *head);
    if (head->rank < 0 || head->rank >= check.ranks || head->len < (int)sizeof *head || head->len > left || head->number < 0)
        return 0;
    CHECK_PATTERN(memory + sizeof *head, (uint64_t)head->rank, (uint64_t)head->number * RECORD_MAX, (size_t)head->len - sizeof *head);
    return head->len;
}

/* The file is all records of all ranks, each once, those of a rank in order if asked for. */
static void check_records(int records, int in_order)
{
    int size = check.ranks * records * RECORD_MAX, at = 0, len, ended = 0;
    unsigned char *file = check_alloc((size_t)size), *seen = check_alloc((size_t)(check.ranks * records));
    int last[64];
    memset(seen, 0, (size_t)(check.ranks * records));
    memset(last, -1, sizeof last);
    size = check_reread(check.file, 0, file, size);
    while (at < size) {
        struct head head;
        len = record_check(file + at, size - at, &head);
        CHECK(len > 0 && head.number < records, "no record at offset %d of %d", at, size);
        if (len == 0 || head.number >= records)
            break;
        CHECK(!seen[head.rank * records + head.number]++, "record %d of rank %d is there twice", head.number, head.rank);
        CHECK(!in_order || head.number > last[head.rank % 64], "record %d of rank %d comes late", head.number, head.rank);
        last[head.rank % 64] = head.number;
        at += len;
        ended++;
    }
    CHECK_EQUAL(ended, check.ranks * records);
    free(file);
    free(seen);
}

static void run_write_shared(void)
{
    unsigned char memory[RECORD_MAX];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Status status;
    for (int i = 0; i < RECORDS; i++) {
        int len = record_make(memory, check.rank, i, record_len(check.rank, i));
        CHECK_MPI(MPI_File_write_shared(fh, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
    }
    check_publish(fh);
    check_records(RECORDS, 1);
    CHECK_MPI(MPI_File_close(&fh));
}

static void run_iwrite_shared(void)
{
    unsigned char *memory = check_alloc(RECORDS * RECORD_MAX);
    MPI_Request requests[RECORDS];
    MPI_Status statuses[RECORDS];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int i = 0; i < RECORDS; i++) {
        int len = record_make(memory + i * RECORD_MAX, check.rank, i, record_len(check.rank, i));
        CHECK_MPI(MPI_File_iwrite_shared(fh, memory + i * RECORD_MAX, len, MPI_BYTE, &requests[i]));
    }
    CHECK_MPI(MPI_Waitall(RECORDS, requests, statuses));
    for (int i = 0; i < RECORDS; i++)
        CHECK_COUNT(&statuses[i], MPI_BYTE, record_len(check.rank, i));
    check_publish(fh);
    check_records(RECORDS, 0);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Makes a file of `records` records of one length, numbered in order, as of rank 0. */
static void make_records(int records, int len)
{
    unsigned char memory[RECORD_MAX];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Status status;
    for (int i = 0; check.rank == 0 && i < records; i++) {
        record_make(memory, 0, i, len);
        CHECK_MPI(MPI_File_write(fh, memory, len, MPI_BYTE, &status));
    }
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Reads all records through the shared pointer: each comes to one rank, once. */
static void read_records(int nonblocking)
{
    const int len = 700, records = RECORDS * check.ranks;
    unsigned char memory[RECORD_MAX];
    int *mine = check_alloc((size_t)records * sizeof *mine), *all = check_alloc((size_t)records * sizeof *all);
    MPI_File fh;
    memset(mine, 0, (size_t)records * sizeof *mine);
    make_records(records, len);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (int i = 0; i < RECORDS; i++) {
        MPI_Status status;
        MPI_Request request;
        struct head head = {-1, -1, 0};
        if (nonblocking) {
            CHECK_MPI(MPI_File_iread_shared(fh, memory, len, MPI_BYTE, &request));
            CHECK_MPI(MPI_Wait(&request, &status));
        } else {
            CHECK_MPI(MPI_File_read_shared(fh, memory, len, MPI_BYTE, &status));
        }
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK(record_check(memory, len, &head) == len && head.number < records, "read %d gave no record", i);
        if (head.number >= 0 && head.number < records)
            mine[head.number]++;
    }
    MPI_Allreduce(mine, all, records, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < records; i++)
        CHECK(all[i] == 1, "record %d was read %d times", i, all[i]);
    CHECK_MPI(MPI_File_close(&fh));
    free(mine);
    free(all);
}

static void run_read_shared(void)
{
    read_records(0);
}

static void run_iread_shared(void)
{
    read_records(1);
}

/* Lengths in an ordered round; each third rank and round has none. */
static int ordered_len(int rank, int round)
{
    return (rank + round) % 3 == 2 ? 0 : (rank * 997 + round * 1201) % 5000 + 1;
}

/* Where a rank's bytes of a round lie: behind those of all rounds before, and of the ranks before it. */
static MPI_Offset ordered_place(int rank, int round)
{
    MPI_Offset at = 0;
    for (int r = 0; r <= round; r++)
        for (int i = 0; i < (r < round ? check.ranks : rank); i++)
            at += ordered_len(i, r);
    return at;
}

/* Rounds of ordered writes and reads, compared in place. */
static void move_ordered(int split)
{
    enum { ROUNDS = 20 };
    unsigned char *memory = check_alloc(5000);
    MPI_Status status;
    MPI_Offset position = -1;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int round = 0; round < ROUNDS; round++) {
        int len = ordered_len(check.rank, round);
        pattern_fill(memory, 1, (uint64_t)ordered_place(check.rank, round), (size_t)len);
        if (split) {
            CHECK_MPI(MPI_File_write_ordered_begin(fh, memory, len, MPI_BYTE));
            CHECK_MPI(MPI_File_write_ordered_end(fh, memory, &status));
        } else {
            CHECK_MPI(MPI_File_write_ordered(fh, memory, len, MPI_BYTE, &status));
        }
        if (len != 0)
            CHECK_COUNT(&status, MPI_BYTE, len);
    }
    check_publish(fh);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, ordered_place(0, ROUNDS));
    for (int round = 0; round < ROUNDS; round++) {
        int rank = (check.rank + round) % check.ranks, len = ordered_len(rank, round);
        CHECK_EQUAL(check_reread(check.file, ordered_place(rank, round), memory, len), len);
        CHECK_PATTERN(memory, 1, (uint64_t)ordered_place(rank, round), (size_t)len);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    for (int round = 0; round < ROUNDS; round++) {
        int len = ordered_len(check.rank, round);
        if (split) {
            CHECK_MPI(MPI_File_read_ordered_begin(fh, memory, len, MPI_BYTE));
            CHECK_MPI(MPI_File_read_ordered_end(fh, memory, &status));
        } else {
            CHECK_MPI(MPI_File_read_ordered(fh, memory, len, MPI_BYTE, &status));
        }
        if (len != 0)
            CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_PATTERN(memory, 1, (uint64_t)ordered_place(check.rank, round), (size_t)len);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

static void run_ordered(void)
{
    move_ordered(0);
}

static void run_ordered_split(void)
{
    move_ordered(1);
}

static void check_position_shared(MPI_File fh, MPI_Offset want)
{
    MPI_Offset position = -1;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_get_position_shared(fh, &position));
    CHECK_EQUAL(position, want);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void run_seek_shared(void)
{
    unsigned char memory[100];
    MPI_Status status;
    MPI_File fh;
    make_records(10, 700);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    check_position_shared(fh, 0);
    CHECK_MPI(MPI_File_seek_shared(fh, 1000, MPI_SEEK_SET));
    check_position_shared(fh, 1000);
    CHECK_MPI(MPI_File_seek_shared(fh, -300, MPI_SEEK_CUR));
    check_position_shared(fh, 700);
    CHECK_MPI(MPI_File_seek_shared(fh, -700, MPI_SEEK_END));
    check_position_shared(fh, 6300);
    if (check.rank == check.ranks - 1)
        CHECK_MPI(MPI_File_read_shared(fh, memory, 100, MPI_BYTE, &status));
    check_position_shared(fh, 6400);
    if (check.rank == check.ranks - 1) {
        struct head head;
        memcpy(&head, memory, sizeof head);
        CHECK_EQUAL(head.number, 9);
    }
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_END));
    check_position_shared(fh, 7000);
    CHECK_MPI(MPI_File_close(&fh));
}

/* The shared pointer, the individual one, and offsets do not touch one another. */
static void run_pointers_apart(void)
{
    unsigned char memory[700];
    MPI_Status status;
    MPI_Offset position;
    MPI_File fh;
    make_records(20, 700);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_seek(fh, 1400 + check.rank, MPI_SEEK_SET));
    MPI_Barrier(MPI_COMM_WORLD);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_read_shared(fh, memory, 700, MPI_BYTE, &status));
    check_position_shared(fh, 700);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 1400 + check.rank);
    CHECK_MPI(MPI_File_read(fh, memory, 100, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_read_at(fh, 5000, memory, 100, MPI_BYTE, &status));
    check_position_shared(fh, 700);
    CHECK_MPI(MPI_File_seek_shared(fh, 0, MPI_SEEK_SET));
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 1500 + check.rank);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A view that all ranks share: the pointer counts its etypes. */
static void run_view(void)
{
    enum { INTS = 25 };
    MPI_Datatype type;
    MPI_Offset byte = -1;
    MPI_Status status;
    int *memory = check_alloc(INTS * sizeof *memory), *file;
    int ints = 2 * INTS * check.ranks, sum = 0;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_create_resized(MPI_INT, 0, 2 * sizeof(int), &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 4, MPI_INT, type, "native", MPI_INFO_NULL));
    for (int i = 0; i < INTS; i++)
        memory[i] = 1 + check.rank;
    CHECK_MPI(MPI_File_write_shared(fh, memory, INTS, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_INT, INTS);
    check_publish(fh);
    check_position_shared(fh, (MPI_Offset)INTS * check.ranks);
    CHECK_MPI(MPI_File_get_byte_offset(fh, 3, &byte));
    CHECK_EQUAL(byte, 28);
    file = check_alloc((size_t)(ints + 1) * sizeof *file);
    CHECK_EQUAL(check_reread(check.file, 0, file, (ints + 1) * 4), ints * 4);
    for (int i = 0; i < ints; i += 2) {
        CHECK_EQUAL(file[i + 1], file[i / (2 * INTS) * 2 * INTS + 1]);
        sum += file[i + 1];
    }
    CHECK_EQUAL(sum, INTS * check.ranks * (check.ranks + 1) / 2);
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
    free(file);
}

/* Reads by all ranks through the shared pointer end at the end of the file. */
static void run_end_of_file(void)
{
    unsigned char memory[1000];
    int bytes = 0, all = 0;
    MPI_File fh;
    make_records(10, 700);
    fh = CHECK_OPEN(MPI_MODE_RDONLY);
    for (int i = 0; i < 10; i++) {
        MPI_Status status;
        int got = 0;
        CHECK_MPI(MPI_File_read_shared(fh, memory, 1000, MPI_BYTE, &status));
        MPI_Get_count(&status, MPI_BYTE, &got);
        bytes += got;
    }
    MPI_Allreduce(&bytes, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK_EQUAL(all, 7000);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Two opens of one file have shared pointers of their own. */
static void run_two_opens(void)
{
    unsigned char memory[100];
    MPI_Status status;
    MPI_File one, two;
    make_records(10, 700);
    one = CHECK_OPEN(MPI_MODE_RDONLY);
    two = CHECK_OPEN(MPI_MODE_RDONLY);
    CHECK_MPI(MPI_File_read_ordered(one, memory, 100, MPI_BYTE, &status));
    check_position_shared(one, 100 * check.ranks);
    check_position_shared(two, 0);
    CHECK_MPI(MPI_File_close(&one));
    CHECK_MPI(MPI_File_close(&two));
}

/* After a close and an open, the shared pointer begins at 0. */
static void run_reopen(void)
{
    unsigned char memory[100];
    MPI_Status status;
    make_records(10, 700);
    for (int i = 0; i < 5; i++) {
        MPI_File fh = CHECK_OPEN(MPI_MODE_RDONLY);
        check_position_shared(fh, 0);
        CHECK_MPI(MPI_File_read_shared(fh, memory, 100, MPI_BYTE, &status));
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* Each view begins with the pointer at 0, and counts in its own etypes. */
static void run_views_change(void)
{
    enum { PAIRS = 8 };
    MPI_Datatype pair, spread;
    MPI_Status status;
    int memory[2 * PAIRS], ints = 2 * PAIRS * check.ranks;
    int *file = check_alloc((size_t)(2 * ints) * sizeof *file);
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_create_resized(pair, 0, 4 * sizeof(int), &spread);
    MPI_Type_commit(&pair);
    MPI_Type_commit(&spread);
    for (int i = 0; i < 2 * PAIRS; i++)
        memory[i] = 1 + check.rank;
    for (int round = 0; round < 3; round++) {
        CHECK_MPI(MPI_File_set_view(fh, 0, pair, spread, "native", MPI_INFO_NULL));
        CHECK_MPI(MPI_File_write_shared(fh, memory, 2 * PAIRS, MPI_INT, &status));
        CHECK_COUNT(&status, MPI_INT, 2 * PAIRS);
        check_position_shared(fh, (MPI_Offset)PAIRS * check.ranks);
        CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        check_position_shared(fh, 0);
        CHECK_MPI(MPI_File_read_ordered(fh, memory, sizeof(int), MPI_BYTE, &status));
        check_position_shared(fh, (MPI_Offset)sizeof(int) * check.ranks);
        memory[0] = 1 + check.rank;
    }
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, 0, file, (2 * ints - 2) * 4), (2 * ints - 2) * 4);
    for (int i = 0; i < 2 * ints - 2; i++)
        CHECK(i % 4 < 2 ? file[i] == file[i / (4 * PAIRS) * 4 * PAIRS] : file[i] == 0, "number %d is %d", i, file[i]);
    MPI_Type_free(&pair);
    MPI_Type_free(&spread);
    CHECK_MPI(MPI_File_close(&fh));
    free(file);
}

/* A dafs driver has not moved the pointer: nobody has asked for it. */
static void check_pointer_unused(MPI_File fh)
{
    char value[MPI_MAX_INFO_VAL + 1];
    MPI_Info info;
    int found = 0;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    MPI_Info_get(info, "dafs_stat_pointer_moves", MPI_MAX_INFO_VAL, value, &found);
    CHECK(!found || strcmp(value, "0") == 0, "the shared pointer was moved %s times", value);
    MPI_Info_free(&info);
}

/* A file that is opened for appending: the pointer begins at its end. */
static void run_append(void)
{
    unsigned char memory[100];
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 1000);
    fh = CHECK_OPEN(MPI_MODE_RDWR | MPI_MODE_APPEND);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    check_pointer_unused(fh);
    check_position_shared(fh, 0);
    CHECK_MPI(MPI_File_close(&fh));
    fh = CHECK_OPEN(MPI_MODE_RDWR | MPI_MODE_APPEND);
    check_pointer_unused(fh);
    check_position_shared(fh, 1000);
    pattern_fill(memory, 1, 1000 + 100 * (uint64_t)check.rank, 100);
    CHECK_MPI(MPI_File_write_ordered(fh, memory, 100, MPI_BYTE, &status));
    check_position_shared(fh, 1000 + 100 * check.ranks);
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, 1000 + 100 * check.rank, memory, 100), 100);
    CHECK_PATTERN(memory, 1, 1000 + 100 * (uint64_t)check.rank, 100);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A sequential file: a view may begin where the pointer is. */
static void run_sequential(void)
{
    unsigned char memory[100];
    MPI_Status status;
    MPI_File fh;
    check_make(check.file, 1, 2000);
    fh = CHECK_OPEN(MPI_MODE_RDONLY | MPI_MODE_SEQUENTIAL);
    CHECK_MPI(MPI_File_read_ordered(fh, memory, 100, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 100 * (uint64_t)check.rank, 100);
    CHECK_MPI(MPI_File_set_view(fh, MPI_DISPLACEMENT_CURRENT, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_read_ordered(fh, memory, 100, MPI_BYTE, &status));
    CHECK_PATTERN(memory, 1, 100 * (uint64_t)(check.ranks + check.rank), 100);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Mistakes are told to all ranks, nobody hangs, and the pointer stays. */
static void run_mistakes(void)
{
    int memory[4] = {0}, error;
    MPI_Status status;
    MPI_File fh;
    make_records(1, 700);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_seek_shared(fh, 10, MPI_SEEK_SET));
    CHECK_CLASS(MPI_File_seek_shared(fh, -11, MPI_SEEK_CUR), MPI_ERR_ARG);
    check_position_shared(fh, 10);
    error = MPI_File_seek_shared(fh, check.rank == 0 ? 5 : 6, MPI_SEEK_SET);
    if (check.expect_dafs)
        CHECK_CLASS(error, MPI_ERR_NOT_SAME);
    else
        CHECK_CLASS(error, MPI_ERR_NOT_SAME, MPI_ERR_ARG, MPI_SUCCESS);
    CHECK_MPI(MPI_File_seek_shared(fh, 10, MPI_SEEK_SET));
    /* Three bytes are no etype. */
    CHECK_CLASS(MPI_File_read_ordered(fh, memory, check.rank == 0 ? 3 : 4, MPI_BYTE, &status), MPI_ERR_ARG, MPI_ERR_IO);
    check_position_shared(fh, 10);
    CHECK_MPI(MPI_File_read_ordered(fh, memory, 1, MPI_INT, &status));
    check_position_shared(fh, 10 + check.ranks);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Blocking, nonblocking and ordered calls by turns, atomic mode too where there is one. */
static void run_mixture(void)
{
    enum { LEN = 700 };
    unsigned char *memory = check_alloc(RECORDS * LEN);
    MPI_Request requests[RECORDS];
    MPI_Status status;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_set_atomicity(fh, 1), MPI_SUCCESS, MPI_ERR_UNSUPPORTED_OPERATION);
    for (int i = 0; i < RECORDS; i++) {
        unsigned char *own = memory + i * LEN;
        record_make(own, check.rank, i, LEN);
        requests[i] = MPI_REQUEST_NULL;
        if (i % 5 == 4)
            CHECK_MPI(MPI_File_write_ordered(fh, own, LEN, MPI_BYTE, &status));
        else if (i % 2)
            CHECK_MPI(MPI_File_iwrite_shared(fh, own, LEN, MPI_BYTE, &requests[i]));
        else
            CHECK_MPI(MPI_File_write_shared(fh, own, LEN, MPI_BYTE, &status));
    }
    CHECK_MPI(MPI_Waitall(RECORDS, requests, MPI_STATUSES_IGNORE));
    check_publish(fh);
    check_records(RECORDS, 0);
    check_position_shared(fh, (MPI_Offset)RECORDS * LEN * check.ranks);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Says on how many nodes the ranks are. */
static void run_nodes(void)
{
    MPI_Comm node;
    int rank = -1, first, nodes = 0;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &rank);
    first = rank == 0;
    MPI_Reduce(&first, &nodes, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (check.rank == 0)
        printf("nodes: %d\n", nodes);
    MPI_Comm_free(&node);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"write_shared", 1, run_write_shared, "records of all lengths do not tear and are all there"},
        {"iwrite_shared", 1, run_iwrite_shared, "the same, nonblocking"},
        {"read_shared", 1, run_read_shared, "each record is read once"},
        {"iread_shared", 1, run_iread_shared, "the same, nonblocking"},
        {"ordered", 1, run_ordered, "write_ordered and read_ordered of all lengths"},
        {"ordered_split", 1, run_ordered_split, "the same, by begin and end"},
        {"seek_shared", 1, run_seek_shared, "MPI_File_seek_shared, MPI_File_get_position_shared"},
        {"pointers_apart", 1, run_pointers_apart, "shared and individual pointers are independent"},
        {"view", 1, run_view, "the pointer counts etypes of a view"},
        {"end_of_file", 1, run_end_of_file, "reads end at the end of the file"},
        {"two_opens", 1, run_two_opens, "each open has a pointer of its own"},
        {"reopen", 1, run_reopen, "the pointer begins at 0 at each open"},
        {"views_change", 1, run_views_change, "the pointer begins at 0 in each view"},
        {"append", 1, run_append, "it begins at the end of a file opened for appending"},
        {"sequential", 1, run_sequential, "a view at MPI_DISPLACEMENT_CURRENT"},
        {"mistakes", 2, run_mistakes, "mistakes of one rank or all"},
        {"mixture", 1, run_mixture, "all ways to write, by turns"},
        {"nodes", 1, run_nodes, "says on how many nodes the ranks are"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
