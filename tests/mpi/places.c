/* Views that cannot be, and offsets and pointers that name no place in a view: errors, and nothing is moved elsewhere. */
#include "check.h"

/* A view of every fourth int, from byte 400 of 1000 on. */
static MPI_File open_with_gaps(void)
{
    MPI_Datatype type;
    MPI_File fh;
    check_make(check.file, 1, 1000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    MPI_Type_create_resized(MPI_INT, 0, 16, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 400, MPI_INT, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
    return fh;
}

/* The file is as it was made. */
static void close_unchanged(MPI_File fh)
{
    unsigned char memory[1000];
    check_publish(fh);
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_EQUAL(check_reread(check.file, 0, memory, 1000), 1000);
    CHECK_PATTERN(memory, 1, 0, 1000);
}

static int split_write(MPI_File fh, MPI_Offset at, const void *memory, MPI_Datatype type, MPI_Status *status)
{
    int error = MPI_File_write_at_all_begin(fh, at, memory, 1, type);
    return error == MPI_SUCCESS ? MPI_File_write_at_all_end(fh, memory, status) : error;
}

static int split_read(MPI_File fh, MPI_Offset at, void *memory, MPI_Datatype type, MPI_Status *status)
{
    int error = MPI_File_read_at_all_begin(fh, at, memory, 1, type);
    return error == MPI_SUCCESS ? MPI_File_read_at_all_end(fh, memory, status) : error;
}

/* Nothing is moved to or from an offset that names no place in the view. */
static void check_outside(MPI_File fh, MPI_Offset at, MPI_Datatype type)
{
    MPI_Request request;
    MPI_Status status;
    MPI_Offset byte;
    double memory = 0;
    int error;
    CHECK_CLASS(MPI_File_get_byte_offset(fh, at, &byte), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_write_at(fh, at, &memory, 1, type, &status), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_read_at(fh, at, &memory, 1, type, &status), MPI_ERR_ARG);
    error = MPI_File_iwrite_at(fh, at, &memory, 1, type, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_ARG);
    error = MPI_File_iread_at(fh, at, &memory, 1, type, &request);
    CHECK_CLASS(wait_error(error, &request), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_write_at_all(fh, at, &memory, 1, type, &status), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_read_at_all(fh, at, &memory, 1, type, &status), MPI_ERR_ARG);
    CHECK_CLASS(split_write(fh, at, &memory, type, &status), MPI_ERR_ARG);
    CHECK_CLASS(split_read(fh, at, &memory, type, &status), MPI_ERR_ARG);
}

/* Offsets that name no place in a view with gaps: before it, or behind all numbers. */
static void run_offset_outside_view(void)
{
    static const MPI_Offset outside[] = {-1, -25, (MPI_Offset)1 << 60, (MPI_Offset)1 << 62};
    MPI_File fh = open_with_gaps();
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
        check_outside(fh, outside[i], MPI_INT);
    close_unchanged(fh);
}

/* The same in views without gaps. Where numbers go round, some of these come to a byte near the beginning. */
static void run_offset_outside_whole_view(void)
{
    static const MPI_Offset outside[] = {-1, (MPI_Offset)1 << 61, ((MPI_Offset)1 << 61) + 3, (MPI_Offset)1 << 62,
                                         ((MPI_Offset)1 << 62) + 3, INT64_MAX};
    static const MPI_Offset displacements[] = {0, 100};
    MPI_File fh;
    check_make(check.file, 1, 1000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (int view = 0; view < 4; view++) {
        MPI_Datatype type = view < 2 ? MPI_INT : MPI_DOUBLE;
        CHECK_MPI(MPI_File_set_view(fh, displacements[view % 2], type, type, "native", MPI_INFO_NULL));
        for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++)
            check_outside(fh, outside[i], type);
    }
    close_unchanged(fh);
}

/* One rank names such a place in a collective call: all fail alike, and nobody waits. */
static void run_offset_of_one(void)
{
    MPI_Offset at = check.rank == 0 ? -1 : check.rank;
    MPI_File fh = open_with_gaps();
    MPI_Status status;
    int memory = 0;
    CHECK_CLASS(MPI_File_read_at_all(fh, at, &memory, 1, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_CLASS(split_read(fh, at, &memory, MPI_INT, &status), MPI_ERR_ARG);
    /* Each writes what is there. */
    pattern_fill(&memory, 1, 400 + 16 * (uint64_t)check.rank, 4);
    CHECK_CLASS(MPI_File_write_at_all(fh, at, &memory, 1, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_CLASS(split_write(fh, at, &memory, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_MPI(MPI_File_write_at_all(fh, check.rank, &memory, 1, MPI_INT, &status));
    close_unchanged(fh);
}

/* The library is ROMIO, which tells of no error of MPI_File_seek(). */
static int is_romio(MPI_File fh)
{
    char value[MPI_MAX_INFO_VAL + 1];
    MPI_Info info;
    int found = 0;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    MPI_Info_get(info, "romio_filesystem_type", MPI_MAX_INFO_VAL, value, &found);
    MPI_Info_free(&info);
    return found;
}

/* A pointer that is set there stays where it was. */
static void run_seek_outside_view(void)
{
    static const MPI_Offset outside[] = {(MPI_Offset)1 << 60, (MPI_Offset)1 << 62};
    MPI_File fh = open_with_gaps();
    int accepted = check.expect_dafs && !is_romio(fh) ? MPI_ERR_ARG : MPI_SUCCESS;
    MPI_Offset position;
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        CHECK_MPI(MPI_File_seek(fh, 7, MPI_SEEK_SET));
        CHECK_CLASS(MPI_File_seek(fh, outside[i], MPI_SEEK_SET), MPI_ERR_ARG, accepted);
        CHECK_CLASS(MPI_File_seek(fh, outside[i], MPI_SEEK_CUR), MPI_ERR_ARG, accepted);
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, 7);
        CHECK_CLASS(MPI_File_seek_shared(fh, outside[i], MPI_SEEK_SET), MPI_ERR_ARG);
    }
    close_unchanged(fh);
}

/* Tiles so far apart that the file has two of them: what follows the second is no place, and not the first byte again. A library may take
 * the second for no place either. */
static void run_pointer_leaves_view(void)
{
    MPI_Datatype type;
    MPI_Status status;
    MPI_File fh;
    int memory = 0;
    check_make(check.file, 1, 1000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)1 << 62, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 400, MPI_INT, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
    if (CHECK_CLASS(MPI_File_seek(fh, 1, MPI_SEEK_SET), MPI_SUCCESS, MPI_ERR_ARG) != MPI_SUCCESS) {
        close_unchanged(fh);
        return;
    }
    CHECK_MPI(MPI_File_read(fh, &memory, 1, MPI_INT, &status));
    CHECK_COUNT(&status, MPI_INT, 0);
    CHECK_CLASS(MPI_File_write(fh, &memory, 1, MPI_INT, &status), MPI_ERR_ARG);
    CHECK_CLASS(MPI_File_read(fh, &memory, 1, MPI_INT, &status), MPI_ERR_ARG);
    close_unchanged(fh);
}

/* A view whose etype does not divide its file type. */
static void run_bad_view(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    CHECK_CLASS(MPI_File_set_view(fh, 0, MPI_INT, MPI_SHORT, "native", MPI_INFO_NULL), MPI_ERR_ARG, MPI_ERR_TYPE);
    CHECK_MPI(MPI_File_close(&fh));
}

/* One rank asks for a view that cannot be: all fail alike, nobody waits, and the view stays. */
static void run_bad_view_of_one(void)
{
    int mine = check.rank == 0, memory = 0, classes[] = {MPI_ERR_ARG, MPI_ERR_ARG, MPI_ERR_ARG, MPI_ERR_UNSUPPORTED_DATAREP};
    MPI_File fh = open_with_gaps();
    MPI_Datatype nothing;
    MPI_Status status;
    MPI_Type_contiguous(0, MPI_INT, &nothing);
    MPI_Type_commit(&nothing);
    for (int i = 0; i < 4; i++) {
        MPI_Offset disp = mine && i == 0 ? -1 : 0;
        MPI_Datatype etype = mine && i == 1 ? nothing : MPI_INT, filetype = mine && i == 2 ? MPI_SHORT : MPI_INT;
        const char *datarep = mine && i == 3 ? "no such one" : "native";
        CHECK_CLASS(MPI_File_set_view(fh, disp, etype, filetype, datarep, MPI_INFO_NULL), classes[i]);
    }
    CHECK_MPI(MPI_File_read_at_all(fh, check.rank, &memory, 1, MPI_INT, &status));
    CHECK_PATTERN(&memory, 1, 400 + 16 * (uint64_t)check.rank, 4);
    MPI_Type_free(&nothing);
    close_unchanged(fh);
}

/* The same of a file type with data before its beginning, which MPI forbids and a library may take. */
static void run_view_before_the_file_of_one(void)
{
    MPI_Aint before = -4;
    int one = 1, memory = 0;
    MPI_File fh = open_with_gaps();
    MPI_Datatype type;
    MPI_Status status;
    if (is_romio(fh)) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("the library takes such views");
    }
    MPI_Type_create_hindexed(1, &one, &before, MPI_INT, &type);
    MPI_Type_commit(&type);
    CHECK_CLASS(MPI_File_set_view(fh, 0, MPI_INT, check.rank == 1 ? type : MPI_INT, "native", MPI_INFO_NULL), MPI_ERR_IO);
    CHECK_MPI(MPI_File_read_at_all(fh, check.rank, &memory, 1, MPI_INT, &status));
    CHECK_PATTERN(&memory, 1, 400 + 16 * (uint64_t)check.rank, 4);
    MPI_Type_free(&type);
    close_unchanged(fh);
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"offset_outside_view", 1, run_offset_outside_view, "MPI_ERR_ARG for offsets through a view with gaps"},
        {"offset_outside_whole_view", 1, run_offset_outside_whole_view, "the same without gaps"},
        {"offset_of_one", 2, run_offset_of_one, "one rank names such an offset in a collective call"},
        {"seek_outside_view", 1, run_seek_outside_view, "a pointer cannot be where a view has no place"},
        {"pointer_leaves_view", 1, run_pointer_leaves_view, "a pointer that has moved beyond all numbers"},
        {"bad_view", 1, run_bad_view, "a file type that is no multiple of its etype"},
        {"bad_view_of_one", 2, run_bad_view_of_one, "a view that cannot be, of one rank"},
        {"view_before_the_file_of_one", 2, run_view_before_the_file_of_one, "a file type with data before its beginning, of one rank"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
