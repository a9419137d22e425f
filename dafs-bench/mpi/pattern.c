/* All ranks: parts of an array in one file, by each method. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A piece of the file and where it is in memory. */
struct run {
    size_t memory;
    MPI_Offset offset;
    size_t len;
};

/* What a rank has of the array. */
struct shape {
    MPI_Datatype file_type, memory_type;
    size_t memory_len, run_count;
    struct run *runs;
    /* Bytes of the array, and of this rank's part. */
    MPI_Offset array_bytes, part_bytes;
    int dumps;
};

static struct run *runs_new(struct shape *shape, size_t count)
{
    shape->run_count = count;
    shape->runs = malloc(count * sizeof *shape->runs);
    if (!shape->runs)
        fail("no memory for %zu pieces", count);
    return shape->runs;
}

static void finish_types(struct shape *shape)
{
    MPI_Type_commit(&shape->file_type);
    MPI_Type_commit(&shape->memory_type);
}

/* A block of a matrix, contiguous in memory. */
static void block_of_matrix(struct shape *shape, MPI_Datatype element, const int size[2], const int part[2], const int start[2])
{
    int element_len, rows = part[0];
    MPI_Type_size(element, &element_len);
    MPI_Type_create_subarray(2, size, part, start, MPI_ORDER_C, element, &shape->file_type);
    MPI_Type_contiguous(part[0] * part[1], element, &shape->memory_type);
    finish_types(shape);
    shape->part_bytes = (MPI_Offset)part[0] * part[1] * element_len;
    shape->memory_len = (size_t)shape->part_bytes;
    shape->array_bytes = (MPI_Offset)size[0] * size[1] * element_len;
    struct run *runs = runs_new(shape, (size_t)rows);
    for (int row = 0; row < rows; row++) {
        size_t len = (size_t)part[1] * (size_t)element_len;
        runs[row] = (struct run){(size_t)row * len, ((MPI_Offset)(start[0] + row) * size[1] + start[1]) * element_len, len};
    }
}

/* n columns and rows of int, cut into a block of columns for each rank: of every few units in the file each accesses one. */
static void block_column(const struct command *command, struct shape *shape)
{
    int n = (int)number_of(command, "n", 512), width = n / bench_ranks;
    if (width == 0 || n % bench_ranks)
        fail("%d columns cannot be dealt out to %d ranks", n, bench_ranks);
    block_of_matrix(shape, MPI_INT, (int[]){n, n}, (int[]){n, width}, (int[]){0, bench_rank * width});
}

/* Displays of width x height pixels of three bytes, one for each rank, as near to a square as their number allows. */
static void tiled(const struct command *command, struct shape *shape)
{
    int width = (int)number_of(command, "width", 1024), height = (int)number_of(command, "height", 768), grid[2] = {0, 0};
    MPI_Datatype pixel;
    MPI_Dims_create(bench_ranks, 2, grid);
    MPI_Type_contiguous(3, MPI_BYTE, &pixel);
    block_of_matrix(shape, pixel, (int[]){grid[0] * height, grid[1] * width}, (int[]){height, width},
                    (int[]){bench_rank / grid[1] * height, bench_rank % grid[1] * width});
    MPI_Type_free(&pixel);
}

/* n integers of each rank in turn, described block by block. */
static void mesh(const struct command *command, struct shape *shape)
{
    int n = (int)number_of(command, "n", 4000);
    const size_t len = sizeof(int);
    MPI_Aint *places = malloc((size_t)n * sizeof *places), extent = (MPI_Aint)n * bench_ranks * (MPI_Aint)len;
    struct run *runs = runs_new(shape, (size_t)n);
    MPI_Datatype blocks;
    if (!places)
        fail("no memory for %d blocks", n);
    for (int index = 0; index < n; index++) {
        places[index] = ((MPI_Aint)index * bench_ranks + bench_rank) * (MPI_Aint)len;
        runs[index] = (struct run){(size_t)index * len, places[index], len};
    }
    MPI_Type_create_hindexed_block(n, 1, places, MPI_INT, &blocks);
    MPI_Type_create_resized(blocks, 0, extent, &shape->file_type);
    MPI_Type_contiguous(n, MPI_INT, &shape->memory_type);
    finish_types(shape);
    MPI_Type_free(&blocks);
    free(places);
    shape->part_bytes = (MPI_Offset)n * (MPI_Offset)len;
    shape->memory_len = (size_t)shape->part_bytes;
    shape->array_bytes = shape->part_bytes * bench_ranks;
}

