/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hyper-parameters and tensors of GGUF files: what is refused, and that the message names it. The
 * checkpoints are made in memory; opening reads no weight.
 */
#include "test.h"

#include "model/model.h"

static float zeros[64 * 64];

typedef struct change {
    const char *key; /* without the architecture */
    char type;       /* 'u', 'f', 's', 'x': leave it out */
    uint32_t u;
    float f;
    const char *s;
} change;

static void add_tensor(fm__checkpoint *c, const char *name, uint64_t k, uint64_t n) {
    fm__tensor_info t = {.name = fm__str_of(name),
                         .dtype = FM__F32,
                         .n_dims = n ? 2 : 1,
                         .dims = {k, n ? n : 1, 1, 1},
                         .bytes = k * (n ? n : 1) * 4,
                         .data = (const uint8_t *)zeros};
    assert_int_equal(fm__checkpoint_add_tensor(c, &t, NULL), FM_OK);
}

/* A llama of one layer: 32 wide, 4 heads of 8 (2 for keys), 48 feed-forward, 40 tokens. */
static fm__checkpoint *make(const change *changes, const char *skip_tensor,
                            const char *extra_tensor) {
    static const change base[] = {
        {"block_count", 'u', 1, 0, NULL},
        {"context_length", 'u', 128, 0, NULL},
        {"embedding_length", 'u', 32, 0, NULL},
        {"feed_forward_length", 'u', 48, 0, NULL},
        {"attention.head_count", 'u', 4, 0, NULL},
        {"attention.head_count_kv", 'u', 2, 0, NULL},
        {"attention.layer_norm_rms_epsilon", 'f', 0, 1e-5f, NULL},
    };
    static const struct {
        const char *name;
        uint64_t k, n;
    } tensors[] = {
        {"token_embd.weight", 32, 40},    {"blk.0.attn_norm.weight", 32, 0},
        {"blk.0.attn_q.weight", 32, 32},  {"blk.0.attn_k.weight", 32, 16},
        {"blk.0.attn_v.weight", 32, 16},  {"blk.0.attn_output.weight", 32, 32},
        {"blk.0.ffn_norm.weight", 32, 0}, {"blk.0.ffn_gate.weight", 32, 48},
        {"blk.0.ffn_up.weight", 32, 48},  {"blk.0.ffn_down.weight", 48, 32},
        {"output_norm.weight", 32, 0},
    };
    fm__checkpoint *c = NULL;
    assert_int_equal(fm__checkpoint_view(&c, NULL, NULL), FM_OK);
    const char *arch = "llama";
    for (const change *x = changes; x && x->key; x++)
        arch = strcmp(x->key, "arch") == 0 ? x->s : arch;
    assert_int_equal(fm__checkpoint_add_str(c, "general.architecture", fm__str_of(arch), NULL),
                     FM_OK);
    for (int pass = 0; pass < 2; pass++) {
        const change *from = pass == 0 ? base : changes;
        size_t n = pass == 0 ? sizeof(base) / sizeof(base[0]) : 0;
        for (const change *x = changes; pass == 1 && x && x->key; x++)
            n++;
        for (size_t i = 0; i < n; i++) {
            const change *x = &from[i];
            bool replaced = false;
            for (const change *y = changes; pass == 0 && y && y->key; y++)
                replaced = replaced || strcmp(x->key, y->key) == 0;
            if (replaced || x->type == 'x' || strcmp(x->key, "arch") == 0)
                continue;
            char key[128];
            snprintf(key, sizeof(key), "llama.%s", x->key);
            if (x->type == 'u')
                assert_int_equal(fm__checkpoint_add_u32(c, key, x->u, NULL), FM_OK);
            if (x->type == 'f')
                assert_int_equal(fm__checkpoint_add_f32(c, key, x->f, NULL), FM_OK);
            if (x->type == 's')
                assert_int_equal(fm__checkpoint_add_str(c, key, fm__str_of(x->s), NULL), FM_OK);
        }
    }
    for (size_t i = 0; i < sizeof(tensors) / sizeof(tensors[0]); i++) {
        if (!skip_tensor || strcmp(skip_tensor, tensors[i].name) != 0)
            add_tensor(c, tensors[i].name, tensors[i].k, tensors[i].n);
    }
    if (extra_tensor)
        add_tensor(c, extra_tensor, 32, 32);
    return c;
}

static fm_status open_model(fm__checkpoint *c, fm__model **model, fm_error *error) {
    const fm__model_options options = {0};
    return fm__model_open(model, &c, &options, error);
}

