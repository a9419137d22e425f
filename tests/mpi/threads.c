/* MPI_THREAD_MULTIPLE: threads of each rank move their own regions of one file at once. */
#include "check.h"

#define THREADS 4
#define CALLS 60
#define SLOT 8000

struct work {
    int thread;
    MPI_File fh;
    void (*move)(struct work *);
};

/* Byte of the file where a thread's part begins, of its rank or the next one's. */
static MPI_Offset part_of(int rank, int thread)
{
    return ((MPI_Offset)rank * THREADS + thread) * CALLS * SLOT;
}

static int length(int call)
{
    return (call * 2711 + 1) % SLOT;
}

static void move_blocking(struct work *work)
{
    unsigned char *memory = check_alloc(SLOT);
    MPI_Offset part = part_of(check.rank, work->thread);
    MPI_Status status;
    for (int i = 0; i < CALLS; i++) {
        MPI_Offset at = part + (MPI_Offset)i * SLOT;
        pattern_fill(memory, 1, (uint64_t)at, (size_t)length(i));
        CHECK_MPI(MPI_File_write_at(work->fh, at, memory, length(i), MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, length(i));
        at -= random_below(&(uint64_t){(uint64_t)i}, i + 1) * (MPI_Offset)SLOT;
        memset(memory, CHECK_POISON, SLOT);
        CHECK_MPI(MPI_File_read_at(work->fh, at, memory, length((int)((at - part) / SLOT)), MPI_BYTE, &status));
        CHECK_PATTERN(memory, 1, (uint64_t)at, (size_t)length((int)((at - part) / SLOT)));
    }
    free(memory);
}

static void move_nonblocking(struct work *work)
{
    unsigned char *memory = check_alloc(CALLS * SLOT);
    MPI_Offset part = part_of(check.rank, work->thread);
    MPI_Request requests[CALLS];
    MPI_Status statuses[CALLS];
    for (int writes = 1; writes >= 0; writes--) {
        for (int i = 0; i < CALLS; i++) {
            MPI_Offset at = part + (MPI_Offset)i * SLOT;
            unsigned char *to = memory + i * SLOT;
            if (writes)
                pattern_fill(to, 1, (uint64_t)at, (size_t)length(i));
            CHECK_MPI(writes ? MPI_File_iwrite_at(work->fh, at, to, length(i), MPI_BYTE, &requests[i])
                             : MPI_File_iread_at(work->fh, at, to, length(i), MPI_BYTE, &requests[i]));
        }
        CHECK_MPI(MPI_Waitall(CALLS, requests, statuses));
        for (int i = 0; i < CALLS; i++) {
            CHECK_COUNT(&statuses[i], MPI_BYTE, length(i));
            CHECK_PATTERN(memory + i * SLOT, 1, (uint64_t)(part + (MPI_Offset)i * SLOT), (size_t)length(i));
        }
        memset(memory, CHECK_POISON, CALLS * SLOT);
    }
    free(memory);
}

/* Half of the threads block, half do not. */
static void move_mixed(struct work *work)
{
    if (work->thread % 2)
        move_blocking(work);
    else
        move_nonblocking(work);
}

/* Each thread opens and closes a file of its own. */
static void move_own_file(struct work *work)
{
    unsigned char memory[SLOT];
    char name[4096];
    MPI_Status status;
    snprintf(name, sizeof name, "%s.%d.%d", check.file, check.rank, work->thread);
    for (int i = 0; i < 20; i++) {
        MPI_File fh = check_open_as(MPI_COMM_SELF, name, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, __FILE__, __LINE__);
        pattern_fill(memory, (uint64_t)work->thread, 0, SLOT);
        CHECK_MPI(MPI_File_write_at(fh, i, memory, SLOT, MPI_BYTE, &status));
        memset(memory, CHECK_POISON, SLOT);
        CHECK_MPI(MPI_File_read_at(fh, i, memory, SLOT, MPI_BYTE, &status));
        CHECK_PATTERN(memory, (uint64_t)work->thread, 0, SLOT);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

static void *run_thread(void *argument)
{
    struct work *work = argument;
    work->move(work);
    return NULL;
}

static void run_threads(void (*move)(struct work *), MPI_File fh)
{
    pthread_t threads[THREADS];
    struct work works[THREADS];
    for (int i = 0; i < THREADS; i++) {
        works[i] = (struct work){i, fh, move};
        if (pthread_create(&threads[i], NULL, run_thread, &works[i]) != 0) {
            CHECK(0, "thread %d does not start", i);
            threads[i] = pthread_self();
        }
    }
    for (int i = 0; i < THREADS; i++)
        if (!pthread_equal(threads[i], pthread_self()))
            pthread_join(threads[i], NULL);
}

static void need_threads(void)
{
    if (check.threads < MPI_THREAD_MULTIPLE)
        check_skip("MPI_THREAD_MULTIPLE is not provided");
}

/* All threads move, then all bytes of the next rank are compared. */
static void run_with(void (*move)(struct work *))
{
    int next = (check.rank + 1) % check.ranks;
    unsigned char *memory = check_alloc(SLOT);
    MPI_File fh;
    need_threads();
    fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    run_threads(move, fh);
    check_publish(fh);
    for (int k = 0; k < THREADS * CALLS; k++) {
        MPI_Offset at = part_of(next, 0) + (MPI_Offset)k * SLOT;
        MPI_Status status;
        CHECK_MPI(MPI_File_read_at(fh, at, memory, length(k % CALLS), MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, length(k % CALLS));
        CHECK_PATTERN(memory, 1, (uint64_t)at, (size_t)length(k % CALLS));
    }
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
}

static void run_blocking(void)
{
    run_with(move_blocking);
}

static void run_nonblocking(void)
{
    run_with(move_nonblocking);
}

static void run_mixed(void)
{
    run_with(move_mixed);
}

static void run_own_files(void)
{
    need_threads();
    run_threads(move_own_file, MPI_FILE_NULL);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"blocking", 1, run_blocking, "4 threads with write_at and read_at on one file"},
        {"nonblocking", 1, run_nonblocking, "4 threads with 60 requests each on one file"},
        {"mixed", 1, run_mixed, "some threads block, some do not"},
        {"own_files", 1, run_own_files, "4 threads that open and close files"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_MULTIPLE);
}
