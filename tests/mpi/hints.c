/* Hints: given at open, by set_info and by set_view, told by get_info, and without any effect on content.
 *
 * A dafs driver tells of itself by the hint dafs_memory. Without it, cases about it print what they skip, or fail where
 * --expect-dafs says that it must be there.
 */
#include "check.h"

#define LEN 30000

/* The value of a hint that is in force, or NULL. */
static const char *hint_of(MPI_File fh, const char *key)
{
    static char value[MPI_MAX_INFO_VAL + 1];
    MPI_Info info;
    int found = 0;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
    MPI_Info_free(&info);
    return found ? value : NULL;
}

/* Opens the file of the case with one hint, or none where the key is NULL. */
static MPI_File open_with(const char *key, const char *value)
{
    MPI_Info info = MPI_INFO_NULL;
    MPI_File fh = MPI_FILE_NULL;
    if (check.info != MPI_INFO_NULL)
        MPI_Info_dup(check.info, &info);
    else
        MPI_Info_create(&info);
    if (key != NULL)
        MPI_Info_set(info, key, value);
    CHECK_MPI(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &fh));
    MPI_Info_free(&info);
    return fh;
}

static void set_info(MPI_File fh, const char *key, const char *value)
{
    MPI_Info info;
    MPI_Info_create(&info);
    MPI_Info_set(info, key, value);
    CHECK_MPI(MPI_File_set_info(fh, info));
    MPI_Info_free(&info);
}

