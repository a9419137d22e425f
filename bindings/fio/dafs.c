/* An engine for fio(1) that reads and writes files of dafs servers: ioengine=external:/path/of/dafs-fio.so
 *
 * It is compiled against fio's own headers, which are under the GPL version 2, and so what is compiled is too: README.md. What fio asks
 * of an engine is in its ioengines.h. In short:
 *
 *   setup, prepopulate_file    in fio's first process, before jobs are forked: sessions that end before they return
 *   init … cleanup             in the process, or the thread, of a job: its session
 *   queue, getevents, event    an operation begins; operations end; which they were
 *
 * Jobs of depth 1 use blocking calls, as an engine of fio's that is synchronous. The others use nonblocking ones, and sleep on the
 * descriptor of their session.
 */
#include <config-host.h>

#include <fio.h>
#include <optgroup.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <dafs.h>

/* fio compares this number alone, and 31 is what this file was written for. */
#if FIO_IOOPS_VERSION != 31
#error "this engine knows engines of version 31, as those of fio 3.30 to 3.36: FIO_IOOPS_VERSION in fio's ioengines.h"
#endif

#ifndef DAFS_FIO_VERSION
#error "DAFS_FIO_VERSION says which fio this is compiled for, in the words of fio --version: cargo xtask fio install"
#endif

enum { CREDITS_MIN = 64, CREDITS_MAX = 4096, LAYOUT_SIZE = 1 << 20 };

/* fio finds options by their offset, and 0 is none. */
struct dafs_fio_options {
    void *unused;
    char *url;
    char *key_file;
    char *method;
    unsigned int registered;
};

/* A file of a job. */
struct dafs_fio_file {
    int64_t handle;
};

/* An operation: of an io_u, which keeps it as long as fio keeps that. */
struct dafs_fio_op {
    struct dafs_op op;
    struct io_u *io_u;
    /* What went wrong, for errdetails(). */
    char *words;
};

/* Where to find things: an export, and a directory in it. */
struct dafs_fio_place {
    char *export_name;
    /* Below the export, without slashes at its ends; may be empty. */
    char *directory;
};

/* A job, in the process that runs it. */
struct dafs_fio_job {
    int64_t session;
    int64_t root;
    int fd;
    struct dafs_fio_place place;
    /* What has ended, for event(). */
    struct io_u **ended;
    /* Operations in flight, by number: open addressing, at most half full. */
    struct dafs_fio_op **in_flight;
    size_t in_flight_mask;
    unsigned int in_flight_count;
    /* Memory of iomem_alloc() that is not dafs_alloc()'s, bytes. */
    size_t mapped;
};

extern struct ioengine_ops ioengine;

static struct fio_option options[] = {
    {
        .name = "url",
        .lname = "address of the export",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct dafs_fio_options, url),
        .help = "dafs://host/export, dafs+tcp://host:port/export, dafs+shm:///path/of/socket:/export; a directory in it may follow",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "key_file",
        .lname = "key of the client",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct dafs_fio_options, key_file),
        .help = "A file with the pre-shared key of this client, where the server demands one",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "method",
        .lname = "transfer method",
        .type = FIO_OPT_STR_STORE,
        .off1 = offsetof(struct dafs_fio_options, method),
        .help = "How data travels: auto, inline, direct, bounced, eager, client-initiated or hybrid",
        .def = "auto",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = "registered",
        .lname = "registered buffers",
        .type = FIO_OPT_BOOL,
        .off1 = offsetof(struct dafs_fio_options, registered),
        .help = "Buffers are memory that stays registered with the network; 0: ordinary memory",
        .def = "1",
        .category = FIO_OPT_C_ENGINE,
        .group = FIO_OPT_G_INVALID,
    },
    {
        .name = NULL,
    },
};

/* Says what could not be done, with the words of the library, which mostly say that too; its errno. */
static int failed(const char *verb, const char *object) {
    int error = errno;
    const char *words = dafs_error();
    if (strncmp(words, "cannot ", strlen("cannot ")) == 0)
        log_err("dafs: %s\n", words);
    else
        log_err("dafs: cannot %s %s: %s\n", verb, object, words);
    return error ? error : EIO;
}

