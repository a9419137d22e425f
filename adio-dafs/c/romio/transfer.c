/* Blocking transfers: by one process, and by all together. */
#include "dafs_romio.h"

void dafs_set_status(MPI_Status *status, uint64_t bytes)
{
    if (status != MPI_STATUS_IGNORE)
        PMPI_Status_set_elements_x(status, MPI_BYTE, (MPI_Count)bytes);
}

/* The error of this thread's last read of a view that ROMIO converts: ROMIO forgets it over the conversion that follows. */
static _Thread_local int unconverted;

int dafs_converted(int error)
{
    int read_error = unconverted;

    unconverted = MPI_SUCCESS;
    return read_error != MPI_SUCCESS ? read_error : error;
}

static void keep_for_conversion(ADIO_File fd, int direction, int class)
{
    if (fd->is_external32 && direction == ADIO_DAFS_READ)
        unconverted = class;
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
    keep_for_conversion(fd, layout->transfer.direction, class);
    dafs_layout_free(layout);
    return class;
}

static void contig(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                   MPI_Status *status, int *error)
{
    struct dafs_layout layout;

    dafs_layout_contig(&layout, fd, direction, buf, count, type, pointer, offset);
    *error = run(fd, &layout, pointer, status);
}

static void strided(ADIO_File fd, int direction, void *buf, int count, MPI_Datatype type, int pointer, ADIO_Offset offset,
                    MPI_Status *status, int *error)
{
    struct dafs_layout layout;

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
    bool exchanges = !dafs_is_alone(file);
    uint64_t position = dafs_file_of(fd)->position, bytes, end;
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
    file->collective = dafs_call_of_all(direction);
    if (exchanges)
        exchange(fd, direction, buf, count, type, pointer, position, bytes, status, error);
    else
        strided(fd, direction, buf, count, type, pointer, offset, status, error);
    file->collective = DAFS_CALL_OWN;
    kept = dafs_take_error(file);
    *error = dafs_agree(file, fd->comm, *error != MPI_SUCCESS ? *error : kept, &end);
    keep_for_conversion(fd, direction, *error);
    /* ROMIO takes a split call that fails here for one under way, and refuses the next. */
    if (*error != MPI_SUCCESS)
        fd->split_coll_count = 0;
    if (*error != MPI_SUCCESS)
        dafs_set_status(status, 0);
    else if (exchanges && direction == ADIO_DAFS_READ && end != DAFS_NO_END)
        dafs_set_status(status, bytes_found(fd, end, position, bytes));
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
