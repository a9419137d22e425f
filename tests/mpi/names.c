/* Names that settings should send to dafs, where the settings are wrong or differ, or the directory changes. FILE is an absolute path. */
#include <fcntl.h>

#include "check.h"

/* The local file is not there. */
static void check_not_made(void)
{
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK(access(check.file, F_OK) != 0, "the file was made on the local disk");
    MPI_Barrier(MPI_COMM_WORLD);
}

/* All ranks open the file and are told one of two classes. */
static void open_fails(int first, int second)
{
    static const int amodes[] = {MPI_MODE_CREATE | MPI_MODE_WRONLY, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE};
    for (size_t i = 0; i < sizeof amodes / sizeof amodes[0]; i++) {
        MPI_File fh = MPI_FILE_NULL;
        int error = MPI_File_open(MPI_COMM_WORLD, check.file, amodes[i], check.info, &fh);
        CHECK_CLASS(error, first, second);
        if (error == MPI_SUCCESS)
            CHECK_MPI(MPI_File_close(&fh));
        check_not_made();
    }
}

/* DAFS_MPI_PREFIX cannot be read: no file goes elsewhere, and none is removed there. */
static void run_unreadable(void)
{
    open_fails(MPI_ERR_ARG, MPI_ERR_ARG);
    if (check.rank == 0) {
        int local = open(check.file, O_CREAT | O_WRONLY, 0600);
        CHECK(local >= 0 && close(local) == 0, "cannot make %s", check.file);
        CHECK_FAILS(MPI_File_delete(check.file, MPI_INFO_NULL));
        CHECK(unlink(check.file) == 0, "the file was removed from the local disk");
    }
}

/* Only the first rank has the variable. */
static void run_of_one_rank(void)
{
    if (check.rank != 0)
        unsetenv("DAFS_MPI_PREFIX");
    open_fails(MPI_ERR_NOT_SAME, MPI_ERR_NOT_SAME);
}

/* A file that goes when it is closed was opened by a relative name; meanwhile the program goes to the directory "below", where another
 * file has the name. */
static void run_directory_changes(void)
{
    const char *base = strrchr(check.file, '/') + 1;
    char directory[4096], other[4200];
    MPI_File fh;
    snprintf(directory, sizeof directory, "%.*s", (int)(base - check.file), check.file);
    snprintf(other, sizeof other, "%sbelow/%s", directory, base);
    check_make(other, 1, 1000);
    CHECK(chdir(directory) == 0, "cannot go to %s", directory);
    fh = check_open_as(MPI_COMM_WORLD, base, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, __FILE__, __LINE__);
    CHECK(chdir("below") == 0, "cannot go to %sbelow", directory);
    CHECK_MPI(MPI_File_close(&fh));
    CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_RDONLY, check.info, &fh), MPI_ERR_NO_SUCH_FILE);
    CHECK_MPI(MPI_File_open(MPI_COMM_WORLD, other, MPI_MODE_RDONLY | MPI_MODE_DELETE_ON_CLOSE, check.info, &fh));
    CHECK_MPI(MPI_File_close(&fh));
}

/* DAFS_ADDRESS leads all ranks but the first to another server. */
static void run_of_two_servers(void)
{
    MPI_File fh;
    if (check.rank != 0)
        setenv("DAFS_ADDRESS", getenv("OTHER_ADDRESS"), 1);
    CHECK_CLASS(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_CREATE | MPI_MODE_RDWR, check.info, &fh), MPI_ERR_NO_SUCH_FILE);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"unreadable", 1, run_unreadable, "DAFS_MPI_PREFIX cannot be read"},
        {"of_one_rank", 2, run_of_one_rank, "one rank alone has DAFS_MPI_PREFIX"},
        {"directory_changes", 1, run_directory_changes, "MPI_MODE_DELETE_ON_CLOSE, a relative name, and chdir()"},
        {"of_two_servers", 2, run_of_two_servers, "DAFS_ADDRESS differs, OTHER_ADDRESS is that of all ranks but the first"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
