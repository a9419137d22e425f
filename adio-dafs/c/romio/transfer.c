/* Blocking transfers: by one process, and by all together. */
#include <stdlib.h>

#include "dafs_romio.h"

void dafs_set_status(MPI_Status *status, uint64_t bytes)
{
    if (status != MPI_STATUS_IGNORE)
        PMPI_Status_set_elements_x(status, MPI_BYTE, (MPI_Count)bytes);
}

/* This thread's last read of a view that ROMIO converts. ROMIO forgets its error over the conversion that follows, and converts as much as
 * was asked for. */
static _Thread_local struct {
    int class;
    bool is_short;
    uint64_t bytes;
} unconverted;

void dafs_error_told(void)
{
    unconverted.class = MPI_SUCCESS;
}

static int converted(int error)
{
    int read_error = unconverted.class;

    unconverted.class = MPI_SUCCESS;
    unconverted.is_short = false;
    return read_error != MPI_SUCCESS ? read_error : error;
}

static void keep_for_conversion(ADIO_File fd, int direction, int class, uint64_t wanted, uint64_t found)
{
    if (!fd->is_external32 || direction != ADIO_DAFS_READ)
        return;
    unconverted.class = class;
    unconverted.is_short = class != MPI_SUCCESS || found < wanted;
    unconverted.bytes = class == MPI_SUCCESS ? found : 0;
}

/* Bytes in memory of so many in a file. Of the last instance only what it has whole, where the sizes differ. */
static uint64_t bytes_in_memory(MPI_Datatype type, uint64_t bytes)
{
    MPI_Aint there = 0;
    MPI_Count here = 0;

    PMPI_Pack_external_size("external32", 1, type, &there);
    PMPI_Type_size_x(type, &here);
    return there <= 0 || there == here ? bytes : bytes / (uint64_t)there * (uint64_t)here;
}

int dafs_convert(adio_convert_fn *convert, void *buf, MPI_Datatype type, int count, void *read)
{
    struct dafs_landing landing = {0};
    adio_dafs_memory memory;
    MPI_Datatype flattened;
    int64_t whole[2], low = 0;
    uint64_t span;
    void *into;
    int error;

    if (!unconverted.is_short || count <= 0)
        return converted(convert(buf, type, count, read));
    span = dafs_memory_span(count, type, &low);
    into = dafs_landing_begin(&landing, buf, low, span);
    if (!landing.memory)
        return converted(MPI_ERR_NO_MEM);
    error = convert(into, type, count, read);
    memory = dafs_memory_of(buf, count, type, whole, &flattened);
    dafs_landing_end(&landing, &memory, error == MPI_SUCCESS ? bytes_in_memory(type, unconverted.bytes) : 0);
    dafs_memory_free(flattened);
    return converted(error);
}

/* Runs a layout and frees it. In a collective call of each process by itself also one without data: others may wait for it. As in
 * ROMIO, the individual file pointer stays behind a short read where the file has no gaps. */
static int run(ADIO_File fd, struct dafs_layout *layout, int pointer, MPI_Status *status)
{
    struct dafs_file *file = &dafs_file_of(fd)->common;
    bool nowhere = layout->bytes && dafs_is_nowhere(layout), awaited = layout->transfer.collective && file->independent;
    uint64_t moved = 0;
    int class = MPI_SUCCESS;

    if (nowhere) {
        layout->bytes = layout->memory.count = 0;
        layout->transfer.position = 0;
    }
    if (layout->bytes || awaited)
        class = dafs_transfer(file, &layout->transfer, layout->bytes, &moved);
    if (nowhere)
        class = MPI_ERR_ARG;
    if (class == MPI_SUCCESS && pointer == ADIO_INDIVIDUAL)
        dafs_advance(fd, layout->transfer.segments ? moved : layout->bytes);
    dafs_set_status(status, moved);
    keep_for_conversion(fd, layout->transfer.direction, class, layout->bytes, moved);
    dafs_layout_free(layout);
    return class;
}

static void contig(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                   MPI_Status *status, int *error)
{
    struct dafs_layout layout;

    /* Not one of its windows. */
    if (buf == dafs_file_of(fd)->given)
        dafs_file_of(fd)->moves_own = true;
    dafs_layout_contig(&layout, fd, direction, buf, count, type, pointer, offset);
    *error = run(fd, &layout, pointer, status);
}

static void strided(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                    MPI_Status *status, int *error)
{
    struct dafs_layout layout;

    dafs_file_of(fd)->moves_own = true;
    dafs_layout_strided(&layout, fd, direction, buf, count, type, pointer, offset);
    *error = run(fd, &layout, pointer, status);
}

void dafs_adio_read_contig(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                           MPI_Status *status, int *error)
{
    contig(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, status, error);
}

void dafs_adio_write_contig(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                            MPI_Status *status, int *error)
{
    contig(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, status, error);
}

void dafs_adio_read_strided(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                            MPI_Status *status, int *error)
{
    strided(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, status, error);
}

void dafs_adio_write_strided(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                             MPI_Status *status, int *error)
{
    strided(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, status, error);
}

/* Bytes that an exchange finds. ROMIO says all, whatever the size of the file. */
static uint64_t bytes_found(ADIO_File fd, uint64_t end, uint64_t position, uint64_t wanted)
{
    int64_t whole[2];
    adio_dafs_view view = dafs_view_of(fd, whole);

    return dafs_bytes_before(&view, end, position, wanted);
}

