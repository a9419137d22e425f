/* One rank: blocking transfers by buffer reuse, size and order, and nonblocking ones with computation. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Random order steps so far, beyond what a file system reads ahead (DAFS paper, 6.3). */
#define STRIDE ((MPI_Offset)512 << 10)
/* Steps before the measured ones, besides those in buffers that are new. */
#define WARM_UP 64

/* Buffers: the first is used again and again, the others one after the other. Before that each is used once. */
struct pool {
    unsigned char *base;
    size_t bytes, stride, count, next, unseen;
    long long reuse, owed;
};

/* A transfer and how it goes over the file. */
struct load {
    MPI_File file;
    int writes, strides;
    int bytes;
    MPI_Offset size, at, shift;
    struct pool *pool;
};

/* The buffers of this size, which are kept from one command to the next. */
static struct pool *pool_of(const struct command *command, size_t bytes)
{
    static struct pool pool;
    size_t fresh = (size_t)number_of(command, "fresh", 0), stride = (bytes + 4095) & ~(size_t)4095;
    if (pool.bytes != bytes || pool.count != fresh + 1) {
        if (pool.base)
            munmap(pool.base, pool.stride * pool.count);
        pool = (struct pool){NULL, bytes, stride, fresh + 1, 0, fresh + 1, 0, 0};
        pool.base = alloc(stride * (fresh + 1));
    }
    pool.reuse = fresh ? number_of(command, "reuse", 100) : 100;
    pool.owed = 0;
    return &pool;
}

/* The buffer of the next step: so many of a hundred are the first. */
static unsigned char *pool_next(struct pool *pool)
{
    if (pool->unseen)
        return pool->base + --pool->unseen * pool->stride;
    pool->owed += pool->reuse;
    if (pool->owed >= 100) {
        pool->owed -= 100;
        return pool->base;
    }
    pool->next = pool->next + 1 < pool->count ? pool->next + 1 : 1;
    return pool->base + pool->next * pool->stride;
}

static MPI_File open_file(const struct command *command)
{
    const char *name = text_of(command, "file", NULL);
    MPI_Info info = hints_of(command);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_SELF, name, MPI_MODE_RDWR, info, &file), name);
    MPI_Info_free(&info);
    return file;
}

/* Has the driver give up what it keeps registered, and keep so many from now on. */
static void forget_registrations(MPI_File file, const char *entries)
{
    const char *values[] = {"0", entries};
    for (int step = 0; step < 2; step++) {
        MPI_Info info;
        MPI_Info_create(&info);
        MPI_Info_set(info, "dafs_cache_entries", values[step]);
        check(MPI_File_set_info(file, info), "MPI_File_set_info");
        MPI_Info_free(&info);
    }
}

static struct load load_of(const struct command *command)
{
    struct load load = {.writes = !strcmp(text_of(command, "op", "read"), "write"),
                        .strides = !strcmp(text_of(command, "order", "sequential"), "random"),
                        .bytes = (int)number_of(command, "bytes", 4096),
                        .size = number_of(command, "file_bytes", 1 << 20)};
    if (load.bytes < 1 || load.bytes > load.size)
        fail("transfers of %d bytes do not fit into a file of %lld", load.bytes, (long long)load.size);
    load.pool = pool_of(command, (size_t)load.bytes);
    load.file = open_file(command);
    if (*text_of(command, "entries", ""))
        forget_registrations(load.file, text_of(command, "entries", NULL));
    return load;
}

/* The place of the next step; true where it does not follow the last one. */
static int advance(struct load *load, MPI_Offset *at)
{
    int jumps = load->strides;
    if (load->at + load->bytes > load->size) {
        load->shift = load->strides ? (load->shift + 4096) % STRIDE : 0;
        if (load->shift + load->bytes > load->size)
            load->shift = 0;
        load->at = load->shift;
        jumps = 1;
    }
    *at = load->at;
    load->at += load->strides ? STRIDE : load->bytes;
    return jumps;
}

static void check_moved(const struct load *load, int code, MPI_Status *status)
{
    int moved = 0;
    check(code, load->writes ? "write" : "read");
    MPI_Get_count(status, MPI_BYTE, &moved);
    if (moved != load->bytes)
        fail("%s moved %d of %d bytes", load->writes ? "a write" : "a read", moved, load->bytes);
}

