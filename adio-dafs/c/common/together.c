/* What the ranks of a communicator do together: open, close, and end a collective call with one outcome. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dafs_glue.h"

/* The amodes are handed over as they are. */
_Static_assert(MPI_MODE_CREATE == ADIO_DAFS_CREATE && MPI_MODE_RDONLY == ADIO_DAFS_RDONLY, "amode");
_Static_assert(MPI_MODE_WRONLY == ADIO_DAFS_WRONLY && MPI_MODE_RDWR == ADIO_DAFS_RDWR, "amode");
_Static_assert(MPI_MODE_DELETE_ON_CLOSE == ADIO_DAFS_DELETE_ON_CLOSE && MPI_MODE_UNIQUE_OPEN == ADIO_DAFS_UNIQUE_OPEN, "amode");
_Static_assert(MPI_MODE_EXCL == ADIO_DAFS_EXCL && MPI_MODE_APPEND == ADIO_DAFS_APPEND, "amode");
_Static_assert(MPI_MODE_SEQUENTIAL == ADIO_DAFS_SEQUENTIAL, "amode");

/* What the first rank tells the others; the ticket follows. */
struct invitation {
    int class;
    /* The amode that the file was opened with. */
    int used_amode;
    uint64_t serial;
    uint64_t ticket_len;
};

/* What the ranks agree on after an open. Each value is the largest of any rank. */
enum { OPEN_CLASS, OPEN_LOWEST_FAILED, OPEN_TWO_PHASE, OPEN_VALUES };

/* Both exchanges of the MPI library read what they are about to write in part, so a file that is only written is opened for both.
 * Where that is not allowed, it is opened as asked. */
static int open_first(const struct dafs_opening *opening, struct dafs_file *file, int *used_amode)
{
    const struct dafs_hints *hints = opening->hints;
    int amode = opening->amode;
    int status;

    if (amode & MPI_MODE_WRONLY)
        amode = (amode & ~MPI_MODE_WRONLY) | MPI_MODE_RDWR;
    /* Sequential access is for one direction by MPI's rules, and shared pointers never read to write. */
    if (opening->amode & MPI_MODE_SEQUENTIAL)
        amode = opening->amode;
    status = adio_dafs_open(opening->name, amode, -1, opening->size, hints->list, hints->count, &file->handle);
    if (status == ADIO_DAFS_ERR_ACCESS && amode != opening->amode) {
        amode = opening->amode;
        status = adio_dafs_open(opening->name, amode, -1, opening->size, hints->list, hints->count, &file->handle);
    }
    *used_amode = amode;
    return status;
}

static uint64_t next_serial(void)
{
    static atomic_uint_least32_t count;

    return (uint64_t)getpid() << 32 | atomic_fetch_add(&count, 1);
}

/* The first rank opens the file and makes a ticket for the others. */
static void open_and_invite(const struct dafs_opening *opening, struct dafs_file *file, struct invitation *invitation, void *ticket)
{
    size_t len = 0;
    int status = open_first(opening, file, &invitation->used_amode);

    if (status == ADIO_DAFS_OK && opening->size > 1) {
        status = adio_dafs_share(file->handle, ticket, ADIO_DAFS_TICKET_SIZE_MAX, &len);
        if (status != ADIO_DAFS_OK) {
            dafs_report(status);
            adio_dafs_close(file->handle);
            file->handle = NULL;
        }
    } else {
        dafs_report(status);
    }
    invitation->class = dafs_class(status);
    invitation->serial = next_serial();
    invitation->ticket_len = len;
}

static int give_up(struct dafs_file *file, int class)
{
    if (file->handle)
        adio_dafs_close(file->handle);
    file->handle = NULL;
    return class;
}

