/* Hints and counters in the file's info, where MPI_File_get_info() looks without asking anybody.
 *
 * MPI_File_set_info() tells those who subscribed to a key. It then keeps what the program set beside what the subscriber
 * returned, as _OMPI_IN_<key>, and MPI_File_get_info() shows the former. What is to be seen is what is in force, so these are
 * removed. Counters change with each transfer: their digits are written in place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dafs_ompio.h"

/* Digits of 64 bits, and the ending zero. */
#define DIGITS_SIZE 24

static const char stat_prefix[] = "dafs_stat_";

static bool is_stat(const char *key)
{
    return strncmp(key, stat_prefix, sizeof stat_prefix - 1) == 0;
}

static bool is_saved(const char *key)
{
    return strncmp(key, OPAL_INFO_SAVE_PREFIX, sizeof OPAL_INFO_SAVE_PREFIX - 1) == 0;
}

/* A longer key cannot be subscribed to, and MPI_File_set_info() may then remove its entry. */
static bool is_watched(const char *key)
{
    return strlen(key) + strlen(OPAL_INFO_SAVE_PREFIX) < OPAL_MAX_INFO_KEY;
}

void dafs_hints_of_info(struct dafs_hints *hints, opal_info_t *info)
{
    opal_info_entry_t *entry;

    if (!info)
        return;
    OPAL_THREAD_LOCK(info->i_lock);
    OPAL_LIST_FOREACH(entry, &info->super, opal_info_entry_t)
    {
        if (!is_saved(entry->ie_key))
            dafs_hints_add(hints, entry->ie_key, entry->ie_value);
    }
    OPAL_THREAD_UNLOCK(info->i_lock);
}

void dafs_info_drop_zeros(opal_info_t *info)
{
    static const char *const keys[] = {"cb_nodes", "cb_buffer_size"};
    char value[DAFS_VALUE_SIZE];

    for (size_t i = 0; info && i < sizeof keys / sizeof keys[0]; i++) {
        int found = 0;

        opal_info_get(info, keys[i], sizeof value - 1, value, &found);
        if (found && strtol(value, NULL, 10) <= 0)
            opal_info_delete(info, keys[i]);
    }
}

/* Finds the entry of a counter and gives it room for any number. */
static void plant(struct dafs_stat *stat, opal_info_t *info)
{
    opal_info_entry_t *entry;
    char *digits = calloc(1, DIGITS_SIZE);

    if (!digits)
        return;
    OPAL_THREAD_LOCK(info->i_lock);
    OPAL_LIST_FOREACH(entry, &info->super, opal_info_entry_t)
    {
        if (strcmp(entry->ie_key, stat->key) == 0)
            stat->entry = entry;
    }
    if (stat->entry) {
        snprintf(digits, DIGITS_SIZE, "%s", stat->entry->ie_value);
        free(stat->entry->ie_value);
        stat->entry->ie_value = stat->digits = digits;
        stat->len = strlen(digits);
    } else {
        free(digits);
    }
    OPAL_THREAD_UNLOCK(info->i_lock);
}

static void add_stat(struct dafs_ompio_file *file, opal_info_t *info, const char *key, const char *value)
{
    struct dafs_stat *stat = &file->stats[file->stat_count];

    if (file->stat_count == ADIO_DAFS_COUNTERS_MAX)
        return;
    file->shown[file->stat_count++] = strtoull(value, NULL, 10);
    *stat = (struct dafs_stat){0};
    snprintf(stat->key, sizeof stat->key, "%s", key);
    if (is_watched(key))
        plant(stat, info);
}

/* Shows one hint or counter as it is, not as the program asked for it. */
static void show(opal_info_t *info, const char *key, const char *value)
{
    char saved[sizeof OPAL_INFO_SAVE_PREFIX + DAFS_KEY_SIZE];

    snprintf(saved, sizeof saved, "%s%s", OPAL_INFO_SAVE_PREFIX, key);
    opal_info_delete(info, saved);
    opal_info_set(info, key, value);
}

/* Makes all that the info shows anew. */
static void rebuild(opal_info_t *info, struct dafs_ompio_file *file)
{
    char key[DAFS_KEY_SIZE], value[DAFS_VALUE_SIZE];
    int found = 1;

    atomic_store(&file->info_stale, false);
    file->stat_count = 0;
    for (size_t i = 0;; i++) {
        int status = adio_dafs_hint_at(file->common.handle, i, key, sizeof key, value, sizeof value, &found);

        if (status != ADIO_DAFS_OK || !found)
            return;
        show(info, key, value);
        if (is_stat(key))
            add_stat(file, info, key, value);
    }
}