static void refused(fm__checkpoint *c, fm_status status, const char *named) {
    fm__model *model = NULL;
    fm_error error = {0};
    fm_status got = open_model(c, &model, &error);
    if (got == FM_OK)
        fail_msg("%s: not refused", named);
    if (got != status || (!strstr(error.place, named) && !strstr(error.message, named)))
        fail_msg("%s: %s at '%s': %s", named, fm_status_name(got), error.place, error.message);
    assert_null(model);
}

static void accepted(void **state) {
    (void)state;
    fm__model *model = NULL;
    fm_error error = {0};
    assert_int_equal(open_model(make(NULL, NULL, NULL), &model, &error), FM_OK);
    assert_int_equal(model->hparams.n_vocab, 40);
    assert_int_equal(model->hparams.key_dim, 8);
    assert_int_equal(model->hparams.rotary, 8);
    assert_true(model->hparams.tied);
    assert_int_equal(model->groups[0].head_bytes, 64 * 2 * 16);
    fm__tape *tape = NULL;
    assert_int_equal(fm__model_record(model, 4, 2, &tape, &error), FM_OK);
    assert_int_equal(tape->tensors[tape->logits].cols, 40);
    assert_int_equal(tape->tensors[tape->hidden].cols, 32);
    fm__tape_destroy(&tape);
    fm__model_destroy(&model);

    /* Neutral values of keys that would otherwise be refused. */
    const change neutral[] = {{"expert_count", 'u', 0, 0, NULL},
                              {"logit_scale", 'f', 0, 1.0f, NULL},
                              {"rope.scaling.type", 's', 0, 0, "none"},
                              {NULL, 0, 0, 0, NULL}};
    assert_int_equal(open_model(make(neutral, NULL, NULL), &model, &error), FM_OK);
    fm__model_destroy(&model);
}