/* All ranks say how it went; where any failed, all give up what they have. */
static int agree_on_open(const struct dafs_opening *opening, struct dafs_file *file, int status, int class)
{
    char words[DAFS_WORDS_SIZE];
    int64_t values[OPEN_VALUES];
    int talk;

    dafs_keep_words(words);
    if (file->handle)
        file->independent = dafs_asks_for_independent(file);
    values[OPEN_CLASS] = class;
    values[OPEN_LOWEST_FAILED] = class == MPI_SUCCESS ? 0 : opening->size - opening->rank;
    values[OPEN_TWO_PHASE] = !file->independent;
    talk = dafs_max(opening->comm, values, OPEN_VALUES);
    if (talk != MPI_SUCCESS)
        values[OPEN_CLASS] = talk;
    if (values[OPEN_CLASS] == MPI_SUCCESS) {
        file->independent = !values[OPEN_TWO_PHASE];
        return MPI_SUCCESS;
    }
    /* The class alone does not say how a file can be missing that the first rank has open. */
    if (status != ADIO_DAFS_OK && values[OPEN_LOWEST_FAILED] == opening->size - opening->rank)
        fprintf(stderr, "adio-dafs: %s\n", words);
    return give_up(file, (int)values[OPEN_CLASS]);
}

int dafs_open_together(const struct dafs_opening *opening, struct dafs_file *file)
{
    struct invitation invitation = {0};
    const struct dafs_hints *hints = opening->hints;
    int status = ADIO_DAFS_OK;
    int class;
    char ticket[ADIO_DAFS_TICKET_SIZE_MAX];

    invitation.class = opening->class;
    if (opening->rank == 0 && opening->class == MPI_SUCCESS)
        open_and_invite(opening, file, &invitation, ticket);
    class = dafs_bcast(opening->comm, &invitation, sizeof invitation);
    if (class == MPI_SUCCESS)
        class = invitation.class;
    if (class != MPI_SUCCESS)
        return give_up(file, class);
    file->serial = invitation.serial;
    if (opening->size == 1)
        return agree_on_open(opening, file, status, class);
    class = dafs_bcast(opening->comm, ticket, invitation.ticket_len);
    if (class == MPI_SUCCESS)
        class = opening->class;
    if (class == MPI_SUCCESS && opening->rank != 0) {
        status = adio_dafs_join(opening->name, invitation.used_amode, opening->size, ticket, invitation.ticket_len, hints->list,
                                hints->count, &file->handle);
        class = dafs_class(status);
    }
    return agree_on_open(opening, file, status, class);
}

int dafs_claimed_by_some(const char *name, int rank)
{
    if (rank == 0)
        fprintf(stderr, "adio-dafs: cannot open %s: only some ranks have it on dafs; give all of them the same DAFS_MPI_PREFIX\n", name);
    return MPI_ERR_NOT_SAME;
}

/* The first rank says what the hint dafs_explain asks for, with the counters of all, and removes a shared file pointer, which nobody uses
 * any more when all are here. */
static void explain(struct dafs_file *file, MPI_Comm comm, int rank)
{
    uint64_t values[ADIO_DAFS_COUNTERS_MAX + 1] = {0};
    uint64_t *pointer_used = &values[ADIO_DAFS_COUNTERS_MAX];
    const size_t capacity = 64 * 1024;
    size_t count = 0, len = 0;
    char *text;

    adio_dafs_counters(file->handle, values, ADIO_DAFS_COUNTERS_MAX, &count);
    *pointer_used = (uint64_t)adio_dafs_pointer_used(file->handle);
    if (dafs_sum_at_first(comm, rank, values, ADIO_DAFS_COUNTERS_MAX + 1) != MPI_SUCCESS || rank != 0)
        return;
    if (*pointer_used)
        dafs_report(adio_dafs_pointer_remove(file->handle));
    text = malloc(capacity);
    if (text && adio_dafs_explain(file->handle, values, count, text, capacity, &len) == ADIO_DAFS_OK && len > 0)
        fputs(text, stderr);
    free(text);
}

/* The first rank removes the file, once all have closed it. */
static int remove_together(MPI_Comm comm, int rank, adio_dafs_place *place)
{
    int status = rank == 0 ? adio_dafs_place_remove(place) : ADIO_DAFS_OK;

    dafs_report(status);
    return dafs_share_class(comm, dafs_class(status));
}

