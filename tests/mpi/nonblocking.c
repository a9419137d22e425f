/* Nonblocking requests: many at once, of mixed sizes, completed by each of MPI's calls and in any order. */
#include "check.h"

/* Requests at once, and the room of each in memory and file, bytes. */
#define REQUESTS 100
#define SLOT 20000

/* A rank's requests, with memory and place of each. */
struct batch {
    MPI_File fh;
    int rank; /* Whose places they are. */
    int writes;
    unsigned char *memory;
    int lens[REQUESTS];
    int done[REQUESTS];
    MPI_Request requests[REQUESTS];
};

/* Completes all requests, in a way of its own; calls finish() for each. */
typedef void completer(struct batch *batch);

static MPI_Offset place(const struct batch *batch, int i)
{
    return ((MPI_Offset)i * check.ranks + batch->rank) * SLOT;
}

/* 0 bytes to a whole slot, a few of them large. */
static int length(int i)
{
    return i % 10 == 9 ? SLOT : i * 137 % 3000;
}

/* One request has ended: its status and its bytes are right, and the handle is gone. */
static void finish(struct batch *batch, int i, const MPI_Status *status)
{
    CHECK(i >= 0 && i < REQUESTS, "index %d", i);
    if (i < 0 || i >= REQUESTS)
        return;
    CHECK(!batch->done[i], "request %d ended twice", i);
    CHECK(batch->requests[i] == MPI_REQUEST_NULL, "request %d is not MPI_REQUEST_NULL after it ended", i);
    batch->done[i] = 1;
    CHECK_COUNT(status, MPI_BYTE, batch->lens[i]);
    CHECK_PATTERN(batch->memory + i * SLOT, (uint64_t)batch->rank, (uint64_t)place(batch, i), (size_t)batch->lens[i]);
}

/* Starts all requests in a random order. */
static void start(struct batch *batch)
{
    static int order[REQUESTS];
    uint64_t state = check.seed + (uint64_t)check.rank;
    random_order(&state, order, REQUESTS);
    memset(batch->memory, CHECK_POISON, REQUESTS * SLOT);
    memset(batch->done, 0, sizeof batch->done);
    for (int k = 0; k < REQUESTS; k++) {
        int i = order[k];
        unsigned char *memory = batch->memory + i * SLOT;
        batch->lens[i] = length(i);
        if (batch->writes) {
            pattern_fill(memory, (uint64_t)batch->rank, (uint64_t)place(batch, i), (size_t)batch->lens[i]);
            CHECK_MPI(MPI_File_iwrite_at(batch->fh, place(batch, i), memory, batch->lens[i], MPI_BYTE, &batch->requests[i]));
        } else {
            CHECK_MPI(MPI_File_iread_at(batch->fh, place(batch, i), memory, batch->lens[i], MPI_BYTE, &batch->requests[i]));
        }
    }
}

/* Writes a batch, and reads what the next rank wrote. */
static void run_batches(completer *complete)
{
    static struct batch batch;
    batch.fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    batch.memory = check_alloc(REQUESTS * SLOT);
    for (batch.writes = 1; batch.writes >= 0; batch.writes--) {
        batch.rank = batch.writes ? check.rank : (check.rank + 1) % check.ranks;
        start(&batch);
        complete(&batch);
        for (int i = 0; i < REQUESTS; i++)
            CHECK(batch.done[i], "request %d never ended", i);
        check_publish(batch.fh);
    }
    CHECK_MPI(MPI_File_close(&batch.fh));
    free(batch.memory);
}

static void by_wait(struct batch *batch)
{
    static int order[REQUESTS];
    uint64_t state = check.seed + 7;
    MPI_Status status;
    random_order(&state, order, REQUESTS);
    for (int k = 0; k < REQUESTS; k++) {
        CHECK_MPI(MPI_Wait(&batch->requests[order[k]], &status));
        finish(batch, order[k], &status);
    }
}

