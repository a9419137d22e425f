/* Moves data through views and compares the file and the memory, byte by byte, with a model.
 *
 * The model knows a datatype by what MPI_Pack takes from memory that tells its own places, so it depends on no code of a
 * file system. A view is written from memory into a file full of a background; then the whole file is compared, what lies
 * in the holes too; then the view is read back into poisoned memory, and that is compared, holes too.
 */
#ifndef VIEW_H
#define VIEW_H

#include "access.h"

/* Calls by which the data of one view is moved at most. */
#define VIEW_CALLS_MAX 4

/* Tag of the bytes that no rank writes. */
#define VIEW_BACKGROUND 1000

/* The largest file that a test here makes, bytes. */
#define VIEW_FILE_MAX (64 << 20)

struct view {
    MPI_Offset displacement;
    MPI_Datatype etype, filetype;
    MPI_Offset skip; /* Etypes that are passed over before the first access. */
    MPI_Datatype memtype;
    int calls;
    int counts[VIEW_CALLS_MAX]; /* Instances of memtype in each call. */
    int frees_etype, frees_filetype, frees_memtype;
};

/* Makes the view of a rank; called for every rank by every rank. Types are committed later. */
typedef void view_builder(int rank, struct view *view);

/* Where the views of the ranks lie: as the builder says; one behind the other; or the tiles by turns. */
enum view_place { VIEW_AS_BUILT, VIEW_APART, VIEW_BY_TURNS };

static const char *const view_places[] = {"as built", "apart", "by turns"};

/* The bytes of a datatype: where each lies from the address that is given to a call. */
struct typemap {
    long size;
    MPI_Aint extent;
    MPI_Aint low, high; /* The first byte, and the one behind the last. */
    long *at;
};

static inline struct typemap typemap_of(MPI_Datatype type)
{
    struct typemap map = {0};
    MPI_Aint lb, span;
    unsigned char *memory, *packed;
    int size;
    MPI_Type_size(type, &size);
    MPI_Type_get_extent(type, &lb, &map.extent);
    map.size = size;
    map.at = check_alloc((size_t)size * sizeof *map.at);
    if (size == 0)
        return map;
    MPI_Type_get_true_extent(type, &map.low, &span);
    map.high = map.low + span;
    memory = check_alloc((size_t)span);
    packed = check_alloc((size_t)size);
    memset(map.at, 0, (size_t)size * sizeof *map.at);
    for (int shift = 0; shift < 32; shift += 8) {
        int position = 0;
        for (MPI_Aint i = 0; i < span; i++)
            memory[i] = (unsigned char)(i >> shift);
        MPI_Pack(memory - map.low, 1, type, packed, size, &position, MPI_COMM_SELF);
        for (int i = 0; i < size; i++)
            map.at[i] |= (long)packed[i] << shift;
    }
    for (int i = 0; i < size; i++)
        map.at[i] += map.low;
    free(memory);
    free(packed);
    return map;
}

/* Where the k-th byte of many instances lies. */
static inline MPI_Offset typemap_at(const struct typemap *map, MPI_Offset k)
{
    return k / map->size * map->extent + map->at[k % map->size];
}

/* Memory for instances of a type: `base` is what a call gets; all of it holds poison. */
struct instances {
    unsigned char *memory, *base;
    size_t len;
};

static inline struct instances instances_alloc(const struct typemap *map, int count)
{
    struct instances all;
    MPI_Aint last = (count > 0 ? count - 1 : 0) * map->extent;
    MPI_Aint low = map->low + (last < 0 ? last : 0), high = map->high + (last > 0 ? last : 0);
    all.len = (size_t)(high - low) + 2 * CHECK_GUARD;
    all.memory = check_alloc(all.len);
    memset(all.memory, CHECK_POISON, all.len);
    all.base = all.memory + CHECK_GUARD - low;
    return all;
}

/* Puts the view's data from byte `first` on, as rank `rank` writes it, where the type has its bytes. */
static inline void instances_fill(const struct instances *all, const struct typemap *map, int count, int rank, MPI_Offset first)
{
    for (MPI_Offset k = 0; k < (MPI_Offset)count * map->size; k++)
        all->base[typemap_at(map, k)] = pattern((uint64_t)rank + 1, (uint64_t)(first + k));
}

static inline MPI_Offset view_bytes(const struct view *view)
{
    MPI_Offset instances = 0;
    int size;
    MPI_Type_size(view->memtype, &size);
    for (int i = 0; i < view->calls; i++)
        instances += view->counts[i];
    return instances * size;
}

static inline MPI_Offset view_skipped(const struct view *view)
{
    int size;
    MPI_Type_size(view->etype, &size);
    return view->skip * size;
}

static inline void view_free(struct view *view)
{
    if (view->frees_memtype)
        MPI_Type_free(&view->memtype);
    if (view->frees_filetype)
        MPI_Type_free(&view->filetype);
    if (view->frees_etype)
        MPI_Type_free(&view->etype);
}