/* The ranks agree on how their last calls ended; one that failed tells it, unless that was told. Collective. */
static int agree_on_last(MPI_Comm comm, int rank, int status, bool is_told)
{
    enum { CLASS, LOWEST_FAILED, VALUES };
    char words[DAFS_WORDS_SIZE];
    int64_t values[VALUES];
    int talk;

    dafs_keep_words(words);
    values[CLASS] = dafs_class(status);
    values[LOWEST_FAILED] = status == ADIO_DAFS_OK ? 0 : INT_MAX - rank;
    talk = dafs_max(comm, values, VALUES);
    if (talk == MPI_SUCCESS && !is_told && values[LOWEST_FAILED] == INT_MAX - rank)
        fprintf(stderr, "adio-dafs: %s\n", words);
    return talk != MPI_SUCCESS ? talk : (int)values[CLASS];
}

int dafs_finish_together(struct dafs_file *file, MPI_Comm comm, int rank)
{
    int class = agree_on_last(comm, rank, adio_dafs_finish(file->handle), false);

    file->finish_failed = class != MPI_SUCCESS;
    return class;
}

/* Open MPI's MPI_File_close() returns success whatever we say, so one rank that failed tells it. */
int dafs_close_together(struct dafs_file *file, MPI_Comm comm, int rank, bool removes)
{
    adio_dafs_place *place = NULL;
    int class, removal = MPI_SUCCESS;

    explain(file, comm, rank);
    if (removes && rank == 0)
        adio_dafs_place_of(file->handle, &place);
    class = agree_on_last(comm, rank, adio_dafs_close(file->handle), file->finish_failed);
    file->handle = NULL;
    if (removes)
        removal = remove_together(comm, rank, place);
    return class != MPI_SUCCESS ? class : removal;
}

void dafs_note_collective(struct dafs_file *file, int direction, const char *exchanged_by, const char *why)
{
    if (exchanged_by) {
        adio_dafs_collective(file->handle, direction, ADIO_DAFS_EXCHANGED, exchanged_by);
        return;
    }
    if (!why && file->atomic)
        why = "atomic mode";
    else if (!why)
        why = file->independent ? "dafs_collective says so" : "a view has data in another order than the file";
    adio_dafs_collective(file->handle, direction, ADIO_DAFS_ALONE, why);
}

int dafs_settle(struct dafs_file *file, bool collective, int status, uint64_t wanted, uint64_t *moved)
{
    int none = MPI_SUCCESS;

    if (status == ADIO_DAFS_OK)
        return MPI_SUCCESS;
    dafs_tell(file, status);
    if (!collective)
        return dafs_class(status);
    atomic_compare_exchange_strong(&file->error, &none, dafs_class(status));
    *moved = wanted;
    return MPI_SUCCESS;
}

/* The first byte of the file that a transfer asks for behind those that moved. Where pieces have gaps between them the end may be within
 * the gap, which none asks for. */
static uint64_t first_not_moved(const adio_dafs_transfer *transfer, uint64_t moved)
{
    uint64_t offset;

    if (!transfer->segments)
        return adio_dafs_view_offset(transfer->view, transfer->position + moved, &offset) == ADIO_DAFS_OK ? offset : DAFS_NO_END;
    for (size_t i = 0; i < transfer->segment_count; i++) {
        const adio_dafs_segment *piece = &transfer->segments[i];

        if (moved < piece->len)
            return piece->offset + moved;
        moved -= piece->len;
    }
    return DAFS_NO_END;
}

/* Keeps where a short read found the end: what an exchange reads is for other ranks too, each of which asks for bytes of its own. */
static void keep_end(struct dafs_file *file, const adio_dafs_transfer *transfer, uint64_t moved)
{
    uint64_t end = first_not_moved(transfer, moved);

    if (end < file->end)
        file->end = end;
}

