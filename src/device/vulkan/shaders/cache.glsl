// SPDX-License-Identifier: Apache-2.0
// Where a cache layer's pages lie (src/tape/tape.h): head h of page p holds K as f16 [4][key_dim][16 keys],
// then V as f16 [64][value_dim].

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

// A head of a page.
uvec2 page_at(uvec2 layer_base, CacheLayer layer, uint page, uint head) {
    return element(layer_base, page * layer.n_kv_head + head,
                   PAGE_TOKENS * 2 * (layer.key_dim + layer.value_dim));
}
