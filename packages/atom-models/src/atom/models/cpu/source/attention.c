/* Attention of few query rows a sequence over a paged cache of float32.
 *
 * Row r of sequence s = r / query_len sees the first seq_lens[s] - query_len + r % query_len + 1 tokens, at least
 * one. Keys are taken CHUNK at a time with a running maximum (arXiv 2112.05682, 2205.14135), always in the same
 * order: a row's result does not depend on its batch.
 */
#include <math.h>

#include "vectors.h"

#define CHUNK 64
#define WIDEST (256 / LANES)

typedef struct {
    const float *k, *v;
    int64_t row, block_size; /* numbers a token's row has in the cache, tokens a block has */
    const int32_t *table;
    int64_t seen, width, blocks; /* tokens, entries of the table, blocks of the cache */
} keys_t;

/* One query head of `width` registers; a constant where this is inlined. A block number that the cache does not
 * have is returned, else -1. */
INLINE int64_t attend_head(const int width, const float *query, const keys_t *keys, float scale, float *out) {
    vector q[WIDEST], sum[WIDEST];
#pragma GCC unroll 16
    for (int i = 0; i < width; i++) q[i] = load(query + i * LANES), sum[i] = (vector){};
    float most = -INFINITY, weight = 0;
    for (int64_t first = 0; first < keys->seen; first += CHUNK) {
        const int64_t count = keys->seen - first < CHUNK ? keys->seen - first : CHUNK;
        int64_t at[CHUNK];
        float score[CHUNK];
        for (int64_t t = 0; t < CHUNK; t++) score[t] = -INFINITY;
        float chunk_most = most;
        for (int64_t t = 0; t < count; t++) {
            const int64_t token = first + t, entry = token / keys->block_size;
            const int64_t block = entry < keys->width ? keys->table[entry] : -1;
            if (block < 0 || block >= keys->blocks) return block < 0 ? keys->blocks : block;
            at[t] = (block * keys->block_size + token % keys->block_size) * keys->row;
            vector products = q[0] * load(keys->k + at[t]);
#pragma GCC unroll 16
            for (int i = 1; i < width; i++) products += q[i] * load(keys->k + at[t] + i * LANES);
            score[t] = sum_of(products) * scale;
            chunk_most = score[t] > chunk_most ? score[t] : chunk_most;
        }
        const float shrink = exp_of(all(most - chunk_most))[0];
        most = chunk_most;
        vector total = {};
#pragma GCC unroll 1
        for (int t = 0; t < CHUNK; t += LANES) {
            const vector p = exp_of(load(score + t) - most);
            total += p;
            store(score + t, p);
        }
        weight = weight * shrink + sum_of(total);
#pragma GCC unroll 16
        for (int i = 0; i < width; i++) sum[i] *= shrink;
        for (int64_t t = 0; t < count; t++)
#pragma GCC unroll 16
            for (int i = 0; i < width; i++) sum[i] += load(keys->v + at[t] + i * LANES) * score[t];
    }
#pragma GCC unroll 16
    for (int i = 0; i < width; i++) store(out + i * LANES, sum[i] / weight);
    return -1;
}

#define CASE(size) \
    case size: return attend_head(size / LANES, query, keys, scale, out)
static int64_t attend_any(int64_t head_dim, const float *query, const keys_t *keys, float scale, float *out) {
    switch (head_dim) {
        CASE(64); CASE(96); CASE(128); CASE(256);
        default: return attend_head(head_dim / LANES, query, keys, scale, out);
    }
}

EXPORT int64_t has_head_dim(int64_t size) { return size > 0 && size <= WIDEST * LANES && size % LANES == 0; }

/* query and out [rows][heads][head_dim] with `stride` between query rows, caches [blocks][block_size][kv_heads]
 * [head_dim], tables [seqs][width]. Returns -1, or a block number that the cache does not have. */
EXPORT int64_t paged_attention(const float *query, const float *k_cache, const float *v_cache, const int32_t *tables,
                            const int32_t *seq_lens, float *out, int64_t seqs, int64_t query_len, int64_t width,
                            int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t blocks, int64_t block_size,
                            int64_t stride, float scale, int threads) {
    const int64_t rows = seqs * query_len, grouped = heads / kv_heads;
    int64_t missing = -1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (int64_t task = 0; task < rows * heads; task++) {
        const int64_t r = task / heads, h = task % heads, s = r / query_len, head = h / grouped * head_dim;
        const int64_t seen = (int64_t)seq_lens[s] - query_len + r % query_len + 1;
        const keys_t keys = {k_cache + head,     v_cache + head,      kv_heads * head_dim, block_size,
                             tables + s * width, seen > 1 ? seen : 1, width,               blocks};
        const int64_t wrong = attend_any(head_dim, query + r * stride + h * head_dim, &keys, scale,
                                         out + task * head_dim);
        if (wrong >= 0) {
#pragma omp atomic write
            missing = wrong;
        }
    }
    return missing;
}

/* Row i of `rows` to slot slots[i] of a cache of `size` numbers a token. Returns -1, or the first row whose slot is
 * not one of the cache's `total`; then nothing is written. */
EXPORT int64_t write_cache(const float *rows, const int64_t *slots, float *cache, int64_t count, int64_t size,
                           int64_t stride, int64_t total) {
    for (int64_t i = 0; i < count; i++)
        if (slots[i] < 0 || slots[i] >= total) return i;
    for (int64_t i = 0; i < count; i++) memcpy(cache + slots[i] * size, rows + i * stride, size * sizeof(float));
    return -1;
}
