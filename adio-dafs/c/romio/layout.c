/* What a transfer of ROMIO moves: memory and view as flattened datatypes, which the library lays over each other. */
#include "dafs_romio.h"

/* ROMIO's numbers are long long, ours int64_t. */
_Static_assert(sizeof(ADIO_Offset) == sizeof(int64_t), "offset");

/* A type as ROMIO flattens it. One without gaps it does not, and that is a block. */
static adio_dafs_type type_of(MPI_Datatype type, int64_t whole[2], bool *flattened)
{
    MPI_Aint lb = 0, extent = 0;
    MPI_Count size = 0;
    ADIOI_Flatlist_node *node;

    *flattened = !dafs_is_contiguous(type);
    if (!*flattened) {
        PMPI_Type_size_x(type, &size);
        whole[0] = 0;
        whole[1] = (int64_t)size;
        return (adio_dafs_type){&whole[0], &whole[1], 1, (int64_t)size};
    }
    node = romio.Flatten_and_find(type);
    PMPI_Type_get_extent(type, &lb, &extent);
    return (adio_dafs_type){(const int64_t *)node->indices, (const int64_t *)node->blocklens, (size_t)node->count, (int64_t)extent};
}

adio_dafs_view dafs_view_of(ADIO_File fd, int64_t whole[2])
{
    /* ROMIO keeps the file type flattened as long as it is the view's. */
    bool flattened;

    return (adio_dafs_view){(uint64_t)fd->disp, type_of(fd->filetype, whole, &flattened)};
}

/* Bytes of the view's data before an offset: below 0 where there is no such place. */
static int64_t position_of(ADIO_File fd, ADIO_Offset offset)
{
    int64_t position;

    return __builtin_mul_overflow(offset, (int64_t)fd->etype_size, &position) ? -1 : position;
}

static uint64_t bytes_of(int count, MPI_Datatype type)
{
    MPI_Count size = 0;

    PMPI_Type_size_x(type, &size);
    return (uint64_t)count * (uint64_t)size;
}

void dafs_layout_contig(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                        int pointer, ADIO_Offset offset)
{
    *layout = (struct dafs_layout){.bytes = bytes_of(count, type), .flattened = MPI_DATATYPE_NULL};
    if (pointer == ADIO_INDIVIDUAL)
        offset = fd->fp_ind;
    layout->segment = (adio_dafs_segment){buf, (uint64_t)offset, layout->bytes};
    layout->transfer = (adio_dafs_transfer){
        .direction = direction,
        .collective = dafs_file_of(fd)->common.collective,
        .segments = &layout->segment,
        .segment_count = 1,
    };
}

void dafs_layout_strided(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                         int pointer, ADIO_Offset offset)
{
    bool flattened;

    *layout = (struct dafs_layout){.bytes = bytes_of(count, type), .flattened = MPI_DATATYPE_NULL};
    layout->memory = (adio_dafs_memory){buf, (uint64_t)count, type_of(type, layout->whole[0], &flattened)};
    if (flattened)
        layout->flattened = type;
    layout->view = dafs_view_of(fd, layout->whole[1]);
    layout->transfer = (adio_dafs_transfer){
        .direction = direction,
        .collective = dafs_file_of(fd)->common.collective,
        .memory = &layout->memory,
        .view = &layout->view,
        .position = (uint64_t)position_of(fd, offset),
    };
    if (pointer == ADIO_INDIVIDUAL)
        adio_dafs_view_position(&layout->view, (uint64_t)fd->fp_ind, &layout->transfer.position);
}

/* ROMIO knows flattened types by their handles, which MPI uses again. */
void dafs_layout_free(struct dafs_layout *layout)
{
    if (layout->flattened != MPI_DATATYPE_NULL)
        romio.Delete_flattened(layout->flattened);
}

ADIO_Offset dafs_layout_end(const struct dafs_layout *layout)
{
    uint64_t end = 0;

    if (layout->transfer.segments)
        return (ADIO_Offset)(layout->segment.offset + layout->bytes);
    adio_dafs_view_offset(&layout->view, layout->transfer.position + layout->bytes, &end);
    return (ADIO_Offset)end;
}

bool dafs_is_nowhere(const struct dafs_layout *layout)
{
    return layout->transfer.segments ? (int64_t)layout->segment.offset < 0 : (int64_t)layout->transfer.position < 0;
}

/* ROMIO's goes round where there is no such place, and comes to another. MPI_File_seek() tells of no error of ours; the pointer stays. */
ADIO_Offset dafs_adio_seek(ADIO_File fd, ADIO_Offset offset, int whence, int *error)
{
    int64_t whole[2];
    adio_dafs_view view = dafs_view_of(fd, whole);

    if (!dafs_is_outside(&view, (uint64_t)fd->etype_size, offset))
        return romio.SeekIndividual(fd, offset, whence, error);
    *error = MPI_ERR_ARG;
    return fd->fp_ind;
}