/* One blocking transfer: at the file pointer in sequence, at an offset otherwise. */
static void step(struct load *load)
{
    unsigned char *buffer = pool_next(load->pool);
    MPI_Status status;
    MPI_Offset at;
    int jumps = advance(load, &at), code;
    if (load->strides)
        code = load->writes ? MPI_File_write_at(load->file, at, buffer, load->bytes, MPI_BYTE, &status)
                            : MPI_File_read_at(load->file, at, buffer, load->bytes, MPI_BYTE, &status);
    else {
        if (jumps)
            check(MPI_File_seek(load->file, at, MPI_SEEK_SET), "MPI_File_seek");
        code = load->writes ? MPI_File_write(load->file, buffer, load->bytes, MPI_BYTE, &status)
                            : MPI_File_read(load->file, buffer, load->bytes, MPI_BYTE, &status);
    }
    check_moved(load, code, &status);
}

/* One nonblocking transfer, with as much computation before it is waited for. */
static void step_computing(struct load *load, uint64_t compute_ns)
{
    unsigned char *buffer = pool_next(load->pool);
    MPI_Request request;
    MPI_Status status;
    MPI_Offset at;
    int jumps = advance(load, &at), code;
    if (jumps)
        check(MPI_File_seek(load->file, at, MPI_SEEK_SET), "MPI_File_seek");
    code = load->writes ? MPI_File_iwrite(load->file, buffer, load->bytes, MPI_BYTE, &request)
                        : MPI_File_iread(load->file, buffer, load->bytes, MPI_BYTE, &request);
    check(code, load->writes ? "MPI_File_iwrite" : "MPI_File_iread");
    for (uint64_t began = now_ns(); compute_ns && now_ns() - began < compute_ns;)
        ;
    code = MPI_Wait(&request, &status);
    check_moved(load, code, &status);
}

/* Steps until the budget is over. */
static void measure(struct load *load, const struct budget *budget, int computes, uint64_t compute_ns, struct samples *samples)
{
    uint64_t began = now_ns(), before = began, after;
    samples_begin(samples);
    do {
        if (computes)
            step_computing(load, compute_ns);
        else
            step(load);
        after = now_ns();
        samples_add(samples, after - before);
        before = after;
    } while (!budget_over(budget, began, after, samples->count));
}

static void end(struct load *load)
{
    printf(", ");
    stats_print(load->file);
    printf("}\n");
    check(MPI_File_close(&load->file), "MPI_File_close");
}

/* file op bytes file_bytes seconds ops_min, order=sequential|random, fresh reuse entries: {ops ops_all p50_us mean_us min_us stats}. */
void run_transfer(const struct command *command)
{
    struct load load = load_of(command);
    struct budget budget = budget_of(command);
    struct samples samples;
    size_t warm_up = WARM_UP + load.pool->unseen;
    for (size_t warm = 0; warm < warm_up; warm++)
        step(&load);
    measure(&load, &budget, 0, 0, &samples);
    printf("{\"ops_all\": %zu, ", samples.count + warm_up);
    samples_print(&samples);
    end(&load);
}

/* The same with fractions=0,10,…: the share of computation T/(T + Tio), percent; Tio is the time of a blocking transfer. {io_us stats
 * steps: [{fraction ops p50_us mean_us min_us}]} */
void run_overlap(const struct command *command)
{
    struct load load = load_of(command);
    struct budget budget = budget_of(command);
    struct samples samples;
    const char *fractions = text_of(command, "fractions", NULL);
    double io_us;
    for (int warm = 0; warm < WARM_UP; warm++)
        step_computing(&load, 0);
    measure(&load, &budget, 0, 0, &samples);
    io_us = samples_p50_us(&samples);
    printf("{\"io_us\": %.3f, \"steps\": [", io_us);
    for (const char *at = fractions; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        double fraction = atof(at) / 100;
        if (fraction < 0 || fraction >= 1)
            fail("fractions go from 0 to 99 percent");
        measure(&load, &budget, 1, (uint64_t)(io_us * 1e3 * fraction / (1 - fraction)), &samples);
        printf("%s{\"fraction\": %.2f, ", at == fractions ? "" : ", ", fraction);
        samples_print(&samples);
        printf("}");
    }
    printf("]");
    end(&load);
}
