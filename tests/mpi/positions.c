/* Places in a view: offsets and bytes, pointers, the end of a file that cuts a view, and views that change. */
#include "check.h"

/* Tiles of 8 ints: 2 in use, 3 not, 1 in use, 2 not. */
static MPI_Datatype tile(void)
{
    MPI_Datatype inner, type;
    MPI_Type_indexed(2, (int[]){2, 1}, (int[]){0, 5}, MPI_INT, &inner);
    MPI_Type_create_resized(inner, 0, 32, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&inner);
    return type;
}

/* Byte of the file where etype `k` of the tiles begins, from the displacement on. */
static MPI_Offset tile_byte(MPI_Offset k)
{
    return k / 3 * 32 + (k % 3 == 2 ? 20 : k % 3 * 4);
}

static MPI_File open_with_view(int amode, MPI_Offset displacement)
{
    MPI_File fh = CHECK_OPEN(amode);
    MPI_Datatype type = tile();
    CHECK_MPI(MPI_File_set_view(fh, displacement, MPI_INT, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
    return fh;
}

/* Compares ints that were read from etype `first` on. */
static void check_tiles(const unsigned char *got, MPI_Offset displacement, MPI_Offset first, int bytes)
{
    for (int at = 0; at < bytes; at += 4) {
        int len = bytes - at < 4 ? bytes - at : 4;
        CHECK_PATTERN(got + at, 1, (uint64_t)(displacement + tile_byte(first + at / 4)), (size_t)len);
    }
}

static void run_byte_offset(void)
{
    const MPI_Offset displacement = 1003;
    MPI_File fh = open_with_view(MPI_MODE_CREATE | MPI_MODE_RDWR, displacement);
    for (MPI_Offset k = 0; k < 20; k++) {
        MPI_Offset byte = -1;
        CHECK_MPI(MPI_File_get_byte_offset(fh, k, &byte));
        CHECK_EQUAL(byte, displacement + tile_byte(k));
    }
    MPI_Offset byte = -1, far = (MPI_Offset)3 << 33;
    CHECK_MPI(MPI_File_get_byte_offset(fh, far + 1, &byte));
    CHECK_EQUAL(byte, displacement + tile_byte(far + 1));
    CHECK_MPI(MPI_File_close(&fh));
}

/* Blocks of more bytes than an int counts. Nothing is moved. */
static void run_byte_offset_large(void)
{
    const MPI_Offset displacement = 5, block = (MPI_Offset)3 << 30, extent = (MPI_Offset)4 << 30;
    MPI_Datatype part, whole, type;
    MPI_Offset byte = -1;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_contiguous(1 << 20, MPI_BYTE, &part);
    MPI_Type_contiguous(3 << 10, part, &whole);
    MPI_Type_create_resized(whole, 0, extent, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL));
    for (MPI_Offset k = 0; k < 3; k++) {
        CHECK_MPI(MPI_File_get_byte_offset(fh, k * block + 7, &byte));
        CHECK_EQUAL(byte, displacement + k * extent + 7);
    }
    CHECK_MPI(MPI_File_get_byte_offset(fh, block - 1, &byte));
    CHECK_EQUAL(byte, displacement + block - 1);
    MPI_Type_free(&type);
    MPI_Type_free(&whole);
    MPI_Type_free(&part);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Positions are counted in etypes of the view, and a new view begins at 0. */
static void run_position(void)
{
    MPI_File fh;
    MPI_Offset position = -1;
    MPI_Status status;
    unsigned char memory[28];
    check_make(check.file, 1, 1000);
    fh = open_with_view(MPI_MODE_RDWR, 8);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 0);
    CHECK_MPI(MPI_File_read(fh, memory, 7, MPI_INT, &status));
    check_tiles(memory, 8, 0, 28);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 7);
    CHECK_MPI(MPI_File_seek(fh, -3, MPI_SEEK_CUR));
    CHECK_MPI(MPI_File_read(fh, memory, 2, MPI_INT, &status));
    check_tiles(memory, 8, 4, 8);
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 6);
    CHECK_MPI(MPI_File_read_at(fh, 1, memory, 1, MPI_INT, &status));
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 6);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_get_position(fh, &position));
    CHECK_EQUAL(position, 0);
    CHECK_MPI(MPI_File_close(&fh));
}

