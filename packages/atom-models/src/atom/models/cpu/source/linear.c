/* y = x W^T + bias for float32 rows and a weight in panels.
 *
 * A panel holds PANEL output features for every input feature: [ceil(out / PANEL)][in][PANEL], so that a
 * register's lanes are output features and no sum runs across lanes. Each output adds its products in the
 * order of the input features, whatever the number of rows: a row's result does not depend on its batch.
 */
#include <stdlib.h>

#include "vectors.h"

#if LANES == 16
#define WIDE 2 /* registers a panel */
#define TALL 12 /* rows a tile: WIDE * TALL sums, the weights and one number of x fill the registers */
#elif REGISTERS == 32
#define WIDE 4
#define TALL 6
#else
#define WIDE 2
#define TALL 6
#endif
#define PANEL (WIDE * LANES)
#define STREAMS 4 /* places of a panel that are read at once */
#define AHEAD 4096 /* bytes of weight asked for before they are needed */

EXPORT int64_t panel_width(void) { return PANEL; }

/* `weight` is [out][in], of `size` 4 or 2 bytes a number. */
EXPORT void pack_panels(const char *weight, char *panels, int64_t out, int64_t in, int64_t size, int threads) {
    const int64_t count = (out + PANEL - 1) / PANEL;
#pragma omp parallel for num_threads(threads)
    for (int64_t p = 0; p < count; p++) {
        char *panel = panels + p * in * PANEL * size;
        for (int64_t n = 0; n < PANEL; n++) {
            const char *row = weight + (p * PANEL + n) * in * size;
            const int real = p * PANEL + n < out;
            if (size == 4)
                for (int64_t k = 0; k < in; k++) ((float *)panel)[k * PANEL + n] = real ? ((const float *)row)[k] : 0;
            else
                for (int64_t k = 0; k < in; k++)
                    ((uint16_t *)panel)[k * PANEL + n] = real ? ((const uint16_t *)row)[k] : 0;
        }
    }
}

/* x as tiles of TALL rows, each [in][rows of the tile]. */
static void pack_rows(const float *x, float *tiles, int64_t rows, int64_t in) {
    for (int64_t first = 0; first < rows; first += TALL) {
        const int64_t tall = rows - first < TALL ? rows - first : TALL;
        float *tile = tiles + first * in;
        for (int64_t r = 0; r < tall; r++)
            for (int64_t k = 0; k < in; k++) tile[k * tall + r] = x[(first + r) * in + k];
    }
}

/* One input feature's products. */
INLINE void add_products(const int rows, const int half, const float *x, const char *w, int64_t k, vector *sum) {
    vector weight[WIDE];
#pragma GCC unroll 4
    for (int j = 0; j < WIDE; j++) {
        const int64_t at = k * PANEL + j * LANES;
        const char *from = w + at * (half ? 2 : 4);
        weight[j] = half ? load_half((const uint16_t *)from) : load((const float *)from);
        if (j * LANES * (half ? 2 : 4) % 64 == 0) __builtin_prefetch(from + AHEAD);
    }
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) sum[r * WIDE + j] += weight[j] * x[k * rows + r];
}

/* `rows` rows of a tile by a panel, to `y` with `stride` between rows; `rows` and `half` are constants where this is
 * inlined. The input features are walked in STREAMS places at once, since memory answers several streams sooner
 * than one. */
INLINE void multiply(const int rows, const int half, const float *x, const char *w, float *y, int64_t in,
                     int64_t stride) {
    vector sum[TALL * WIDE];
    const int64_t part = in / STREAMS;
#pragma GCC unroll 24
    for (int i = 0; i < rows * WIDE; i++) sum[i] = (vector){};
    for (int64_t k = 0; k < part; k++)
#pragma GCC unroll 8
        for (int s = 0; s < STREAMS; s++) add_products(rows, half, x, w, k + s * part, sum);
    for (int64_t k = part * STREAMS; k < in; k++) add_products(rows, half, x, w, k, sum);
#pragma GCC unroll 12
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < WIDE; j++) store(y + r * stride + j * LANES, sum[r * WIDE + j]);
}

#define CASE(rows) \
    case rows: multiply(rows, half, x, w, y, in, stride); break
INLINE void one_panel(int64_t rows, const int half, const float *x, const char *w, float *y, int64_t in,
                      int64_t stride) {
    switch (rows) {
        CASE(1); CASE(2); CASE(3); CASE(4); CASE(5); CASE(6);
#if TALL == 12
        CASE(7); CASE(8); CASE(9); CASE(10); CASE(11); CASE(12);
#endif
    }
}

static void add_bias(const float *bias, float *y, int64_t rows, int64_t features, int64_t stride) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t n = 0; n < features; n++) y[r * stride + n] += bias[n];
}

INLINE void linear(const int half, const float *x, const char *weight, const float *bias, float *y, int64_t rows,
                   int64_t in, int64_t out, int threads) {
    const int64_t panels = (out + PANEL - 1) / PANEL, bytes = in * PANEL * (half ? 2 : 4);
    float *tiles = rows == 1 ? NULL : malloc(rows * in * sizeof(float));
    if (tiles) pack_rows(x, tiles, rows, in);
    const float *input = tiles ? tiles : x;
    const int64_t tallest = tiles ? TALL : 1; /* one row is its own tile: what is done without memory, too */
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < panels; p++) {
        const int64_t left = out - p * PANEL, features = left < PANEL ? left : PANEL;
        float *to = y + p * PANEL, edge[TALL * PANEL];
        for (int64_t first = 0; first < rows; first += tallest) {
            const int64_t tall = rows - first < tallest ? rows - first : tallest;
            float *target = features == PANEL ? to + first * out : edge;
            one_panel(tall, half, input + first * in, weight + p * bytes, target, in, features == PANEL ? out : PANEL);
            for (int64_t r = 0; target == edge && r < tall; r++)
                memcpy(to + (first + r) * out, edge + r * PANEL, features * sizeof(float));
        }
        if (bias) add_bias(bias + p * PANEL, to, rows, features, out);
    }
    free(tiles);
}

EXPORT void linear_float(const float *x, const char *weight, const float *bias, float *y, int64_t rows, int64_t in,
                         int64_t out, int threads) {
    linear(0, x, weight, bias, y, rows, in, out, threads);
}

EXPORT void linear_half(const float *x, const char *weight, const float *bias, float *y, int64_t rows, int64_t in,
                        int64_t out, int threads) {
    linear(1, x, weight, bias, y, rows, in, out, threads);
}
