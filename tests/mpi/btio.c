/* The pattern of NPB's BT-IO, "full" subtype: a cube of points, dumped many times, each rank with diagonal cells of it.
 *
 * The cube is cut into q x q x q cells for q x q ranks. A rank has q cells, one in each layer, in memory with two ghost
 * cells on each side. A dump is one call: from a type over all of a rank's cells to a view over the same in the file.
 * Class A on 4 ranks: 2,048 pieces of 1,280 bytes for each rank and dump; written and read, 163,840 in 10 dumps.
 *
 * --class S|W|A    a cube of 12, 24 or 64 points to a side
 * --dumps N        10 if not said
 * --no-slices      leaves out the comparison of whole slices, which opens the file again and again
 * --counters       each rank prints what the driver counts: the hints dafs_stat_...
 */
#include "check.h"

#define VALUES 5 /* Doubles of a point. */
#define GHOST 2
#define CELLS_MAX 8

/* A rank's part: where each of its cells begins in the cube, and its size, in points, as z, y, x. */
struct part {
    int cells, side;
    int start[CELLS_MAX][3], size[CELLS_MAX][3];
    size_t points; /* Of all cells. */
};

struct dump_types {
    MPI_Datatype point, file, memory;
};

static int whole_root(int n)
{
    for (int q = 1; q * q <= n; q++)
        if (q * q == n)
            return q;
    return 0;
}

static struct part part_of(int rank, int side)
{
    struct part part = {.cells = whole_root(check.ranks), .side = side};
    int q = part.cells;
    for (int c = 0; c < q; c++) {
        int at[3] = {c, (rank / q + q - c) % q, (rank % q + c) % q}; /* Layer, row and column: a diagonal. */
        size_t points = 1;
        for (int d = 0; d < 3; d++) {
            part.start[c][d] = side * at[d] / q;
            part.size[c][d] = side * (at[d] + 1) / q - part.start[c][d];
            points *= (size_t)part.size[c][d];
        }
        part.points += points;
    }
    return part;
}

/* Points along one side of a cell in memory: the largest cell and its ghosts. */
static int memory_side(const struct part *part)
{
    return (part->side + part->cells - 1) / part->cells + 2 * GHOST;
}

static size_t memory_points(const struct part *part)
{
    size_t side = (size_t)memory_side(part);
    return (size_t)part->cells * side * side * side;
}

/* One type over all cells: subarrays of the cube in the file, each of an array with ghosts in memory. */
static struct dump_types make_types(const struct part *part)
{
    struct dump_types types;
    MPI_Datatype file[CELLS_MAX], memory[CELLS_MAX];
    MPI_Aint file_at[CELLS_MAX], memory_at[CELLS_MAX];
    int lens[CELLS_MAX], m = memory_side(part);
    int cube[3] = {part->side, part->side, part->side}, array[3] = {m, m, m}, ghosts[3] = {GHOST, GHOST, GHOST};
    MPI_Type_contiguous(VALUES, MPI_DOUBLE, &types.point);
    MPI_Type_commit(&types.point);
    for (int c = 0; c < part->cells; c++) {
        MPI_Type_create_subarray(3, cube, part->size[c], part->start[c], MPI_ORDER_C, types.point, &file[c]);
        MPI_Type_create_subarray(3, array, part->size[c], ghosts, MPI_ORDER_C, types.point, &memory[c]);
        lens[c] = 1;
        file_at[c] = 0;
        memory_at[c] = (MPI_Aint)c * m * m * m * VALUES * (MPI_Aint)sizeof(double);
    }
    MPI_Type_create_struct(part->cells, lens, file_at, file, &types.file);
    MPI_Type_create_struct(part->cells, lens, memory_at, memory, &types.memory);
    MPI_Type_commit(&types.file);
    MPI_Type_commit(&types.memory);
    for (int c = 0; c < part->cells; c++) {
        MPI_Type_free(&file[c]);
        MPI_Type_free(&memory[c]);
    }
    return types;
}

/* What the word of a dump's place in the file is. */
static uint64_t word(int dump, uint64_t index)
{
    return check_mix(index + ((uint64_t)dump << 40));
}

/* Visits each word of a rank's memory: fills it (ghosts with poison) or compares it. Returns the words that differ. */
static size_t visit(const struct part *part, uint64_t *memory, int dump, int fill)
{
    int m = memory_side(part);
    uint64_t poison;
    size_t bad = 0;
    memset(&poison, CHECK_POISON, sizeof poison);
    for (int c = 0; c < part->cells; c++)
        for (int z = 0; z < m; z++)
            for (int y = 0; y < m; y++)
                for (int x = 0; x < m; x++) {
                    int at[3] = {z - GHOST, y - GHOST, x - GHOST}, inside = 1;
                    uint64_t *words = memory + (size_t)(((c * m + z) * m + y) * m + x) * VALUES;
                    uint64_t point = 0;
                    for (int d = 0; d < 3; d++) {
                        inside = inside && at[d] >= 0 && at[d] < part->size[c][d];
                        point = point * (uint64_t)part->side + (uint64_t)(part->start[c][d] + at[d]);
                    }
                    for (int v = 0; v < VALUES; v++) {
                        uint64_t want = inside ? word(dump, point * VALUES + (uint64_t)v) : poison;
                        if (fill)
                            words[v] = want;
                        bad += words[v] != want;
                    }
                }
    return bad;
}