/* An exchange reads a window to write it back, gaps and all. Behind the end of the file these become zeros, not what memory held. */
static void clear_rest(const adio_dafs_transfer *transfer, uint64_t moved)
{
    for (size_t i = 0; transfer->segments && i < transfer->segment_count; i++) {
        const adio_dafs_segment *piece = &transfer->segments[i];
        uint64_t there = moved < piece->len ? moved : piece->len;

        memset((char *)piece->memory + there, 0, piece->len - there);
        moved -= there;
    }
}

/* A successful read in a collective call came short. */
static void on_end(struct dafs_file *file, const adio_dafs_transfer *transfer, uint64_t moved)
{
    keep_end(file, transfer, moved);
    if (file->collective == DAFS_CALL_WRITE)
        clear_rest(transfer, moved);
}

int dafs_transfer(struct dafs_file *file, const adio_dafs_transfer *transfer, uint64_t wanted, uint64_t *moved)
{
    int status;

    /* The call fails anyway: waiting for a server once is enough. */
    if (file->collective && atomic_load(&file->error) != MPI_SUCCESS) {
        *moved = wanted;
        return MPI_SUCCESS;
    }
    status = adio_dafs_transfer_run(file->handle, transfer, moved);
    if (file->collective && status == ADIO_DAFS_OK && transfer->direction == ADIO_DAFS_READ && *moved < wanted)
        on_end(file, transfer, *moved);
    return dafs_settle(file, file->collective, status, wanted, moved);
}

int dafs_take_error(struct dafs_file *file)
{
    return atomic_exchange(&file->error, MPI_SUCCESS);
}

int dafs_agree(struct dafs_file *file, MPI_Comm comm, int error, uint64_t *end)
{
    /* Offsets are below 2^63, and the smallest is the largest below 0. */
    int64_t values[2] = {error, file->end == DAFS_NO_END ? INT64_MIN : -(int64_t)file->end};
    int talk = dafs_max(comm, values, 2);

    *end = values[1] == INT64_MIN ? DAFS_NO_END : (uint64_t)-values[1];
    return talk != MPI_SUCCESS ? talk : (int)values[0];
}

uint64_t dafs_bytes_before(const adio_dafs_view *view, uint64_t end, uint64_t position, uint64_t wanted)
{
    uint64_t before = 0;

    adio_dafs_view_position(view, end, &before);
    if (before <= position)
        return 0;
    return before - position < wanted ? before - position : wanted;
}

int dafs_act_by_first(struct dafs_file *file, MPI_Comm comm, int rank, int64_t size, int (*act)(adio_dafs_file *, uint64_t))
{
    int64_t first = size;
    int class = dafs_bcast(comm, &first, sizeof first);

    if (class == MPI_SUCCESS && first != size)
        class = MPI_ERR_NOT_SAME;
    if (class == MPI_SUCCESS && size < 0)
        class = MPI_ERR_ARG;
    /* Nothing is done that some ranks did not ask for. */
    class = dafs_max_class(comm, class);
    if (class != MPI_SUCCESS)
        return class;
    if (rank == 0)
        class = dafs_tell(file, act(file->handle, (uint64_t)size));
    return dafs_share_class(comm, class);
}

int dafs_share_class(MPI_Comm comm, int class)
{
    int talk = dafs_bcast(comm, &class, sizeof class);

    return talk != MPI_SUCCESS ? talk : class;
}

int dafs_max_class(MPI_Comm comm, int class)
{
    int64_t largest = class;
    int talk = dafs_max(comm, &largest, 1);

    return talk != MPI_SUCCESS ? talk : (int)largest;
}

