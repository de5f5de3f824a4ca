/* What is done to each row between the products of a layer; `threads` share the rows. */
#include <math.h>

#include "vectors.h"

/* y = v / sqrt(mean(v^2) + eps) * weight, where v is x, or x + residual, which then goes to `sum`. */
EXPORT void rms_norm(const float *x, const float *residual, const float *weight, float *y, float *sum, int64_t rows,
                     int64_t size, float eps, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *from = x + r * size;
        float *to = y + r * size, squares = 0;
        if (residual) {
            const float *before = residual + r * size;
            float *after = sum + r * size;
#pragma omp simd
            for (int64_t i = 0; i < size; i++) after[i] = from[i] + before[i];
            from = after;
        }
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < size; i++) squares += from[i] * from[i];
        const float factor = 1 / sqrtf(squares / size + eps);
#pragma omp simd
        for (int64_t i = 0; i < size; i++) to[i] = from[i] * factor * weight[i];
    }
}

INLINE vector gated(vector gate, vector up) {
    const int_vector positive = gate > 0;
    const vector e = exp_of(choose(positive, -gate, gate));
    return gate * up * choose(positive, all(1), e) / (e + 1);
}

/* silu(x[:, :size]) * x[:, size:] */
EXPORT void silu_mul(const float *x, float *y, int64_t rows, int64_t size, int threads) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *gate = x + r * 2 * size, *up = gate + size;
        float *to = y + r * size;
        int64_t i = 0;
        for (; i + LANES <= size; i += LANES) store(to + i, gated(load(gate + i), load(up + i)));
        for (; i < size; i++) to[i] = gated(all(gate[i]), all(up[i]))[0];
    }
}

/* x * cos + swapped halves of x * sin over the first `turning` numbers of each head; `x` is [rows][heads][size] with
 * `stride` between rows, cos and sin are [rows][turning]. */
EXPORT void rotate(const float *x, const float *cos, const float *sin, float *y, int64_t rows, int64_t heads,
                   int64_t size, int64_t turning, int64_t stride, int threads) {
    const int64_t half = turning / 2;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *c = cos + r * turning, *s = sin + r * turning;
        for (int64_t h = 0; h < heads; h++) {
            const float *from = x + r * stride + h * size;
            float *to = y + (r * heads + h) * size;
#pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                to[i] = from[i] * c[i] + from[i + half] * s[i];
                to[i + half] = from[i + half] * c[i + half] + from[i] * s[i + half];
            }
            memcpy(to + turning, from + turning, (size - turning) * sizeof(float));
        }
    }
}