/* Reads slices of a dump as bytes, by an open of this rank's own, and compares them. */
static void check_slices(int side, int dump)
{
    size_t words = (size_t)side * (size_t)side * VALUES;
    uint64_t *got = check_alloc(words * sizeof *got);
    for (int z = check.rank; z < side; z += check.ranks) {
        uint64_t first = (uint64_t)z * words, bad = 0;
        MPI_Offset at = (MPI_Offset)(((uint64_t)dump * (uint64_t)side * words + first) * sizeof *got);
        CHECK_EQUAL(check_reread(check.file, at, got, (int)(words * sizeof *got)), words * sizeof *got);
        for (size_t i = 0; i < words; i++)
            bad += got[i] != word(dump, first + i);
        CHECK(bad == 0, "dump %d, slice %d, offset %lld: %llu of %zu words differ", dump, z, (long long)at, (unsigned long long)bad, words);
    }
    free(got);
}

/* One dump by one call. Its place is counted in points of this rank's view. */
static void move_dump(MPI_File fh, const struct part *part, const struct dump_types *types, uint64_t *memory, int dump, int writes,
                      int collective)
{
    MPI_Offset at = (MPI_Offset)part->points * dump;
    MPI_Status status;
    if (writes && collective)
        CHECK_MPI(MPI_File_write_at_all(fh, at, memory, 1, types->memory, &status));
    else if (writes)
        CHECK_MPI(MPI_File_write_at(fh, at, memory, 1, types->memory, &status));
    else if (collective)
        CHECK_MPI(MPI_File_read_at_all(fh, at, memory, 1, types->memory, &status));
    else
        CHECK_MPI(MPI_File_read_at(fh, at, memory, 1, types->memory, &status));
    CHECK_COUNT(&status, types->point, (int)part->points);
}

static void print_counters(MPI_File fh)
{
    MPI_Info info;
    int keys = 0;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    MPI_Info_get_nkeys(info, &keys);
    for (int i = 0; i < keys; i++) {
        char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1];
        int found = 0;
        MPI_Info_get_nthkey(info, i, key);
        MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
        if (found && strncmp(key, "dafs_stat_", 10) == 0)
            printf("rank %d: %s %s\n", check.rank, key, value);
    }
    fflush(stdout);
    MPI_Info_free(&info);
}

static int side_of(const char *name)
{
    return strcmp(name, "S") == 0 ? 12 : strcmp(name, "W") == 0 ? 24 : strcmp(name, "A") == 0 ? 64 : 0;
}

static void run_dumps(int collective)
{
    int side = side_of(check_option("--class", 0, "A")), dumps = atoi(check_option("--dumps", 0, "10"));
    if (whole_root(check.ranks) == 0)
        check_skip("it needs 1, 4, 9, ... ranks");
    CHECK(side != 0 && dumps > 0 && whole_root(check.ranks) <= CELLS_MAX, "the class is S, W or A, with at most 64 ranks");
    if (check.failures != 0)
        return;
    struct part part = part_of(check.rank, side);
    struct dump_types types = make_types(&part);
    size_t bytes = memory_points(&part) * VALUES * sizeof(double);
    uint64_t *memory = check_alloc(bytes);
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    CHECK_MPI(MPI_File_set_view(fh, 0, types.point, types.file, "native", check.info));
    for (int dump = 0; dump < dumps; dump++) {
        visit(&part, memory, dump, 1);
        move_dump(fh, &part, &types, memory, dump, 1, collective);
    }
    check_publish(fh);
    for (int dump = 0; dump < dumps; dump++) {
        size_t bad;
        memset(memory, CHECK_POISON, bytes);
        move_dump(fh, &part, &types, memory, dump, 0, collective);
        bad = visit(&part, memory, dump, 0);
        CHECK(bad == 0, "dump %d: %zu words of %zu in memory differ", dump, bad, bytes / 8);
        if (!check_flag("--no-slices"))
            check_slices(side, dump);
    }
    if (check_flag("--counters"))
        print_counters(fh);
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Type_free(&types.point);
    MPI_Type_free(&types.file);
    MPI_Type_free(&types.memory);
    free(memory);
}

static void run_collective(void)
{
    run_dumps(1);
}

static void run_independent(void)
{
    run_dumps(0);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"collective", 1, run_collective, "dumps by write_at_all and read_at_all"},
        {"independent", 1, run_independent, "dumps by write_at and read_at"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "--class: --dumps: --no-slices --counters", MPI_THREAD_SINGLE);
}