int dafs_set_atomic(struct dafs_file *file, MPI_Comm comm, int flag)
{
    int first = flag;
    int status = ADIO_DAFS_OK;
    int class = dafs_bcast(comm, &first, sizeof first);

    if (class == MPI_SUCCESS && !first != !flag)
        class = MPI_ERR_NOT_SAME;
    /* On all ranks or none; transfers of the mode before have then begun. */
    class = dafs_max_class(comm, class);
    if (class != MPI_SUCCESS)
        return class;
    status = adio_dafs_set_atomic(file->handle, flag);
    dafs_report(status);
    class = dafs_max_class(comm, dafs_class(status));
    if (class == MPI_SUCCESS)
        file->atomic = flag != 0;
    else if (flag && !file->atomic)
        adio_dafs_set_atomic(file->handle, 0);
    return class;
}

static bool is_representation(const struct dafs_view_asked *asked)
{
    static const char *const known[] = {"native", "NATIVE", "external32", "EXTERNAL32", "internal", "INTERNAL"};
    size_t count = asked->knows_internal ? 6 : 4;

    for (size_t i = 0; asked->datarep && i < count; i++) {
        if (strcmp(asked->datarep, known[i]) == 0)
            return true;
    }
    return false;
}

int dafs_check_view(MPI_Comm comm, int amode, const struct dafs_view_asked *asked)
{
    bool sequential = amode & MPI_MODE_SEQUENTIAL, current = asked->displacement == MPI_DISPLACEMENT_CURRENT;
    int class = MPI_SUCCESS;

    /* A sequential file has no other place than the present one, and others have no present one for all. */
    if (sequential != current || (asked->displacement < 0 && !current))
        class = MPI_ERR_ARG;
    else if (asked->etype_size == 0 || asked->filetype_size % asked->etype_size != 0)
        class = MPI_ERR_ARG;
    /* As OMPIO says of a local file, and as the test suites of ROMIO want it. */
    else if (asked->begins_before)
        class = MPI_ERR_IO;
    else if (!is_representation(asked))
        class = MPI_ERR_UNSUPPORTED_DATAREP;
    return dafs_max_class(comm, class);
}

/* The blocks of a tile ascend, and each tile begins behind the one before it. */
static bool is_ordered(const adio_dafs_type *of)
{
    int64_t first = INT64_MAX, end = INT64_MIN;

    for (size_t i = 0; i < of->count; i++) {
        if (of->lens[i] == 0)
            continue;
        if (of->offsets[i] < end)
            return false;
        if (end == INT64_MIN)
            first = of->offsets[i];
        end = of->offsets[i] + of->lens[i];
    }
    return end == INT64_MIN || end - first <= of->extent;
}

int dafs_set_view(struct dafs_file *file, MPI_Comm comm, const adio_dafs_view *view, int class)
{
    enum { CLASS, TWO_PHASE, DISORDERED, VALUES };
    int64_t values[VALUES];
    int status, talk;

    /* On every rank: the shared pointer counts the views. */
    file->pointer_begin = 0;
    adio_dafs_pointer_begin(file->handle, 0);
    if (class == MPI_SUCCESS) {
        status = adio_dafs_view_set(file->handle, view);
        dafs_report(status);
        class = dafs_class(status);
    }
    values[CLASS] = class;
    values[TWO_PHASE] = !dafs_asks_for_independent(file);
    values[DISORDERED] = view && !is_ordered(&view->type);
    talk = dafs_max(comm, values, VALUES);
    if (talk != MPI_SUCCESS)
        return talk;
    file->independent = !values[TWO_PHASE];
    file->disordered = values[DISORDERED];
    return (int)values[CLASS];
}

int dafs_begin_at_end(struct dafs_file *file, MPI_Comm comm, int rank, uint64_t *size)
{
    struct {
        uint64_t size;
        int class;
    } end = {0, MPI_SUCCESS};
    int talk;

    if (rank == 0)
        end.class = dafs_tell(file, adio_dafs_size(file->handle, &end.size));
    talk = dafs_bcast(comm, &end, sizeof end);
    if (talk != MPI_SUCCESS || end.class != MPI_SUCCESS)
        return talk != MPI_SUCCESS ? talk : end.class;
    *size = file->pointer_begin = end.size;
    adio_dafs_pointer_begin(file->handle, end.size);
    return MPI_SUCCESS;
}
