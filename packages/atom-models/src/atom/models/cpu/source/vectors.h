/* Vectors of float32 as wide as the processor's registers, by the vector extensions of GCC and Clang. */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define REGISTERS 32
#elif defined(__AVX2__)
#define LANES 8
#define REGISTERS 16
#else
#define LANES 4
#define REGISTERS 32
#endif

typedef float vector __attribute__((vector_size(4 * LANES)));
typedef int32_t int_vector __attribute__((vector_size(4 * LANES)));

#define INLINE static inline __attribute__((always_inline))
#define EXPORT __attribute__((visibility("default")))

INLINE vector load(const float *from) {
    vector v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store(float *to, vector v) { memcpy(to, &v, sizeof v); }

INLINE vector all(float x) { return x - (vector){}; }

/* LANES numbers of float16. */
INLINE vector load_half(const uint16_t *from) {
#if defined(__AVX512F__)
    return (vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif defined(__F16C__) && defined(__AVX2__)
    return (vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    typedef _Float16 halves __attribute__((vector_size(2 * LANES)));
    halves h;
    memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, vector);
#endif
}

/* `yes` where `mask` is -1, `no` where it is 0. */
INLINE vector choose(int_vector mask, vector yes, vector no) {
    return (vector)(((int_vector)yes & mask) | ((int_vector)no & ~mask));
}

INLINE float sum_of(vector v) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)v);
#else
    float sum = 0;
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
#endif
}

/* exp(x) for x <= 0, to about 1e-7 relative: 2^n * p(r) with r within half of ln 2; 0 below -87. */
INLINE vector exp_of(vector x) {
    vector n = x * 1.44269504f;
    n = (n + 12582912.0f) - 12582912.0f; /* to the nearest whole number */
    vector r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vector p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const int_vector exponent = (__builtin_convertvector(n, int_vector) + 127) << 23;
    return choose(x > -87.0f, p * (vector)exponent, (vector){});
}