/* MPI_SEEK_END is the first etype of the view that begins behind the last byte of the file. */
static void run_seek_end(void)
{
    static const struct {
        int size, end;
    } ends[] = {{0, 0}, {32, 3}, {33, 4}, {36, 4}, {40, 5}, {41, 5}, {51, 5}, {52, 5}, {56, 6}, {64, 6}, {320, 30}};
    MPI_File fh = open_with_view(MPI_MODE_CREATE | MPI_MODE_RDWR, 0);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        MPI_Offset position = -1;
        CHECK_MPI(MPI_File_set_size(fh, ends[i].size));
        check_publish(fh);
        CHECK_MPI(MPI_File_seek(fh, 0, MPI_SEEK_END));
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK(position == ends[i].end, "the end of a file of %d bytes: expected etype %d, got %lld", ends[i].size, ends[i].end,
              (long long)position);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* A file that ends within the view: a read gives the bytes that are there, no more. */
static void end_of_file(int collective)
{
    static const int sizes[] = {0, 3, 8, 10, 20, 21, 24, 32, 40, 52, 56, 60, 96};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        unsigned char memory[64];
        int want = 0;
        MPI_Status status;
        check_remove(check.file);
        check_make(check.file, 1, sizes[i]);
        for (int k = 0; k < 16; k++)
            for (int byte = 0; byte < 4; byte++)
                want += tile_byte(k) + byte < sizes[i];
        MPI_File fh = open_with_view(MPI_MODE_RDONLY, 0);
        if (collective)
            CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, 16, MPI_INT, &status));
        else
            CHECK_MPI(MPI_File_read_at(fh, 0, memory, 16, MPI_INT, &status));
        CHECK_COUNT(&status, MPI_BYTE, want);
        check_tiles(memory, 0, 0, want);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

static void run_end_of_file(void)
{
    end_of_file(0);
}

static void run_end_of_file_collective(void)
{
    end_of_file(1);
}

/* A write behind the end of the file through a view leaves zeros in the view's holes. */
static void run_grow_with_holes(void)
{
    enum { ETYPES = 30 };
    unsigned char memory[ETYPES * 4], *want, *got;
    MPI_File fh = open_with_view(MPI_MODE_CREATE | MPI_MODE_RDWR, 16);
    MPI_Status status;
    int len = 16 + (int)tile_byte(ETYPES - 1) + 4;
    pattern_fill(memory, 3, 0, sizeof memory);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write(fh, memory, ETYPES, MPI_INT, &status));
    check_publish(fh);
    want = check_alloc((size_t)len);
    got = check_alloc((size_t)len + 1);
    memset(want, 0, (size_t)len);
    for (int k = 0; k < ETYPES; k++)
        memcpy(want + 16 + tile_byte(k), memory + 4 * k, 4);
    CHECK_EQUAL(check_reread(check.file, 0, got, len + 1), len);
    CHECK_BYTES(got, want, 0, (size_t)len);
    CHECK_MPI(MPI_File_close(&fh));
    free(want);
    free(got);
}