/* Whether the fio that runs is the one whose headers these are: another has other structures. */
static bool is_the_right_fio(const struct thread_data *td) {
    const char *version = dlsym(RTLD_DEFAULT, "fio_version_string");
    if (version == NULL || strcmp(version, DAFS_FIO_VERSION) != 0) {
        log_err("dafs: cannot run in %s: this engine was compiled for %s; build it for this fio with cargo xtask fio install\n",
                version ? version : "a fio without a version", DAFS_FIO_VERSION);
        return false;
    }
    /* The same version, configured otherwise: what is read here is elsewhere then. */
    if (td->io_ops != &ioengine) {
        log_err("dafs: cannot run in this fio: its structures differ from those of Debian's " DAFS_FIO_VERSION "; "
                "build the engine from the source of this fio with cargo xtask fio install --source\n");
        return false;
    }
    return true;
}

/* Divides a URL; 0, or errno and words. */
static int place_of(const char *url, struct dafs_fio_place *place) {
    const char *tail = url ? strstr(url, "://") : NULL;
    if (tail != NULL) {
        tail += strlen("://");
        /* The path of a socket has slashes, and ends with a colon. */
        bool is_socket = strncasecmp(url, "dafs+shm://", strlen("dafs+shm://")) == 0;
        tail = strchr(tail, is_socket ? ':' : '/');
        if (tail != NULL && is_socket)
            tail++;
    }
    while (tail != NULL && *tail == '/')
        tail++;
    if (tail == NULL || *tail == 0) {
        log_err("dafs: cannot find the export: %s; write url=dafs://host/export or url=dafs+shm:///path/of/socket:/export\n",
                url ? "the url names none" : "there is no url");
        return EINVAL;
    }
    size_t name = strcspn(tail, "/");
    const char *directory = tail + name + strspn(tail + name, "/");
    place->export_name = strndup(tail, name);
    place->directory = strdup(directory);
    if (place->export_name == NULL || place->directory == NULL)
        return ENOMEM;
    for (size_t end = strlen(place->directory); end > 0 && place->directory[end - 1] == '/'; end--)
        place->directory[end - 1] = 0;
    return 0;
}

static void forget_place(struct dafs_fio_place *place) {
    free(place->export_name);
    free(place->directory);
}

/* The path of a file below its export, in memory of its own. */
static char *path_of(const struct dafs_fio_place *place, const struct fio_file *f) {
    const char *name = f->file_name + strspn(f->file_name, "/");
    char *path = NULL;
    if (asprintf(&path, "%s%s%s", place->directory, place->directory[0] ? "/" : "", name) < 0)
        return NULL;
    return path;
}

/* Opens a session and its export; 0, or errno and words. */
static int begin(struct thread_data *td, bool is_job, struct dafs_fio_job *job) {
    const struct dafs_fio_options *o = td->eo;
    char name[64];
    snprintf(name, sizeof name, "fio %s", td->o.name ? td->o.name : "");
    int error = place_of(o->url, &job->place);
    if (error)
        return error;
    struct dafs_options settings = DAFS_OPTIONS_INIT;
    settings.credits = td->o.iodepth < CREDITS_MIN ? CREDITS_MIN : td->o.iodepth;
    if (settings.credits > CREDITS_MAX)
        settings.credits = CREDITS_MAX;
    settings.client_name = name;
    settings.key_file = o->key_file;
    settings.method = o->method;
    /* No thread may be left where fio is about to fork. */
    settings.background = is_job ? DAFS_BACKGROUND_DEFAULT : DAFS_BACKGROUND_NONE;
    job->session = dafs_connect(o->url, &settings);
    if (job->session < 0)
        return failed("connect to", o->url);
    job->root = dafs_mount(job->session, job->place.export_name);
    if (job->root < 0)
        return failed("mount", job->place.export_name);
    return 0;
}

static void end(struct dafs_fio_job *job) {
    if (job->root > 0)
        dafs_close(job->root);
    if (job->session > 0)
        dafs_disconnect(job->session);
    forget_place(&job->place);
    *job = (struct dafs_fio_job){0};
}