static void by_waitall(struct batch *batch)
{
    static MPI_Status statuses[REQUESTS];
    CHECK_MPI(MPI_Waitall(REQUESTS, batch->requests, statuses));
    for (int i = 0; i < REQUESTS; i++)
        finish(batch, i, &statuses[i]);
}

static void by_waitany(struct batch *batch)
{
    MPI_Status status;
    int i;
    for (int k = 0; k < REQUESTS; k++) {
        CHECK_MPI(MPI_Waitany(REQUESTS, batch->requests, &i, &status));
        finish(batch, i, &status);
    }
    CHECK_MPI(MPI_Waitany(REQUESTS, batch->requests, &i, &status));
    CHECK_EQUAL(i, MPI_UNDEFINED);
}

static void by_waitsome(struct batch *batch)
{
    static MPI_Status statuses[REQUESTS];
    static int indices[REQUESTS];
    for (int ended = 0, count; ended < REQUESTS; ended += count) {
        CHECK_MPI(MPI_Waitsome(REQUESTS, batch->requests, &count, indices, statuses));
        CHECK(count > 0, "MPI_Waitsome: count %d with %d of %d ended", count, ended, REQUESTS);
        if (count <= 0)
            return;
        for (int k = 0; k < count; k++)
            finish(batch, indices[k], &statuses[k]);
    }
}

/* Nothing but MPI_Test until it is done: the request must go on by that alone. */
static void by_test(struct batch *batch)
{
    MPI_Status status;
    for (int i = REQUESTS - 1; i >= 0; i--) {
        for (int done = 0; !done;)
            CHECK_MPI(MPI_Test(&batch->requests[i], &done, &status));
        finish(batch, i, &status);
    }
}

static void by_testall(struct batch *batch)
{
    static MPI_Status statuses[REQUESTS];
    for (int done = 0; !done;)
        CHECK_MPI(MPI_Testall(REQUESTS, batch->requests, &done, statuses));
    for (int i = 0; i < REQUESTS; i++)
        finish(batch, i, &statuses[i]);
}

static void by_testany(struct batch *batch)
{
    MPI_Status status;
    for (int ended = 0; ended < REQUESTS;) {
        int done = 0, i = MPI_UNDEFINED;
        CHECK_MPI(MPI_Testany(REQUESTS, batch->requests, &i, &done, &status));
        if (done) {
            finish(batch, i, &status);
            ended++;
        }
    }
}

static void by_testsome(struct batch *batch)
{
    static MPI_Status statuses[REQUESTS];
    static int indices[REQUESTS];
    for (int ended = 0, count; ended < REQUESTS; ended += count) {
        CHECK_MPI(MPI_Testsome(REQUESTS, batch->requests, &count, indices, statuses));
        CHECK(count >= 0, "MPI_Testsome: count %d with %d of %d ended", count, ended, REQUESTS);
        if (count < 0)
            return;
        for (int k = 0; k < count; k++)
            finish(batch, indices[k], &statuses[k]);
    }
}

/* MPI_Request_get_status leaves the request; MPI_Wait ends it. */
static void by_get_status(struct batch *batch)
{
    MPI_Status status;
    for (int i = 0; i < REQUESTS; i++) {
        for (int done = 0; !done;)
            CHECK_MPI(MPI_Request_get_status(batch->requests[i], &done, &status));
        CHECK_COUNT(&status, MPI_BYTE, batch->lens[i]);
        CHECK(batch->requests[i] != MPI_REQUEST_NULL, "MPI_Request_get_status freed request %d", i);
        CHECK_MPI(MPI_Wait(&batch->requests[i], &status));
        finish(batch, i, &status);
    }
}

/* Messages among the ranks in the same array of requests. */
static void by_waitall_with_messages(struct batch *batch)
{
    static MPI_Request requests[REQUESTS + 2];
    static MPI_Status statuses[REQUESTS + 2];
    int next = (check.rank + 1) % check.ranks, before = (check.rank + check.ranks - 1) % check.ranks, got = -1;
    memcpy(requests + 1, batch->requests, sizeof batch->requests);
    MPI_Irecv(&got, 1, MPI_INT, before, 5, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&check.rank, 1, MPI_INT, next, 5, MPI_COMM_WORLD, &requests[REQUESTS + 1]);
    CHECK_MPI(MPI_Waitall(REQUESTS + 2, requests, statuses));
    CHECK_EQUAL(got, before);
    memcpy(batch->requests, requests + 1, sizeof batch->requests);
    for (int i = 0; i < REQUESTS; i++)
        finish(batch, i, &statuses[i + 1]);
}

