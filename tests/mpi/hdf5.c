/* HDF5's parallel library over MPI-IO: hyperslabs, independent and collective, in contiguous and chunked datasets.
 *
 * Built apart from the others, where HDF5 for Open MPI is installed: h5pcc.openmpi -O1 -g -Wall hdf5.c -o hdf5
 */
#include "check.h"

#include <hdf5.h>

#define ROWS 24
#define COLUMNS 40

#define CHECK_H5(call) check_h5((long long)(call), #call, __LINE__)

static long long check_h5(long long result, const char *what, int line)
{
    if (result >= 0)
        return result;
    check_failed(__FILE__, line, "%s failed", what);
    check_leave();
}

static hid_t access_list(void)
{
    hid_t list = (hid_t)CHECK_H5(H5Pcreate(H5P_FILE_ACCESS));
    CHECK_H5(H5Pset_fapl_mpio(list, MPI_COMM_WORLD, check.info));
    return list;
}

static hid_t file_create(void)
{
    hid_t list = access_list(), file = (hid_t)CHECK_H5(H5Fcreate(check.file, H5F_ACC_TRUNC, H5P_DEFAULT, list));
    CHECK_H5(H5Pclose(list));
    return file;
}

static hid_t file_open(void)
{
    hid_t list = access_list(), file = (hid_t)CHECK_H5(H5Fopen(check.file, H5F_ACC_RDONLY, list));
    CHECK_H5(H5Pclose(list));
    return file;
}

static hid_t transfer_list(int collective)
{
    hid_t list = (hid_t)CHECK_H5(H5Pcreate(H5P_DATASET_XFER));
    CHECK_H5(H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT));
    return list;
}

static int value(hsize_t row, hsize_t column)
{
    return (int)check_mix(row * 1000003 + column);
}

/* A rank's part of the dataset: columns by turns, or a band of rows. */
static void select_part(hid_t space, int rank, int by_columns)
{
    hsize_t start[2] = {0, (hsize_t)rank}, stride[2] = {1, (hsize_t)check.ranks};
    hsize_t count[2] = {ROWS * (hsize_t)check.ranks, COLUMNS};
    if (!by_columns) {
        start[0] = (hsize_t)rank * ROWS;
        start[1] = 0;
        stride[1] = 1;
        count[0] = ROWS;
        count[1] = COLUMNS * (hsize_t)check.ranks;
    }
    CHECK_H5(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL));
}

/* The values of a rank's part, in the order in which HDF5 takes them. */
static void part_values(int *values, int rank, int by_columns)
{
    size_t i = 0;
    hsize_t rows = by_columns ? ROWS * (hsize_t)check.ranks : ROWS, columns = by_columns ? COLUMNS : COLUMNS * (hsize_t)check.ranks;
    for (hsize_t r = 0; r < rows; r++)
        for (hsize_t c = 0; c < columns; c++)
            values[i++] = by_columns ? value(r, c * (hsize_t)check.ranks + (hsize_t)rank) : value((hsize_t)rank * ROWS + r, c);
}

/* Moves a rank's part of a dataset, and compares it after a read. */
static void move_part(hid_t dataset, int rank, int by_columns, int collective, int writes)
{
    hsize_t values = (hsize_t)ROWS * COLUMNS * (hsize_t)check.ranks;
    int *memory = check_alloc(values * sizeof(int)), *want = check_alloc(values * sizeof(int));
    hid_t space = (hid_t)CHECK_H5(H5Dget_space(dataset)), flat = (hid_t)CHECK_H5(H5Screate_simple(1, &values, NULL));
    hid_t list = transfer_list(collective);
    select_part(space, rank, by_columns);
    part_values(want, rank, by_columns);
    memset(memory, CHECK_POISON, values * sizeof(int));
    if (writes)
        CHECK_H5(H5Dwrite(dataset, H5T_NATIVE_INT, flat, space, list, want));
    else
        CHECK_H5(H5Dread(dataset, H5T_NATIVE_INT, flat, space, list, memory));
    if (!writes)
        CHECK_BYTES(memory, want, 0, values * sizeof(int));
    CHECK_H5(H5Pclose(list));
    CHECK_H5(H5Sclose(flat));
    CHECK_H5(H5Sclose(space));
    free(memory);
    free(want);
}

