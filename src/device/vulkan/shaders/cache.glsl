// SPDX-License-Identifier: Apache-2.0
// Where a cache layer's pages lie, and what a head of one holds: src/tape/tape.h. With Q8_0 defined that is q8_0,
// else f16.

const uint PAGE_TOKENS = 64;
const uint KEY_BLOCK = 256;

struct CacheLayer {
    uvec2 offset; // of the layer in the cache
    uint group, n_kv_head, key_dim, value_dim;
};

// The first of a sequence's page ids in the layer's group.
Words page_list(RunBlock run, CacheLayer layer, uint sequence) {
    uint start = Words(run.page_start).v[sequence * run.n_group + layer.group];
    return Words(at(run.pages, 4 * start));
}

// Where the parts of a q8_0 head begin: codes of keys at 0.
uint key_scales_at(uint key_dim) { return PAGE_TOKENS * ((key_dim + 3) / 4) * 4; }
uint values_at(uint key_dim) { return key_scales_at(key_dim) + PAGE_TOKENS * 2 * ((key_dim + 31) / 32); }
uint value_scales_at(uint key_dim, uint value_dim) { return values_at(key_dim) + PAGE_TOKENS * value_dim; }

// A head of a page.
uvec2 page_at(uvec2 layer_base, CacheLayer layer, uint page, uint head) {
#ifdef Q8_0
    uint bytes = value_scales_at(layer.key_dim, layer.value_dim) + PAGE_TOKENS * 2 * ((layer.value_dim + 31) / 32);
#else
    uint bytes = PAGE_TOKENS * 2 * (layer.key_dim + layer.value_dim);
#endif
    return element(layer_base, page * layer.n_kv_head + head, bytes);
}