/* Makes the directories of a path. */
static void make_directories(const struct dafs_fio_job *job, char *path) {
    for (char *at = strchr(path, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = 0;
        dafs_mkdirat(job->root, path, 0777);
        *at = '/';
    }
}

static int find_size(const struct dafs_fio_job *job, struct fio_file *f) {
    char *path = path_of(&job->place, f);
    struct stat found;
    int error = 0;
    if (path == NULL)
        return ENOMEM;
    f->filetype = FIO_TYPE_FILE;
    f->real_file_size = 0;
    if (dafs_fstatat(job->root, path, &found, 0) == 0) {
        if (S_ISREG(found.st_mode)) {
            f->real_file_size = (uint64_t)found.st_size;
        } else {
            log_err("dafs: cannot use %s: it is no regular file\n", path);
            error = EINVAL;
        }
    } else if (errno != ENOENT) {
        error = failed("look at", path);
    }
    free(path);
    return error;
}

/* In fio's first process: how large the files are. */
static int setup(struct thread_data *td) {
    struct dafs_fio_job job = {0};
    struct fio_file *f;
    unsigned int i;
    if (!is_the_right_fio(td)) {
        td_verror(td, EINVAL, "dafs");
        return 1;
    }
    int error = begin(td, false, &job);
    for_each_file(td, f, i) {
        if (!error)
            error = find_size(&job, f);
    }
    end(&job);
    if (error)
        td_verror(td, error, "dafs setup");
    return error != 0;
}

/* Writes what fio writes where a file is laid out, up to a size. */
static int lay_out(struct thread_data *td, int64_t file, uint64_t from, uint64_t to, const char *path) {
    char *data = malloc(LAYOUT_SIZE);
    int error = data == NULL ? ENOMEM : 0;
    while (!error && from < to && !td->terminate) {
        size_t count = to - from < LAYOUT_SIZE ? to - from : LAYOUT_SIZE;
        fill_io_buffer(td, data, count, count);
        ptrdiff_t written = dafs_pwrite(file, data, count, (int64_t)from);
        if (written <= 0)
            error = failed("lay out", path);
        else
            from += (uint64_t)written;
    }
    if (!error && td->o.create_fsync && dafs_fsync(file) < 0)
        error = failed("sync", path);
    free(data);
    return error;
}

/* In fio's first process: a file that is shorter than the job wants is written, if it is to be read, or else made. */
static int prepopulate_file(struct thread_data *td, struct fio_file *f) {
    uint64_t wanted = f->file_offset + f->io_size, size = f->real_file_size;
    if (size >= wanted)
        return 0;
    if (read_only || (!td->o.allow_create && size == 0)) {
        log_err("dafs: cannot make %s: %s\n", f->file_name, read_only ? "fio is to write nothing" : "allow_file_create=0");
        return 1;
    }
    struct dafs_fio_job job = {0};
    int error = begin(td, false, &job);
    char *path = error ? NULL : path_of(&job.place, f);
    if (!error && path == NULL)
        error = ENOMEM;
    if (!error) {
        make_directories(&job, path);
        int64_t file = dafs_openat(job.root, path, O_WRONLY | O_CREAT, 0644);
        if (file < 0)
            error = failed("make", path);
        else if (td_read(td) || td_trim(td) || td->o.overwrite)
            error = lay_out(td, file, size, wanted, path);
        if (file >= 0)
            dafs_close(file);
    }
    free(path);
    end(&job);
    f->real_file_size = wanted;
    if (error)
        td_verror(td, error, "dafs layout");
    return error != 0;
}

/* In the process, or the thread, of the job. */
static int init(struct thread_data *td) {
    struct dafs_fio_job *job = calloc(1, sizeof *job);
    int error = job == NULL ? ENOMEM : begin(td, true, job);
    size_t slots = 16;
    while (slots < 2 * (size_t)td->o.iodepth)
        slots *= 2;
    if (!error) {
        td->io_ops_data = job;
        job->fd = -1;
        job->in_flight_mask = slots - 1;
        job->in_flight = calloc(slots, sizeof *job->in_flight);
        job->ended = calloc(td->o.iodepth, sizeof *job->ended);
        error = job->in_flight == NULL || job->ended == NULL ? ENOMEM : 0;
    } else if (job != NULL) {
        end(job);
        free(job);
    }
    if (!error && td->o.iodepth == 1) {
        /* queue() returns when the operation has ended, and times are to be taken so. */
        td->flags |= (unsigned long long)FIO_SYNCIO << TD_ENG_FLAG_SHIFT;
    } else if (!error) {
        job->fd = dafs_session_fd(job->session);
        error = job->fd < 0 ? failed("watch", "the session") : 0;
    }
    if (error)
        td_verror(td, error, "dafs init");
    return error != 0;
}

static void cleanup(struct thread_data *td) {
    struct dafs_fio_job *job = td->io_ops_data;
    if (job == NULL)
        return;
    end(job);
    free(job->in_flight);
    free(job->ended);
    free(job);
    td->io_ops_data = NULL;
}

/* Registered memory, or memory by pages. */
static int iomem_alloc(struct thread_data *td, size_t size) {
    struct dafs_fio_job *job = td->io_ops_data;
    const struct dafs_fio_options *o = td->eo;
    if (o->registered) {
        td->orig_buffer = dafs_alloc(job->session, size);
        return td->orig_buffer == NULL ? failed("get", "registered memory") : 0;
    }
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    td->orig_buffer = memory == MAP_FAILED ? NULL : memory;
    job->mapped = size;
    return td->orig_buffer == NULL ? errno : 0;
}

static void iomem_free(struct thread_data *td) {
    struct dafs_fio_job *job = td->io_ops_data;
    if (td->orig_buffer == NULL)
        return;
    if (job != NULL && job->mapped > 0)
        munmap(td->orig_buffer, job->mapped);
    else
        dafs_free(td->orig_buffer);
}

static int io_u_init(struct thread_data *td, struct io_u *io_u) {
    struct dafs_fio_op *op = calloc(1, sizeof *op);
    (void)td;
    if (op == NULL)
        return ENOMEM;
    op->op = (struct dafs_op)DAFS_OP_INIT;
    op->io_u = io_u;
    io_u->engine_data = op;
    return 0;
}

static void io_u_free(struct thread_data *td, struct io_u *io_u) {
    struct dafs_fio_op *op = io_u->engine_data;
    (void)td;
    if (op == NULL)
        return;
    free(op->words);
    free(op);
    io_u->engine_data = NULL;
}

static void advise(struct thread_data *td, struct fio_file *f, int64_t file) {
    int advice = td_random(td) ? POSIX_FADV_RANDOM : POSIX_FADV_SEQUENTIAL;
    if (td->o.invalidate_cache)
        dafs_fadvise(file, (int64_t)f->file_offset, (int64_t)f->io_size, POSIX_FADV_DONTNEED);
    if (td->o.fadvise_hint == F_ADV_NONE)
        return;
    if (td->o.fadvise_hint == F_ADV_RANDOM)
        advice = POSIX_FADV_RANDOM;
    else if (td->o.fadvise_hint == F_ADV_SEQUENTIAL)
        advice = POSIX_FADV_SEQUENTIAL;
    /* It is advice: a server that has no use for it is no error. */
    dafs_fadvise(file, (int64_t)f->file_offset, (int64_t)f->io_size, advice);
}

static int open_file(struct thread_data *td, struct fio_file *f) {
    const struct dafs_fio_job *job = td->io_ops_data;
    struct dafs_fio_file *file = calloc(1, sizeof *file);
    char *path = path_of(&job->place, f);
    bool writes = td_write(td) || td_trim(td);
    int flags = writes ? (read_only ? O_RDONLY : O_RDWR) : O_RDONLY;
    int error = file == NULL || path == NULL ? ENOMEM : 0;
    if (td->o.odirect)
        flags |= O_DIRECT;
    flags |= td->o.sync_io & (O_SYNC | O_DSYNC);
    /* With unlink_each_loop it is gone. */
    if (writes && !read_only && td->o.allow_create)
        flags |= O_CREAT;
    if (!error) {
        file->handle = dafs_openat(job->root, path, flags, 0644);
        error = file->handle < 0 ? failed("open", path) : 0;
    }
    free(path);
    if (error) {
        free(file);
        td_verror(td, error, "dafs open");
        return 1;
    }
    f->engine_data = file;
    advise(td, f, file->handle);
    return 0;
}

static int close_file(struct thread_data *td, struct fio_file *f) {
    struct dafs_fio_file *file = f->engine_data;
    (void)td;
    if (file != NULL)
        dafs_close(file->handle);
    free(file);
    f->engine_data = NULL;
    return 0;
}

static int unlink_file(struct thread_data *td, struct fio_file *f) {
    const struct dafs_fio_job *job = td->io_ops_data;
    char *path = job ? path_of(&job->place, f) : NULL;
    if (path == NULL)
        return ENOMEM;
    int error = dafs_unlinkat(job->root, path, 0) < 0 ? errno : 0;
    free(path);
    return error;
}

/* setup() has found them. */
static int get_file_size(struct thread_data *td, struct fio_file *f) {
    (void)td;
    fio_file_set_size_known(f);
    return 0;
}

static int invalidate(struct thread_data *td, struct fio_file *f) {
    struct dafs_fio_file *file = f->engine_data;
    (void)td;
    if (file != NULL)
        dafs_fadvise(file->handle, (int64_t)f->file_offset, (int64_t)f->io_size, POSIX_FADV_DONTNEED);
    return 0;
}

/* An operation has ended: what fio wants to know of it. */
static void note(struct dafs_fio_op *op, int64_t result, int error) {
    struct io_u *io_u = op->io_u;
    if (result >= 0) {
        io_u->resid = ddir_rw(io_u->ddir) && io_u->ddir != DDIR_TRIM ? io_u->xfer_buflen - (unsigned long long)result : 0;
        io_u->error = 0;
        return;
    }
    io_u->error = error ? (unsigned int)error : EIO;
    free(op->words);
    op->words = strdup(dafs_error());
}

/* What the library says of the operation that failed; fio prints it in any case, and frees it. */
static char *errdetails(struct io_u *io_u) {
    struct dafs_fio_op *op = io_u->engine_data;
    char *words = op->words;
    op->words = NULL;
    return words != NULL ? words : strdup(strerror((int)io_u->error));
}

static enum fio_q_status run(struct dafs_fio_op *op, int64_t file) {
    struct io_u *io_u = op->io_u;
    int64_t offset = (int64_t)io_u->offset, result = -1;
    errno = EINVAL;
    switch (io_u->ddir) {
    case DDIR_READ:
        result = dafs_pread(file, io_u->xfer_buf, io_u->xfer_buflen, offset);
        break;
    case DDIR_WRITE:
        result = dafs_pwrite(file, io_u->xfer_buf, io_u->xfer_buflen, offset);
        break;
    case DDIR_TRIM:
        result = dafs_fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, (int64_t)io_u->xfer_buflen);
        break;
    case DDIR_SYNC:
        result = dafs_fsync(file);
        break;
    case DDIR_DATASYNC:
    case DDIR_SYNC_FILE_RANGE:
        result = dafs_fdatasync(file);
        break;
    default:
        break;
    }
    note(op, result, errno);
    return FIO_Q_COMPLETED;
}

