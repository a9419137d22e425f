/* PnetCDF over MPI-IO: collective, independent, strided, nonblocking and varn access, in all three formats.
 *
 * Built apart from the others, where PnetCDF is installed: mpicc -O1 -g -Wall pnetcdf.c -o pnetcdf -lpnetcdf
 */
#include "check.h"

#include <pnetcdf.h>

#define ROWS 40
#define COLUMNS 50

#define CHECK_NC(call) check_nc((call), #call, __LINE__)

static void check_nc(int error, const char *what, int line)
{
    if (error == NC_NOERR)
        return;
    check_failed(__FILE__, line, "%s: %s", what, ncmpi_strerror(error));
    check_leave();
}

static int value(MPI_Offset row, MPI_Offset column)
{
    return (int)check_mix((uint64_t)(row * 1000003 + column));
}

/* The file with two variables of ROWS by COLUMNS for each rank, and an attribute. */
static int file_create(int format, int vars[2])
{
    int file, dims[2];
    CHECK_NC(ncmpi_create(MPI_COMM_WORLD, check.file, NC_CLOBBER | format, check.info, &file));
    CHECK_NC(ncmpi_def_dim(file, "rows", ROWS, &dims[0]));
    CHECK_NC(ncmpi_def_dim(file, "columns", (MPI_Offset)COLUMNS * check.ranks, &dims[1]));
    CHECK_NC(ncmpi_def_var(file, "first", NC_INT, 2, dims, &vars[0]));
    CHECK_NC(ncmpi_def_var(file, "second", NC_INT, 2, dims, &vars[1]));
    CHECK_NC(ncmpi_put_att_text(file, NC_GLOBAL, "title", 4, "dafs"));
    CHECK_NC(ncmpi_enddef(file));
    return file;
}

/* A rank's columns: a block of them, or by turns. */
struct part {
    MPI_Offset start[2], count[2], stride[2];
};

static struct part part_of(int rank, int by_turns)
{
    struct part part = {{0, (MPI_Offset)rank * COLUMNS}, {ROWS, COLUMNS}, {1, 1}};
    if (by_turns) {
        part.start[1] = rank;
        part.stride[1] = check.ranks;
    }
    return part;
}

static void part_values(const struct part *part, int *values, int variable)
{
    for (MPI_Offset r = 0; r < ROWS; r++)
        for (MPI_Offset c = 0; c < COLUMNS; c++)
            *values++ = value(r + 1000 * variable, part->start[1] + c * part->stride[1]);
}

/* Opens the file again, and compares both variables as the next rank wrote them, in both modes. */
static void check_file(int by_turns)
{
    static int got[ROWS * COLUMNS], want[ROWS * COLUMNS];
    struct part part = part_of((check.rank + 1) % check.ranks, by_turns);
    char title[5] = "";
    int file, variable;
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_NC(ncmpi_open(MPI_COMM_WORLD, check.file, NC_NOWRITE, check.info, &file));
    CHECK_NC(ncmpi_get_att_text(file, NC_GLOBAL, "title", title));
    CHECK(strcmp(title, "dafs") == 0, "attribute: expected dafs, got %s", title);
    for (int i = 0; i < 4; i++) {
        CHECK_NC(ncmpi_inq_varid(file, i % 2 ? "second" : "first", &variable));
        part_values(&part, want, i % 2);
        memset(got, CHECK_POISON, sizeof got);
        if (i < 2) {
            CHECK_NC(ncmpi_get_vars_int_all(file, variable, part.start, part.count, part.stride, got));
        } else {
            CHECK_NC(ncmpi_begin_indep_data(file));
            CHECK_NC(ncmpi_get_vars_int(file, variable, part.start, part.count, part.stride, got));
            CHECK_NC(ncmpi_end_indep_data(file));
        }
        CHECK_BYTES(got, want, 0, sizeof got);
    }
    CHECK_NC(ncmpi_close(file));
}

/* Writes both variables by collective or independent calls. */
static void write_file(int format, int by_turns, int collective)
{
    static int memory[ROWS * COLUMNS];
    struct part part = part_of(check.rank, by_turns);
    int vars[2], file = file_create(format, vars);
    if (!collective)
        CHECK_NC(ncmpi_begin_indep_data(file));
    for (int i = 0; i < 2; i++) {
        part_values(&part, memory, i);
        if (collective)
            CHECK_NC(ncmpi_put_vars_int_all(file, vars[i], part.start, part.count, part.stride, memory));
        else
            CHECK_NC(ncmpi_put_vars_int(file, vars[i], part.start, part.count, part.stride, memory));
    }
    if (!collective)
        CHECK_NC(ncmpi_end_indep_data(file));
    CHECK_NC(ncmpi_close(file));
    check_file(by_turns);
}

static void run_collective(void)
{
    write_file(0, 0, 1);
}

static void run_collective_by_turns(void)
{
    write_file(0, 1, 1);
}

static void run_independent(void)
{
    write_file(0, 0, 0);
}

static void run_independent_by_turns(void)
{
    write_file(0, 1, 0);
}

static void run_64bit_offset(void)
{
    write_file(NC_64BIT_OFFSET, 0, 1);
}

static void run_64bit_data(void)
{
    write_file(NC_64BIT_DATA, 0, 1);
}

/* Requests of both variables that one call completes. */
static void run_nonblocking(void)
{
    static int memory[2][ROWS * COLUMNS];
    struct part part = part_of(check.rank, 1);
    int vars[2], requests[2], statuses[2], file = file_create(0, vars);
    for (int i = 0; i < 2; i++) {
        part_values(&part, memory[i], i);
        CHECK_NC(ncmpi_iput_vars_int(file, vars[i], part.start, part.count, part.stride, memory[i], &requests[i]));
    }
    CHECK_NC(ncmpi_wait_all(file, 2, requests, statuses));
    for (int i = 0; i < 2; i++)
        CHECK_NC(statuses[i]);
    CHECK_NC(ncmpi_close(file));
    check_file(1);
}

/* Many pieces of a variable in one call. */
static void run_many_pieces(void)
{
    static int memory[ROWS * COLUMNS];
    static MPI_Offset places[ROWS][2], sizes[ROWS][2], *starts[ROWS], *counts[ROWS];
    struct part part = part_of(check.rank, 0);
    int vars[2], file = file_create(0, vars);
    for (int r = 0; r < ROWS; r++) {
        places[r][0] = r;
        places[r][1] = part.start[1];
        sizes[r][0] = 1;
        sizes[r][1] = COLUMNS;
        starts[r] = places[r];
        counts[r] = sizes[r];
    }
    for (int i = 0; i < 2; i++) {
        part_values(&part, memory, i);
        CHECK_NC(ncmpi_put_varn_int_all(file, vars[i], ROWS, starts, counts, memory));
    }
    CHECK_NC(ncmpi_close(file));
    check_file(0);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"collective", 1, run_collective, "blocks of columns, collective"},
        {"collective_by_turns", 1, run_collective_by_turns, "columns by turns, collective"},
        {"independent", 1, run_independent, "blocks of columns, independent"},
        {"independent_by_turns", 1, run_independent_by_turns, "columns by turns, independent"},
        {"64bit_offset", 1, run_64bit_offset, "the format CDF-2"},
        {"64bit_data", 1, run_64bit_data, "the format CDF-5"},
        {"nonblocking", 1, run_nonblocking, "iput and wait_all"},
        {"many_pieces", 1, run_many_pieces, "put_varn of 40 pieces"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
