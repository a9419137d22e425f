/* Views and memory of every constructor of datatypes, compared byte by byte with a model; see view.h. */
#include "view.h"

/* A view that moves `count` instances of memtype by two calls and one etype later; takes filetype and memtype over. */
static void set(struct view *view, MPI_Datatype etype, MPI_Datatype filetype, MPI_Datatype memtype, int count)
{
    view->etype = etype;
    view->filetype = filetype;
    view->memtype = memtype;
    view->frees_filetype = filetype != etype;
    view->frees_memtype = memtype != etype;
    view->calls = 2;
    view->counts[0] = count / 2 + 1;
    view->counts[1] = count - count / 2;
    view->skip = 1;
    view->displacement = 24;
}

/* The view of a type, from memory without holes and from memory of the same type: `count` of its bases in all. */
static void set_file(struct view *view, MPI_Datatype etype, MPI_Datatype filetype, int count)
{
    set(view, etype, filetype, etype, count);
}

static void set_both(struct view *view, MPI_Datatype etype, MPI_Datatype filetype, int count)
{
    MPI_Datatype memtype;
    MPI_Type_dup(filetype, &memtype);
    set(view, etype, filetype, memtype, count);
}

static void set_memory(struct view *view, MPI_Datatype etype, MPI_Datatype memtype, int count)
{
    set(view, etype, etype, memtype, count);
}

/* --- One builder for each constructor --- */

static void build_elementary(int rank, struct view *view)
{
    (void)rank;
    set_file(view, MPI_DOUBLE, MPI_DOUBLE, 300);
}

static void build_contiguous(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_contiguous(7, MPI_INT, &type);
    set_both(view, MPI_INT, type, 40);
}

static MPI_Datatype vector_type(void)
{
    MPI_Datatype type;
    MPI_Type_vector(5, 3, 7, MPI_INT, &type);
    return type;
}

static void build_vector(int rank, struct view *view)
{
    (void)rank;
    set_both(view, MPI_INT, vector_type(), 20);
}

static void build_vector_in_file(int rank, struct view *view)
{
    (void)rank;
    set_file(view, MPI_INT, vector_type(), 400);
}

static void build_vector_in_memory(int rank, struct view *view)
{
    (void)rank;
    set_memory(view, MPI_INT, vector_type(), 20);
}

static void build_hvector(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_hvector(6, 3, 13, MPI_BYTE, &type);
    set_both(view, MPI_BYTE, type, 30);
}

static void build_indexed(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_indexed(4, (int[]){3, 1, 5, 2}, (int[]){0, 5, 7, 20}, MPI_SHORT, &type);
    set_both(view, MPI_SHORT, type, 30);
}

static void build_hindexed(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_hindexed(3, (int[]){2, 4, 1}, (MPI_Aint[]){4, 20, 100}, MPI_INT, &type);
    set_both(view, MPI_INT, type, 30);
}

static void build_indexed_block(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_indexed_block(4, 2, (int[]){1, 4, 9, 11}, MPI_DOUBLE, &type);
    set_both(view, MPI_DOUBLE, type, 30);
}

static void build_hindexed_block(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_hindexed_block(4, 3, (MPI_Aint[]){0, 16, 40, 80}, MPI_INT, &type);
    set_both(view, MPI_INT, type, 30);
}

static void build_struct(int rank, struct view *view)
{
    MPI_Datatype type, vector = vector_type();
    (void)rank;
    MPI_Type_create_struct(3, (int[]){2, 1, 3}, (MPI_Aint[]){0, 12, 160}, (MPI_Datatype[]){MPI_INT, vector, MPI_INT}, &type);
    MPI_Type_free(&vector);
    set_both(view, MPI_INT, type, 20);
}