static size_t slot_of(const struct dafs_fio_job *job, uint64_t id) {
    return (size_t)(id * 0x9e3779b97f4a7c15u >> 32) & job->in_flight_mask;
}

static void remember(struct dafs_fio_job *job, struct dafs_fio_op *op) {
    size_t at = slot_of(job, op->op.id);
    while (job->in_flight[at] != NULL)
        at = (at + 1) & job->in_flight_mask;
    job->in_flight[at] = op;
    job->in_flight_count++;
}

/* Takes an operation out, by its number; NULL where there is none. */
static struct dafs_fio_op *recall(struct dafs_fio_job *job, uint64_t id) {
    size_t at = slot_of(job, id), mask = job->in_flight_mask;
    while (job->in_flight[at] != NULL && job->in_flight[at]->op.id != id)
        at = (at + 1) & mask;
    struct dafs_fio_op *found = job->in_flight[at];
    if (found == NULL)
        return NULL;
    /* Those behind it move up, as far as they may. */
    size_t hole = at;
    for (size_t next = (at + 1) & mask; job->in_flight[next] != NULL; next = (next + 1) & mask) {
        size_t home = slot_of(job, job->in_flight[next]->op.id);
        if (((next - home) & mask) >= ((next - hole) & mask)) {
            job->in_flight[hole] = job->in_flight[next];
            hole = next;
        }
    }
    job->in_flight[hole] = NULL;
    job->in_flight_count--;
    return found;
}