/* Views that change between calls, with operations of each. */
static void run_change_views(void)
{
    unsigned char memory[400];
    MPI_Status status;
    MPI_Datatype type = tile();
    MPI_File fh;
    check_make(check.file, 1, 4000);
    fh = CHECK_OPEN(MPI_MODE_RDWR);
    for (int round = 0; round < 20; round++) {
        CHECK_MPI(MPI_File_set_view(fh, 4 * round, MPI_INT, type, "native", MPI_INFO_NULL));
        CHECK_MPI(MPI_File_read(fh, memory, 20, MPI_INT, &status));
        check_tiles(memory, 4 * round, 0, 80);
        CHECK_MPI(MPI_File_set_view(fh, round, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
        CHECK_MPI(MPI_File_read_at(fh, 10 * check.rank, memory, 400, MPI_BYTE, &status));
        CHECK_PATTERN(memory, 1, (uint64_t)(round + 10 * check.rank), 400);
    }
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
}

/* The datatypes of a view may be freed while it is in use. */
static void run_types_freed(void)
{
    unsigned char memory[80];
    MPI_Status status;
    MPI_Datatype memtype;
    check_make(check.file, 1, 4000);
    MPI_File fh = open_with_view(MPI_MODE_RDONLY, 0);
    for (int i = 0; i < 50; i++) {
        MPI_Type_contiguous(i % 7 + 1, MPI_INT, &memtype);
        MPI_Type_commit(&memtype);
        CHECK_MPI(MPI_File_read_at(fh, i, memory, 2, memtype, &status));
        check_tiles(memory, 0, i, 8 * (i % 7 + 1));
        MPI_Type_free(&memtype);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* What a view was set to is what is told. */
static void run_get_view(void)
{
    MPI_File fh = open_with_view(MPI_MODE_CREATE | MPI_MODE_RDWR, 24);
    MPI_Offset displacement = -1;
    MPI_Datatype etype, filetype;
    MPI_Aint lb, extent;
    char datarep[MPI_MAX_DATAREP_STRING] = "";
    int size = 0, integers, addresses, types, combiner;
    CHECK_MPI(MPI_File_get_view(fh, &displacement, &etype, &filetype, datarep));
    CHECK_EQUAL(displacement, 24);
    CHECK(strcmp(datarep, "native") == 0, "data representation: expected native, got %s", datarep);
    MPI_Type_size(etype, &size);
    CHECK_EQUAL(size, 4);
    MPI_Type_size(filetype, &size);
    CHECK_EQUAL(size, 12);
    MPI_Type_get_extent(filetype, &lb, &extent);
    CHECK_EQUAL(extent, 32);
    MPI_Type_get_envelope(etype, &integers, &addresses, &types, &combiner);
    if (combiner != MPI_COMBINER_NAMED)
        MPI_Type_free(&etype);
    MPI_Type_free(&filetype);
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    CHECK_MPI(MPI_File_close(&fh));
}

/* How large a datatype is in the file. */
static void run_type_extent(void)
{
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype type = tile();
    MPI_Aint extent = -1;
    CHECK_MPI(MPI_File_get_type_extent(fh, MPI_DOUBLE, &extent));
    CHECK_EQUAL(extent, 8);
    CHECK_MPI(MPI_File_get_type_extent(fh, type, &extent));
    CHECK_EQUAL(extent, 32);
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Views whose tiles lie beyond 4 GiB. */
static void run_far_view(void)
{
    unsigned char memory[256], got[256];
    MPI_Offset displacement = ((MPI_Offset)1 << 33) + 64 * check.rank + 3;
    MPI_Aint extent = (MPI_Aint)1 << 30;
    MPI_Datatype inner, type;
    MPI_Status status;
    MPI_Offset byte;
    MPI_File fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Type_contiguous(32, MPI_BYTE, &inner);
    MPI_Type_create_resized(inner, 0, extent, &type);
    MPI_Type_commit(&type);
    MPI_Type_free(&inner);
    CHECK_MPI(MPI_File_set_view(fh, displacement, MPI_BYTE, type, "native", MPI_INFO_NULL));
    pattern_fill(memory, (uint64_t)check.rank, 0, sizeof memory);
    CHECK_MPI(MPI_File_write(fh, memory, sizeof memory, MPI_BYTE, &status));
    check_publish(fh);
    CHECK_MPI(MPI_File_get_byte_offset(fh, 7 * 32 + 1, &byte));
    CHECK_EQUAL(byte, displacement + 7 * extent + 1);
    CHECK_MPI(MPI_File_read_at_all(fh, 0, got, sizeof got, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, sizeof got);
    CHECK_BYTES(got, memory, 0, sizeof got);
    for (int i = 0; i < 8; i++)
        CHECK_EQUAL(check_reread(check.file, displacement + i * extent, got + 32 * i, 32), 32);
    CHECK_BYTES(got, memory, 0, sizeof got);
    MPI_Type_free(&type);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"byte_offset", 1, run_byte_offset, "MPI_File_get_byte_offset"},
        {"byte_offset_large", 1, run_byte_offset_large, "the same in blocks of 3 GiB"},
        {"position", 1, run_position, "pointers are counted in etypes"},
        {"seek_end", 1, run_seek_end, "MPI_SEEK_END in a view with holes"},
        {"end_of_file", 1, run_end_of_file, "a file that ends within a view: read_at"},
        {"end_of_file_collective", 1, run_end_of_file_collective, "a file that ends within a view: read_at_all"},
        {"grow_with_holes", 1, run_grow_with_holes, "a view's holes behind the end of the file become zeros"},
        {"change_views", 1, run_change_views, "views that change between calls"},
        {"types_freed", 1, run_types_freed, "types that are freed while a view has them"},
        {"get_view", 1, run_get_view, "MPI_File_get_view"},
        {"type_extent", 1, run_type_extent, "MPI_File_get_type_extent"},
        {"far_view", 1, run_far_view, "tiles a GiB apart, beyond 8 GiB"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
