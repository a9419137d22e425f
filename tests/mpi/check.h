/* What the programs here share: named cases, patterns that tell a byte's place, and failures that say where.
 *
 * A program is `main` with a table of cases and one call of check_main(). A failure is counted and printed; one that leaves
 * nothing to go on with ends the case on this rank. A case is passed when no rank counted a failure. An alarm ends a case
 * that hangs.
 */
#ifndef CHECK_H
#define CHECK_H

#include <fnmatch.h>
#include <mpi.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exit statuses. */
enum { CHECK_PASSED = 0, CHECK_FAILED = 1, CHECK_USAGE = 2, CHECK_SKIPPED = 77, CHECK_HUNG = 98 };

/* Failures of one rank in one case that are printed; the rest is only counted. */
#define CHECK_REPORTS_MAX 8

/* Bytes on each side of a guarded buffer. */
#define CHECK_GUARD 64

/* What memory holds before it is read into. */
#define CHECK_POISON 0xa5

struct check_case {
    const char *name;
    int ranks; /* The fewest that it needs. */
    void (*run)(void);
    const char *what;
};

/* What holds for the process. */
static struct {
    int rank, ranks;
    int threads;      /* The thread level that MPI provides. */
    const char *file; /* The name to be used, and the start of all names to be used. */
    const char *name; /* The case that runs. */
    MPI_Info info;    /* Of --hint. */
    uint64_t seed;
    unsigned seconds;
    int keep, expect_dafs;
    int argc;
    char **argv;
    int failures;
    const char *skipped; /* Why the case did not run, or NULL. */
    pthread_t main_thread;
    jmp_buf out;
    char alarm_text[200];
} check;

/* --- Failures --- */

static inline void check_failed_v(const char *file, int line, const char *format, va_list args)
{
    char text[600];
    if (__atomic_add_fetch(&check.failures, 1, __ATOMIC_SEQ_CST) > CHECK_REPORTS_MAX)
        return;
    vsnprintf(text, sizeof text, format, args);
    fprintf(stderr, "rank %d of %d: %s: %s (%s:%d)\n", check.rank, check.ranks, check.name, text, file, line);
}

__attribute__((format(printf, 3, 4))) static inline void check_failed(const char *file, int line, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    check_failed_v(file, line, format, args);
    va_end(args);
}

/* Ends the case on this rank, or the thread where it is not the first. */
__attribute__((noreturn)) static inline void check_leave(void)
{
    if (!pthread_equal(pthread_self(), check.main_thread))
        pthread_exit(NULL);
    longjmp(check.out, 1);
}

/* Ends the case as one that cannot run here. By all ranks. */
__attribute__((noreturn)) static inline void check_skip(const char *why)
{
    check.skipped = why;
    check_leave();
}

#define CHECK(condition, ...)                              \
    do {                                                   \
        if (!(condition))                                  \
            check_failed(__FILE__, __LINE__, __VA_ARGS__); \
    } while (0)

