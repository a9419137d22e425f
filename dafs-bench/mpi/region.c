/* All ranks: each moves a contiguous region of its own of one file, again and again. */
#include "bench.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t cpu_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

void run_region(const struct command *command)
{
    const char *name = text_of(command, "file", NULL);
    int writes = !strcmp(text_of(command, "op", "read"), "write"), bytes = (int)number_of(command, "bytes", 1 << 20);
    double seconds = real_of(command, "seconds", 0.1);
    unsigned char *buffer = alloc((size_t)bytes);
    MPI_Offset at = (MPI_Offset)bench_rank * bytes;
    MPI_Info info = hints_of(command);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file), name);
    MPI_Info_free(&info);
    memset(buffer, (int)number_of(command, "stamp", 1), (size_t)bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    /* Bytes, CPU, and how long it took. */
    unsigned long long own[2] = {0, 0}, all[2];
    uint64_t began = now_ns(), cpu_before = cpu_ns();
    double own_us = 0, longest_us;
    do {
        MPI_Status status;
        int moved = 0, code = writes ? MPI_File_write_at(file, at, buffer, bytes, MPI_BYTE, &status)
                                     : MPI_File_read_at(file, at, buffer, bytes, MPI_BYTE, &status);
        check(code, writes ? "write" : "read");
        MPI_Get_count(&status, MPI_BYTE, &moved);
        if (moved != bytes)
            fail("%s moved %d of %d bytes", writes ? "a write" : "a read", moved, bytes);
        own[0] += (unsigned long long)bytes;
        own_us = (double)(now_ns() - began) / 1e3;
    } while (own_us < seconds * 1e6);
    own[1] = cpu_ns() - cpu_before;
    /* All of one region is of one writing. */
    if (memcmp(buffer, buffer + 1, (size_t)bytes - 1))
        fail("read what was not written");
    MPI_Reduce(own, all, 2, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    MPI_Reduce(&own_us, &longest_us, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    check(MPI_File_close(&file), "MPI_File_close");
    munmap(buffer, (size_t)bytes);
    if (bench_rank == 0)
        printf("{\"moved\": %llu, \"cpu_ns\": %llu, \"elapsed_us\": %.3f}\n", all[0], all[1], longest_us);
}