/* A read of all ranks: ROMIO would write all of the memory. */
struct read {
    struct dafs_landing landing;
    int count;
    MPI_Datatype type;
};

/* `buf` becomes what to read into; false without memory for it. What ROMIO converts, it has in memory of its own. */
static bool read_begin(ADIO_File fd, struct read *read, void **buf, int count, MPI_Datatype type, uint64_t position, uint64_t bytes)
{
    int64_t low, whole[2];
    uint64_t span = dafs_memory_span(count, type, &low);
    adio_dafs_view view = dafs_view_of(fd, whole);
    void *into;

    if (fd->is_external32 || dafs_is_outside_view(fd, position, bytes) ||
        !dafs_may_come_short(&dafs_file_of(fd)->common, &view, position, bytes, span))
        return true;
    into = dafs_landing_begin(&read->landing, *buf, low, span);
    if (!read->landing.memory)
        return false;
    read->count = count;
    read->type = type;
    *buf = into;
    return true;
}

/* ROMIO forgets flattened types at the end of an exchange. */
static void read_end(struct read *read, uint64_t found)
{
    adio_dafs_memory memory;
    MPI_Datatype flattened;
    int64_t whole[2];

    if (!read->landing.memory)
        return;
    memory = dafs_memory_of(read->landing.buf, read->count, read->type, whole, &flattened);
    dafs_landing_end(&read->landing, &memory, found);
    dafs_memory_free(flattened);
}

/* ROMIO's exchange. It does not find our pointer, and goes round where the view has no such place: that rank takes part with nothing. */
static void exchange(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, uint64_t position,
                     uint64_t bytes, MPI_Status *status, int *error)
{
    adio_transfer_fn *run = direction == ADIO_DAFS_READ ? romio.ReadStridedColl : romio.WriteStridedColl;
    bool outside = dafs_is_outside_view(fd, position, bytes);
    ADIO_Offset offset = outside ? 0 : (ADIO_Offset)position / fd->etype_size;

    run(fd, buf, outside ? 0 : count, type, ADIO_EXPLICIT_OFFSET, offset, status, error);
    if (outside && *error == MPI_SUCCESS)
        *error = MPI_ERR_ARG;
    if (*error == MPI_SUCCESS && pointer == ADIO_INDIVIDUAL)
        dafs_advance(fd, bytes);
}

/* The exchange, or each process by itself; then one outcome for all. */
static void together(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                     MPI_Status *status, int *error)
{
    struct dafs_file *file = &dafs_file_of(fd)->common;
    bool exchanges = !dafs_is_alone(file), reads = direction == ADIO_DAFS_READ, lacks_memory = false;
    struct read read = {0};
    uint64_t position = dafs_file_of(fd)->position, bytes, end, found;
    MPI_Count size = 0;
    int kept;

    PMPI_Type_size_x(type, &size);
    bytes = (uint64_t)count * (uint64_t)size;
    /* Behind all numbers where these are too small for it. */
    if (pointer != ADIO_INDIVIDUAL && __builtin_mul_overflow((uint64_t)offset, (uint64_t)fd->etype_size, &position))
        position = UINT64_MAX;
    *error = MPI_SUCCESS;
    dafs_take_error(file);
    file->end = DAFS_NO_END;
    if (exchanges && reads && bytes)
        lacks_memory = !read_begin(fd, &read, &buf, count, type, position, bytes);
    /* The rank takes part with nothing then. */
    if (lacks_memory)
        count = 0;
    dafs_file_of(fd)->given = exchanges ? buf : NULL;
    dafs_file_of(fd)->moves_own = false;
    file->collective = dafs_call_of_all(direction);
    if (exchanges)
        exchange(fd, direction, buf, count, type, pointer, position, lacks_memory ? 0 : bytes, status, error);
    else
        strided(fd, direction, buf, count, type, pointer, offset, status, error);
    file->collective = DAFS_CALL_OWN;
    dafs_file_of(fd)->given = NULL;
    if (lacks_memory && *error == MPI_SUCCESS)
        *error = MPI_ERR_NO_MEM;
    kept = dafs_take_error(file);
    dafs_note_collective(file, direction, exchanges && !dafs_file_of(fd)->moves_own ? "ROMIO" : NULL,
                         exchanges ? "ROMIO found that the ranks' data does not interleave, or its hints say so" : NULL);
    *error = dafs_agree(file, fd->comm, *error != MPI_SUCCESS ? *error : kept, &end);
    found = exchanges && reads && end != DAFS_NO_END ? bytes_found(fd, end, position, bytes) : bytes;
    read_end(&read, *error == MPI_SUCCESS ? found : 0);
    if (exchanges)
        keep_for_conversion(fd, direction, *error, bytes, found);
    else if (*error != MPI_SUCCESS)
        keep_for_conversion(fd, direction, *error, bytes, 0);
    /* ROMIO takes a split call that fails here for one under way, and refuses the next. */
    if (*error != MPI_SUCCESS)
        fd->split_coll_count = 0;
    if (*error != MPI_SUCCESS)
        dafs_set_status(status, 0);
    else if (exchanges && reads && end != DAFS_NO_END)
        dafs_set_status(status, found);
}

void dafs_adio_read_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset, MPI_Status *status,
                         int *error)
{
    together(fd, ADIO_DAFS_READ, buf, count, type, pointer, offset, status, error);
}

void dafs_adio_write_coll(ADIO_File fd, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                          MPI_Status *status, int *error)
{
    together(fd, ADIO_DAFS_WRITE, buf, count, type, pointer, offset, status, error);
}
