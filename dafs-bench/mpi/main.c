/* Commands: read by rank 0, given to all, carried out. */
#include "bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int bench_rank, bench_ranks;

/* The longest line. */
#define LINE_MAX 16384
#define TAG 7

void fail(const char *format, ...)
{
    char words[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(words, sizeof words, format, arguments);
    va_end(arguments);
    /* What would end the string, or the line, is left out. */
    for (char *at = words; *at; at++)
        if (*at == '"' || *at == '\\' || (unsigned char)*at < ' ')
            *at = '\'';
    printf("{\"error\": \"rank %d: %s\"}\n", bench_rank, words);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void check(int code, const char *what)
{
    char words[MPI_MAX_ERROR_STRING];
    int len = 0;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, words, &len);
    fail("%s: %.*s", what, len, words);
}

void *alloc(size_t len)
{
    void *memory = mmap(NULL, len ? len : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        fail("no memory for %zu bytes", len);
    memset(memory, 0x5a, len);
    return memory;
}

const char *text_of(const struct command *command, const char *key, const char *fallback)
{
    size_t len = strlen(key);
    for (int word = 0; word < command->count; word++)
        if (!strncmp(command->words[word], key, len) && command->words[word][len] == '=')
            return command->words[word] + len + 1;
    if (!fallback)
        fail("%s needs %s=", command->name, key);
    return fallback;
}

long long number_of(const struct command *command, const char *key, long long fallback)
{
    const char *text = text_of(command, key, "");
    return *text ? atoll(text) : fallback;
}

double real_of(const struct command *command, const char *key, double fallback)
{
    const char *text = text_of(command, key, "");
    return *text ? atof(text) : fallback;
}

MPI_Info hints_of(const struct command *command)
{
    static const char prefix[] = "hint.";
    MPI_Info info;
    MPI_Info_create(&info);
    for (int word = 0; word < command->count; word++) {
        const char *begin = command->words[word] + sizeof prefix - 1, *value = strchr(command->words[word], '=');
        char key[MPI_MAX_INFO_KEY + 1];
        if (strncmp(command->words[word], prefix, sizeof prefix - 1) || !value)
            continue;
        snprintf(key, sizeof key, "%.*s", (int)(value - begin), begin);
        MPI_Info_set(info, key, value + 1);
    }
    return info;
}

/* Cuts a line into words. */
static struct command parse(char *line)
{
    struct command command = {line, {NULL}, 0};
    char *at = line + strcspn(line, "\n");
    *at = '\0';
    while ((line = strchr(line, '\t')) != NULL) {
        *line++ = '\0';
        if (command.count == sizeof command.words / sizeof *command.words)
            fail("%s: more than %d words", command.name, command.count);
        command.words[command.count++] = line;
    }
    return command;
}

/* Waits for the next line without taking the CPU from a measurement of others; 0 at the end. */
static int next_line(char *line)
{
    int len = 0;
    if (bench_rank == 0) {
        len = fgets(line, LINE_MAX, stdin) ? (int)strlen(line) + 1 : 0;
        for (int rank = 1; rank < bench_ranks; rank++)
            MPI_Send(line, len, MPI_CHAR, rank, TAG, MPI_COMM_WORLD);
        return len;
    }
    for (;;) {
        struct timespec pause = {0, 5000000};
        MPI_Status status;
        int is_there = 0;
        MPI_Iprobe(0, TAG, MPI_COMM_WORLD, &is_there, &status);
        if (is_there) {
            MPI_Get_count(&status, MPI_CHAR, &len);
            MPI_Recv(line, LINE_MAX, MPI_CHAR, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            return len;
        }
        nanosleep(&pause, NULL);
    }
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(const struct command *);
    } commands[] = {{"transfer", run_transfer}, {"overlap", run_overlap}, {"pattern", run_pattern}, {"region", run_region}};
    const size_t count = sizeof commands / sizeof *commands;
    static char line[LINE_MAX];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench_ranks);
    while (next_line(line)) {
        struct command command = parse(line);
        size_t at = 0;
        while (at < count && strcmp(commands[at].name, command.name))
            at++;
        if (at == count)
            fail("%s is no command", command.name);
        commands[at].run(&command);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
