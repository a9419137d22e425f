/* Datatypes flattened by MPICH instead of by its ROMIO, which puts the blocks of types with a lower bound, and of some nested
 * ones, in the wrong places. ROMIO owns what is made here, and keeps it with the type. */
#include <limits.h>
#include <stdlib.h>
#include <sys/uio.h>

#include <adio.h>
#include <adio_extern.h>

#include "../romio/dafs_romio.h"

/* MPICH's; it installs no header for them. */
int MPIR_Typerep_iov_len(MPI_Aint count, MPI_Datatype type, MPI_Aint max_bytes, MPI_Aint *blocks);
int MPIR_Typerep_to_iov(const void *base, MPI_Aint count, MPI_Datatype type, MPI_Aint offset, struct iovec *list, MPI_Aint max_blocks,
                        MPI_Aint max_bytes, MPI_Aint *blocks, MPI_Aint *bytes);
void MPIR_Datatype_iscontig(MPI_Datatype type, int *contiguous);
void ADIOI_Optimize_flattened(ADIOI_Flatlist_node *node);

bool dafs_is_contiguous(MPI_Datatype type)
{
    MPI_Aint lb = 0, extent = 0;
    int contiguous = 0;

    MPIR_Datatype_iscontig(type, &contiguous);
    if (contiguous)
        PMPI_Type_get_true_extent(type, &lb, &extent);
    return contiguous && lb == 0;
}

/* The blocks of a type in the order of its typemap; a block's base is its displacement. */
static struct iovec *blocks_of(MPI_Datatype type, MPI_Count size, MPI_Aint *count)
{
    struct iovec *list;
    MPI_Aint bytes = 0, room = 0;

    MPIR_Typerep_iov_len(1, type, (MPI_Aint)size, &room);
    list = room < INT_MAX ? calloc((size_t)room + 1, sizeof *list) : NULL;
    if (!list) {
        fprintf(stderr, "adio-dafs: cannot flatten a datatype of %lld blocks: no memory\n", (long long)room);
        PMPI_Abort(MPI_COMM_WORLD, MPI_ERR_NO_MEM);
    }
    MPIR_Typerep_to_iov(NULL, 1, type, 0, list, room, (MPI_Aint)size, count, &bytes);
    return list;
}

static ADIOI_Flatlist_node *node_of(MPI_Datatype type)
{
    bool whole = dafs_is_contiguous(type);
    MPI_Count size = 0;
    MPI_Aint count = 1;
    struct iovec *blocks = NULL;
    ADIOI_Flatlist_node *node = ADIOI_Calloc(1, sizeof *node);

    PMPI_Type_size_x(type, &size);
    if (!whole)
        blocks = blocks_of(type, size, &count);
    *node = (ADIOI_Flatlist_node){.type = type, .count = count, .lb_idx = -1, .ub_idx = -1, .refct = 1};
    /* Both arrays are one piece, which ROMIO frees by the first. */
    node->blocklens = ADIOI_Calloc(2 * (size_t)count + 1, sizeof(ADIO_Offset));
    node->indices = node->blocklens + count;
    if (whole)
        node->blocklens[0] = size;
    for (MPI_Aint i = 0; !whole && i < count; i++) {
        node->blocklens[i] = (ADIO_Offset)blocks[i].iov_len;
        node->indices[i] = (ADIO_Offset)(intptr_t)blocks[i].iov_base;
    }
    free(blocks);
    /* For its flags. */
    if (count > 1)
        ADIOI_Optimize_flattened(node);
    return node;
}

ADIOI_Flatlist_node *dafs_flatten_datatype(MPI_Datatype type)
{
    ADIOI_Flatlist_node *node;
    int found = 0;

    if (ADIOI_Flattened_type_keyval == MPI_KEYVAL_INVALID)
        PMPI_Type_create_keyval(ADIOI_Flattened_type_copy, ADIOI_Flattened_type_delete, &ADIOI_Flattened_type_keyval, NULL);
    PMPI_Type_get_attr(type, ADIOI_Flattened_type_keyval, &node, &found);
    if (!found) {
        node = node_of(type);
        PMPI_Type_set_attr(type, ADIOI_Flattened_type_keyval, node);
    }
    return node;
}
