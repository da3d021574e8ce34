/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Snapshots that are not what they say: cut, flipped, extended, of another model, class or size.
 * Each is refused and leaves the session empty. (That good ones restore the same bits:
 * test_engine_identity.c and test_engine_session.c.)
 */
#include "model_test.h"

#include <unistd.h>

static char folder[] = "/tmp/fm_snapshot_XXXXXX";
static char good[128], bad[128];
static unsigned char *bytes; /* of the good one */
static size_t n_bytes;
static fm_cache_type cache_type; /* of every engine */

typedef struct fixture {
    fm_machine *machine;
    fm_engine *engine;
    fm_session *session;
} fixture;

static void open_fixture(fixture *f, const char *model, fm_class numeric_class, uint32_t context) {
    fm_error error = {0};
    fm_engine_options options = fm_engine_options_default();
    options.numeric_class = numeric_class;
    options.context_length = context;
    options.cache_type = cache_type;
    *f = (fixture){.machine = test_machine(1, NULL)};
    CHECK_OK(fm_engine_load(&f->engine, f->machine, model, &options, &error));
    CHECK_OK(fm_session_create(&f->session, f->engine, NULL, &error));
}

static void close_fixture(fixture *f) {
    fm_session_destroy(&f->session);
    assert_int_equal(f->engine->pools[0].n_free, f->engine->pools[0].n_page);
    fm_engine_destroy(&f->engine);
    fm_machine_destroy(&f->machine);
}

static void write_bad(const void *data, size_t n) {
    FILE *file = fopen(bad, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    fclose(file);
}

enum { ANY_REFUSAL = -1 };

static void refused(fixture *f, int status, size_t what) {
    fm_error error = {0};
    fm_status got = fm_session_restore(f->session, bad, &error);
    if (got == FM_OK || (status != ANY_REFUSAL && (int)got != status))
        fail_msg("case %zu: %s: %s", what, fm_status_name(got), error.message);
    assert_non_null(strstr(error.place, bad));
    assert_int_equal(fm_session_length(f->session), 0);
    assert_int_equal(f->engine->pools[0].n_free, f->engine->pools[0].n_page);
}

static void cut(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    for (size_t n = 0; n < n_bytes; n += n < 96 ? 1 : 1997) {
        write_bad(bytes, n);
        refused(&f, FM_ERROR_FORMAT, n);
    }
    write_bad(bytes, n_bytes - 1);
    refused(&f, FM_ERROR_FORMAT, n_bytes - 1);
    unsigned char *longer = calloc(n_bytes + 8, 1);
    memcpy(longer, bytes, n_bytes);
    write_bad(longer, n_bytes + 8);
    refused(&f, FM_ERROR_FORMAT, n_bytes + 8);
    free(longer);
    close_fixture(&f);
}

static void flipped(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    for (size_t at = 0; at < n_bytes; at += at < 96 ? 1 : 4001) {
        for (int bit = 0; bit < 8; bit += 7) {
            bytes[at] ^= (unsigned char)(1 << bit);
            write_bad(bytes, n_bytes);
            refused(&f, ANY_REFUSAL, at);
            bytes[at] ^= (unsigned char)(1 << bit);
        }
    }
    write_bad(bytes, n_bytes);
    fm_error error = {0};
    CHECK_OK(fm_session_restore(f.session, bad, &error));
    assert_int_equal(fm_session_length(f.session), 71);
    close_fixture(&f);
}

/* A checksum can be recomputed: what it covers is checked on its own. */
static void forged(void **state) {
    (void)state;
    fixture f;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    unsigned char *forgery = malloc(n_bytes);
    static const size_t places[] = {28, 32, 48, 56, 60, 64};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) + 1; i++) {
        memcpy(forgery, bytes, n_bytes);
        if (i < sizeof(places) / sizeof(places[0]))
            memset(forgery + places[i], 0x7F, 4); /* lengths, geometry, a token: all far out */
        else
            memset(forgery + n_bytes - 64, 0xFF, 2); /* an f16 that is no number */
        uint64_t checksum = fm__hash(FM__HASH_SEED, forgery, n_bytes - 8);
        memcpy(forgery + n_bytes - 8, &checksum, 8);
        write_bad(forgery, n_bytes);
        refused(&f, ANY_REFUSAL, i);
    }
    free(forgery);
    close_fixture(&f);
}

static void another_engine(void **state) {
    (void)state;
    fm_error error = {0};
    fixture f;
    write_bad(bytes, n_bytes);
    open_fixture(&f, "golden/llama", FM_CLASS_FAST, 128);
    refused(&f, FM_ERROR_STATE, 1);
    close_fixture(&f);
    open_fixture(&f, "golden/llama-mha-odd", FM_CLASS_EXACT, 128);
    refused(&f, FM_ERROR_STATE, 2);
    close_fixture(&f);
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 70);
    refused(&f, FM_ERROR_LIMIT, 3);
    close_fixture(&f);
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 71);
    CHECK_OK(fm_session_decode(f.session, 1, NULL, &error));
    assert_int_equal(fm_session_restore(f.session, bad, &error), FM_ERROR_STATE);
    assert_int_equal(fm_session_length(f.session), 1);
    CHECK_OK(fm_session_truncate(f.session, 0, &error));
    CHECK_OK(fm_session_restore(f.session, bad, &error));
    close_fixture(&f);
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 71);
    assert_int_equal(fm_session_restore(f.session, "no-such-file", &error), FM_ERROR_IO);
    assert_int_equal(fm_session_save(f.session, "no-such-folder/x", &error), FM_ERROR_IO);
    close_fixture(&f);
}

