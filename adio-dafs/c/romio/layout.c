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

adio_dafs_memory dafs_memory_of(void *buf, int count, MPI_Datatype type, int64_t whole[2], MPI_Datatype *flattened)
{
    bool is_flattened;
    adio_dafs_memory memory = {buf, (uint64_t)count, type_of(type, whole, &is_flattened)};

    *flattened = is_flattened ? type : MPI_DATATYPE_NULL;
    return memory;
}

/* ROMIO knows flattened types by their handles, which MPI uses again. */
void dafs_memory_free(MPI_Datatype flattened)
{
    if (flattened != MPI_DATATYPE_NULL)
        romio.Delete_flattened(flattened);
}

/* ROMIO takes the bytes from the first to the last, and puts instances of a type that is wider behind its memory. */
int dafs_full_size(MPI_Datatype type, MPI_Aint *size)
{
    MPI_Aint lb = 0, extent = 0, true_lb = 0, true_extent = 0;
    int error = PMPI_Type_get_extent(type, &lb, &extent);

    if (error == MPI_SUCCESS)
        error = PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
    *size = true_extent + (true_lb > 0 ? true_lb : 0);
    if (extent > *size)
        *size = extent;
    return error;
}

uint64_t dafs_memory_span(int count, MPI_Datatype type, int64_t *low)
{
    MPI_Aint lb = 0, extent = 0, true_lb = 0, true_extent = 0;

    PMPI_Type_get_extent(type, &lb, &extent);
    PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
    return dafs_span(count, true_lb, true_extent, extent, low);
}

void dafs_layout_contig(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                        int pointer, ADIO_Offset offset)
{
    *layout = (struct dafs_layout){.bytes = bytes_of(count, type), .flattened = MPI_DATATYPE_NULL};
    if (pointer == ADIO_INDIVIDUAL)
        offset = (ADIO_Offset)((uint64_t)fd->disp + dafs_file_of(fd)->position);
    layout->segment = (adio_dafs_segment){buf, (uint64_t)offset, layout->bytes};
    layout->transfer = (adio_dafs_transfer){
        .direction = direction,
        .collective = dafs_file_of(fd)->common.collective != DAFS_CALL_OWN,
        .segments = &layout->segment,
        .segment_count = 1,
    };
}

void dafs_layout_strided(struct dafs_layout *layout, ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type,
                         int pointer, ADIO_Offset offset)
{
    *layout = (struct dafs_layout){.bytes = bytes_of(count, type)};
    layout->memory = dafs_memory_of(buf, count, type, layout->whole[0], &layout->flattened);
    layout->view = dafs_view_of(fd, layout->whole[1]);
    layout->transfer = (adio_dafs_transfer){
        .direction = direction,
        .collective = dafs_file_of(fd)->common.collective != DAFS_CALL_OWN,
        .memory = &layout->memory,
        .view = &layout->view,
        .position = (uint64_t)position_of(fd, offset),
    };
    if (pointer == ADIO_INDIVIDUAL)
        layout->transfer.position = dafs_file_of(fd)->position;
}

void dafs_layout_free(struct dafs_layout *layout)
{
    dafs_memory_free(layout->flattened);
}

bool dafs_is_nowhere(const struct dafs_layout *layout)
{
    return layout->transfer.segments ? (int64_t)layout->segment.offset < 0 : (int64_t)layout->transfer.position < 0;
}

bool dafs_is_outside_view(ADIO_File fd, uint64_t position, uint64_t bytes)
{
    int64_t whole[2];
    adio_dafs_view view = dafs_view_of(fd, whole);
    uint64_t last;

    return bytes && (__builtin_add_overflow(position, bytes - 1, &last) || last > INT64_MAX || dafs_is_outside(&view, 1, (int64_t)last));
}

/* Where the numbers are large enough, whoever moves the data looks. */
bool dafs_is_outside_by_etypes(ADIO_File fd, ADIO_Offset etypes)
{
    int64_t byte, whole[2];
    adio_dafs_view view;

    if (!dafs_ours(fd))
        return false;
    byte = position_of(fd, etypes);
    if (byte >= 0 && !__builtin_add_overflow(byte, fd->disp, &byte))
        return false;
    view = dafs_view_of(fd, whole);
    return dafs_is_outside(&view, (uint64_t)fd->etype_size, etypes);
}

/* In ROMIO's numbers a place that there is not goes round, and comes to another; a view without bytes has them search without an end.
 * MPI_File_seek() tells of no error of ours; the pointer stays. */
ADIO_Offset dafs_adio_seek(ADIO_File fd, ADIO_Offset offset, int whence, int *error)
{
    int64_t whole[2];
    adio_dafs_view view = dafs_view_of(fd, whole);
    uint64_t first;
    bool is_empty = adio_dafs_view_offset(&view, 0, &first) != ADIO_DAFS_OK;

    (void)whence;
    *error = dafs_is_outside(&view, (uint64_t)fd->etype_size, offset) ? MPI_ERR_ARG : MPI_SUCCESS;
    if (*error == MPI_SUCCESS)
        dafs_file_of(fd)->position = is_empty ? 0 : (uint64_t)(offset * fd->etype_size);
    return offset;
}

void dafs_advance(ADIO_File fd, uint64_t bytes)
{
    uint64_t *position = &dafs_file_of(fd)->position, size = fd->etype_size > 0 ? (uint64_t)fd->etype_size : 1;

    *position = (*position + bytes + size - 1) / size * size;
}

bool dafs_is_sequential(ADIO_File fd)
{
    return dafs_ours(fd) && (fd->access_mode & MPI_MODE_SEQUENTIAL);
}

bool dafs_get_position(ADIO_File fd, ADIO_Offset *etypes)
{
    if (!dafs_ours(fd))
        return false;
    *etypes = (ADIO_Offset)dafs_file_of(fd)->position / fd->etype_size;
    return true;
}

/* ROMIO has no error here. It adds an offset to what it gets, and refuses what is negative then. */
bool dafs_get_end(ADIO_File fd, ADIO_Offset *etypes)
{
    struct dafs_file *file = dafs_ours(fd);
    int64_t whole[2];
    adio_dafs_view view;
    uint64_t end = 0;

    if (!file)
        return false;
    view = dafs_view_of(fd, whole);
    *etypes = dafs_end_of_file(file, &view, (uint64_t)fd->etype_size, &end) == MPI_SUCCESS ? (ADIO_Offset)end : INT64_MIN / 2;
    return true;
}

/* A view without bytes has its displacement for all places. Nor is there an error here: -1 is no byte. */
bool dafs_get_byte_offset(ADIO_File fd, ADIO_Offset etypes, ADIO_Offset *byte)
{
    int64_t whole[2];
    adio_dafs_view view;
    uint64_t offset = 0;

    if (!dafs_ours(fd))
        return false;
    view = dafs_view_of(fd, whole);
    *byte = dafs_is_outside(&view, (uint64_t)fd->etype_size, etypes) ? -1 : fd->disp;
    if (*byte >= 0 && adio_dafs_view_offset(&view, (uint64_t)(etypes * fd->etype_size), &offset) == ADIO_DAFS_OK)
        *byte = (ADIO_Offset)offset;
    return true;
}