/* An etype that is a record, with a hole in it, in memory and file; the hole of an etype is one of the file too. */
static void build_etype_record(int rank, struct view *view)
{
    (void)rank;
    MPI_Type_create_struct(3, (int[]){1, 1, 3}, (MPI_Aint[]){0, 8, 16}, (MPI_Datatype[]){MPI_INT, MPI_DOUBLE, MPI_SHORT},
                           &view->etype);
    MPI_Datatype filetype;
    MPI_Type_vector(4, 1, 2, view->etype, &filetype);
    set(view, view->etype, filetype, view->etype, 50);
    view->frees_etype = 1;
}

/* An etype of 12 bytes, and places counted in it. */
static void build_etype_large(int rank, struct view *view)
{
    MPI_Datatype etype, filetype, memtype;
    (void)rank;
    MPI_Type_contiguous(3, MPI_INT, &etype);
    MPI_Type_vector(3, 2, 5, etype, &filetype);
    MPI_Type_vector(2, 1, 2, etype, &memtype);
    set(view, etype, filetype, memtype, 25);
    view->frees_etype = 1;
    view->skip = 5;
}

static void build_resized(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_resized(MPI_INT, 0, 20, &type);
    set_both(view, MPI_INT, type, 60);
}

static void build_dup(int rank, struct view *view)
{
    MPI_Datatype type = vector_type(), copy;
    (void)rank;
    MPI_Type_dup(type, &copy);
    MPI_Type_free(&type);
    set_both(view, MPI_INT, copy, 20);
}

/* A vector of records of indexed pieces of vectors. */
static void build_nested(int rank, struct view *view)
{
    MPI_Datatype inner, indexed, record, type;
    (void)rank;
    MPI_Type_vector(2, 1, 3, MPI_SHORT, &inner);
    MPI_Type_indexed(2, (int[]){1, 2}, (int[]){0, 2}, inner, &indexed);
    MPI_Type_create_struct(2, (int[]){1, 2}, (MPI_Aint[]){0, 50}, (MPI_Datatype[]){indexed, MPI_SHORT}, &record);
    MPI_Type_vector(3, 2, 3, record, &type);
    MPI_Type_free(&inner);
    MPI_Type_free(&indexed);
    MPI_Type_free(&record);
    set_both(view, MPI_SHORT, type, 8);
}

/* The tile has holes in front of its first byte and behind its last. */
static void build_holes_at_ends(int rank, struct view *view)
{
    MPI_Datatype inner, type;
    (void)rank;
    MPI_Type_create_hindexed(2, (int[]){2, 1}, (MPI_Aint[]){8, 24}, MPI_INT, &inner);
    MPI_Type_create_resized(inner, 0, 48, &type);
    MPI_Type_free(&inner);
    set_both(view, MPI_INT, type, 40);
}

/* The lower bound is not where the data counts from: bytes lie where the typemap says, tiles are an extent apart. */
static void build_lower_bound(int rank, struct view *view)
{
    MPI_Datatype inner, type;
    (void)rank;
    MPI_Type_create_hindexed(2, (int[]){2, 1}, (MPI_Aint[]){16, 32}, MPI_INT, &inner);
    MPI_Type_create_resized(inner, 8, 40, &type);
    MPI_Type_free(&inner);
    set_both(view, MPI_INT, type, 40);
}

static void build_lower_bound_negative(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_create_resized(MPI_INT, -8, 24, &type);
    set_both(view, MPI_INT, type, 40);
}

/* Memory that is walked downwards. */
static void build_negative_stride(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_vector(6, 2, -5, MPI_INT, &type);
    set(view, MPI_INT, vector_type(), type, 20);
}

/* Memory in no order at all. */
static void build_disordered_memory(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_indexed(4, (int[]){2, 1, 3, 1}, (int[]){20, -4, 3, 12}, MPI_INT, &type);
    set(view, MPI_INT, vector_type(), type, 20);
}

static void build_zero_length_blocks(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_indexed(5, (int[]){0, 2, 0, 3, 0}, (int[]){0, 1, 6, 8, 20}, MPI_INT, &type);
    set_both(view, MPI_INT, type, 30);
}