static void rope_scaling(void **state) {
    (void)state;
    const struct {
        change changes[3];
        double want;
    } cases[] = {
        {{{NULL, 0, 0, 0, NULL}}, 1},
        {{{"rope.scaling.factor", 'f', 0, 4, NULL}, {NULL, 0, 0, 0, NULL}}, 4},
        {{{"rope.scale_linear", 'f', 0, 2, NULL}, {NULL, 0, 0, 0, NULL}}, 2},
        {{{"rope.scaling.factor", 'f', 0, 0, NULL}, {NULL, 0, 0, 0, NULL}}, 1},
        {{{"rope.scaling.type", 's', 0, 0, "linear"},
          {"rope.scaling.factor", 'f', 0, 8, NULL},
          {NULL, 0, 0, 0, NULL}},
         8},
        {{{"rope.scaling.type", 's', 0, 0, "none"},
          {"rope.scaling.factor", 'f', 0, 8, NULL},
          {NULL, 0, 0, 0, NULL}},
         1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fm__model *model = NULL;
        fm_error error = {0};
        assert_int_equal(open_model(make(cases[i].changes, NULL, NULL), &model, &error), FM_OK);
        assert_true(model->hparams.rope_linear == cases[i].want);
        fm__model_destroy(&model);
    }
    const change below[] = {{"rope.scaling.factor", 'f', 0, 0.5f, NULL}, {NULL, 0, 0, 0, NULL}};
    refused(make(below, NULL, NULL), FM_ERROR_FORMAT, "rope.scaling.factor");
}

static void keys(void **state) {
    (void)state;
    const struct {
        change change;
        fm_status status;
        const char *named;
    } cases[] = {
        {{"arch", 's', 0, 0, "mamba9"}, FM_ERROR_UNSUPPORTED, "mamba9"},
        {{"block_count", 'x', 0, 0, NULL}, FM_ERROR_FORMAT, "llama.block_count"},
        {{"block_count", 'u', 0, 0, NULL}, FM_ERROR_FORMAT, "llama.block_count"},
        {{"block_count", 'u', 4000000000u, 0, NULL}, FM_ERROR_FORMAT, "llama.block_count"},
        {{"embedding_length", 's', 0, 0, "wide"}, FM_ERROR_FORMAT, "llama.embedding_length"},
        {{"embedding_length", 'u', 33, 0, NULL}, FM_ERROR_FORMAT, "attention.head_count"},
        {{"embedding_length", 'u', 64, 0, NULL}, FM_ERROR_FORMAT, "token_embd.weight"},
        {{"feed_forward_length", 'u', 47, 0, NULL}, FM_ERROR_FORMAT, "ffn_gate.weight"},
        {{"attention.head_count", 'u', 0, 0, NULL}, FM_ERROR_FORMAT, "attention.head_count"},
        {{"attention.head_count_kv", 'u', 3, 0, NULL}, FM_ERROR_FORMAT, "head_count_kv"},
        {{"attention.head_count_kv", 'u', 0, 0, NULL}, FM_ERROR_FORMAT, "head_count_kv"},
        {{"attention.key_length", 'u', 100000, 0, NULL}, FM_ERROR_FORMAT, "key_length"},
        {{"attention.layer_norm_rms_epsilon", 'f', 0, 0.0f, NULL}, FM_ERROR_FORMAT, "epsilon"},
        {{"attention.layer_norm_rms_epsilon", 'x', 0, 0, NULL}, FM_ERROR_FORMAT, "epsilon"},
        {{"context_length", 'u', 0, 0, NULL}, FM_ERROR_FORMAT, "context_length"},
        {{"rope.dimension_count", 'u', 7, 0, NULL}, FM_ERROR_FORMAT, "dimension_count"},
        {{"rope.dimension_count", 'u', 10, 0, NULL}, FM_ERROR_FORMAT, "dimension_count"},
        {{"rope.freq_base", 'f', 0, -1.0f, NULL}, FM_ERROR_FORMAT, "freq_base"},
        {{"rope.scaling.type", 's', 0, 0, "yarn"}, FM_ERROR_UNSUPPORTED, "rope scaling type yarn"},
        {{"rope.scaling.type", 's', 0, 0, "longrope"}, FM_ERROR_UNSUPPORTED, "longrope"},
        {{"expert_count", 'u', 8, 0, NULL}, FM_ERROR_UNSUPPORTED, "llama.expert_count"},
        {{"final_logit_softcapping", 'f', 0, 30, NULL}, FM_ERROR_UNSUPPORTED, "softcapping"},
        {{"attention.scale", 'f', 0, 0.5f, NULL}, FM_ERROR_UNSUPPORTED, "attention.scale"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const change changes[] = {cases[i].change, {NULL, 0, 0, 0, NULL}};
        refused(make(changes, NULL, NULL), cases[i].status, cases[i].named);
    }
}

static void tensors(void **state) {
    (void)state;
    static const char *const needed[] = {
        "token_embd.weight",        "blk.0.attn_norm.weight", "blk.0.attn_q.weight",
        "blk.0.attn_output.weight", "blk.0.ffn_down.weight",  "output_norm.weight",
    };
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        refused(make(NULL, needed[i], NULL), FM_ERROR_FORMAT, needed[i]);
    static const char *const extra[] = {"blk.1.attn_q.weight", "blk.0.ffn_gate_exps.weight",
                                        "rope_factors_long.weight", "blk.0.attn_q_norm.weight"};
    for (size_t i = 0; i < sizeof(extra) / sizeof(extra[0]); i++)
        refused(make(NULL, NULL, extra[i]), FM_ERROR_UNSUPPORTED, extra[i]);
    refused(make(NULL, "blk.0.attn_k.weight", "blk.0.attn_k.weight"), FM_ERROR_FORMAT,
            "blk.0.attn_k.weight");
    refused(make(NULL, NULL, "rope_freqs.weight"), FM_ERROR_FORMAT, "rope_freqs.weight");
    refused(make(NULL, NULL, "output.weight"), FM_ERROR_FORMAT, "output.weight");

    /* A bias is optional for llama and taken where it is. */
    fm__checkpoint *c = make(NULL, NULL, NULL);
    add_tensor(c, "blk.0.attn_v.bias", 16, 0);
    fm__model *model = NULL;
    fm_error error = {0};
    assert_int_equal(open_model(c, &model, &error), FM_OK);
    fm__model_destroy(&model);
}

/* Types that cannot be computed with are named. */
static void types(void **state) {
    (void)state;
    fm__checkpoint *c = make(NULL, "blk.0.ffn_up.weight", NULL);
    fm__tensor_info t = {.name = FM__STR("blk.0.ffn_up.weight"),
                         .dtype = FM__I32,
                         .n_dims = 2,
                         .dims = {32, 48, 1, 1},
                         .bytes = 32 * 48 * 4,
                         .data = (const uint8_t *)zeros};
    assert_int_equal(fm__checkpoint_add_tensor(c, &t, NULL), FM_OK);
    refused(c, FM_ERROR_UNSUPPORTED, "i32");

    fm__model *model = NULL;
    fm_error error = {0};
    c = make(NULL, "blk.0.ffn_up.weight", NULL);
    t.dtype = FM__Q8_0;
    t.bytes = 48 * 34;
    assert_int_equal(fm__checkpoint_add_tensor(c, &t, NULL), FM_OK);
    const fm__model_options fast = {.numeric_class = FM_CLASS_FAST};
    assert_int_equal(fm__model_open(&model, &c, &fast, &error), FM_ERROR_UNSUPPORTED);
    assert_non_null(strstr(error.place, "blk.0.ffn_up.weight"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accepted), cmocka_unit_test(rope_scaling), cmocka_unit_test(keys),
        cmocka_unit_test(tensors),  cmocka_unit_test(types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
