/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hugging Face folders: what config.json may say, in its old and new spellings, and that what is
 * not supported is refused by name. Folders are made of a changed config.json and a link to the
 * weights of golden/llama.
 */
#include "model_test.h"

#include <limits.h>
#include <unistd.h>

static char folder[] = "/tmp/fm_hf_XXXXXX";

static char *read_text(const char *path) {
    char *text = NULL;
    size_t bytes = 0;
    fm_error error = {0};
    CHECK_OK(fm__file_read(path, 1 << 20, &text, &bytes, &error));
    return text;
}

/* golden/llama's config with each `from` replaced by `to`. */
static void write_config(const char *const (*changes)[2], size_t n) {
    char *text = read_text("golden/llama/config.json");
    for (size_t i = 0; i < n; i++) {
        char *at = strstr(text, changes[i][0]);
        if (!at)
            fail_msg("config.json has no %s", changes[i][0]);
        size_t from = strlen(changes[i][0]), to = strlen(changes[i][1]), rest = strlen(at + from);
        char *next = fm__alloc(strlen(text) + to + 1);
        memcpy(next, text, (size_t)(at - text));
        memcpy(next + (at - text), changes[i][1], to);
        memcpy(next + (at - text) + to, at + from, rest + 1);
        fm__free(text);
        text = next;
    }
    char path[128];
    snprintf(path, sizeof(path), "%s/config.json", folder);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
    fm__free(text);
}

static fm_status open_view(fm__checkpoint **view, fm_error *error) {
    fm__checkpoint *hf = NULL;
    fm_status status = fm__checkpoint_open(&hf, folder, error);
    return status == FM_OK ? fm__model_from_hf(view, &hf, error) : status;
}

static void refused(const char *from, const char *to, fm_status status, const char *named) {
    const char *const changes[1][2] = {{from, to}};
    fm__checkpoint *view = NULL;
    fm_error error = {0};
    write_config(changes, 1);
    fm_status got = open_view(&view, &error);
    if (got == FM_OK)
        fail_msg("%s: not refused", to);
    if (got != status || (!strstr(error.message, named) && !strstr(error.place, named)))
        fail_msg("%s: %s at '%s': %s", to, fm_status_name(got), error.place, error.message);
    assert_null(view);
}

static void refusals(void **state) {
    (void)state;
    refused("\"model_type\": \"llama\"", "\"model_type\": \"mamba9\"", FM_ERROR_UNSUPPORTED,
            "mamba9");
    refused("\"model_type\": \"llama\"", "\"model\": 1", FM_ERROR_FORMAT, "model_type");
    refused("\"model_type\": \"llama\"", "\"model_type\": 7", FM_ERROR_FORMAT, "model_type");
    refused("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", FM_ERROR_UNSUPPORTED, "gelu");
    refused("\"mlp_bias\": false", "\"mlp_bias\": true", FM_ERROR_UNSUPPORTED, "mlp_bias");
    refused("\"mlp_bias\": false", "\"mlp_bias\": 0", FM_ERROR_FORMAT, "mlp_bias");
    refused("\"mlp_bias\": false", "\"quantization_config\": {\"quant_method\": \"gptq\"}",
            FM_ERROR_UNSUPPORTED, "gptq");
    refused("\"mlp_bias\": false", "\"num_local_experts\": 8", FM_ERROR_UNSUPPORTED,
            "num_local_experts");
    refused("\"mlp_bias\": false", "\"partial_rotary_factor\": 0.5", FM_ERROR_UNSUPPORTED,
            "partial_rotary_factor");
    refused("\"mlp_bias\": false", "\"layer_types\": [\"sliding_attention\"]", FM_ERROR_UNSUPPORTED,
            "sliding_attention");
    refused("\"mlp_bias\": false", "\"use_sliding_window\": true", FM_ERROR_UNSUPPORTED,
            "use_sliding_window");
    refused("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", FM_ERROR_UNSUPPORTED,
            "rope scaling type yarn");
    refused("\"rope_type\": \"default\"", "\"rope_type\": \"llama3\"", FM_ERROR_FORMAT, "factor");
    refused("\"rope_theta\": 10000.0", "\"rope_theta\": \"big\"", FM_ERROR_FORMAT, "rope_theta");
    refused("\"rope_theta\": 10000.0", "\"rope_theta\": 0", FM_ERROR_FORMAT, "rope_theta");
    refused("\"head_dim\": 32", "\"head_dim\": 31", FM_ERROR_FORMAT, "head_dim");
    refused("\"hidden_size\": 128", "\"hidden_size\": -1", FM_ERROR_FORMAT, "hidden_size");
    refused("\"hidden_size\": 128", "\"hidden_size\": 1.5", FM_ERROR_FORMAT, "hidden_size");
    refused("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4000000000", FM_ERROR_FORMAT,
            "4000000000");
    refused("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", FM_ERROR_UNSUPPORTED,
            "model.layers.1.");
    refused("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 5", FM_ERROR_FORMAT, "k_proj");
    refused("\"vocab_size\": 320", "\"vocab_size\": 320,", FM_ERROR_FORMAT, "config.json");
}

