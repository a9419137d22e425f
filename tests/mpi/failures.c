/* What a program is told where a server goes away, and what the driver says on standard error: failures MODE FILE [READY]. No cases.
 *
 * The ranks make the local file READY when they are in the middle, and go on when it is gone. */
#include "check.h"

enum { SIZE = 100000 };

static MPI_File fh;
static char *memory;

static void wait_until_gone(const char *ready)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (check.rank == 0)
        fclose(fopen(ready, "w"));
    MPI_Barrier(MPI_COMM_WORLD);
    while (access(ready, F_OK) == 0)
        usleep(1000);
}

static void open_file(void)
{
    if (MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &fh) != MPI_SUCCESS)
        MPI_Abort(MPI_COMM_WORLD, 1);
}

/* The server is gone: each of these fails. */
static int run_transfers(const char *ready)
{
    MPI_Request request;
    MPI_Status status;
    int failed = 0, error;
    open_file();
    wait_until_gone(ready);
    failed += MPI_File_write_at(fh, 0, memory, SIZE, MPI_BYTE, &status) != MPI_SUCCESS;
    failed += MPI_File_read_at(fh, 0, memory, 10, MPI_BYTE, &status) != MPI_SUCCESS;
    error = MPI_File_iwrite_at(fh, 0, memory, SIZE, MPI_BYTE, &request);
    failed += wait_error(error, &request) != MPI_SUCCESS;
    failed += MPI_File_write_at_all(fh, 0, memory, SIZE, MPI_BYTE, &status) != MPI_SUCCESS;
    failed += MPI_File_read_at_all(fh, 0, memory, SIZE, MPI_BYTE, &status) != MPI_SUCCESS;
    MPI_File_close(&fh);
    printf("rank %d: %d of 5 failed\n", check.rank, failed);
    return failed != 5;
}

/* What was written is lost. */
static int run_close(const char *ready)
{
    MPI_Status status;
    int error;
    open_file();
    error = MPI_File_write_at(fh, (MPI_Offset)check.rank * SIZE, memory, SIZE, MPI_BYTE, &status);
    wait_until_gone(ready);
    printf("close: %s\n", check_class_name(check_class_of(MPI_File_close(&fh))));
    return error != MPI_SUCCESS || fh != MPI_FILE_NULL;
}

/* One write and one read of all, of ints that the ranks have in turn. */
static int run_collective(void)
{
    MPI_Datatype tile;
    MPI_Status status;
    int error;
    open_file();
    MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)check.ranks, &tile);
    MPI_Type_commit(&tile);
    error = MPI_File_set_view(fh, 4 * check.rank, MPI_INT, tile, "native", MPI_INFO_NULL);
    if (error == MPI_SUCCESS)
        error = MPI_File_write_at_all(fh, 0, memory, SIZE / 4, MPI_INT, &status);
    if (error == MPI_SUCCESS)
        error = MPI_File_read_at_all(fh, 0, memory, SIZE / 4, MPI_INT, &status);
    MPI_Type_free(&tile);
    MPI_File_close(&fh);
    return error != MPI_SUCCESS;
}

int main(int argc, char **argv)
{
    int failed = 1, all = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &check.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check.ranks);
    memory = calloc(1, SIZE);
    check.file = argc > 2 ? argv[2] : "";
    alarm(120);
    if (argc == 4 && strcmp(argv[1], "transfers") == 0)
        failed = run_transfers(argv[3]);
    else if (argc == 4 && strcmp(argv[1], "close") == 0)
        failed = run_close(argv[3]);
    else if (argc == 3 && strcmp(argv[1], "collective") == 0)
        failed = run_collective();
    MPI_Allreduce(&failed, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    free(memory);
    MPI_Finalize();
    return all;
}