/* Returns how many. */
static size_t write_digits(char to[DIGITS_SIZE], uint64_t value)
{
    char reversed[DIGITS_SIZE];
    size_t len = 0, left;

    memset(to, 0, DIGITS_SIZE);
    do {
        reversed[len++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    for (left = len; left;)
        *to++ = reversed[--left];
    return len;
}

/* Adds to a number of so many digits, which is quicker than to divide: most grow by little. False, with other digits there, where it
 * becomes longer. */
static bool add_to_digits(char *digits, size_t len, uint64_t more)
{
    while (more && len) {
        more += (uint64_t)(digits[--len] - '0');
        digits[len] = (char)('0' + more % 10);
        more /= 10;
    }
    return more == 0;
}

/* Shows a counter's new value: into its entry, or the slow way. */
static void update(opal_info_t *info, struct dafs_stat *stat, uint64_t shown, uint64_t value)
{
    char digits[DIGITS_SIZE];

    if (!stat->entry) {
        write_digits(digits, value);
        opal_info_set(info, stat->key, digits);
    } else {
        OPAL_THREAD_LOCK(info->i_lock);
        if (stat->entry->ie_value == stat->digits && !add_to_digits(stat->digits, stat->len, value - shown))
            stat->len = write_digits(stat->digits, value);
        OPAL_THREAD_UNLOCK(info->i_lock);
    }
}

/* adio_dafs_hint_at() tells the counters in the order of adio_dafs_counters(). */
static void update_all(opal_info_t *info, struct dafs_ompio_file *file)
{
    uint64_t values[ADIO_DAFS_COUNTERS_MAX];
    size_t count = 0;

    if (adio_dafs_counters(file->common.handle, values, ADIO_DAFS_COUNTERS_MAX, &count) != ADIO_DAFS_OK ||
        count != file->stat_count)
        return;
    for (size_t i = 0; i < count; i++) {
        if (values[i] != file->shown[i])
            update(info, &file->stats[i], file->shown[i], values[i]);
    }
    memcpy(file->shown, values, count * sizeof *values);
}

void dafs_info_refresh(ompi_file_t *fp, struct dafs_ompio_file *file)
{
    opal_info_t *info = fp->super.s_info;

    pthread_mutex_lock(&file->info_lock);
    if (atomic_load(&file->info_stale))
        rebuild(info, file);
    else
        update_all(info, file);
    pthread_mutex_unlock(&file->info_lock);
}

/* One hint may change what is in force for others. The one that changes is the MPI library's to show. */
static void show_others(opal_info_t *info, struct dafs_ompio_file *file, const char *changed)
{
    char key[DAFS_KEY_SIZE], value[DAFS_VALUE_SIZE];
    int found = 1;

    pthread_mutex_lock(&file->info_lock);
    for (size_t i = 0;; i++) {
        int status = adio_dafs_hint_at(file->common.handle, i, key, sizeof key, value, sizeof value, &found);

        if (status != ADIO_DAFS_OK || !found || is_stat(key))
            break;
        if (strcmp(key, changed) != 0)
            show(info, key, value);
    }
    pthread_mutex_unlock(&file->info_lock);
}

/* MPI_File_set_info() set a key that we know. What is returned goes into the info under this key; nothing hides it, until the
 * next call shows what is in force instead. An entry of a counter stays. */
static char *hint_changed(opal_infosubscriber_t *object, char *key, char *value)
{
    static _Thread_local char in_force[DAFS_VALUE_SIZE];
    struct dafs_ompio_file *file = dafs_file_of(dafs_handle_of((ompi_file_t *)object));
    adio_dafs_hint hint = {key, value};
    bool stat = is_stat(key);

    /* Subscribing calls this too, with what is in force. */
    if (!file || !value || !file->info_started)
        return value;
    if (!stat) {
        adio_dafs_set_hints(file->common.handle, &hint, 1);
        show_others(object->s_info, file, key);
    }
    atomic_store(&file->info_stale, true);
    if (!dafs_hint_value(&file->common, key, in_force))
        return NULL;
    return stat || strcmp(in_force, value) == 0 ? in_force : NULL;
}

void dafs_info_start(ompi_file_t *fp, struct dafs_ompio_file *file)
{
    char key[DAFS_KEY_SIZE], value[DAFS_VALUE_SIZE];
    int found = 1;

    for (size_t i = 0;; i++) {
        int status = adio_dafs_hint_at(file->common.handle, i, key, sizeof key, value, sizeof value, &found);

        if (status != ADIO_DAFS_OK || !found)
            break;
        opal_info_set(fp->super.s_info, key, value);
        if (is_watched(key))
            opal_infosubscribe_subscribe(&fp->super, key, value, hint_changed);
    }
    rebuild(fp->super.s_info, file);
    file->info_started = true;
}
