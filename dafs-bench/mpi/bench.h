/* The MPI programs of dafs-bench: one program that carries out commands, so that the benchmark can alternate between subjects.
 *
 * Rank 0 reads a command a line from standard input: its name, then words KEY=VALUE, separated by tabs. It answers with one line of JSON
 * on standard output. The program ends with its input. Try it by hand:
 *
 *   printf 'transfer\tfile=/dev/shm/x\top=write\tbytes=4096\tfile_bytes=1048576\tseconds=0.1\n' | mpirun -n 1 ./bench
 */
#ifndef DAFS_BENCH_H
#define DAFS_BENCH_H

#include <mpi.h>
#include <stddef.h>
#include <stdint.h>

/* A command: its words, each ended by a zero. */
struct command {
    char *name;
    char *words[64];
    int count;
};

/* The value of a word, or the fallback. */
const char *text_of(const struct command *command, const char *key, const char *fallback);
/* The same as a number. */
long long number_of(const struct command *command, const char *key, long long fallback);
double real_of(const struct command *command, const char *key, double fallback);
/* The words hint.KEY=VALUE. */
MPI_Info hints_of(const struct command *command);

extern int bench_rank, bench_ranks;

/* Says on standard output what went wrong, and ends all ranks. */
void fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* The same, when an MPI call returned an error. */
void check(int code, const char *what);
/* Memory that begins on a page and whose pages are there. */
void *alloc(size_t len);

/* Nanoseconds of a clock that only goes forward. */
static inline uint64_t now_ns(void);
/* What reading it costs. */
uint64_t clock_overhead_ns(void);

/* Times of single steps of one measurement. */
struct samples {
    uint64_t *ns;
    size_t count;
};

void samples_begin(struct samples *samples);
void samples_add(struct samples *samples, uint64_t ns);
/* Writes "ops", "p50_us", "mean_us" and "min_us", the members of a JSON object. The mean leaves out the slowest hundredth: what
 * interrupts a process for milliseconds is not the transfer's. */
void samples_print(struct samples *samples);
double samples_p50_us(struct samples *samples);

/* Writes "stats", the driver's counters of all ranks added up, as a member of a JSON object; {} where there are none. Collective. */
void stats_print(MPI_File file);

/* How long to go on: until the time is over, but not fewer than so many steps where they take no more than twice the time. */
struct budget {
    double seconds;
    size_t steps_min;
};
int budget_over(const struct budget *budget, uint64_t began_ns, uint64_t at_ns, size_t steps);
struct budget budget_of(const struct command *command);

/* The commands. */
void run_transfer(const struct command *command);
void run_overlap(const struct command *command);
void run_pattern(const struct command *command);
void run_region(const struct command *command);

#include <time.h>

static inline uint64_t now_ns(void)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

#endif