/* The name of an MPI error class. */
static inline const char *check_class_name(int error_class)
{
#define CHECK_CLASS_ROW(name) {name, #name}
    static const struct {
        int number;
        const char *name;
    } rows[] = {
        CHECK_CLASS_ROW(MPI_SUCCESS), CHECK_CLASS_ROW(MPI_ERR_BUFFER), CHECK_CLASS_ROW(MPI_ERR_COUNT),
        CHECK_CLASS_ROW(MPI_ERR_TYPE), CHECK_CLASS_ROW(MPI_ERR_COMM), CHECK_CLASS_ROW(MPI_ERR_REQUEST),
        CHECK_CLASS_ROW(MPI_ERR_ARG), CHECK_CLASS_ROW(MPI_ERR_UNKNOWN), CHECK_CLASS_ROW(MPI_ERR_TRUNCATE),
        CHECK_CLASS_ROW(MPI_ERR_OTHER), CHECK_CLASS_ROW(MPI_ERR_INTERN), CHECK_CLASS_ROW(MPI_ERR_IN_STATUS),
        CHECK_CLASS_ROW(MPI_ERR_ACCESS), CHECK_CLASS_ROW(MPI_ERR_AMODE), CHECK_CLASS_ROW(MPI_ERR_BAD_FILE),
        CHECK_CLASS_ROW(MPI_ERR_CONVERSION), CHECK_CLASS_ROW(MPI_ERR_DUP_DATAREP), CHECK_CLASS_ROW(MPI_ERR_FILE_EXISTS),
        CHECK_CLASS_ROW(MPI_ERR_FILE_IN_USE), CHECK_CLASS_ROW(MPI_ERR_FILE), CHECK_CLASS_ROW(MPI_ERR_INFO),
        CHECK_CLASS_ROW(MPI_ERR_INFO_KEY), CHECK_CLASS_ROW(MPI_ERR_INFO_VALUE), CHECK_CLASS_ROW(MPI_ERR_IO),
        CHECK_CLASS_ROW(MPI_ERR_NO_MEM), CHECK_CLASS_ROW(MPI_ERR_NOT_SAME), CHECK_CLASS_ROW(MPI_ERR_NO_SPACE),
        CHECK_CLASS_ROW(MPI_ERR_NO_SUCH_FILE), CHECK_CLASS_ROW(MPI_ERR_QUOTA), CHECK_CLASS_ROW(MPI_ERR_READ_ONLY),
        CHECK_CLASS_ROW(MPI_ERR_UNSUPPORTED_DATAREP), CHECK_CLASS_ROW(MPI_ERR_UNSUPPORTED_OPERATION),
    };
#undef CHECK_CLASS_ROW
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].number == error_class)
            return rows[i].name;
    return "a class without a name";
}

static inline int check_class_of(int error)
{
    int error_class = MPI_SUCCESS;
    if (error != MPI_SUCCESS)
        MPI_Error_class(error, &error_class);
    return error_class;
}

static inline void check_mpi(int error, const char *what, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING + 1] = "";
    int len = 0;
    if (error == MPI_SUCCESS)
        return;
    MPI_Error_string(error, text, &len);
    check_failed(file, line, "%.160s: %s: %.200s", what, check_class_name(check_class_of(error)), text);
    check_leave();
}

/* The call succeeds; else the case ends here. */
#define CHECK_MPI(call) check_mpi((call), #call, __FILE__, __LINE__)

/* Classes end with -1. Returns the class. */
static inline int check_class(int error, const char *what, const char *file, int line, const int *classes)
{
    int error_class = check_class_of(error);
    char wanted[300] = "";
    for (int i = 0; classes[i] != -1; i++) {
        if (classes[i] == error_class)
            return error_class;
        snprintf(wanted + strlen(wanted), sizeof wanted - strlen(wanted), "%s%s", i ? " or " : "", check_class_name(classes[i]));
    }
    check_failed(file, line, "%.160s: expected %s, got %s", what, wanted, check_class_name(error_class));
    return error_class;
}

/* The call ends with one of the classes, of which MPI_SUCCESS may be one. */
#define CHECK_CLASS(call, ...) check_class((call), #call, __FILE__, __LINE__, (const int[]){__VA_ARGS__, -1})

/* The call fails, in whatever way. */
#define CHECK_FAILS(call) CHECK((call) != MPI_SUCCESS, "%s: expected an error, got none", #call)

static inline void check_count(const MPI_Status *status, MPI_Datatype type, int want, const char *file, int line)
{
    int got = -1;
    MPI_Get_count(status, type, &got);
    if (got != want)
        check_failed(file, line, "count in the status: expected %d, got %d", want, got);
}

#define CHECK_COUNT(status, type, want) check_count((status), (type), (want), __FILE__, __LINE__)

static inline void check_equal(long long got, long long want, const char *what, const char *file, int line)
{
    if (got != want)
        check_failed(file, line, "%s: expected %lld, got %lld", what, want, got);
}

#define CHECK_EQUAL(got, want) check_equal((long long)(got), (long long)(want), #got, __FILE__, __LINE__)

/* The error of a nonblocking call comes from the call or from the end of its request. */
static inline int wait_error(int error, MPI_Request *request)
{
    MPI_Status status;
    return error == MPI_SUCCESS && *request != MPI_REQUEST_NULL ? MPI_Wait(request, &status) : error;
}

/* --- Patterns and random numbers --- */

