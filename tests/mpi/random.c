/* Random nested datatypes in memory and file, from a seed, compared with the model of view.h.
 *
 * --rounds N moves N views in each case; --round K only the K-th, and prints the types
 * that it draws, from the inside out. A failure prints seed, round and types too.
 * Plain cases have types whose lower bound is 0, without bytes below it and without empty blocks; the others have any.
 */
#include "view.h"

/* Types and views larger than this are drawn again, bytes. */
#define TYPE_MAX (1 << 18)
#define SPAN_MAX (1 << 20)

/* What the views of this round are drawn from. */
static struct {
    uint64_t seed;
    int plain;
    int same_filetype; /* All ranks have the same, so that the tiles may lie by turns. */
    char text[1200];   /* What this rank has. */
} drawn;

struct draw {
    uint64_t state;
    int ordered; /* Bytes lie in order, from 0 on: a file type. */
    char *text;  /* Where the words go, or NULL. */
};

__attribute__((format(printf, 2, 3))) static void say(struct draw *draw, const char *format, ...)
{
    size_t len = draw->text ? strlen(draw->text) : 0;
    va_list args;
    if (draw->text == NULL)
        return;
    va_start(args, format);
    vsnprintf(draw->text + len, sizeof drawn.text - len, format, args);
    va_end(args);
}

static int below(struct draw *draw, int limit)
{
    return random_below(&draw->state, limit);
}

static MPI_Aint extent_of(MPI_Datatype type)
{
    MPI_Aint lb, extent;
    MPI_Type_get_extent(type, &lb, &extent);
    return extent;
}

/* Lengths and places, in extents of the inner type, that do not overlap; in any order where that is allowed. */
static int draw_blocks(struct draw *draw, int *lens, int *places, int fixed_len)
{
    int count = 1 + below(draw, 4), order[4], at = below(draw, 3), sorted_lens[4], sorted_places[4];
    for (int i = 0; i < count; i++) {
        sorted_lens[i] = fixed_len ? fixed_len : drawn.plain + below(draw, 4 - drawn.plain);
        sorted_places[i] = at;
        at += sorted_lens[i] + below(draw, 3);
        order[i] = i;
    }
    if (!draw->ordered)
        random_order(&draw->state, order, count);
    for (int i = 0; i < count; i++) {
        lens[i] = sorted_lens[order[i]];
        places[i] = sorted_places[order[i]] - (draw->ordered || drawn.plain ? 0 : 3);
        say(draw, " %d@%d", lens[i], places[i]);
    }
    return count;
}

static MPI_Datatype draw_vector(struct draw *draw, MPI_Datatype inner, MPI_Aint unit)
{
    int count = 1 + below(draw, 4), len = 1 + below(draw, 3), stride = len + below(draw, 4);
    MPI_Datatype type;
    if (!draw->ordered && below(draw, 2))
        stride = -stride;
    if (below(draw, 2)) {
        say(draw, "vector(%d x %d by %d,", count, len, stride);
        MPI_Type_vector(count, len, stride, inner, &type);
    } else {
        MPI_Aint bytes = stride * extent_of(inner) + (stride < 0 ? -unit : unit) * below(draw, 3);
        say(draw, "hvector(%d x %d by %ld bytes,", count, len, (long)bytes);
        MPI_Type_create_hvector(count, len, bytes, inner, &type);
    }
    return type;
}

static MPI_Datatype draw_indexed(struct draw *draw, MPI_Datatype inner)
{
    int lens[4], places[4], kind = below(draw, 4), count;
    MPI_Aint bytes[4];
    MPI_Datatype type;
    static const char *const names[] = {"indexed", "hindexed", "indexed_block", "hindexed_block"};
    say(draw, "%s(", names[kind]);
    count = draw_blocks(draw, lens, places, kind >= 2 ? 1 + below(draw, 3) : 0);
    for (int i = 0; i < count; i++)
        bytes[i] = places[i] * extent_of(inner);
    if (kind == 0)
        MPI_Type_indexed(count, lens, places, inner, &type);
    else if (kind == 1)
        MPI_Type_create_hindexed(count, lens, bytes, inner, &type);
    else if (kind == 2)
        MPI_Type_create_indexed_block(count, lens[0], places, inner, &type);
    else
        MPI_Type_create_hindexed_block(count, lens[0], bytes, inner, &type);
    say(draw, ",");
    return type;
}