/* Byte of the file behind the last that the view writes, or its displacement. */
static inline MPI_Offset view_end(const struct view *view, const struct typemap *map)
{
    MPI_Offset end = view->displacement, skip = view_skipped(view), bytes = view_bytes(view);
    for (MPI_Offset k = skip; k < skip + bytes; k++) {
        MPI_Offset at = view->displacement + typemap_at(map, k) + 1;
        end = at > end ? at : end;
    }
    return end;
}

/* Whether tiles of several ranks fit into one another by turns. */
static inline int view_fits_by_turns(const struct typemap *map)
{
    return map->size > 0 && map->extent > 0 && map->high - map->low <= map->extent;
}

/* Moves the view of a rank to its place. `apart` is the room of one rank. */
static inline void view_move(struct view *view, int rank, enum view_place place, MPI_Offset apart)
{
    MPI_Aint lb, extent;
    MPI_Datatype wide;
    if (place == VIEW_APART)
        view->displacement += rank * apart;
    if (place != VIEW_BY_TURNS)
        return;
    MPI_Type_get_extent(view->filetype, &lb, &extent);
    view->displacement += rank * extent;
    MPI_Type_create_resized(view->filetype, 0, extent * check.ranks, &wide);
    if (view->frees_filetype)
        MPI_Type_free(&view->filetype);
    view->filetype = wide;
    view->frees_filetype = 1;
}

/* What the test of one view goes by. */
struct view_test {
    view_builder *build;
    enum view_place place;
    MPI_Offset apart;
    struct view mine;
    struct typemap filemap, memmap;
    unsigned char *want; /* The file as it must be. */
    MPI_Offset size;
};

static inline void view_build(const struct view_test *test, int rank, struct view *view)
{
    memset(view, 0, sizeof *view);
    test->build(rank, view);
    view_move(view, rank, test->place, test->apart);
    MPI_Type_commit(&view->etype);
    MPI_Type_commit(&view->filetype);
    MPI_Type_commit(&view->memtype);
}

/* The largest end of a rank's view, or 0 where it would not fit a test. */
static inline MPI_Offset view_ends(const struct view_test *test, int *fits)
{
    MPI_Offset end = 0;
    *fits = 1;
    for (int rank = 0; rank < check.ranks; rank++) {
        struct view view;
        struct typemap map;
        MPI_Offset at;
        view_build(test, rank, &view);
        map = typemap_of(view.filetype);
        at = map.size == 0 ? view.displacement : view_end(&view, &map);
        end = at > end ? at : end;
        *fits = *fits && view_fits_by_turns(&map);
        free(map.at);
        view_free(&view);
    }
    return end;
}

/* Writes what one rank writes into the model; two ranks must not write the same byte. */
static inline void view_model(struct view_test *test, unsigned char *written, int rank)
{
    struct view view;
    struct typemap map;
    MPI_Offset skip, bytes;
    view_build(test, rank, &view);
    map = typemap_of(view.filetype);
    skip = view_skipped(&view);
    bytes = view_bytes(&view);
    for (MPI_Offset k = 0; k < bytes; k++) {
        MPI_Offset at = view.displacement + typemap_at(&map, skip + k);
        if (at < 0 || at >= test->size || written[at]++) {
            CHECK(0, "the test itself is wrong: byte %lld of the file is written twice or outside", (long long)at);
            check_leave();
        }
        test->want[at] = pattern((uint64_t)rank + 1, (uint64_t)k);
    }
    free(map.at);
    view_free(&view);
}

/* Makes the model of the file. 0 where the views cannot lie so. */
static inline int view_prepare(struct view_test *test, view_builder *build, enum view_place place)
{
    unsigned char *written;
    int fits;
    memset(test, 0, sizeof *test);
    test->build = build;
    test->place = VIEW_AS_BUILT;
    test->apart = (view_ends(test, &fits) + 7) / 8 * 8;
    if (place == VIEW_BY_TURNS && !fits)
        return 0;
    test->place = place;
    test->size = view_ends(test, &fits) + CHECK_GUARD;
    CHECK(test->size <= VIEW_FILE_MAX, "the test itself is wrong: a file of %lld bytes", (long long)test->size);
    if (test->size > VIEW_FILE_MAX)
        check_leave();
    test->want = check_alloc((size_t)test->size);
    pattern_fill(test->want, VIEW_BACKGROUND, 0, (size_t)test->size);
    written = check_alloc((size_t)test->size);
    memset(written, 0, (size_t)test->size);
    for (int rank = 0; rank < check.ranks; rank++)
        view_model(test, written, rank);
    free(written);
    view_build(test, check.rank, &test->mine);
    test->filemap = typemap_of(test->mine.filetype);
    test->memmap = typemap_of(test->mine.memtype);
    return 1;
}