/* The ranks compute while requests run. */
static void by_wait_after_work(struct batch *batch)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < 2000000; i++)
        sum ^= check_mix(i);
    CHECK(sum != 0, "the sum of the work is 0");
    by_wait(batch);
}

#define BATCHES(name)               \
    static void run_##name(void)    \
    {                               \
        run_batches(by_##name);     \
    }

BATCHES(wait)
BATCHES(waitall)
BATCHES(waitany)
BATCHES(waitsome)
BATCHES(test)
BATCHES(testall)
BATCHES(testany)
BATCHES(testsome)
BATCHES(get_status)
BATCHES(waitall_with_messages)
BATCHES(wait_after_work)

/* Pointers move when a request is started, so the next goes on behind it. */
static void run_pointers(void)
{
    enum { CALLS = 30, LEN = 5000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset first = (MPI_Offset)check.rank * CALLS * LEN, position;
    unsigned char *memory = check_alloc(CALLS * LEN);
    MPI_Request requests[CALLS];
    MPI_Status statuses[CALLS];
    for (int writes = 1; writes >= 0; writes--) {
        if (writes)
            pattern_fill(memory, 1, (uint64_t)first, CALLS * LEN);
        else
            memset(memory, CHECK_POISON, CALLS * LEN);
        CHECK_MPI(MPI_File_seek(fh, first, MPI_SEEK_SET));
        for (int i = 0; i < CALLS; i++) {
            unsigned char *at = memory + i * LEN;
            CHECK_MPI(writes ? MPI_File_iwrite(fh, at, LEN, MPI_BYTE, &requests[i]) : MPI_File_iread(fh, at, LEN, MPI_BYTE, &requests[i]));
            CHECK_MPI(MPI_File_get_position(fh, &position));
            CHECK_EQUAL(position, first + (i + 1) * LEN);
        }
        CHECK_MPI(MPI_Waitall(CALLS, requests, statuses));
        for (int i = 0; i < CALLS; i++)
            CHECK_COUNT(&statuses[i], MPI_BYTE, LEN);
        CHECK_PATTERN(memory, 1, (uint64_t)first, CALLS * LEN);
        check_publish(fh);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Requests through a view from memory with holes, all at once. */
static void run_strided(void)
{
    enum { CALLS = 20, BLOCKS = 50, LEN = 40 };
    const int bytes = BLOCKS * LEN;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype filetype, memtype;
    unsigned char *memory = check_alloc(CALLS * BLOCKS * 50);
    MPI_Request requests[CALLS];
    MPI_Status statuses[CALLS];
    MPI_Type_vector(BLOCKS, LEN, LEN * check.ranks, MPI_BYTE, &filetype);
    MPI_Type_vector(BLOCKS, LEN, 50, MPI_BYTE, &memtype);
    MPI_Type_commit(&memtype);
    MPI_Datatype tile;
    MPI_Type_create_resized(filetype, 0, (MPI_Aint)BLOCKS * LEN * check.ranks, &tile);
    MPI_Type_commit(&tile);
    CHECK_MPI(MPI_File_set_view(fh, check.rank * LEN, MPI_BYTE, tile, "native", MPI_INFO_NULL));
    for (int writes = 1; writes >= 0; writes--) {
        memset(memory, CHECK_POISON, CALLS * BLOCKS * 50);
        for (int i = 0; i < CALLS; i++) {
            unsigned char *at = memory + i * BLOCKS * 50;
            for (int block = 0; writes && block < BLOCKS; block++)
                pattern_fill(at + block * 50, (uint64_t)check.rank, (uint64_t)(i * bytes + block * LEN), LEN);
            CHECK_MPI(writes ? MPI_File_iwrite_at(fh, (MPI_Offset)i * bytes, at, 1, memtype, &requests[i])
                             : MPI_File_iread_at(fh, (MPI_Offset)i * bytes, at, 1, memtype, &requests[i]));
        }
        CHECK_MPI(MPI_Waitall(CALLS, requests, statuses));
        for (int block = 0; block < CALLS * BLOCKS; block++) {
            CHECK_PATTERN(memory + block * 50, (uint64_t)check.rank, (uint64_t)block * LEN, LEN);
            CHECK_FILLED(memory + block * 50 + LEN, CHECK_POISON, (uint64_t)block * 50 + LEN, 50 - LEN);
        }
        for (int i = 0; i < CALLS; i++)
            CHECK_COUNT(&statuses[i], MPI_BYTE, bytes);
        check_publish(fh);
    }
    for (int block = 0; block < CALLS * BLOCKS; block += 17) {
        int rank = block % check.ranks;
        unsigned char got[LEN];
        CHECK_EQUAL(check_reread(check.file, ((MPI_Offset)block * check.ranks + rank) * LEN, got, LEN), LEN);
        CHECK_PATTERN(got, (uint64_t)rank, (uint64_t)block * LEN, LEN);
    }
    MPI_Type_free(&filetype);
    MPI_Type_free(&tile);
    MPI_Type_free(&memtype);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* Reads and writes of other places at once. */
static void run_mixed(void)
{
    enum { CALLS = 40, LEN = 3000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char *memory = check_alloc(2 * CALLS * LEN);
    MPI_Request requests[2 * CALLS];
    MPI_Offset first = (MPI_Offset)check.rank * 2 * CALLS * LEN;
    MPI_Status status;
    pattern_fill(memory, 1, (uint64_t)first, CALLS * LEN);
    CHECK_MPI(MPI_File_write_at(fh, first, memory, CALLS * LEN, MPI_BYTE, &status));
    memset(memory, CHECK_POISON, CALLS * LEN);
    for (int i = 0; i < CALLS; i++) {
        MPI_Offset behind = first + (MPI_Offset)(CALLS + i) * LEN;
        unsigned char *written = memory + (CALLS + i) * LEN;
        pattern_fill(written, 2, (uint64_t)behind, LEN);
        CHECK_MPI(MPI_File_iwrite_at(fh, behind, written, LEN, MPI_BYTE, &requests[2 * i]));
        CHECK_MPI(MPI_File_iread_at(fh, first + (MPI_Offset)i * LEN, memory + i * LEN, LEN, MPI_BYTE, &requests[2 * i + 1]));
    }
    CHECK_MPI(MPI_Waitall(2 * CALLS, requests, MPI_STATUSES_IGNORE));
    CHECK_PATTERN(memory, 1, (uint64_t)first, CALLS * LEN);
    check_publish(fh);
    CHECK_EQUAL(check_reread(check.file, first + CALLS * LEN, memory, CALLS * LEN), CALLS * LEN);
    CHECK_PATTERN(memory, 2, (uint64_t)(first + CALLS * LEN), CALLS * LEN);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

/* The status tells of short reads. */
static void run_end_of_file(void)
{
    static const int offsets[] = {0, 4000, 4999, 5000, 6000}, wants[] = {2000, 1000, 1, 0, 0};
    unsigned char memory[5][5000];
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Request requests[5];
    MPI_Status statuses[5];
    pattern_fill(memory[0], 1, 0, 5000);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write_at(fh, 0, memory[0], 5000, MPI_BYTE, &statuses[0]));
    check_publish(fh);
    for (int i = 0; i < 5; i++)
        CHECK_MPI(MPI_File_iread_at(fh, offsets[i], memory[i], 2000, MPI_BYTE, &requests[i]));
    CHECK_MPI(MPI_Waitall(5, requests, statuses));
    for (int i = 0; i < 5; i++) {
        CHECK_COUNT(&statuses[i], MPI_BYTE, wants[i]);
        CHECK_PATTERN(memory[i], 1, (uint64_t)offsets[i], (size_t)wants[i]);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Requests of 17 MiB, two at a time. */
static void run_large(void)
{
    enum { LEN = 17 << 20 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    unsigned char *memory[2] = {check_alloc(LEN), check_alloc(LEN)};
    MPI_Request requests[2];
    MPI_Status statuses[2];
    for (int writes = 1; writes >= 0; writes--) {
        for (int i = 0; i < 2; i++) {
            MPI_Offset at = (MPI_Offset)(i * check.ranks + check.rank) * LEN;
            if (writes)
                pattern_fill(memory[i], 1, (uint64_t)at, LEN);
            else
                memset(memory[i], CHECK_POISON, LEN);
            CHECK_MPI(writes ? MPI_File_iwrite_at(fh, at, memory[i], LEN, MPI_BYTE, &requests[i])
                             : MPI_File_iread_at(fh, at, memory[i], LEN, MPI_BYTE, &requests[i]));
        }
        CHECK_MPI(MPI_Waitall(2, requests, statuses));
        for (int i = 0; i < 2; i++) {
            CHECK_COUNT(&statuses[i], MPI_BYTE, LEN);
            CHECK_PATTERN(memory[i], 1, (uint64_t)(i * check.ranks + check.rank) * LEN, LEN);
        }
        check_publish(fh);
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory[0]);
    free(memory[1]);
}

/* Requests that the program frees while they run: their data is there when the file is closed. */
static void run_freed(void)
{
    enum { COUNT = 20, LEN = 200000 };
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Offset first = (MPI_Offset)check.rank * COUNT * LEN;
    unsigned char *memory = check_alloc(COUNT * LEN);
    pattern_fill(memory, 1, (uint64_t)first, COUNT * LEN);
    for (int i = 0; i < COUNT; i++) {
        MPI_Request request;
        CHECK_MPI(MPI_File_iwrite_at(fh, first + (MPI_Offset)i * LEN, memory + i * LEN, LEN, MPI_BYTE, &request));
        CHECK_MPI(MPI_Request_free(&request));
        CHECK(request == MPI_REQUEST_NULL, "request %d is not MPI_REQUEST_NULL after it was freed", i);
    }
    CHECK_MPI(MPI_File_close(&fh));
    memset(memory, CHECK_POISON, COUNT * LEN);
    CHECK_EQUAL(check_reread(check.file, first, memory, COUNT * LEN), COUNT * LEN);
    CHECK_PATTERN(memory, 1, (uint64_t)first, COUNT * LEN);
    MPI_Barrier(MPI_COMM_WORLD);
    free(memory);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"wait", 1, run_wait, "100 requests, MPI_Wait in random order"},
        {"waitall", 1, run_waitall, "100 requests, MPI_Waitall"},
        {"waitany", 1, run_waitany, "100 requests, MPI_Waitany"},
        {"waitsome", 1, run_waitsome, "100 requests, MPI_Waitsome"},
        {"test", 1, run_test, "100 requests, MPI_Test and nothing else"},
        {"testall", 1, run_testall, "100 requests, MPI_Testall"},
        {"testany", 1, run_testany, "100 requests, MPI_Testany"},
        {"testsome", 1, run_testsome, "100 requests, MPI_Testsome"},
        {"get_status", 1, run_get_status, "100 requests, MPI_Request_get_status"},
        {"waitall_with_messages", 1, run_waitall_with_messages, "requests of files and messages in one MPI_Waitall"},
        {"wait_after_work", 1, run_wait_after_work, "the ranks compute while requests run"},
        {"pointers", 1, run_pointers, "individual pointers move when a request starts"},
        {"strided", 1, run_strided, "views and memory with holes"},
        {"mixed", 1, run_mixed, "reads and writes at once"},
        {"end_of_file", 1, run_end_of_file, "short reads"},
        {"freed", 1, run_freed, "requests that are freed while they run"},
        {"large", 1, run_large, "17 MiB in a request"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
