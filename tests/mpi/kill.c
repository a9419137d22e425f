/* Loops for tests that kill a rank or the server: they compare what they move until a call fails, and then end in order.
 *
 * A rank prints what it met. A case is passed by an error, or by --iterations N without one; never by wrong bytes, by
 * ranks that differ in a collective call, or by waiting.
 *
 * --ready FILE     a local file that rank 0 makes when all ranks are in the loop
 * --die RANK N     the rank ends at once after N iterations, without a word
 * --each           independent: each rank goes on until a call of its own fails; otherwise the first error stops all
 * --grow           each iteration writes behind the last one, until the space or the quota ends
 */
#include "access.h"

#include <fcntl.h>

#define LEN 40000
#define SLOTS 16
#define WARM_UP 4
#define TAG_STOP 17
#define RANKS_MAX 64

static struct {
    MPI_File fh;
    MPI_Datatype strided;
    unsigned char memory[LEN], want[LEN];
    long iterations, die_at;
    int die_rank, each, grow;
    long k;
} loop;

static void begin(void)
{
    loop.iterations = atol(check_option("--iterations", 0, "-1"));
    loop.die_rank = atoi(check_option("--die", 0, "-1"));
    loop.die_at = atol(check_option("--die", 1, "-1"));
    loop.each = check_flag("--each");
    loop.grow = check_flag("--grow");
    loop.fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_vector(LEN / 400, 200, 400, MPI_BYTE, &loop.strided);
    MPI_Type_commit(&loop.strided);
}

/* Tells the test, once all ranks have come this far. */
static void say_ready(void)
{
    const char *name = check_option("--ready", 0, NULL);
    int fd;
    MPI_Barrier(MPI_COMM_WORLD);
    if (check.rank != 0 || name == NULL)
        return;
    fd = open(name, O_CREAT | O_WRONLY, 0644);
    CHECK(fd >= 0, "%s cannot be made", name);
    if (fd >= 0)
        close(fd);
}

static void die_if_told(void)
{
    if (check.rank == loop.die_rank && loop.k >= loop.die_at)
        _exit(9);
}

static void say_error(int error, const char *what)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int len;
    MPI_Error_string(error, text, &len);
    printf("rank %d: error %s of %s after %ld iterations: %s\n", check.rank, check_class_name(check_class_of(error)), what, loop.k, text);
    fflush(stdout);
}

/* Closes the file; after an error that may fail too. Without one it may tell of data that a restarted server has lost. */
static void end(int had_error)
{
    int error = MPI_File_close(&loop.fh);
    if (!had_error)
        CHECK_CLASS(error, MPI_SUCCESS, MPI_ERR_IO);
    MPI_Type_free(&loop.strided);
}

/* Where this rank writes in an iteration, in bytes. */
static MPI_Offset place(long k)
{
    MPI_Offset slot = loop.grow ? k : k % SLOTS;
    return (slot * check.ranks + check.rank) * LEN;
}

/* Writes a slot and reads it again, by calls that change from one iteration to the next. */
static int move_independent(const char **what)
{
    static const enum access ways[] = {AT, IAT, POINTER, IPOINTER};
    enum access how = ways[loop.k % 4];
    MPI_Offset at = place(loop.k);
    MPI_Datatype type = loop.k % 3 == 2 ? loop.strided : MPI_BYTE;
    int count = type == MPI_BYTE ? LEN : 1, error;
    MPI_Status status;
    *what = "a write";
    pattern_fill(loop.want, (uint64_t)loop.k, (uint64_t)at, LEN);
    memcpy(loop.memory, loop.want, LEN);
    MPI_File_seek(loop.fh, at, MPI_SEEK_SET);
    error = access_run(how, 1, loop.fh, at, loop.memory, count, type, &status);
    if (error != MPI_SUCCESS)
        return error;
    CHECK_COUNT(&status, MPI_BYTE, type == MPI_BYTE ? LEN : LEN / 2);
    *what = "a read";
    for (int i = 0; i < LEN; i++)
        if (type == MPI_BYTE || i % 400 < 200)
            loop.memory[i] = CHECK_POISON;
    MPI_File_seek(loop.fh, at, MPI_SEEK_SET);
    error = access_run(how, 0, loop.fh, at, loop.memory, count, type, &status);
    if (error != MPI_SUCCESS)
        return error;
    CHECK_COUNT(&status, MPI_BYTE, type == MPI_BYTE ? LEN : LEN / 2);
    CHECK_BYTES(loop.memory, loop.want, (uint64_t)at, LEN);
    return MPI_SUCCESS;
}

