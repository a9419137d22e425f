/* Hints, on their way from an MPI_Info to the file. */
#include <stdlib.h>
#include <string.h>

#include "dafs_glue.h"

void dafs_hints_add(struct dafs_hints *hints, const char *key, const char *value)
{
    adio_dafs_hint hint = {strdup(key), strdup(value)};

    if (hints->count == hints->capacity) {
        size_t capacity = hints->capacity ? 2 * hints->capacity : 16;
        adio_dafs_hint *list = realloc(hints->list, capacity * sizeof *list);

        if (list) {
            hints->list = list;
            hints->capacity = capacity;
        }
    }
    if (hint.key && hint.value && hints->count < hints->capacity) {
        hints->list[hints->count++] = hint;
    } else {
        free((char *)hint.key);
        free((char *)hint.value);
    }
}

void dafs_hints_free(struct dafs_hints *hints)
{
    for (size_t i = 0; i < hints->count; i++) {
        free((char *)hints->list[i].key);
        free((char *)hints->list[i].value);
    }
    free(hints->list);
    *hints = (struct dafs_hints){0};
}

bool dafs_hint_value(struct dafs_file *file, const char *key, char value[DAFS_VALUE_SIZE])
{
    char candidate[DAFS_KEY_SIZE];
    int found = 1;

    for (size_t i = 0;; i++) {
        int status = adio_dafs_hint_at(file->handle, i, candidate, sizeof candidate, value, DAFS_VALUE_SIZE, &found);

        if (status != ADIO_DAFS_OK || !found)
            return false;
        if (strcmp(candidate, key) == 0)
            return true;
    }
}

bool dafs_asks_for_independent(struct dafs_file *file)
{
    char value[DAFS_VALUE_SIZE];

    return dafs_hint_value(file, "dafs_collective", value) && strcmp(value, "two_phase") != 0;
}