/* Blocks touch one another: one piece in fact. */
static void build_adjacent_blocks(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_indexed(3, (int[]){2, 2, 4}, (int[]){0, 2, 4}, MPI_INT, &type);
    set_both(view, MPI_INT, type, 30);
}

/* Thousands of single bytes. */
static void build_many_pieces(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_vector(5000, 1, 3, MPI_BYTE, &type);
    set_both(view, MPI_BYTE, type, 2);
}

/* Pieces larger than the buffers by which libraries sieve. */
static void build_large_pieces(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_vector(3, 90001, 100003, MPI_INT, &type);
    set_file(view, MPI_INT, type, 400000);
}

/* Data ends in the middle of a piece and of a tile, and begins there. */
static void build_within_a_piece(int rank, struct view *view)
{
    MPI_Datatype type;
    (void)rank;
    MPI_Type_vector(3, 10, 15, MPI_INT, &type);
    set_file(view, MPI_INT, type, 47);
    view->skip = 13;
}

static void build_displacement(int rank, struct view *view)
{
    (void)rank;
    set_both(view, MPI_INT, vector_type(), 20);
    view->displacement = 70001;
}

/* --- Arrays that the ranks share --- */

/* The whole array by a subarray of a slab for each rank along the first dimension of the order. */
static void subarray_slab(int rank, struct view *view, int dims, int order)
{
    int sizes[4] = {6, 5, 7, 3}, subsizes[4], starts[4] = {0, 0, 0, 0}, count = 1;
    int split = order == MPI_ORDER_C ? dims - 1 : 0; /* The dimension that lies closest, so pieces are small. */
    MPI_Datatype type;
    sizes[split] = 3 * check.ranks + 1;
    for (int i = 0; i < dims; i++)
        subsizes[i] = sizes[i];
    subsizes[split] = 3;
    starts[split] = 3 * rank + 1;
    for (int i = 0; i < dims; i++)
        count *= subsizes[i];
    MPI_Type_create_subarray(dims, sizes, subsizes, starts, order, MPI_INT, &type);
    set_file(view, MPI_INT, type, count);
}