/* Each rank tells each other one that it stops, and learns of theirs. */
struct stops {
    int count, from[RANKS_MAX];
    MPI_Request requests[RANKS_MAX];
};

static void stops_begin(struct stops *stops)
{
    stops->count = 0;
    for (int rank = 0; rank < check.ranks && rank < RANKS_MAX; rank++) {
        int i = stops->count;
        if (rank == check.rank)
            continue;
        MPI_Irecv(&stops->from[i], 1, MPI_INT, rank, TAG_STOP, MPI_COMM_WORLD, &stops->requests[i]);
        stops->count++;
    }
}

static int stops_heard(struct stops *stops)
{
    int heard = 0;
    for (int i = 0; i < stops->count && !heard; i++)
        MPI_Request_get_status(stops->requests[i], &heard, MPI_STATUS_IGNORE);
    return heard;
}

static void stops_end(struct stops *stops)
{
    for (int rank = 0; rank < check.ranks; rank++)
        if (rank != check.rank)
            MPI_Send(&check.rank, 1, MPI_INT, rank, TAG_STOP, MPI_COMM_WORLD);
    MPI_Waitall(stops->count, stops->requests, MPI_STATUSES_IGNORE);
}

static int is_over(void)
{
    return check.failures != 0 || (loop.iterations >= 0 && loop.k >= loop.iterations);
}

static void run_independent(void)
{
    struct stops stops;
    const char *what = "";
    int error = MPI_SUCCESS;
    begin();
    stops_begin(&stops);
    for (loop.k = 0; loop.k < WARM_UP; loop.k++)
        CHECK_MPI(move_independent(&what));
    say_ready();
    for (; error == MPI_SUCCESS && !is_over() && (loop.each || !stops_heard(&stops)); loop.k++) {
        die_if_told();
        error = move_independent(&what);
    }
    if (error != MPI_SUCCESS)
        say_error(error, what);
    else
        printf("rank %d: no error in %ld iterations\n", check.rank, loop.k);
    stops_end(&stops);
    end(1);
}

/* Whether a collective call failed on all ranks; that only some ranks have an error is a failure. */
static int failed_on_all(int error, const char *what)
{
    int mine = check_class_of(error), classes[RANKS_MAX] = {0}, failed = 0;
    MPI_Allgather(&mine, 1, MPI_INT, classes, 1, MPI_INT, MPI_COMM_WORLD);
    for (int rank = 0; rank < check.ranks; rank++)
        failed += classes[rank] != MPI_SUCCESS;
    CHECK(failed == 0 || failed == check.ranks, "%s failed on %d of %d ranks; here: %s", what, failed, check.ranks, check_class_name(mine));
    if (error != MPI_SUCCESS)
        say_error(error, what);
    return failed != 0;
}

/* Writes and reads by collective calls that change; non-zero when that failed. */
static int move_collective(void)
{
    static const enum access ways[] = {AT_ALL, AT_ALL_SPLIT, ALL, ALL_SPLIT};
    enum access how = ways[loop.k % 4];
    MPI_Offset at = loop.k % 2 ? place(loop.k) : (loop.grow ? loop.k : loop.k % SLOTS) * (MPI_Offset)LEN;
    MPI_Datatype columns;
    MPI_Status status;
    int error;
    MPI_Type_create_resized(MPI_BYTE, 0, check.ranks, &columns);
    MPI_Type_commit(&columns);
    error = loop.k % 2 ? MPI_File_set_view(loop.fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL)
                       : MPI_File_set_view(loop.fh, check.rank, MPI_BYTE, columns, "native", MPI_INFO_NULL);
    MPI_Type_free(&columns);
    if (failed_on_all(error, "set_view"))
        return 1;
    pattern_fill(loop.want, (uint64_t)loop.k, (uint64_t)at, LEN);
    MPI_File_seek(loop.fh, at, MPI_SEEK_SET);
    error = access_run(how, 1, loop.fh, at, loop.want, LEN, MPI_BYTE, &status);
    if (failed_on_all(error, "a write"))
        return 1;
    if (loop.k % 8 == 7 && failed_on_all(MPI_File_sync(loop.fh), "sync"))
        return 1;
    memset(loop.memory, CHECK_POISON, LEN);
    MPI_File_seek(loop.fh, at, MPI_SEEK_SET);
    error = access_run(how, 0, loop.fh, at, loop.memory, LEN, MPI_BYTE, &status);
    if (failed_on_all(error, "a read"))
        return 1;
    CHECK_BYTES(loop.memory, loop.want, (uint64_t)at, LEN);
    return 0;
}