static void spellings(void **state) {
    (void)state;
    fm_error error = {0};
    /* The older way to say the same. */
    const char *const old[][2] = {
        {"\"rope_parameters\": {\n    \"rope_theta\": 10000.0,\n    \"rope_type\": \"default\"\n  "
         "}",
         "\"rope_theta\": 20000.0, \"rope_scaling\": {\"type\": \"linear\", \"factor\": 4.0}"},
        {"\"head_dim\": 32,", "\"head_dim\": null,"},
    };
    write_config(old, 2);
    fm__checkpoint *view = NULL;
    CHECK_OK(open_view(&view, &error));
    float f = 0;
    uint32_t u = 0;
    fm__str s = {0};
    CHECK_OK(fm__kv_read_f32(view, "llama.rope.freq_base", true, &f, &error));
    assert_true(f == 20000.0f);
    CHECK_OK(fm__kv_read_str(view, "llama.rope.scaling.type", true, &s, &error));
    assert_true(fm__str_is(s, "linear"));
    CHECK_OK(fm__kv_read_f32(view, "llama.rope.scaling.factor", true, &f, &error));
    assert_true(f == 4.0f);
    CHECK_OK(fm__kv_read_u32(view, "llama.attention.key_length", true, &u, &error));
    assert_int_equal(u, 32);
    const fm__model_options options = {0};
    fm__model *model = NULL;
    CHECK_OK(fm__model_open(&model, &view, &options, &error));
    assert_true(model->hparams.rope_linear == 4.0 && model->hparams.rope_base == 20000.0);
    fm__model_destroy(&model);

    /* Tied although lm_head.weight is there: the embedding is used. */
    const char *const tied[][2] = {
        {"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}};
    write_config(tied, 1);
    CHECK_OK(open_view(&view, &error));
    assert_null(fm__checkpoint_find(view, "output.weight"));
    fm__checkpoint_close(&view);

    /* Llama 3 factors become a tensor. */
    const char *const llama3[][2] = {
        {"\"rope_type\": \"default\"",
         "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
         "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 64"}};
    write_config(llama3, 1);
    CHECK_OK(open_view(&view, &error));
    const fm__tensor_info *factors = fm__checkpoint_find(view, "rope_freqs.weight");
    assert_non_null(factors);
    assert_int_equal(factors->dims[0], 16);
    fm__checkpoint_close(&view);

    /* Mistral is a llama with a window; null means none. */
    const char *const mistral[][2] = {{"\"model_type\": \"llama\"", "\"model_type\": \"mistral\""},
                                      {"\"mlp_bias\": false", "\"sliding_window\": 33"}};
    write_config(mistral, 2);
    CHECK_OK(open_view(&view, &error));
    CHECK_OK(fm__kv_read_u32(view, "llama.attention.sliding_window", true, &u, &error));
    assert_int_equal(u, 33);
    fm__checkpoint_close(&view);
}

/* q and k rows of a llama are permuted for pair rotation: row 1 comes from the second half. */
static void permutation(void **state) {
    (void)state;
    fm_error error = {0};
    write_config(NULL, 0);
    fm__checkpoint *view = NULL;
    CHECK_OK(open_view(&view, &error));
    const fm__tensor_info *q = fm__checkpoint_find(view, "blk.1.attn_q.weight");
    const fm__tensor_info *v = fm__checkpoint_find(view, "blk.1.attn_v.weight");
    assert_non_null(q);
    assert_non_null(v);
    assert_int_equal(q->rope_heads, 4);
    assert_int_equal(v->rope_heads, 0);
    assert_int_equal(fm__tensor_source_row(q, 0), 0);
    assert_int_equal(fm__tensor_source_row(q, 1), 16);
    assert_int_equal(fm__tensor_source_row(q, 2), 1);
    assert_int_equal(fm__tensor_source_row(q, 33), 48);
    assert_int_equal(fm__tensor_source_row(v, 33), 33);
    fm__checkpoint_close(&view);
}

static int make_folder(void **state) {
    (void)state;
    char target[PATH_MAX], link[128];
    if (!mkdtemp(folder) || !realpath("golden/llama/model.safetensors", target))
        return 1;
    snprintf(link, sizeof(link), "%s/model.safetensors", folder);
    return symlink(target, link);
}

static int remove_folder(void **state) {
    (void)state;
    char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    unlink(path);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals),
        cmocka_unit_test(spellings),
        cmocka_unit_test(permutation),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