#define SUBARRAY(dims, order)                                               \
    static void build_subarray_##order##_##dims(int rank, struct view *view) \
    {                                                                       \
        subarray_slab(rank, view, dims, MPI_ORDER_##order);                 \
    }                                                                       \
    static void run_subarray_##order##_##dims(void)                         \
    {                                                                       \
        view_run_as_built(build_subarray_##order##_##dims);                 \
    }

SUBARRAY(1, C)
SUBARRAY(2, C)
SUBARRAY(3, C)
SUBARRAY(4, C)
SUBARRAY(1, FORTRAN)
SUBARRAY(2, FORTRAN)
SUBARRAY(3, FORTRAN)
SUBARRAY(4, FORTRAN)

/* A box with ghost cells in memory, a slab of an array in the file. */
static void build_ghost_cells(int rank, struct view *view)
{
    MPI_Datatype filetype, memtype;
    MPI_Type_create_subarray(3, (int[]){8, 6 * check.ranks, 5}, (int[]){8, 6, 5}, (int[]){0, 6 * rank, 0}, MPI_ORDER_C, MPI_DOUBLE,
                             &filetype);
    MPI_Type_create_subarray(3, (int[]){12, 10, 9}, (int[]){8, 6, 5}, (int[]){2, 2, 2}, MPI_ORDER_C, MPI_DOUBLE, &memtype);
    set(view, MPI_DOUBLE, filetype, memtype, 1);
    view->calls = 1;
    view->counts[0] = 1;
    view->skip = 0;
}

/* A distributed array of 2 dimensions; each rank moves its own part twice. */
static void darray(int rank, struct view *view, int distribution, int argument, int order)
{
    int grid[2] = {0, 0}, size;
    MPI_Datatype type;
    MPI_Dims_create(check.ranks, 2, grid);
    MPI_Type_create_darray(check.ranks, rank, 2, (int[]){11, 13}, (int[]){distribution, distribution}, (int[]){argument, argument},
                           grid, order, MPI_INT, &type);
    MPI_Type_size(type, &size);
    set_file(view, MPI_INT, type, 0);
    view->counts[0] = size / 4;
    view->counts[1] = size / 4;
    view->skip = 0;
}

#define DARRAY(name, distribution, argument, order)               \
    static void build_darray_##name(int rank, struct view *view)  \
    {                                                             \
        darray(rank, view, distribution, argument, order);        \
    }                                                             \
    static void run_darray_##name(void)                           \
    {                                                             \
        view_run_as_built(build_darray_##name);                   \
    }

DARRAY(block, MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_DFLT_DARG, MPI_ORDER_C)
DARRAY(block_fortran, MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_DFLT_DARG, MPI_ORDER_FORTRAN)
DARRAY(cyclic, MPI_DISTRIBUTE_CYCLIC, MPI_DISTRIBUTE_DFLT_DARG, MPI_ORDER_C)
DARRAY(cyclic_k, MPI_DISTRIBUTE_CYCLIC, 2, MPI_ORDER_C)
DARRAY(cyclic_k_fortran, MPI_DISTRIBUTE_CYCLIC, 3, MPI_ORDER_FORTRAN)

static void run_ghost_cells(void)
{
    view_run_as_built(build_ghost_cells);
}

/* The columns of a matrix of 3 rows, one after the other: their tiles interleave. The second call begins within a column. */
static void build_interleaved(int rank, struct view *view)
{
    MPI_Datatype column, type;
    (void)rank;
    MPI_Type_vector(3, 1, 10, MPI_INT, &column);
    MPI_Type_create_resized(column, 0, sizeof(int), &type);
    MPI_Type_free(&column);
    set_file(view, MPI_INT, type, 25);
}

/* Columns of one matrix, some of each rank: they interleave with those of the rank, and lie between those of the others. */
static void build_interleaved_ranks(int rank, struct view *view)
{
    MPI_Datatype column, type;
    MPI_Type_vector(3, 1, 20 * check.ranks, MPI_INT, &column);
    MPI_Type_create_resized(column, 0, sizeof(int), &type);
    MPI_Type_free(&column);
    set_file(view, MPI_INT, type, 25);
    view->displacement = rank * 20 * (MPI_Offset)sizeof(int);
}

static void run_interleaved_ranks(void)
{
    view_run_as_built(build_interleaved_ranks);
}

/* The pairs of a value and an int that have gaps, which are named types. */
static void pair(struct view *view, MPI_Datatype type)
{
    set_file(view, type, type, 20);
}

#define PAIR(name, type)                                       \
    static void build_##name(int rank, struct view *view)      \
    {                                                          \
        (void)rank;                                            \
        pair(view, type);                                      \
    }

PAIR(short_int, MPI_SHORT_INT)
PAIR(double_int, MPI_DOUBLE_INT)
PAIR(long_int, MPI_LONG_INT)
PAIR(long_double_int, MPI_LONG_DOUBLE_INT)

static void run_pair_types(void)
{
    view_run(build_short_int);
    view_run(build_double_int);
    view_run(build_long_int);
    view_run(build_long_double_int);
}

#define RUN(name)                   \
    static void run_##name(void)    \
    {                               \
        view_run(build_##name);     \
    }

RUN(elementary)
RUN(contiguous)
RUN(vector)
RUN(vector_in_file)
RUN(vector_in_memory)
RUN(hvector)
RUN(indexed)
RUN(hindexed)
RUN(indexed_block)
RUN(hindexed_block)
RUN(struct)
RUN(etype_record)
RUN(etype_large)
RUN(resized)
RUN(dup)
RUN(nested)
RUN(holes_at_ends)
RUN(lower_bound)
RUN(lower_bound_negative)
RUN(negative_stride)
RUN(disordered_memory)
RUN(zero_length_blocks)
RUN(adjacent_blocks)
RUN(many_pieces)
RUN(large_pieces)
RUN(within_a_piece)
RUN(displacement)
RUN(interleaved)

#define CASE(name, what) {#name, 1, run_##name, what}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        CASE(elementary, "a view of doubles, as a file has them"),
        CASE(contiguous, "MPI_Type_contiguous"),
        CASE(vector, "MPI_Type_vector in memory and file"),
        CASE(vector_in_file, "MPI_Type_vector in the file alone"),
        CASE(vector_in_memory, "MPI_Type_vector in memory alone"),
        CASE(hvector, "MPI_Type_create_hvector"),
        CASE(indexed, "MPI_Type_indexed"),
        CASE(hindexed, "MPI_Type_create_hindexed"),
        CASE(indexed_block, "MPI_Type_create_indexed_block"),
        CASE(hindexed_block, "MPI_Type_create_hindexed_block"),
        CASE(struct, "MPI_Type_create_struct"),
        CASE(etype_record, "an etype that is a record with a hole"),
        CASE(etype_large, "an etype of 12 bytes"),
        CASE(resized, "MPI_Type_create_resized"),
        CASE(dup, "MPI_Type_dup"),
        CASE(nested, "a vector of records of indexed pieces of vectors"),
        CASE(holes_at_ends, "tiles with holes at both ends"),
        CASE(lower_bound, "a lower bound above 0"),
        CASE(lower_bound_negative, "a lower bound below 0"),
        CASE(negative_stride, "memory that is walked downwards"),
        CASE(disordered_memory, "memory in no order"),
        CASE(zero_length_blocks, "blocks without elements"),
        CASE(adjacent_blocks, "blocks that touch one another"),
        CASE(many_pieces, "5000 pieces of one byte"),
        CASE(large_pieces, "pieces of 360,004 bytes"),
        CASE(within_a_piece, "accesses that begin and end within a piece"),
        CASE(displacement, "a displacement that is no multiple of anything"),
        CASE(interleaved, "columns of a matrix, whose tiles interleave, apart from those of other ranks"),
        CASE(interleaved_ranks, "the same between the columns of other ranks"),
        CASE(pair_types, "MPI_SHORT_INT and other named types with gaps"),
        CASE(subarray_C_1, "MPI_Type_create_subarray, C order, 1 dimension"),
        CASE(subarray_C_2, "MPI_Type_create_subarray, C order, 2 dimensions"),
        CASE(subarray_C_3, "MPI_Type_create_subarray, C order, 3 dimensions"),
        CASE(subarray_C_4, "MPI_Type_create_subarray, C order, 4 dimensions"),
        CASE(subarray_FORTRAN_1, "MPI_Type_create_subarray, Fortran order, 1 dimension"),
        CASE(subarray_FORTRAN_2, "MPI_Type_create_subarray, Fortran order, 2 dimensions"),
        CASE(subarray_FORTRAN_3, "MPI_Type_create_subarray, Fortran order, 3 dimensions"),
        CASE(subarray_FORTRAN_4, "MPI_Type_create_subarray, Fortran order, 4 dimensions"),
        CASE(ghost_cells, "memory with ghost cells, a slab of an array in the file"),
        CASE(darray_block, "MPI_Type_create_darray, blocks"),
        CASE(darray_block_fortran, "MPI_Type_create_darray, blocks, Fortran order"),
        CASE(darray_cyclic, "MPI_Type_create_darray, cyclic"),
        CASE(darray_cyclic_k, "MPI_Type_create_darray, cyclic by 2"),
        CASE(darray_cyclic_k_fortran, "MPI_Type_create_darray, cyclic by 3, Fortran order"),
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