static inline void view_end_test(struct view_test *test)
{
    free(test->want);
    free(test->filemap.at);
    free(test->memmap.at);
    view_free(&test->mine);
}

static inline void view_set(MPI_File fh, const struct view *view)
{
    CHECK_MPI(MPI_File_set_view(fh, view->displacement, view->etype, view->filetype, "native", MPI_INFO_NULL));
}

static inline void view_check_status(const struct view_test *test, const MPI_Status *status, int count)
{
    if (test->memmap.size == 0)
        return;
    CHECK_COUNT(status, test->mine.memtype, count);
    CHECK_COUNT(status, MPI_BYTE, (int)(count * test->memmap.size));
}

/* Moves the data of one call, and compares the memory with what it must be afterwards. */
static inline void view_call(const struct view_test *test, MPI_File fh, enum access how, int writes, int call, MPI_Offset first)
{
    const struct view *view = &test->mine;
    int count = view->counts[call], etype_size;
    struct instances got = instances_alloc(&test->memmap, count), want = instances_alloc(&test->memmap, count);
    MPI_Status status;
    MPI_Offset offset, position;
    MPI_Type_size(view->etype, &etype_size);
    offset = view->skip + first / etype_size;
    instances_fill(&want, &test->memmap, count, check.rank, first);
    if (writes)
        memcpy(got.memory, want.memory, got.len);
    if (access_has_pointer(how)) {
        if (call == 0)
            CHECK_MPI(MPI_File_seek(fh, offset, MPI_SEEK_SET));
        CHECK_MPI(MPI_File_get_position(fh, &position));
        CHECK_EQUAL(position, offset);
    }
    CHECK_MPI(access_run(how, writes, fh, offset, got.base, count, view->memtype, &status));
    view_check_status(test, &status, count);
    check_bytes(got.memory, want.memory, 0, got.len, writes ? "memory after a write" : "memory after a read", call);
    free(got.memory);
    free(want.memory);
}

/* Collective ways need as many calls on each rank: a rank with fewer makes empty ones. */
static inline void view_calls(const struct view_test *test, MPI_File fh, enum access how, int writes)
{
    MPI_Offset first = 0;
    for (int call = 0; call < VIEW_CALLS_MAX; call++) {
        if (call < test->mine.calls) {
            view_call(test, fh, how, writes, call, first);
            first += test->mine.counts[call] * test->memmap.size;
        } else if (access_is_collective(how)) {
            MPI_Status status;
            CHECK_MPI(access_run(how, writes, fh, 0, NULL, 0, MPI_BYTE, &status));
        }
    }
}

/* Compares the whole file with the model, by an open of this rank's own. */
static inline void view_check_file(const struct view_test *test)
{
    unsigned char *got = check_alloc((size_t)test->size + 1);
    int len = check_reread(check.file, 0, got, (int)test->size + 1);
    CHECK_EQUAL(len, test->size);
    check_bytes(got, test->want, 0, (size_t)(len < test->size ? len : test->size), "the file", 0);
    free(got);
}

static inline void view_fill_background(MPI_File fh, MPI_Offset size)
{
    unsigned char *background = check_alloc((size_t)size);
    MPI_Status status;
    pattern_fill(background, VIEW_BACKGROUND, 0, (size_t)size);
    CHECK_MPI(MPI_File_set_size(fh, size));
    check_publish(fh);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write_at(fh, 0, background, (int)size, MPI_BYTE, &status));
    free(background);
    check_publish(fh);
}

/* Writes and reads one view in one way, in one place. */
static inline void view_run_one(view_builder *build, enum view_place place, enum access how)
{
    struct view_test test;
    int before = check.failures;
    MPI_File fh;
    if (!view_prepare(&test, build, place))
        return;
    fh = CHECK_OPEN(MPI_MODE_CREATE | MPI_MODE_RDWR);
    view_fill_background(fh, test.size);
    view_set(fh, &test.mine);
    view_calls(&test, fh, how, 1);
    check_publish(fh);
    view_check_file(&test);
    MPI_Barrier(MPI_COMM_WORLD);
    view_calls(&test, fh, how, 0);
    CHECK_MPI(MPI_File_close(&fh));
    CHECK(check.failures == before, "that was %s, %s", access_names[how], view_places[place]);
    view_end_test(&test);
}

/* Writes and reads a view in all ways but nonblocking collectives, which have cases of their own; by turns where its tiles have no gaps
 * that the next would have to lie in. */
static inline void view_run(view_builder *build)
{
    for (int how = AT; how < IAT_ALL; how++)
        for (int place = VIEW_APART; place <= VIEW_BY_TURNS; place++)
            view_run_one(build, (enum view_place)place, (enum access)how);
}

/* The same for views that are apart from one another as they are built. */
static inline void view_run_as_built(view_builder *build)
{
    for (int how = AT; how < IAT_ALL; how++)
        view_run_one(build, VIEW_AS_BUILT, (enum access)how);
}

#endif