/* Writes and reads a rank's strided bytes, independent and collective, and compares them. */
static void move(MPI_File fh, uint64_t tag)
{
    unsigned char *memory = check_alloc(LEN), *want = check_alloc(LEN);
    MPI_Datatype type;
    MPI_Status status;
    MPI_Type_vector(LEN / 100, 100, 100 * check.ranks, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, 100 * check.rank, MPI_BYTE, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
    for (int collective = 0; collective <= 1; collective++) {
        pattern_fill(want, 2 * tag + (uint64_t)collective, (uint64_t)check.rank * LEN, LEN);
        if (collective)
            CHECK_MPI(MPI_File_write_at_all(fh, 0, want, LEN, MPI_BYTE, &status));
        else
            CHECK_MPI(MPI_File_write_at(fh, 0, want, LEN, MPI_BYTE, &status));
        check_publish(fh);
        memset(memory, CHECK_POISON, LEN);
        if (collective)
            CHECK_MPI(MPI_File_read_at_all(fh, 0, memory, LEN, MPI_BYTE, &status));
        else
            CHECK_MPI(MPI_File_read_at(fh, 0, memory, LEN, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, LEN);
        CHECK_BYTES(memory, want, 0, LEN);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    CHECK_MPI(MPI_File_set_view(fh, 0, MPI_BYTE, MPI_BYTE, "native", MPI_INFO_NULL));
    free(memory);
    free(want);
}

static void run_get_info(void)
{
    MPI_File fh = open_with(NULL, NULL);
    MPI_Info info = MPI_INFO_NULL;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    CHECK(info != MPI_INFO_NULL, "MPI_File_get_info gave MPI_INFO_NULL");
    if (info != MPI_INFO_NULL)
        MPI_Info_free(&info);
    CHECK_MPI(MPI_File_close(&fh));
}

/* MPI's own hints are accepted, each alone; what is told of them is what was given, or nothing. */
static void run_standard(void)
{
    static const char *const hints[][2] = {
        {"access_style", "read_once,write_once"}, {"collective_buffering", "true"}, {"cb_block_size", "4096"},
        {"cb_buffer_size", "65536"},              {"cb_nodes", "1"},                {"chunked", "100,100"},
        {"chunked_item", "8"},                    {"chunked_size", "10,10"},        {"filename", "other"},
        {"file_perm", "0644"},                    {"io_node_list", "*"},            {"nb_proc", "4"},
        {"num_io_nodes", "2"},                    {"striping_factor", "2"},         {"striping_unit", "65536"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        int before = check.failures;
        MPI_File fh = open_with(hints[i][0], hints[i][1]);
        move(fh, i);
        CHECK_MPI(MPI_File_close(&fh));
        CHECK(check.failures == before, "that was %s=%s", hints[i][0], hints[i][1]);
    }
}

/* Hints of ROMIO, with content compared in each mode. */
static void run_romio(void)
{
    static const char *const hints[][2] = {
        {"romio_cb_read", "enable"},      {"romio_cb_read", "disable"},     {"romio_cb_write", "enable"},
        {"romio_cb_write", "disable"},    {"romio_ds_read", "enable"},      {"romio_ds_read", "disable"},
        {"romio_ds_write", "enable"},     {"romio_ds_write", "disable"},    {"ind_rd_buffer_size", "4096"},
        {"ind_wr_buffer_size", "4096"},   {"cb_buffer_size", "4096"},       {"cb_config_list", "*:1"},
        {"romio_no_indep_rw", "false"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        int before = check.failures;
        MPI_File fh = open_with(hints[i][0], hints[i][1]);
        move(fh, i);
        CHECK_MPI(MPI_File_close(&fh));
        CHECK(check.failures == before, "that was %s=%s", hints[i][0], hints[i][1]);
    }
}

/* What no library knows, and values that cannot be, are passed over. */
static void run_unknown(void)
{
    MPI_File fh = open_with("no_such_hint", "value");
    move(fh, 1);
    set_info(fh, "no_such_hint_either", "value");
    move(fh, 2);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A hint that is in force is told as it was given. */
static void run_round_trip(void)
{
    static const char *const hints[][2] = {
        {"cb_buffer_size", "1048576"},
        {"cb_nodes", "1"},
        {"striping_unit", "65536"},
        {"striping_factor", "1"},
    };
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        MPI_File fh = open_with(hints[i][0], hints[i][1]);
        const char *told = hint_of(fh, hints[i][0]);
        if (told == NULL && check.rank == 0)
            printf("%s: not told\n", hints[i][0]);
        else if (told != NULL && hints[i][0][0] == 'c')
            CHECK(strcmp(told, hints[i][1]) == 0, "%s: expected %s, got %s", hints[i][0], hints[i][1], told);
        else if (check.rank == 0 && told != NULL)
            printf("%s: %s told, %s asked for\n", hints[i][0], told, hints[i][1]);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* Hints that change while the file is open. */
static void run_set_info(void)
{
    MPI_File fh = open_with(NULL, NULL);
    set_info(fh, "romio_ds_write", "disable");
    move(fh, 1);
    set_info(fh, "romio_cb_write", "enable");
    move(fh, 2);
    CHECK_MPI(MPI_File_close(&fh));
}

/* Whether the driver is ours. Where it is not, the case ends, as a failure if it must be. */
static void need_dafs(MPI_File *fh)
{
    if (hint_of(*fh, "dafs_memory") != NULL)
        return;
    CHECK(!check.expect_dafs, "the hint dafs_memory is not told: the driver is not dafs");
    CHECK_MPI(MPI_File_close(fh));
    check_skip("the driver is not dafs");
}

/* The modes of memory, switched in the middle; all of them move the same bytes. */
static void run_dafs_memory(void)
{
    static const char *const modes[] = {"adio", "adio_cache", "dafs", "auto"};
    MPI_File fh = open_with(NULL, NULL);
    need_dafs(&fh);
    for (uint64_t round = 0; round < 12; round++) {
        const char *mode = modes[round * 5 % 4], *told;
        set_info(fh, "dafs_memory", mode);
        told = hint_of(fh, "dafs_memory");
        CHECK(told != NULL && strcmp(told, mode) == 0, "dafs_memory: expected %s, got %s", mode, told ? told : "nothing");
        move(fh, round);
    }
    CHECK_MPI(MPI_File_close(&fh));
    for (size_t i = 0; i < 4; i++) {
        const char *told;
        fh = open_with("dafs_memory", modes[i]);
        told = hint_of(fh, "dafs_memory");
        CHECK(told != NULL && strcmp(told, modes[i]) == 0, "dafs_memory at open: expected %s, got %s", modes[i], told ? told : "nothing");
        move(fh, 20 + i);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* A mode that does not exist is passed over. */
static void run_dafs_memory_unknown(void)
{
    MPI_File fh = open_with(NULL, NULL);
    const char *told;
    need_dafs(&fh);
    CHECK_MPI(MPI_File_close(&fh));
    fh = open_with("dafs_memory", "no such mode");
    told = hint_of(fh, "dafs_memory");
    CHECK(told == NULL || strcmp(told, "no such mode") != 0, "dafs_memory: %s is told", told);
    set_info(fh, "dafs_memory", "adio");
    set_info(fh, "dafs_memory", "no such mode");
    told = hint_of(fh, "dafs_memory");
    CHECK(told != NULL && strcmp(told, "adio") == 0, "dafs_memory: expected adio, got %s", told ? told : "nothing");
    move(fh, 1);
    CHECK_MPI(MPI_File_close(&fh));
}

/* 0 asks for the default, whatever it is a number of. */
static void run_zeros(void)
{
    static const char *const keys[] = {"striping_factor", "striping_unit", "cb_buffer_size", "cb_nodes",
                                       "ind_rd_buffer_size", "ind_wr_buffer_size"};
    enum { INTS = 2000 };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        MPI_File fh = open_with(keys[i], "0");
        const char *told;
        int written[INTS], read[INTS];
        MPI_Datatype tile;
        MPI_Status status;
        need_dafs(&fh);
        told = hint_of(fh, keys[i]);
        if (strncmp(keys[i], "striping", 8) == 0)
            CHECK(told != NULL && strcmp(told, "0") == 0, "%s: expected 0, got %s", keys[i], told ? told : "nothing");
        MPI_Type_create_resized(MPI_INT, 0, 4 * (MPI_Aint)check.ranks, &tile);
        MPI_Type_commit(&tile);
        CHECK_MPI(MPI_File_set_view(fh, 4 * check.rank, MPI_INT, tile, "native", MPI_INFO_NULL));
        pattern_fill(written, (uint64_t)check.rank, 0, sizeof written);
        CHECK_MPI(MPI_File_write_at_all(fh, 0, written, INTS, MPI_INT, &status));
        CHECK_MPI(MPI_File_read_at_all(fh, 0, read, INTS, MPI_INT, &status));
        CHECK_PATTERN(read, (uint64_t)check.rank, 0, sizeof read);
        MPI_Type_free(&tile);
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* The sum of all counters, and how many there are. */
static unsigned long long counters(MPI_File fh, int *count)
{
    unsigned long long sum = 0;
    int keys = 0;
    MPI_Info info;
    *count = 0;
    CHECK_MPI(MPI_File_get_info(fh, &info));
    MPI_Info_get_nkeys(info, &keys);
    for (int i = 0; i < keys; i++) {
        char key[MPI_MAX_INFO_KEY + 1], value[MPI_MAX_INFO_VAL + 1], *end = value;
        int found = 0;
        MPI_Info_get_nthkey(info, i, key);
        if (strncmp(key, "dafs_stat_", 10) != 0)
            continue;
        MPI_Info_get(info, key, MPI_MAX_INFO_VAL, value, &found);
        sum += strtoull(value, &end, 10);
        CHECK(found && end != value && *end == '\0', "%s is no number: %s", key, value);
        (*count)++;
    }
    MPI_Info_free(&info);
    return sum;
}

/* Counters are there, are numbers, and count. */
static void run_dafs_counters(void)
{
    MPI_File fh = open_with(NULL, NULL);
    unsigned long long before, after;
    int count = 0;
    need_dafs(&fh);
    before = counters(fh, &count);
    CHECK(count > 0, "no counter dafs_stat_... is told");
    move(fh, 1);
    after = counters(fh, &count);
    CHECK(after > before, "the counters do not count: %llu before, %llu after", before, after);
    CHECK_MPI(MPI_File_close(&fh));
}

/* A counter of a dafs driver. */
static long long counter_of(MPI_File fh, const char *name)
{
    char key[MPI_MAX_INFO_KEY + 1];
    const char *value;
    snprintf(key, sizeof key, "dafs_stat_%s", name);
    value = hint_of(fh, key);
    CHECK(value != NULL, "%s is not told", key);
    return value != NULL ? strtoll(value, NULL, 10) : -1;
}

#define CHECK_COUNTERS(fh, described, views, calls)                                                                             \
    do {                                                                                                                        \
        long long found[3] = {counter_of(fh, "view_descriptions"), counter_of(fh, "views"), counter_of(fh, "calls")};           \
        CHECK(found[0] == (described) && found[1] == (views) && found[2] == (calls),                                            \
              "%lld descriptions, %lld views, %lld calls", found[0], found[1], found[2]);                                       \
    } while (0)

/* A view of so many bytes, each a piece of its own, for this rank's turn among all. */
static void set_view_of_bytes(MPI_File fh, int count)
{
    MPI_Datatype type;
    MPI_Type_vector(count, 1, check.ranks, MPI_BYTE, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, check.rank, MPI_BYTE, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
}

/* By dafs_method=view MPI_File_set_view describes the file type, once, and a transfer of thousands of pieces is then one call. */
static void run_dafs_view(void)
{
    unsigned char *memory = check_alloc(LEN), *want = check_alloc(LEN);
    MPI_File fh = open_with("dafs_method", "view");
    MPI_Status status;
    need_dafs(&fh);
    set_view_of_bytes(fh, LEN);
    CHECK_COUNTERS(fh, 1, 0, 0);
    pattern_fill(want, 1, (uint64_t)check.rank * LEN, LEN);
    CHECK_MPI(MPI_File_write_at(fh, 0, want, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_COUNTERS(fh, 1, check.ranks > 1, 1);
    check_publish(fh);
    CHECK_MPI(MPI_File_read(fh, memory, LEN, MPI_BYTE, &status));
    CHECK_COUNT(&status, MPI_BYTE, LEN);
    CHECK_BYTES(memory, want, 0, LEN);
    CHECK_COUNTERS(fh, 1, 2 * (check.ranks > 1), 2);
    /* The same again needs no other description, another does. */
    set_view_of_bytes(fh, LEN);
    CHECK_COUNTERS(fh, 1, 2 * (check.ranks > 1), 2);
    set_view_of_bytes(fh, LEN - 1);
    CHECK_COUNTERS(fh, 2, 2 * (check.ranks > 1), 2);
    CHECK_MPI(MPI_File_close(&fh));
    /* By any other method nothing is described. */
    fh = open_with("dafs_method", "list");
    set_view_of_bytes(fh, LEN);
    CHECK_COUNTERS(fh, 0, 0, 0);
    CHECK_MPI(MPI_File_close(&fh));
    free(memory);
    free(want);
}

/* A view of ints, each of this rank in turn with those of the others. */
static void set_view_of_ints(MPI_File fh)
{
    MPI_Datatype type;
    MPI_Type_create_resized(MPI_INT, 0, (MPI_Aint)sizeof(int) * check.ranks, &type);
    MPI_Type_commit(&type);
    CHECK_MPI(MPI_File_set_view(fh, (MPI_Offset)sizeof(int) * check.rank, MPI_INT, type, "native", MPI_INFO_NULL));
    MPI_Type_free(&type);
}

/* One rank moves what is no whole number of etypes, which its view cannot: it takes part in the others' call by the view all the same. So
 * all ranks count the same calls, and the server knows which belong together. */
static void run_dafs_collective_beside_view(void)
{
    MPI_File fh = open_with("dafs_collective", "server");
    unsigned char memory[400];
    MPI_Status status;
    need_dafs(&fh);
    if (hint_of(fh, "romio_filesystem_type") != NULL) {
        CHECK_MPI(MPI_File_close(&fh));
        check_skip("ROMIO refuses this on one rank, and the others wait for it");
    }
    set_view_of_ints(fh);
    for (int round = 1; round <= 2; round++) {
        int len = check.rank == 0 && round == 1 ? 3 : (int)sizeof memory;
        pattern_fill(memory, 1, (uint64_t)check.rank * sizeof memory, sizeof memory);
        CHECK_MPI(MPI_File_write_at_all(fh, 0, memory, len, MPI_BYTE, &status));
        CHECK_COUNT(&status, MPI_BYTE, len);
        CHECK_EQUAL(counter_of(fh, "views"), round);
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* In force is what a hint for one direction says, or else that for both, whatever their order and whether they come together. */
static void run_dafs_method(void)
{
    static const char *const orders[][2] = {{"dafs_read_method", "dafs_method"}, {"dafs_method", "dafs_read_method"}};
    static const char *const keys[] = {"dafs_method", "dafs_read_method", "dafs_write_method"};
    static const char *const values[] = {"list", "multiple", "list"};
    for (int way = 0; way < 6; way++) {
        const char *const *order = orders[way % 2];
        MPI_File fh = open_with(NULL, NULL);
        MPI_Info info;
        need_dafs(&fh);
        MPI_Info_create(&info);
        for (int i = 0; i < 2; i++)
            MPI_Info_set(info, order[i], strcmp(order[i], "dafs_method") == 0 ? "list" : "multiple");
        if (way / 2 == 0) {
            CHECK_MPI(MPI_File_close(&fh));
            CHECK_MPI(MPI_File_open(MPI_COMM_WORLD, check.file, MPI_MODE_CREATE | MPI_MODE_RDWR, info, &fh));
        } else if (way / 2 == 1) {
            CHECK_MPI(MPI_File_set_info(fh, info));
        } else {
            set_info(fh, order[0], strcmp(order[0], "dafs_method") == 0 ? "list" : "multiple");
            set_info(fh, order[1], strcmp(order[1], "dafs_method") == 0 ? "list" : "multiple");
        }
        MPI_Info_free(&info);
        /* At once, and after a call. */
        for (int moved = 0; moved < 2; moved++) {
            for (int i = 0; i < 3; i++) {
                const char *told = hint_of(fh, keys[i]);
                CHECK(told != NULL && strcmp(told, values[i]) == 0, "way %d: %s: expected %s, got %s", way, keys[i], values[i],
                      told ? told : "nothing");
            }
            move(fh, 1);
        }
        CHECK_MPI(MPI_File_close(&fh));
    }
}

/* All hints are told, whatever is set. */
static void run_dafs_all_told(void)
{
    static const char *const hints[][2] = {
        {"dafs_memory", "adio_cache"},    {"dafs_cache_entries", "7"},     {"dafs_method", "multiple"},
        {"dafs_read_method", "list"},     {"dafs_write_method", "view"},   {"dafs_list_max", "128"},
        {"dafs_list_bounds", "true"},     {"dafs_sieve", "off"},           {"dafs_explain", "false"},
        {"dafs_commit_on_close", "true"}, {"dafs_collective", "server"},   {"romio_ds_read", "enable"},
        {"romio_ds_write", "enable"},     {"ind_rd_buffer_size", "65536"}, {"striping_factor", "2"},
        {"striping_unit", "4096"},
    };
    MPI_File fh = open_with(NULL, NULL);
    need_dafs(&fh);
    for (size_t i = 0; i < sizeof hints / sizeof hints[0]; i++) {
        set_info(fh, hints[i][0], hints[i][1]);
        for (size_t k = 0; k < sizeof hints / sizeof hints[0]; k++) {
            const char *told = hint_of(fh, hints[k][0]);
            CHECK(told != NULL, "%s is not told after %s was set", hints[k][0], hints[i][0]);
            CHECK(k != i || (told != NULL && strcmp(told, hints[k][1]) == 0), "%s: %s is told", hints[k][0], told ? told : "nothing");
        }
    }
    CHECK_MPI(MPI_File_close(&fh));
}

/* Ranks that ask for different collective calls agree on the exchange, and stay with it whatever hint comes later. */
static void run_dafs_collective_differs(void)
{
    const char *mine = check.rank == 0 ? "independent" : "two_phase";
    unsigned char memory[4000], got[4000];
    MPI_File fh = open_with("dafs_collective", mine);
    MPI_Status status;
    need_dafs(&fh);
    set_view_of_ints(fh);
    for (uint64_t round = 0; round < 4; round++) {
        set_info(fh, round % 2 ? "dafs_memory" : "dafs_collective", round % 2 ? "dafs" : mine);
        pattern_fill(memory, round, (uint64_t)check.rank * sizeof memory, sizeof memory);
        CHECK_MPI(MPI_File_write_at_all(fh, 0, memory, sizeof memory, MPI_BYTE, &status));
        check_publish(fh);
        CHECK_MPI(MPI_File_read_at_all(fh, 0, got, sizeof got, MPI_BYTE, &status));
        CHECK_BYTES(got, memory, 0, sizeof got);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* They agree again with the next view. */
    move(fh, 1);
    CHECK_MPI(MPI_File_close(&fh));
}

int main(int argc, char **argv)
{
    static const struct check_case cases[] = {
        {"get_info", 1, run_get_info, "MPI_File_get_info without hints"},
        {"standard", 1, run_standard, "the hints that MPI reserves"},
        {"romio", 1, run_romio, "hints of ROMIO: buffering and sieving on and off"},
        {"unknown", 1, run_unknown, "hints that nobody knows"},
        {"round_trip", 1, run_round_trip, "what was given is told"},
        {"set_info", 1, run_set_info, "hints that change"},
        {"dafs_memory", 1, run_dafs_memory, "memory modes of a dafs driver, switched in the middle"},
        {"zeros", 1, run_zeros, "a number of 0 asks for the default"},
        {"dafs_memory_unknown", 1, run_dafs_memory_unknown, "a memory mode that does not exist"},
        {"dafs_counters", 1, run_dafs_counters, "counters of a dafs driver"},
        {"dafs_view", 1, run_dafs_view, "a view of a dafs driver is described by MPI_File_set_view, once"},
        {"dafs_method", 1, run_dafs_method, "hints for one direction and for both"},
        {"dafs_all_told", 1, run_dafs_all_told, "all hints of a dafs driver are told after each one"},
        {"dafs_collective_beside_view", 2, run_dafs_collective_beside_view, "a rank whose view cannot move its data in a collective call"},
        {"dafs_collective_differs", 2, run_dafs_collective_differs, "ranks that ask for different collective calls of a dafs driver"},
        {NULL, 0, NULL, NULL},
    };
    return check_main(argc, argv, cases, "", MPI_THREAD_SINGLE);
}