static void run_collective(void)
{
    int failed = 0, over = 0;
    begin();
    for (loop.k = 0; loop.k < WARM_UP && !failed; loop.k++)
        failed = move_collective();
    CHECK(!failed, "an error before the loop began");
    say_ready();
    while (!failed && !over) {
        int mine;
        die_if_told();
        failed = move_collective();
        loop.k++;
        mine = is_over();
        MPI_Allreduce(&mine, &over, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    if (!failed)
        printf("rank %d: no error in %ld iterations\n", check.rank, loop.k);
    end(failed);
}

/* A record behind the shared pointer: who wrote it, its number, and a pattern. */
#define RECORD 1000

static void record_make(int number)
{
    int head[2] = {check.rank, number};
    pattern_fill(loop.memory, (uint64_t)check.rank + 1, (uint64_t)number * RECORD, RECORD);
    memcpy(loop.memory, head, sizeof head);
}

/* Whether a call failed on any rank. */
static int failed_anywhere(int error, const char *what)
{
    int mine = error != MPI_SUCCESS, any = 0;
    if (mine)
        say_error(error, what);
    MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return any;
}

/* Two records of each rank, the second in the order of ranks; non-zero when that failed. */
static int move_shared(void)
{
    MPI_Status status;
    record_make((int)(2 * loop.k));
    if (failed_anywhere(MPI_File_write_shared(loop.fh, loop.memory, RECORD, MPI_BYTE, &status), "write_shared"))
        return 1;
    record_make((int)(2 * loop.k + 1));
    return failed_on_all(MPI_File_write_ordered(loop.fh, loop.memory, RECORD, MPI_BYTE, &status), "write_ordered");
}

/* Each record is there once and whole. */
static void check_shared(void)
{
    int records = (int)(2 * loop.k) * check.ranks, found = 0;
    unsigned char *seen = check_alloc((size_t)records + 1);
    MPI_Status status;
    MPI_Offset size = 0;
    memset(seen, 0, (size_t)records + 1);
    CHECK_MPI(MPI_File_get_size(loop.fh, &size));
    for (MPI_Offset at = 0; at < size; at += RECORD) {
        int head[2];
        CHECK_MPI(MPI_File_read_at(loop.fh, at, loop.memory, RECORD, MPI_BYTE, &status));
        memcpy(head, loop.memory, sizeof head);
        if (head[0] < 0 || head[0] >= check.ranks || head[1] < 0 || head[1] >= 2 * loop.k) {
            CHECK(0, "no record at %lld", (long long)at);
            continue;
        }
        pattern_fill(loop.want, (uint64_t)head[0] + 1, (uint64_t)head[1] * RECORD, RECORD);
        memcpy(loop.want, head, sizeof head);
        CHECK_BYTES(loop.memory, loop.want, (uint64_t)at, RECORD);
        CHECK(!seen[head[0] * 2 * loop.k + head[1]]++, "record %d of rank %d is there twice", head[1], head[0]);
        found++;
    }
    CHECK_EQUAL(found, records);
    free(seen);
}

static void run_shared(void)
{
    int failed = 0, over = 0;
    begin();
    for (loop.k = 0; loop.k < WARM_UP && !failed; loop.k++)
        failed = move_shared();
    CHECK(!failed, "an error before the loop began");
    say_ready();
    while (!failed && !over) {
        int mine;
        die_if_told();
        failed = move_shared();
        loop.k++;
        mine = is_over();
        MPI_Allreduce(&mine, &over, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    if (!failed) {
        printf("rank %d: no error in %ld iterations\n", check.rank, loop.k);
        if (check.rank == 0)
            check_shared();
    }
    end(failed);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"independent", 1, run_independent, "write, read, iwrite, iread until an error"},
        {"collective", 1, run_collective, "collective calls until an error, on all ranks alike"},
        {"shared", 1, run_shared, "calls by the shared pointer until an error"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "--ready: --die:: --each --grow --iterations:", MPI_THREAD_SINGLE);
}