/* Doubles of a point of BT, and points around a cell that are not written. */
#define POINT 5
#define HALO 2

/* Where a part of a dimension begins that is cut as evenly as can be. */
static int begin_of(int n, int parts, int part)
{
    return n / parts * part + (part < n % parts ? part : n % parts);
}

/* The multi-partition of NAS BT: a cube of cells, of which each rank has one in every layer, on another diagonal. */
static void bt(const struct command *command, struct shape *shape)
{
    int n = (int)number_of(command, "n", 12), side = 1;
    while (side * side < bench_ranks)
        side++;
    if (side * side != bench_ranks || n < side)
        fail("BT runs on a square number of ranks, not on %d", bench_ranks);
    int most = n / side + (n % side != 0), with_halo = most + 2 * HALO;
    MPI_Datatype point, types[2][64];
    MPI_Aint places[64];
    int lens[64];
    struct run *runs = runs_new(shape, (size_t)side * (size_t)most * (size_t)most), *run = runs;
    MPI_Type_contiguous(POINT, MPI_DOUBLE, &point);
    for (int cell = 0; cell < side && cell < 64; cell++) {
        /* Slowest dimension first. */
        int at[3] = {cell, (bench_rank / side - cell + side) % side, (bench_rank % side + cell) % side};
        int file[3] = {n, n, n}, memory[4] = {side, with_halo, with_halo, with_halo}, start[3], part[3];
        for (int dim = 0; dim < 3; dim++) {
            start[dim] = begin_of(n, side, at[dim]);
            part[dim] = begin_of(n, side, at[dim] + 1) - start[dim];
        }
        MPI_Type_create_subarray(3, file, part, start, MPI_ORDER_C, point, &types[0][cell]);
        MPI_Type_create_subarray(4, memory, (int[]){1, part[0], part[1], part[2]}, (int[]){cell, HALO, HALO, HALO}, MPI_ORDER_C, point,
                                 &types[1][cell]);
        lens[cell] = 1;
        places[cell] = 0;
        for (int z = 0; z < part[0]; z++)
            for (int y = 0; y < part[1]; y++) {
                size_t row = (((size_t)cell * with_halo + z + HALO) * with_halo + y + HALO) * with_halo + HALO;
                MPI_Offset offset = ((MPI_Offset)(start[0] + z) * n + start[1] + y) * n + start[2];
                const size_t bytes = POINT * sizeof(double);
                *run++ = (struct run){row * bytes, offset * (MPI_Offset)bytes, (size_t)part[2] * bytes};
                shape->part_bytes += (MPI_Offset)part[2] * (MPI_Offset)bytes;
            }
    }
    shape->run_count = (size_t)(run - runs);
    shape->array_bytes = (MPI_Offset)n * n * n * POINT * (MPI_Offset)sizeof(double);
    shape->memory_len = (size_t)side * with_halo * with_halo * with_halo * POINT * sizeof(double);
    MPI_Type_create_struct(side, lens, places, types[0], &shape->file_type);
    MPI_Type_create_struct(side, lens, places, types[1], &shape->memory_type);
    finish_types(shape);
    for (int cell = 0; cell < side; cell++) {
        MPI_Type_free(&types[0][cell]);
        MPI_Type_free(&types[1][cell]);
    }
    MPI_Type_free(&point);
}

static struct shape shape_of(const struct command *command)
{
    struct shape shape = {.dumps = (int)number_of(command, "dumps", 1)};
    const char *name = text_of(command, "shape", NULL);
    if (!strcmp(name, "block-column"))
        block_column(command, &shape);
    else if (!strcmp(name, "tiled"))
        tiled(command, &shape);
    else if (!strcmp(name, "mesh"))
        mesh(command, &shape);
    else if (!strcmp(name, "bt"))
        bt(command, &shape);
    else
        fail("%s is no shape", name);
    return shape;
}

/* What stands at a place of the file, in every dump. The salt tells what one method wrote from what another did before. */
static unsigned char byte_at(MPI_Offset offset, uint64_t salt)
{
    return (unsigned char)((((uint64_t)offset + (salt << 40)) * 0x9e3779b97f4a7c15u) >> 53);
}

static void fill(const struct shape *shape, unsigned char *memory, uint64_t salt)
{
    for (size_t at = 0; at < shape->run_count; at++)
        for (size_t byte = 0; byte < shape->runs[at].len; byte++)
            memory[shape->runs[at].memory + byte] = byte_at(shape->runs[at].offset + (MPI_Offset)byte, salt);
}