static inline uint64_t check_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* The byte that a writer named by `tag` puts at an offset. */
static inline unsigned char pattern(uint64_t tag, uint64_t offset)
{
    return (unsigned char)(check_mix((offset >> 3) ^ (tag << 44)) >> (8 * (offset & 7)));
}

static inline void pattern_fill(void *memory, uint64_t tag, uint64_t offset, size_t len)
{
    unsigned char *bytes = memory;
    for (size_t i = 0; i < len; i++)
        bytes[i] = pattern(tag, offset + i);
}

/* Reports the first byte that differs from what is wanted, and how many do. */
static inline void check_bytes(const void *got, const void *want, uint64_t offset, size_t len, const char *file, int line)
{
    const unsigned char *g = got, *w = want;
    size_t bad = 0, first = 0;
    if (len == 0 || memcmp(g, w, len) == 0)
        return;
    for (size_t i = len; i-- > 0;)
        if (g[i] != w[i]) {
            first = i;
            bad++;
        }
    check_failed(file, line, "offset %llu: expected 0x%02x, got 0x%02x; %zu of %zu bytes differ",
                 (unsigned long long)(offset + first), w[first], g[first], bad, len);
}

#define CHECK_BYTES(got, want, offset, len) check_bytes((got), (want), (offset), (len), __FILE__, __LINE__)

static inline void *check_alloc(size_t len)
{
    void *memory = malloc(len ? len : 1);
    if (memory == NULL) {
        fprintf(stderr, "rank %d: no memory for %zu bytes\n", check.rank, len);
        MPI_Abort(MPI_COMM_WORLD, CHECK_FAILED);
        abort();
    }
    return memory;
}

static inline void check_pattern(const void *got, uint64_t tag, uint64_t offset, size_t len, const char *file, int line)
{
    unsigned char *want = check_alloc(len);
    pattern_fill(want, tag, offset, len);
    check_bytes(got, want, offset, len, file, line);
    free(want);
}

#define CHECK_PATTERN(got, tag, offset, len) check_pattern((got), (tag), (offset), (len), __FILE__, __LINE__)

static inline void check_filled(const void *got, int byte, uint64_t offset, size_t len, const char *file, int line)
{
    void *want = check_alloc(len);
    memset(want, byte, len);
    check_bytes(got, want, offset, len, file, line);
    free(want);
}

/* All bytes are the same one. */
#define CHECK_FILLED(got, byte, offset, len) check_filled((got), (byte), (offset), (len), __FILE__, __LINE__)

/* Memory with a guard on each side; `shift` moves it off its alignment. */
static inline void *guarded_alloc(size_t len, size_t shift)
{
    unsigned char *all = check_alloc(shift + len + 2 * CHECK_GUARD);
    memset(all, CHECK_POISON, shift + len + 2 * CHECK_GUARD);
    return all + CHECK_GUARD + shift;
}

static inline void guarded_check_free(void *memory, size_t len, size_t shift, const char *file, int line)
{
    unsigned char *bytes = memory;
    check_filled(bytes - CHECK_GUARD, CHECK_POISON, 0, CHECK_GUARD, file, line);
    check_filled(bytes + len, CHECK_POISON, len, CHECK_GUARD, file, line);
    free(bytes - CHECK_GUARD - shift);
}

#define GUARDED_FREE(memory, len, shift) guarded_check_free((memory), (len), (shift), __FILE__, __LINE__)

static inline uint64_t random_next(uint64_t *state)
{
    return check_mix((*state)++);
}

static inline int random_below(uint64_t *state, int below)
{
    return (int)(random_next(state) % (uint64_t)below);
}

