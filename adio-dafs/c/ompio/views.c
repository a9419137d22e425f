/* Transfers through views in the server. OMPIO would lay memory and file type over each other, and name each segment to the fbtl. Where
 * the hints ask for views, memory and view go to the library as flattened types instead, and OMPIO only moves its file pointer. */
#include <stdlib.h>

#include "hooks.h"

/* Blocks as the library has them: offsets, then as many lengths. NULL without memory. */
static int64_t *numbers_of(const struct iovec *blocks, size_t count)
{
    int64_t *numbers = calloc(2 * count + 1, sizeof *numbers);

    for (size_t i = 0; numbers && i < count; i++) {
        numbers[i] = (int64_t)(intptr_t)blocks[i].iov_base;
        numbers[count + i] = (int64_t)blocks[i].iov_len;
    }
    return numbers;
}

const adio_dafs_view *dafs_view_of(ompi_file_t *fp)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    size_t count = fh->f_iov_count;
    const adio_dafs_view *found;

    pthread_mutex_lock(&file->call_lock);
    if (!file->view_numbers) {
        int64_t *numbers = numbers_of(fh->f_decoded_iov, count);

        file->view_numbers = numbers;
        if (numbers)
            file->view = (adio_dafs_view){(uint64_t)fh->f_disp, {numbers, numbers + count, count, fh->f_view_extent}};
    }
    found = file->view_numbers ? &file->view : NULL;
    pthread_mutex_unlock(&file->call_lock);
    return found;
}

void dafs_forget_view(struct dafs_ompio_file *file)
{
    pthread_mutex_lock(&file->call_lock);
    free(file->view_numbers);
    file->view_numbers = NULL;
    pthread_mutex_unlock(&file->call_lock);
}

bool dafs_describe_memory(const ompio_file_t *fh, const void *buf, int count, ompi_datatype_t *type, struct typed *typed)
{
    struct iovec *blocks = NULL;
    uint32_t blocks_count = 0;
    size_t size = 0;
    ptrdiff_t lb, extent, gap;

    if (count == 0 || opal_datatype_is_contiguous_memory_layout(&type->super, count)) {
        opal_datatype_span(&type->super, (size_t)count, &gap);
        typed->whole[1] = (int64_t)typed->bytes;
        typed->memory = (adio_dafs_memory){
            (char *)buf + gap, count != 0, {&typed->whole[0], &typed->whole[1], 1, (int64_t)typed->bytes}};
        return true;
    }
    if (mca_common_ompio_decode_datatype((ompio_file_t *)fh, type, 1, NULL, &size, fh->f_mem_convertor, &blocks, &blocks_count) ==
        OMPI_SUCCESS)
        typed->numbers = numbers_of(blocks, blocks_count);
    free(blocks);
    opal_datatype_get_extent(&type->super, &lb, &extent);
    typed->memory = (adio_dafs_memory){
        (void *)buf, (uint64_t)count, {typed->numbers, typed->numbers + blocks_count, blocks_count, extent}};
    return typed->numbers != NULL;
}

/* Bytes of the view's data before a place. The pointer moves on over so many. */
static bool take_position(ompi_file_t *fp, MPI_Offset at, uint64_t bytes, uint64_t *position)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    ompio_file_t *fh = dafs_handle_of(fp);
    OMPI_MPI_OFFSET_TYPE here;

    if (at != DAFS_POINTER)
        return at >= 0 && !__builtin_mul_overflow((uint64_t)at, fh->f_etype_size, position);
    pthread_mutex_lock(&file->call_lock);
    mca_common_ompio_file_get_position(fh, &here);
    *position = (uint64_t)here * fh->f_etype_size;
    mca_common_ompio_set_explicit_offset(fh, here + (OMPI_MPI_OFFSET_TYPE)(bytes / fh->f_etype_size));
    pthread_mutex_unlock(&file->call_lock);
    return true;
}

/* Whether the hints ask for views. Data of another representation, and what the amode forbids, is OMPIO's. */
static bool goes_by_view(ompi_file_t *fp, int direction)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    int allowed = direction == ADIO_DAFS_READ ? dafs_readable(fp) : dafs_writable(fp);

    return allowed == MPI_SUCCESS && (fh->f_flags & OMPIO_DATAREP_NATIVE) &&
           adio_dafs_view_used(dafs_file_of_mpi(fp)->common.handle, direction);
}