/* Keys and values of one type are no use to an engine that keeps the other: both are named. */
static void another_cache_type(void **state) {
    (void)state;
    fm_error error = {0};
    fixture f;
    write_bad(bytes, n_bytes);
    cache_type = FM_CACHE_Q8_0;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    refused(&f, FM_ERROR_STATE, 0);
    fm_session_restore(f.session, bad, &error);
    assert_non_null(strstr(error.message, "f16"));
    assert_non_null(strstr(error.message, "q8_0"));
    CHECK_OK(fm_session_prefill(f.session, (const int32_t[]){1, 2, 3}, 3, NULL, &error));
    CHECK_OK(fm_session_save(f.session, bad, &error));
    close_fixture(&f);
    cache_type = FM_CACHE_F16;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    refused(&f, FM_ERROR_STATE, 1);
    close_fixture(&f);
    /* A scale of q8_0 that is no number: the last 128 bytes before the checksum are one block's. */
    fm__mapping mapping;
    CHECK_OK(fm__mapping_open(&mapping, bad, &error));
    size_t n = mapping.bytes;
    unsigned char *forgery = malloc(n);
    memcpy(forgery, mapping.data, n);
    fm__mapping_close(&mapping);
    forgery[n - 8 - 128] = 0xC0;
    forgery[n - 8 - 127] = 0x7F;
    uint64_t checksum = fm__hash(FM__HASH_SEED, forgery, n - 8);
    memcpy(forgery + n - 8, &checksum, 8);
    write_bad(forgery, n);
    free(forgery);
    cache_type = FM_CACHE_Q8_0;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    refused(&f, FM_ERROR_FORMAT, 2);
    close_fixture(&f);
    cache_type = FM_CACHE_F16;
}

/* A page that another session used before holds nothing of it: the file is the same as if that
   session had never been. */
static void tells_nothing(void **state) {
    (void)state;
    fm_error error = {0};
    for (int round = 0; round < 4; round++) {
        int used = round % 2;
        fixture f;
        cache_type = round < 2 ? FM_CACHE_F16 : FM_CACHE_Q8_0;
        int32_t secret[128];
        open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
        for (int i = 0; i < 128; i++)
            secret[i] = 100 + i;
        if (used)
            CHECK_OK(fm_session_prefill(f.session, secret, 128, NULL, &error));
        CHECK_OK(fm_session_truncate(f.session, 0, &error));
        for (int i = 0; i < 66; i++)
            CHECK_OK(fm_session_decode(f.session, i, NULL, &error));
        CHECK_OK(fm_session_save(f.session, used ? bad : good, &error));
        close_fixture(&f);
        if (!used)
            continue;
        fm__mapping a, b;
        CHECK_OK(fm__mapping_open(&a, good, &error));
        CHECK_OK(fm__mapping_open(&b, bad, &error));
        assert_int_equal(a.bytes, b.bytes);
        assert_memory_equal(a.data, b.data, a.bytes);
        fm__mapping_close(&a);
        fm__mapping_close(&b);
    }
    cache_type = FM_CACHE_F16;
}

static int make_good(void **state) {
    (void)state;
    fm_error error = {0};
    if (!mkdtemp(folder))
        return 1;
    snprintf(good, sizeof(good), "%s/good", folder);
    snprintf(bad, sizeof(bad), "%s/bad", folder);
    fixture f;
    open_fixture(&f, "golden/llama", FM_CLASS_EXACT, 128);
    int32_t ids[71]; /* odd, so that the tokens are padded; two pages */
    for (int i = 0; i < 71; i++)
        ids[i] = i * 3 % 320;
    fm_status status = fm_session_prefill(f.session, ids, 71, NULL, &error);
    if (status == FM_OK)
        status = fm_session_save(f.session, good, &error);
    close_fixture(&f);
    if (status != FM_OK)
        return 1;
    FILE *file = fopen(good, "rb");
    bytes = malloc(1 << 22);
    n_bytes = fread(bytes, 1, 1 << 22, file);
    fclose(file);
    return n_bytes < 1000;
}

static int remove_good(void **state) {
    (void)state;
    free(bytes);
    unlink(good);
    unlink(bad);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut),           cmocka_unit_test(flipped),
        cmocka_unit_test(forged),        cmocka_unit_test(another_engine),
        cmocka_unit_test(tells_nothing), cmocka_unit_test(another_cache_type),
    };
    return cmocka_run_group_tests(tests, make_good, remove_good);
}