static enum fio_q_status queue(struct thread_data *td, struct io_u *io_u) {
    struct dafs_fio_job *job = td->io_ops_data;
    struct dafs_fio_op *op = io_u->engine_data;
    struct dafs_fio_file *file = io_u->file->engine_data;
    int64_t offset = (int64_t)io_u->offset;
    int begun;
    fio_ro_check(td, io_u);
    if (td->o.iodepth == 1)
        return run(op, file->handle);
    if (io_u->ddir == DDIR_READ)
        begun = dafs_submit_pread(file->handle, io_u->xfer_buf, io_u->xfer_buflen, offset, &op->op);
    else if (io_u->ddir == DDIR_WRITE)
        begun = dafs_submit_pwrite(file->handle, io_u->xfer_buf, io_u->xfer_buflen, offset, &op->op);
    else if (io_u->ddir == DDIR_SYNC)
        begun = dafs_submit_fsync(file->handle, &op->op);
    else
        return run(op, file->handle);
    if (begun < 0) {
        note(op, -1, errno);
        return FIO_Q_COMPLETED;
    }
    if (op->op.id == 0) {
        /* It ended before it was sent, and nothing else will tell. */
        int64_t result = dafs_wait(&op->op);
        note(op, result, op->op.error);
        return FIO_Q_COMPLETED;
    }
    remember(job, op);
    return FIO_Q_QUEUED;
}