/* Writes a dataset, closes the file, and reads parts of it in both ways. */
static void run_dataset(int by_columns, int collective, int chunked)
{
    hsize_t sizes[2] = {ROWS * (hsize_t)check.ranks, COLUMNS * (hsize_t)check.ranks}, chunks[2] = {16, 24};
    hid_t file = file_create(), space = (hid_t)CHECK_H5(H5Screate_simple(2, sizes, NULL)), dataset;
    hid_t list = (hid_t)CHECK_H5(H5Pcreate(H5P_DATASET_CREATE));
    if (chunked)
        CHECK_H5(H5Pset_chunk(list, 2, chunks));
    dataset = (hid_t)CHECK_H5(H5Dcreate2(file, "values", H5T_STD_I32BE, space, H5P_DEFAULT, list, H5P_DEFAULT));
    move_part(dataset, check.rank, by_columns, collective, 1);
    CHECK_H5(H5Dclose(dataset));
    CHECK_H5(H5Pclose(list));
    CHECK_H5(H5Sclose(space));
    CHECK_H5(H5Fclose(file));
    MPI_Barrier(MPI_COMM_WORLD);
    file = file_open();
    dataset = (hid_t)CHECK_H5(H5Dopen2(file, "values", H5P_DEFAULT));
    for (int way = 0; way < 4; way++)
        move_part(dataset, (check.rank + way) % check.ranks, way & 1, way >> 1, 0);
    CHECK_H5(H5Dclose(dataset));
    CHECK_H5(H5Fclose(file));
}

static void run_independent(void)
{
    run_dataset(0, 0, 0);
}

static void run_independent_columns(void)
{
    run_dataset(1, 0, 0);
}

static void run_collective(void)
{
    run_dataset(0, 1, 0);
}

static void run_collective_columns(void)
{
    run_dataset(1, 1, 0);
}

static void run_chunked(void)
{
    run_dataset(0, 1, 1);
}

static void run_chunked_columns(void)
{
    run_dataset(1, 1, 1);
}

/* Many small datasets, groups and attributes: metadata that the ranks make together. */
static void run_metadata(void)
{
    enum { GROUPS = 20 };
    char name[40];
    hid_t file = file_create(), scalar = (hid_t)CHECK_H5(H5Screate(H5S_SCALAR));
    for (int i = 0; i < GROUPS; i++) {
        hid_t group, attribute;
        snprintf(name, sizeof name, "group %d", i);
        group = (hid_t)CHECK_H5(H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        attribute = (hid_t)CHECK_H5(H5Acreate2(group, "number", H5T_STD_I32LE, scalar, H5P_DEFAULT, H5P_DEFAULT));
        CHECK_H5(H5Awrite(attribute, H5T_NATIVE_INT, &i));
        CHECK_H5(H5Aclose(attribute));
        CHECK_H5(H5Gclose(group));
    }
    CHECK_H5(H5Sclose(scalar));
    CHECK_H5(H5Fclose(file));
    MPI_Barrier(MPI_COMM_WORLD);
    file = file_open();
    for (int i = 0; i < GROUPS; i++) {
        int number = -1;
        hid_t attribute;
        snprintf(name, sizeof name, "group %d", i);
        attribute = (hid_t)CHECK_H5(H5Aopen_by_name(file, name, "number", H5P_DEFAULT, H5P_DEFAULT));
        CHECK_H5(H5Aread(attribute, H5T_NATIVE_INT, &number));
        CHECK_EQUAL(number, i);
        CHECK_H5(H5Aclose(attribute));
    }
    CHECK_H5(H5Fclose(file));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"independent", 1, run_independent, "bands of rows, independent"},
        {"independent_columns", 1, run_independent_columns, "columns by turns, independent"},
        {"collective", 1, run_collective, "bands of rows, collective"},
        {"collective_columns", 1, run_collective_columns, "columns by turns, collective"},
        {"chunked", 1, run_chunked, "bands of rows in chunks, collective"},
        {"chunked_columns", 1, run_chunked_columns, "columns by turns in chunks, collective"},
        {"metadata", 1, run_metadata, "groups and attributes"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
