/* Quantisation in blocks of 256 values: the twin of distrun/runtime/backends/quantisation.py, which explains it. */

#include "variant.h"

#define BLOCK 256
static const float LEAST_SCALE = 0x1p-119f;

/* Fill `sums` with `values` plus `old`, if given. Return the bits of the largest magnitude; NaN is above all. */
static inline uint32_t add(const float *values, const float *old, float *sums, int count) {
    uint32_t largest = 0;
    if (old)
        for (int i = 0; i < count; i++) sums[i] = values[i] + old[i];
    else
        for (int i = 0; i < count; i++) sums[i] = values[i];
    for (int i = 0; i < count; i++) {
        uint32_t magnitude = bits_of(sums[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

/* Write the new residuals and the restored values of a block, where asked for. A block that is not finite loses none. */
static inline void give_back(const float *sums, const float *back, int is_finite, float *lost, float *restored, int n) {
    if (lost) {
        if (is_finite)
            for (int i = 0; i < n; i++) lost[i] = sums[i] - back[i];
        else
            for (int i = 0; i < n; i++) lost[i] = 0;
    }
    if (restored)
        for (int i = 0; i < n; i++) restored[i] = back[i];
}

/* `values`, `old`, `lost` and `restored` have `count` floats; `restored` may be `values`. The last three may be NULL,
 * `old` and `lost` only together. */
KERNEL(quantise_int8)(const float *values, const float *old, float *lost, float *restored, bits *scales, int8_t *codes,
                      int64_t count) {
    float sums[BLOCK], back[BLOCK];
    int8_t steps[BLOCK];
    for (int64_t first = 0; first < count; first += BLOCK) {
        int n = (int)least(BLOCK, count - first);
        float scale = float_of(add(values + first, old ? old + first : 0, sums, n)) / 127.0f;
        if (scale < LEAST_SCALE) scale = 0;
        float factor = scale == 0 ? 0 : 1.0f / scale;
        int is_finite = (bits_of(scale) & 0x7F800000) != 0x7F800000;
        if (is_finite)
            /* Adding 1.5 * 2**23 leaves the nearest integer, ties to even, in the low bits. */
            for (int i = 0; i < n; i++) steps[i] = (int8_t)bits_of(sums[i] * factor + 0x1.8p23f);
        else
            for (int i = 0; i < n; i++) steps[i] = 0;
        scales[first / BLOCK] = bits_of(scale);
        for (int i = 0; i < n; i++) codes[first + i] = steps[i];
        if (lost || restored) {
            for (int i = 0; i < n; i++) back[i] = (float)steps[i] * scale;
            give_back(sums, back, is_finite, lost ? lost + first : 0, restored ? restored + first : 0, n);
        }
    }
}

KERNEL(restore_int8)(const bits *scales, const int8_t *codes, float *out, int64_t count) {
    for (int64_t first = 0; first < count; first += BLOCK) {
        float scale = float_of(scales[first / BLOCK]);
        int n = (int)least(BLOCK, count - first);
        for (int i = 0; i < n; i++) out[first + i] = (float)codes[first + i] * scale;
    }
}

/* The step of a code of 4 bits: 0, or a power of two from 1 to 64 with its sign. */
static inline float step(uint32_t code) {
    uint32_t power = code & 7;
    return float_of(power ? (code & 8) << 28 | (power + 126) << 23 : 0);
}

KERNEL(quantise_int4)(const float *values, const float *old, float *lost, float *restored, bits *scales, uint8_t *codes,
                      int64_t count) {
    float sums[BLOCK], back[BLOCK];
    uint16_t pairs[BLOCK / 2];
    uint8_t *each = (uint8_t *)pairs;
    for (int64_t first = 0; first < count; first += BLOCK) {
        int n = (int)least(BLOCK, count - first);
        float scale = float_of(add(values + first, old ? old + first : 0, sums, n));
        if (scale < LEAST_SCALE) scale = 0;
        float factor = scale == 0 ? 0 : 1.2857142857142858f / scale * 64.0f;
        int is_finite = (bits_of(scale) & 0x7F800000) != 0x7F800000;
        if (is_finite)
            for (int i = 0; i < n; i++) {
                uint32_t number = bits_of(sums[i] * factor);
                int32_t power = (int32_t)(number >> 23 & 255) - 126;
                each[i] = (uint8_t)(power > 0 ? (uint32_t)power | (number >> 31) << 3 : 0);
            }
        else
            for (int i = 0; i < n; i++) each[i] = 0;
        if (n % 2) each[n] = 0;
        scales[first / BLOCK] = bits_of(scale);
        for (int i = 0; i < (n + 1) / 2; i++) codes[first / 2 + i] = (uint8_t)(pairs[i] | pairs[i] >> 4);
        if (lost || restored) {
            float unit = scale / 64.0f;
            for (int i = 0; i < n; i++) back[i] = step(each[i]) * unit;
            give_back(sums, back, is_finite, lost ? lost + first : 0, restored ? restored + first : 0, n);
        }
    }
}

KERNEL(restore_int4)(const bits *scales, const uint8_t *codes, float *out, int64_t count) {
    uint16_t pairs[BLOCK / 2];
    const uint8_t *each = (const uint8_t *)pairs;
    for (int64_t first = 0; first < count; first += BLOCK) {
        float unit = float_of(scales[first / BLOCK]) / 64.0f;
        int n = (int)least(BLOCK, count - first);
        for (int i = 0; i < (n + 1) / 2; i++) {
            uint16_t code = codes[first / 2 + i];
            pairs[i] = (uint16_t)((code & 15) | (code & 0xF0) << 4);
        }
        for (int i = 0; i < n; i++) out[first + i] = step(each[i]) * unit;
    }
}
