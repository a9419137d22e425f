/* Memory where a read lands that may come to the end of the file. The MPI library ends some reads by writing all of the memory that it was
 * given: an exchange sends each rank as many bytes as that asked for, and a conversion converts as many. What is behind the count is the
 * program's, and stays as it was: such a read lands elsewhere, in memory of the same layout, and what was found goes on from there. */
#include <stdlib.h>
#include <string.h>

#include "dafs_glue.h"

/* To copy so many bytes takes less time than to ask the server for the last one. */
#define SPAN_COPIED_MAX ((uint64_t)128 * 1024)

uint64_t dafs_span(int count, int64_t true_lb, int64_t true_extent, int64_t extent, int64_t *low)
{
    int64_t others = (count - 1) * extent;

    *low = true_lb + (others < 0 ? others : 0);
    return (uint64_t)(true_extent + (others < 0 ? -others : others));
}

bool dafs_may_come_short(struct dafs_file *file, const adio_dafs_view *view, uint64_t position, uint64_t bytes, uint64_t span)
{
    uint64_t last = 0;
    int reaches = 0;

    if (bytes == 0)
        return false;
    if (span <= SPAN_COPIED_MAX || !view)
        return true;
    if (adio_dafs_view_offset(view, position + bytes - 1, &last) != ADIO_DAFS_OK)
        return true;
    return adio_dafs_reaches(file->handle, last, &reaches) != ADIO_DAFS_OK || !reaches;
}

void *dafs_landing_begin(struct dafs_landing *landing, void *buf, int64_t low, uint64_t span)
{
    landing->memory = malloc(span ? span : 1);
    landing->low = low;
    landing->buf = buf;
    /* What the types of MPI count from, which need not be in that memory. */
    return landing->memory ? (void *)((uintptr_t)landing->memory - (uintptr_t)low) : NULL;
}

void dafs_landing_end(struct dafs_landing *landing, const adio_dafs_memory *memory, uint64_t found)
{
    const adio_dafs_type *type = &memory->type;
    uintptr_t to = (uintptr_t)memory->base, lowest = (uintptr_t)landing->buf + (uintptr_t)landing->low;

    for (uint64_t i = 0; landing->memory && i < memory->count && found; i++) {
        for (size_t block = 0; block < type->count && found; block++) {
            uint64_t len = (uint64_t)type->lens[block] < found ? (uint64_t)type->lens[block] : found;
            uintptr_t place = to + (uintptr_t)type->offsets[block];

            memcpy((void *)place, (char *)landing->memory + (place - lowest), len);
            found -= len;
        }
        to += (uintptr_t)type->extent;
    }
    free(landing->memory);
    landing->memory = NULL;
}