static void verify(const struct shape *shape, const unsigned char *memory, uint64_t salt)
{
    for (size_t at = 0; at < shape->run_count; at++)
        for (size_t byte = 0; byte < shape->runs[at].len; byte++) {
            MPI_Offset offset = shape->runs[at].offset + (MPI_Offset)byte;
            if (memory[shape->runs[at].memory + byte] != byte_at(offset, salt))
                fail("wrong data at byte %lld of the array", (long long)offset);
        }
}

/* How the array is moved. */
struct way {
    int writes, is_collective, syncs;
};

/* All dumps, once; at rank 0 the time from when the first rank began to when the last ended. Where ranks outnumber processors, the times
 * of single ranks are less: all are on one machine, and read one clock. */
static uint64_t move(MPI_File file, const struct shape *shape, struct way way, void *memory)
{
    uint64_t edges[2], outmost[2] = {0, 0};
    check(MPI_File_seek(file, 0, MPI_SEEK_SET), "MPI_File_seek");
    MPI_Barrier(MPI_COMM_WORLD);
    /* The greatest complement is the least time. */
    edges[0] = ~now_ns();
    for (int dump = 0; dump < shape->dumps; dump++) {
        MPI_Status status;
        MPI_Count moved = 0;
        int code;
        if (way.writes)
            code = (way.is_collective ? MPI_File_write_all : MPI_File_write)(file, memory, 1, shape->memory_type, &status);
        else
            code = (way.is_collective ? MPI_File_read_all : MPI_File_read)(file, memory, 1, shape->memory_type, &status);
        check(code, way.writes ? "write" : "read");
        MPI_Get_elements_x(&status, MPI_BYTE, &moved);
        if (moved != shape->part_bytes)
            fail("%s moved %lld of %lld bytes", way.writes ? "a write" : "a read", (long long)moved, (long long)shape->part_bytes);
    }
    if (way.syncs)
        check(MPI_File_sync(file), "MPI_File_sync");
    edges[1] = now_ns();
    MPI_Reduce(edges, outmost, 2, MPI_UINT64_T, MPI_MAX, 0, MPI_COMM_WORLD);
    return outmost[1] - ~outmost[0];
}

/* file shape op seconds ops_min warm_up salt, collective=1, sync=1, dumps, and what the shape takes (n, width, height): {ops ops_all p50_us
 * mean_us min_us bytes pieces piece_bytes stats}. A step moves all of the file: bytes of all ranks. What is read is verified. */
void run_pattern(const struct command *command)
{
    struct shape shape = shape_of(command);
    struct way way = {!strcmp(text_of(command, "op", "read"), "write"), (int)number_of(command, "collective", 0),
                      (int)number_of(command, "sync", 0)};
    struct budget budget = budget_of(command);
    struct samples samples;
    const char *name = text_of(command, "file", NULL);
    unsigned char *memory = alloc(shape.memory_len);
    int warm_up = (int)number_of(command, "warm_up", 1), goes_on = 1;
    uint64_t began, salt = (uint64_t)number_of(command, "salt", 0);
    MPI_Info info = hints_of(command);
    MPI_File file;
    check(MPI_File_open(MPI_COMM_WORLD, name, MPI_MODE_RDWR | MPI_MODE_CREATE, info, &file), name);
    MPI_Info_free(&info);
    check(MPI_File_set_view(file, 0, MPI_BYTE, shape.file_type, "native", MPI_INFO_NULL), "MPI_File_set_view");
    if (way.writes)
        fill(&shape, memory, salt);
    for (int step = 0; step < warm_up; step++)
        move(file, &shape, way, memory);
    samples_begin(&samples);
    began = now_ns();
    while (goes_on) {
        uint64_t ns = move(file, &shape, way, memory);
        samples_add(&samples, ns);
        goes_on = !budget_over(&budget, began, now_ns(), samples.count);
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (!way.writes)
        verify(&shape, memory, salt);
    if (bench_rank == 0) {
        printf("{\"ops_all\": %zu, \"bytes\": %lld, \"pieces\": %zu, \"piece_bytes\": %zu, ", samples.count + (size_t)warm_up,
               (long long)shape.array_bytes * shape.dumps, shape.run_count, shape.runs[0].len);
        samples_print(&samples);
        printf(", ");
    }
    stats_print(file);
    if (bench_rank == 0)
        printf("}\n");
    check(MPI_File_close(&file), "MPI_File_close");
    MPI_Type_free(&shape.file_type);
    MPI_Type_free(&shape.memory_type);
    free(shape.runs);
    munmap(memory, shape.memory_len);
}
