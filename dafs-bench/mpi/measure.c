/* Times of steps, budgets of time, and the driver's counters. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Steps whose times are kept; of more the first are. */
#define SAMPLES_MAX ((size_t)1 << 18)

/* Counters that the driver shows. */
#define STATS_MAX 64
static const char stat_prefix[] = "dafs_stat_";

uint64_t clock_overhead_ns(void)
{
    static uint64_t best;
    for (int run = 0; run < 20 && best == 0; run++) {
        uint64_t least = UINT64_MAX;
        for (int again = 0; again < 20; again++) {
            uint64_t began = now_ns(), ns;
            for (int reading = 1; reading < 1000; reading++)
                (void)now_ns();
            ns = (now_ns() - began) / 1000;
            least = ns < least ? ns : least;
        }
        best = least;
    }
    return best;
}

void samples_begin(struct samples *samples)
{
    static uint64_t *ns;
    if (!ns)
        ns = alloc(SAMPLES_MAX * sizeof *ns);
    *samples = (struct samples){ns, 0};
}

void samples_add(struct samples *samples, uint64_t ns)
{
    uint64_t overhead = clock_overhead_ns();
    ns = ns > overhead ? ns - overhead : 0;
    if (samples->count < SAMPLES_MAX)
        samples->ns[samples->count] = ns;
    samples->count++;
}

static int compare(const void *a, const void *b)
{
    uint64_t one = *(const uint64_t *)a, other = *(const uint64_t *)b;
    return (one > other) - (one < other);
}

static size_t sort(struct samples *samples)
{
    size_t kept = samples->count < SAMPLES_MAX ? samples->count : SAMPLES_MAX;
    if (kept == 0)
        fail("nothing was measured");
    qsort(samples->ns, kept, sizeof *samples->ns, compare);
    return kept;
}

double samples_p50_us(struct samples *samples)
{
    size_t kept = sort(samples);
    return (double)samples->ns[(kept - 1) / 2] / 1e3;
}

void samples_print(struct samples *samples)
{
    double p50_us = samples_p50_us(samples), sum = 0;
    size_t kept = samples->count < SAMPLES_MAX ? samples->count : SAMPLES_MAX, count = kept - kept / 100;
    for (size_t at = 0; at < count; at++)
        sum += (double)samples->ns[at];
    printf("\"ops\": %zu, \"p50_us\": %.3f, \"mean_us\": %.3f, \"min_us\": %.3f", samples->count, p50_us,
           sum / (double)count / 1e3, (double)samples->ns[0] / 1e3);
}

struct budget budget_of(const struct command *command)
{
    return (struct budget){real_of(command, "seconds", 0.1), (size_t)number_of(command, "ops_min", 20)};
}

int budget_over(const struct budget *budget, uint64_t began_ns, uint64_t at_ns, size_t steps)
{
    double passed = (double)(at_ns - began_ns) / 1e9;
    return passed >= budget->seconds && (steps >= budget->steps_min || (passed >= 2 * budget->seconds && steps > 0));
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(a, b);
}

void stats_print(MPI_File file)
{
    static char keys[STATS_MAX][MPI_MAX_INFO_KEY + 1];
    unsigned long long values[STATS_MAX], sums[STATS_MAX];
    int in_info = 0, count = 0;
    MPI_Info info;
    check(MPI_File_get_info(file, &info), "MPI_File_get_info");
    MPI_Info_get_nkeys(info, &in_info);
    for (int place = 0; place < in_info && count < STATS_MAX; place++) {
        MPI_Info_get_nthkey(info, place, keys[count]);
        count += !strncmp(keys[count], stat_prefix, sizeof stat_prefix - 1);
    }
    qsort(keys, (size_t)count, sizeof keys[0], compare_keys);
    for (int place = 0; place < count; place++) {
        char value[MPI_MAX_INFO_VAL + 1];
        int found = 0;
        MPI_Info_get(info, keys[place], MPI_MAX_INFO_VAL, value, &found);
        values[place] = found ? strtoull(value, NULL, 10) : 0;
    }
    MPI_Info_free(&info);
    MPI_Reduce(values, sums, count, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (bench_rank != 0)
        return;
    printf("\"stats\": {");
    for (int place = 0; place < count; place++)
        printf("%s\"%s\": %llu", place ? ", " : "", keys[place] + sizeof stat_prefix - 1, sums[place]);
    printf("}");
}