/* Takes what has ended, up to so many in all; how many there are. */
static unsigned int take_ended(struct dafs_fio_job *job, unsigned int count, unsigned int max) {
    uint64_t id;
    while (count < max && dafs_next(job->session, &id) == 1) {
        struct dafs_fio_op *op = recall(job, id);
        if (op == NULL)
            continue;
        int64_t result = dafs_wait(&op->op);
        note(op, result, op->op.error);
        job->ended[count++] = op->io_u;
    }
    return count;
}

/* Milliseconds until a moment, rounded up. */
static int rest_ms(const struct timespec *until) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int64_t ms = (until->tv_sec - now.tv_sec) * 1000 + (until->tv_nsec - now.tv_nsec + 999999) / 1000000;
    return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

static int getevents(struct thread_data *td, unsigned int min, unsigned int max, const struct timespec *timeout) {
    struct dafs_fio_job *job = td->io_ops_data;
    struct timespec until = {0};
    if (timeout != NULL) {
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += timeout->tv_sec + (until.tv_nsec + timeout->tv_nsec) / 1000000000;
        until.tv_nsec = (until.tv_nsec + timeout->tv_nsec) % 1000000000;
    }
    /* What has ended already needs no turn. fio mostly asks for one at a time and begins one in its place: those leave together, in the
     * turn after the last, where each sending would be a system call. */
    unsigned int count = take_ended(job, 0, max);
    if (count >= min && count > 0)
        return (int)count;
    for (;;) {
        int more = dafs_turn(job->session);
        count = take_ended(job, count, max);
        if (count >= min || more < 0 || job->in_flight_count == 0)
            break;
        int rest = timeout != NULL ? rest_ms(&until) : -1;
        if (rest == 0)
            break;
        if (more == 1)
            continue;
        int armed = dafs_arm(job->session);
        if (armed < 0) {
            failed("watch", "the session");
            return -EIO;
        }
        struct pollfd watched = {.fd = job->fd, .events = POLLIN};
        if (armed == 1 && poll(&watched, 1, rest) < 0 && errno != EINTR)
            return -errno;
        if (armed == 1 && td->terminate && count == 0 && rest >= 0)
            break;
    }
    return (int)count;
}

static struct io_u *event(struct thread_data *td, int number) {
    const struct dafs_fio_job *job = td->io_ops_data;
    return job->ended[number];
}

/* fio does not wait any more: 0 where the operation is over, and its memory fio's again. */
static int cancel(struct thread_data *td, struct io_u *io_u) {
    struct dafs_fio_op *op = io_u->engine_data;
    if (recall(td->io_ops_data, op->op.id) == NULL)
        return EINVAL;
    dafs_cancel(&op->op);
    return 0;
}

__attribute__((visibility("default"))) struct ioengine_ops ioengine = {
    .name = "dafs",
    .version = FIO_IOOPS_VERSION,
    /* Its files are no files of this machine. Trims have no nonblocking call. */
    .flags = FIO_DISKLESSIO | FIO_NODISKUTIL | FIO_ASYNCIO_SYNC_TRIM | FIO_NO_OFFLOAD,
    .setup = setup,
    .init = init,
    .queue = queue,
    .getevents = getevents,
    .event = event,
    .errdetails = errdetails,
    .cancel = cancel,
    .cleanup = cleanup,
    .open_file = open_file,
    .close_file = close_file,
    .invalidate = invalidate,
    .unlink_file = unlink_file,
    .get_file_size = get_file_size,
    .prepopulate_file = prepopulate_file,
    .iomem_alloc = iomem_alloc,
    .iomem_free = iomem_free,
    .io_u_init = io_u_init,
    .io_u_free = io_u_free,
    .options = options,
    .option_struct_size = sizeof(struct dafs_fio_options),
};