/* Two members: the inner type and a copy of it, some units apart. */
static MPI_Datatype draw_struct(struct draw *draw, MPI_Datatype inner, MPI_Aint unit)
{
    int lens[2] = {drawn.plain + below(draw, 2), 1 + below(draw, 2)}, swap = !draw->ordered && below(draw, 2);
    MPI_Aint gap = unit * below(draw, 4), behind = lens[swap] * extent_of(inner) + gap;
    MPI_Aint places[2] = {swap ? behind : 0, swap ? 0 : behind};
    MPI_Datatype members[2] = {inner, inner}, type;
    if (swap) {
        places[0] = lens[1] * extent_of(inner) + gap;
        places[1] = 0;
    }
    say(draw, "struct(%d@%ld %d@%ld,", lens[0], (long)places[0], lens[1], (long)places[1]);
    MPI_Type_create_struct(2, lens, places, members, &type);
    return type;
}

static MPI_Datatype draw_subarray(struct draw *draw, MPI_Datatype inner)
{
    int dims = 1 + below(draw, 3), sizes[3], subsizes[3], starts[3], order = below(draw, 2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN;
    MPI_Datatype type;
    say(draw, "subarray(%s", order == MPI_ORDER_C ? "C" : "Fortran");
    for (int i = 0; i < dims; i++) {
        sizes[i] = 1 + below(draw, 4);
        subsizes[i] = 1 + below(draw, sizes[i]);
        starts[i] = below(draw, sizes[i] - subsizes[i] + 1);
        say(draw, " %d of %d at %d", subsizes[i], sizes[i], starts[i]);
    }
    say(draw, ",");
    MPI_Type_create_subarray(dims, sizes, subsizes, starts, order, inner, &type);
    return type;
}

static MPI_Datatype draw_resized(struct draw *draw, MPI_Datatype inner, MPI_Aint unit)
{
    MPI_Aint lb, extent, more = unit * below(draw, 5);
    MPI_Datatype type;
    MPI_Type_get_extent(inner, &lb, &extent);
    say(draw, "resized(%ld+%ld,", (long)lb, (long)(extent + more));
    MPI_Type_create_resized(inner, lb, extent + more, &type);
    return type;
}

/* A type of some levels of constructors over a leaf. */
static MPI_Datatype draw_type(struct draw *draw, MPI_Datatype leaf, int depth)
{
    MPI_Aint unit = extent_of(leaf);
    MPI_Datatype type;
    MPI_Type_dup(leaf, &type);
    for (int level = 0; level < depth; level++) {
        MPI_Datatype inner = type;
        int kind = below(draw, 7);
        if (kind == 0) {
            int count = 1 + below(draw, 5);
            say(draw, "contiguous(%d,", count);
            MPI_Type_contiguous(count, inner, &type);
        } else if (kind == 1) {
            type = draw_vector(draw, inner, unit);
        } else if (kind <= 3) {
            type = draw_indexed(draw, inner);
        } else if (kind == 4) {
            type = draw_struct(draw, inner, unit);
        } else if (kind == 5) {
            type = draw_subarray(draw, inner);
        } else {
            type = draw_resized(draw, inner, unit);
        }
        MPI_Type_free(&inner);
    }
    say(draw, " leaf)");
    return type;
}

/* Whether a type has bytes, few enough, and places that a file may have. */
static int is_usable(MPI_Datatype type, int ordered)
{
    MPI_Aint lb, extent, low, span;
    int size;
    MPI_Type_size(type, &size);
    MPI_Type_get_extent(type, &lb, &extent);
    MPI_Type_get_true_extent(type, &low, &span);
    return size > 0 && extent > 0 && span <= TYPE_MAX && extent <= TYPE_MAX && lb <= low && low + span <= lb + extent &&
           (!ordered || (low >= 0 && lb >= 0)) && (!drawn.plain || (low >= 0 && lb == 0));
}

static MPI_Datatype draw_usable(struct draw *draw, MPI_Datatype leaf)
{
    for (;;) {
        size_t len = draw->text ? strlen(draw->text) : 0;
        MPI_Datatype type = draw_type(draw, leaf, 1 + below(draw, 4));
        if (is_usable(type, draw->ordered))
            return type;
        MPI_Type_free(&type);
        if (draw->text)
            draw->text[len] = '\0';
    }
}

static MPI_Datatype draw_leaf(struct draw *draw)
{
    static const int sizes[] = {1, 1, 2, 4, 8};
    int kind = below(draw, 6);
    MPI_Datatype named[] = {MPI_BYTE, MPI_CHAR, MPI_SHORT, MPI_INT, MPI_DOUBLE}, leaf;
    if (kind < 5) {
        say(draw, "leaf of %d bytes; ", sizes[kind]);
        MPI_Type_dup(named[kind], &leaf);
    } else {
        say(draw, "leaf of 3 shorts; ");
        MPI_Type_contiguous(3, MPI_SHORT, &leaf);
    }
    return leaf;
}

/* Draws the view of a rank: by the same numbers whenever it is called for that rank. */
static void build_drawn(int rank, struct view *view)
{
    uint64_t rank_seed = check_mix(drawn.seed + 1000003u * (uint64_t)(rank + 1));
    struct draw leaf = {drawn.seed, 1, NULL}, file = {drawn.same_filetype ? drawn.seed + 1 : rank_seed, 1, NULL};
    struct draw memory = {rank_seed + 1, 0, NULL};
    MPI_Aint extent;
    int file_size, memory_size;
    if (rank == check.rank) {
        drawn.text[0] = '\0';
        leaf.text = file.text = memory.text = drawn.text;
    }
    view->etype = draw_leaf(&leaf);
    say(&file, "file: ");
    view->filetype = draw_usable(&file, view->etype);
    extent = extent_of(view->filetype);
    MPI_Type_size(view->filetype, &file_size);
    say(&memory, "; memory: ");
    for (;;) {
        size_t len = memory.text ? strlen(memory.text) : 0;
        view->memtype = draw_usable(&memory, view->etype);
        MPI_Type_size(view->memtype, &memory_size);
        if ((double)memory_size / file_size * (double)extent < SPAN_MAX / 8)
            break;
        MPI_Type_free(&view->memtype);
        if (memory.text)
            memory.text[len] = '\0';
    }
    view->frees_etype = view->frees_filetype = view->frees_memtype = 1;
    view->displacement = extent_of(view->etype) * below(&file, 50) + below(&file, 2);
    if (drawn.same_filetype)
        view->displacement = (MPI_Offset)(drawn.seed % 1000);
    view->skip = below(&memory, 30);
    view->calls = 1 + below(&memory, VIEW_CALLS_MAX);
    for (int i = 0; i < view->calls; i++)
        view->counts[i] = below(&memory, 3);
    say(&memory, "; counts %d %d %d %d of %d calls, skip %lld", view->counts[0], view->counts[1], view->counts[2], view->counts[3],
        view->calls, (long long)view->skip);
}

/* Rounds of views, each moved in one of some ways. */
static void rounds(enum access first, enum access last, int plain)
{
    int count = atoi(check_option("--rounds", 0, "40")), only = atoi(check_option("--round", 0, "-1"));
    for (int round = 0; round < count || round <= only; round++) {
        uint64_t state = check.seed * 1000 + (uint64_t)round;
        enum access how = (enum access)((int)first + random_below(&state, (int)last - (int)first + 1));
        int before = check.failures;
        if (only >= 0 && round != only)
            continue;
        drawn.plain = plain;
        drawn.same_filetype = random_below(&state, 2);
        drawn.seed = random_next(&state);
        if (only >= 0) {
            struct view view = {0};
            build_drawn(check.rank, &view);
            view_free(&view);
            fprintf(stderr, "rank %d: %s\n", check.rank, drawn.text);
        }
        view_run_one(build_drawn, drawn.same_filetype ? VIEW_BY_TURNS : VIEW_APART, how);
        CHECK(check.failures == before, "--seed %llu --round %d: %s", (unsigned long long)check.seed, round, drawn.text);
    }
}

#define ROUNDS(name, first, last)          \
    static void run_##name(void)           \
    {                                      \
        rounds(first, last, 0);            \
    }                                      \
    static void run_plain_##name(void)     \
    {                                      \
        rounds(first, last, 1);            \
    }

ROUNDS(independent, AT, POINTER)
ROUNDS(nonblocking, IAT, IPOINTER)
ROUNDS(collective, AT_ALL, ALL)
ROUNDS(split, AT_ALL_SPLIT, ALL_SPLIT)
ROUNDS(nonblocking_collective, IAT_ALL, IALL)

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"plain_independent", 1, run_plain_independent, "write, read and _at, plain types"},
        {"plain_nonblocking", 1, run_plain_nonblocking, "iwrite, iread and _at, plain types"},
        {"plain_collective", 1, run_plain_collective, "write_all, read_all and _at, plain types"},
        {"plain_split", 1, run_plain_split, "write_all_begin, read_all_begin and _at, with _end, plain types"},
        {"plain_nonblocking_collective", 1, run_plain_nonblocking_collective, "iwrite_all, iread_all and _at, plain types"},
        {"independent", 1, run_independent, "write, read and _at"},
        {"nonblocking", 1, run_nonblocking, "iwrite, iread and _at"},
        {"collective", 1, run_collective, "write_all, read_all and _at"},
        {"split", 1, run_split, "write_all_begin, read_all_begin and _at, with _end"},
        {"nonblocking_collective", 1, run_nonblocking_collective, "iwrite_all, iread_all and _at"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "--rounds: --round:", MPI_THREAD_SINGLE);
}