/* Puts the numbers below `count` in a random order. */
static inline void random_order(uint64_t *state, int *order, int count)
{
    for (int i = 0; i < count; i++) {
        int j = random_below(state, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* --- Files --- */

/* The name of a further file of the case. Use one at a time. */
static inline const char *check_name(const char *suffix)
{
    static char name[4096];
    snprintf(name, sizeof name, "%s%s", check.file, suffix);
    return name;
}

/* Removes a file if it is there. By all ranks of MPI_COMM_WORLD. */
static inline void check_remove(const char *name)
{
    MPI_Barrier(MPI_COMM_WORLD);
    if (check.rank == 0)
        MPI_File_delete(name, check.info);
    MPI_Barrier(MPI_COMM_WORLD);
}

static inline MPI_File check_open_as(MPI_Comm comm, const char *name, int amode, const char *file, int line)
{
    MPI_File fh = MPI_FILE_NULL;
    check_mpi(MPI_File_open(comm, name, amode, check.info, &fh), "MPI_File_open", file, line);
    return fh;
}

/* Opens the file of the case with all ranks, or the case ends. */
#define CHECK_OPEN(amode) check_open_as(MPI_COMM_WORLD, check.file, (amode), __FILE__, __LINE__)

/* Makes a file with `len` bytes of a pattern, by rank 0; all ranks see it when this returns. By all ranks of MPI_COMM_WORLD. */
static inline void check_make(const char *name, uint64_t tag, int len)
{
    MPI_File fh = check_open_as(MPI_COMM_WORLD, name, MPI_MODE_CREATE | MPI_MODE_RDWR, __FILE__, __LINE__);
    unsigned char *memory = check_alloc((size_t)len);
    MPI_Status status;
    pattern_fill(memory, tag, 0, (size_t)len);
    if (check.rank == 0)
        CHECK_MPI(MPI_File_write(fh, memory, len, MPI_BYTE, &status));
    CHECK_MPI(MPI_File_close(&fh));
    MPI_Barrier(MPI_COMM_WORLD);
    free(memory);
}

/* Lets all ranks read what any of them wrote. By all ranks of MPI_COMM_WORLD. */
static inline void check_publish(MPI_File fh)
{
    CHECK_MPI(MPI_File_sync(fh));
    MPI_Barrier(MPI_COMM_WORLD);
    CHECK_MPI(MPI_File_sync(fh));
}

/* Reads bytes by an open of this rank's own, and returns how many came. */
static inline int check_reread(const char *name, MPI_Offset offset, void *memory, int len)
{
    MPI_File fh = check_open_as(MPI_COMM_SELF, name, MPI_MODE_RDONLY, __FILE__, __LINE__);
    MPI_Status status;
    int got = 0;
    CHECK_MPI(MPI_File_read_at(fh, offset, memory, len, MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &got);
    CHECK_MPI(MPI_File_close(&fh));
    return got;
}

/* --- Running --- */

/* The values that follow an option of `options`, such as "--rounds: --grow": one for each colon. -1: no such option. */
static inline int check_option_values(const char *options, const char *option)
{
    size_t len = strlen(option);
    for (const char *at = options; (at = strstr(at, option)) != NULL; at += len) {
        int values = 0;
        if (at != options && at[-1] != ' ')
            continue;
        while (at[len + (size_t)values] == ':')
            values++;
        if (at[len + (size_t)values] == ' ' || at[len + (size_t)values] == '\0')
            return values;
    }
    return -1;
}

/* A value of an option of the program, or what it is without. */
static inline const char *check_option(const char *option, int value, const char *otherwise)
{
    for (int i = 3; i < check.argc; i++)
        if (strcmp(check.argv[i], option) == 0)
            return i + 1 + value < check.argc ? check.argv[i + 1 + value] : otherwise;
    return otherwise;
}

static inline int check_flag(const char *option)
{
    return check_option(option, -1, NULL) != NULL;
}

static inline void check_on_alarm(int signal)
{
    (void)signal;
    if (write(2, check.alarm_text, strlen(check.alarm_text)) < 0)
        _exit(CHECK_HUNG);
    _exit(CHECK_HUNG);
}

static inline void check_arm(unsigned seconds)
{
    snprintf(check.alarm_text, sizeof check.alarm_text, "rank %d of %d: %.100s: no end after %u s\n", check.rank, check.ranks,
             check.name, seconds);
    signal(SIGALRM, check_on_alarm);
    alarm(seconds);
}

static inline int check_run(const struct check_case *one)
{
    int failures = 0, failed_ranks, mine;
    check.name = one->name;
    check.failures = 0;
    check.skipped = check.ranks < one->ranks ? "it needs more ranks" : NULL;
    check_arm(check.seconds);
    if (check.skipped == NULL) {
        check_remove(check.file);
        if (setjmp(check.out) == 0)
            one->run();
        if (!check.keep)
            check_remove(check.file);
    }
    mine = check.failures != 0;
    MPI_Allreduce(&mine, &failed_ranks, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    MPI_Reduce(&check.failures, &failures, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    alarm(0);
    if (check.rank == 0 && failed_ranks)
        printf("FAILED %s: %d failures on %d of %d ranks\n", one->name, failures, failed_ranks, check.ranks);
    else if (check.rank == 0 && check.skipped != NULL)
        printf("skipped %s: %s\n", one->name, check.skipped);
    else if (check.rank == 0)
        printf("ok %s\n", one->name);
    fflush(stdout);
    return failed_ranks ? CHECK_FAILED : check.skipped ? CHECK_SKIPPED : CHECK_PASSED;
}

static inline int check_usage(const char *program, const char *options)
{
    if (check.rank == 0)
        fprintf(stderr, "usage: %s --list | CASE[,CASE] FILE [--except CASE[,CASE]] [--hint KEY=VALUE] [--seed N] [--seconds N]\n"
                        "       [--keep] [--expect-dafs] %s\nCASE is a name, a pattern such as '*_split', or all\n",
                program, options);
    return CHECK_USAGE;
}

/* Takes the options that all programs have; 0 where one is unknown. */
static inline int check_parse(const char *options)
{
    for (int i = 3; i < check.argc; i++) {
        char **at = check.argv + i, *equals;
        int values = check_option_values("--hint: --seed: --seconds: --except: --keep --expect-dafs", *at);
        if (values < 0)
            values = check_option_values(options, *at);
        if (values < 0 || i + values >= check.argc)
            return 0;
        i += values;
        if (strcmp(at[0], "--hint") == 0) {
            if ((equals = strchr(at[1], '=')) == NULL)
                return 0;
            if (check.info == MPI_INFO_NULL)
                MPI_Info_create(&check.info);
            *equals = '\0';
            MPI_Info_set(check.info, at[1], equals + 1);
            *equals = '=';
        }
    }
    check.seed = strtoull(check_option("--seed", 0, "1"), NULL, 0);
    check.seconds = (unsigned)atoi(check_option("--seconds", 0, "60"));
    check.keep = check_flag("--keep");
    check.expect_dafs = check_flag("--expect-dafs");
    return 1;
}

/* Whether a list of shell patterns, with commas, has a name. */
static inline int check_listed(const char *list, const char *name)
{
    char one[200];
    for (size_t len; *list != '\0'; list += len + (list[len] == ',')) {
        len = strcspn(list, ",");
        snprintf(one, sizeof one, "%.*s", (int)len, list);
        if (fnmatch(one, name, 0) == 0)
            return 1;
    }
    return 0;
}

/* Runs the cases that the command line names; they end with a row without a name. `options` is as for check_option_values().
 * Returns the exit status. */
static inline int check_main(int argc, char **argv, const struct check_case *cases, const char *options, int threads)
{
    int failed = 0, passed = 0, found = 0;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (; cases->name != NULL; cases++)
            printf("%s %d %s\n", cases->name, cases->ranks, cases->what);
        return 0;
    }
    MPI_Init_thread(&argc, &argv, threads, &check.threads);
    MPI_Comm_rank(MPI_COMM_WORLD, &check.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &check.ranks);
    check.argc = argc;
    check.argv = argv;
    check.info = MPI_INFO_NULL;
    check.main_thread = pthread_self();
    if (argc >= 3 && check_parse(options)) {
        check.file = argv[2];
        for (const struct check_case *one = cases; one->name != NULL; one++) {
            int status;
            if (!check_listed(strcmp(argv[1], "all") == 0 ? "*" : argv[1], one->name) ||
                check_listed(check_option("--except", 0, ""), one->name))
                continue;
            status = check_run(one);
            found++;
            failed += status == CHECK_FAILED;
            passed += status == CHECK_PASSED;
        }
    }
    if (check.info != MPI_INFO_NULL)
        MPI_Info_free(&check.info);
    if (found == 0)
        check_usage(argv[0], options);
    MPI_Finalize();
    return found == 0 ? CHECK_USAGE : failed ? CHECK_FAILED : passed ? CHECK_PASSED : CHECK_SKIPPED;
}

#endif
