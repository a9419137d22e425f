/* Datatypes flattened by Open MPI instead of by ROMIO 3.2.1, which puts the blocks of types with a lower bound in the wrong
 * places, and takes data that begins before its address for data that begins there. ROMIO owns what is made here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "dafs_romio.h"
#include "ompi/datatype/ompi_datatype.h"
#include "opal/datatype/opal_convertor.h"

/* Blocks that Open MPI is asked for at once. */
#define AT_ONCE 256

struct blocks {
    struct iovec *list;
    size_t count;
    size_t capacity;
};

/* Without its blocks data would be left out, and ROMIO has no error here. */
static void append(struct blocks *blocks, const struct iovec *more, size_t count)
{
    if (blocks->count + count > blocks->capacity) {
        size_t capacity = 2 * (blocks->count + count);
        struct iovec *list = realloc(blocks->list, capacity * sizeof *list);

        if (!list) {
            fprintf(stderr, "adio-dafs: cannot flatten a datatype of %zu blocks: no memory\n", blocks->count + count);
            PMPI_Abort(MPI_COMM_WORLD, MPI_ERR_NO_MEM);
            abort();
        }
        blocks->list = list;
        blocks->capacity = capacity;
    }
    memcpy(blocks->list + blocks->count, more, count * sizeof *more);
    blocks->count += count;
}

/* The blocks of a type in the order of its typemap; a block's base is its displacement. */
static struct blocks blocks_of(ompi_datatype_t *type)
{
    struct blocks blocks = {0};
    struct iovec some[AT_ONCE];
    opal_convertor_t convertor;
    bool more = type->super.size > 0;

    OBJ_CONSTRUCT(&convertor, opal_convertor_t);
    opal_convertor_clone(ompi_mpi_local_convertor, &convertor, 0);
    opal_convertor_prepare_for_send(&convertor, &type->super, 1, NULL);
    while (more) {
        uint32_t count = AT_ONCE;
        size_t bytes = 0;

        more = opal_convertor_raw(&convertor, some, &count, &bytes) == 0;
        append(&blocks, some, count);
    }
    OBJ_DESTRUCT(&convertor);
    return blocks;
}

static ADIOI_Flatlist_node *node_of(MPI_Datatype type)
{
    struct blocks blocks = blocks_of(type);
    size_t size = blocks.count * sizeof(ADIO_Offset);
    ADIOI_Flatlist_node *node = romio.Malloc(sizeof *node, __LINE__, __FILE__);

    *node = (ADIOI_Flatlist_node){.type = type, .count = (MPI_Count)blocks.count, .lb_idx = -1, .ub_idx = -1};
    if (blocks.count) {
        node->blocklens = romio.Malloc(size, __LINE__, __FILE__);
        node->indices = romio.Malloc(size, __LINE__, __FILE__);
    }
    for (size_t i = 0; i < blocks.count; i++) {
        node->blocklens[i] = (ADIO_Offset)blocks.list[i].iov_len;
        node->indices[i] = (ADIO_Offset)(intptr_t)blocks.list[i].iov_base;
    }
    free(blocks.list);
    return node;
}

bool dafs_is_contiguous(MPI_Datatype type)
{
    ptrdiff_t lb = 0, extent = 0;
    int contiguous = 0;

    romio.Datatype_iscontig(type, &contiguous);
    if (contiguous)
        ompi_datatype_get_true_extent(type, &lb, &extent);
    return contiguous && lb == 0;
}

/* Unless it is there or has no gaps. */
void dafs_flatten_datatype(MPI_Datatype type)
{
    ADIOI_Flatlist_node **place = romio.Flatlist;

    if (dafs_is_contiguous(type))
        return;
    while (*place && (*place)->type != type)
        place = &(*place)->next;
    if (!*place)
        *place = node_of(type);
}