/* False where OMPIO is to see to what this rank asks for: what is no whole number of etypes, and data of a view that has none. A collective
 * call takes part without data too: others may wait for it. */
static bool describe(ompi_file_t *fp, int direction, bool collective, MPI_Offset at, const void *buf, int count,
                     ompi_datatype_t *type, struct typed *typed)
{
    const ompio_file_t *fh = dafs_handle_of(fp);
    uint64_t position = 0;

    *typed = (struct typed){.bytes = bytes_of(count, type)};
    if (count < 0 || fh->f_etype_size == 0 || typed->bytes % fh->f_etype_size != 0 || (typed->bytes == 0 && !collective) ||
        (typed->bytes != 0 && fh->f_view_size == 0))
        return false;
    typed->transfer = (adio_dafs_transfer){.direction = direction, .collective = collective, .view = dafs_view_of(fp)};
    if (!typed->transfer.view || !dafs_describe_memory(fh, buf, typed->bytes ? count : 0, type, typed))
        return false;
    if (!take_position(fp, at, typed->bytes, &position)) {
        free(typed->numbers);
        return false;
    }
    typed->transfer.memory = &typed->memory;
    typed->transfer.position = position;
    return true;
}

/* In a collective call of which this rank moves nothing by its view: the others wait for it there, and count their calls. */
static void take_part(ompi_file_t *fp, int direction)
{
    const int64_t none[2] = {0, 0};
    adio_dafs_memory memory = {NULL, 0, {&none[0], &none[1], 1, 0}};
    adio_dafs_transfer transfer = {.direction = direction, .collective = true, .memory = &memory, .view = dafs_view_of(fp)};
    uint64_t moved;

    /* What it fails of this rank's own transfer meets too. */
    if (transfer.view)
        adio_dafs_transfer_run(dafs_file_of_mpi(fp)->common.handle, &transfer, &moved);
}

bool dafs_move_by_view(ompi_file_t *fp, int direction, bool collective, MPI_Offset at, const void *buf, int count,
                       ompi_datatype_t *type, ompi_status_public_t *status, int *error)
{
    struct dafs_ompio_file *file = dafs_file_of_mpi(fp);
    struct typed typed;
    uint64_t moved = 0;

    if (!goes_by_view(fp, direction))
        return false;
    if (!describe(fp, direction, collective, at, buf, count, type, &typed)) {
        if (collective)
            take_part(fp, direction);
        return false;
    }
    *error = dafs_tell(&file->common, adio_dafs_transfer_run(file->common.handle, &typed.transfer, &moved));
    free(typed.numbers);
    if (status != MPI_STATUS_IGNORE)
        status->_ucount = moved;
    dafs_info_refresh(fp, file);
    return true;
}

bool dafs_begin_by_view(ompi_file_t *fp, int direction, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type,
                        ompi_request_t **made)
{
    ompio_file_t *fh = dafs_handle_of(fp);
    mca_ompio_request_t *request = NULL;
    struct typed typed;

    if (!goes_by_view(fp, direction) || !describe(fp, direction, false, at, buf, count, type, &typed))
        return false;
    dafs_list_lock();
    mca_common_ompio_request_alloc(&request, direction == ADIO_DAFS_READ ? MCA_OMPIO_REQUEST_READ : MCA_OMPIO_REQUEST_WRITE);
    dafs_request_start(fh, request, &typed.transfer, typed.bytes);
    mca_common_ompio_register_progress();
    dafs_guard(&request->req_ompi);
    dafs_list_unlock();
    free(typed.numbers);
    *made = &request->req_ompi;
    return true;
}

bool dafs_begin_split_by_view(ompi_file_t *fp, int direction, MPI_Offset at, const void *buf, int count, ompi_datatype_t *type)
{
    ompio_file_t *fh = dafs_handle_of(fp);

    /* OMPIO says that there is one already. */
    if (fh->f_split_coll_in_use || !dafs_begin_by_view(fp, direction, at, buf, count, type, &fh->f_split_coll_req))
        return false;
    fh->f_split_coll_in_use = true;
    return true;
}
