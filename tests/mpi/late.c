/* A function that runs at exit closes a file, or leaves it to MPI_Finalize, which it calls. It is registered before the file is opened, so
 * it runs behind whatever the driver registers then. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEN 1000

static MPI_File fh;
static int rank, closes;

static void need_success(int class, const char *what)
{
    if (class == MPI_SUCCESS)
        return;
    fprintf(stderr, "rank %d: %s: class %d\n", rank, what, class);
    _exit(1);
}

/* Each rank writes its number, once for each part of its own of the file. */
static void write_part(int part)
{
    char data[LEN];
    MPI_Status status;
    memset(data, 'a' + rank, LEN);
    need_success(MPI_File_write_at(fh, (2 * rank + part) * LEN, data, LEN, MPI_BYTE, &status), "MPI_File_write_at");
}

static void at_exit(void)
{
    MPI_File other;
    if (closes) {
        write_part(1);
        if (MPI_File_open(MPI_COMM_SELF, "dafs:no such place", MPI_MODE_RDONLY, MPI_INFO_NULL, &other) == MPI_SUCCESS)
            need_success(MPI_ERR_OTHER, "MPI_File_open of what is not there");
        need_success(MPI_File_close(&fh), "MPI_File_close");
    }
    MPI_Finalize();
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc != 3 || (strcmp(argv[1], "close") != 0 && strcmp(argv[1], "leave") != 0)) {
        fprintf(stderr, "usage: %s close|leave FILE\n", argv[0]);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    closes = strcmp(argv[1], "close") == 0;
    if (atexit(at_exit) != 0)
        return 1;
    need_success(MPI_File_open(MPI_COMM_WORLD, argv[2], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &fh), "MPI_File_open");
    write_part(0);
    if (!closes)
        write_part(1);
    return 0;
}
