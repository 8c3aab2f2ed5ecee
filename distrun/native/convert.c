/* Half precision to float32 and back, rounding to nearest even: the twin of `ElementType` in
 * distrun/runtime/operations/dtypes.py. */

#include "variant.h"

typedef uint16_t half; /* of a float16 or bfloat16 */

static inline float from_bfloat16(half value) { return float_of((uint32_t)value << 16); }

/* Rounds to nearest even. A NaN stays one. */
static inline half to_bfloat16(float value) {
    uint32_t number = bits_of(value);
    uint32_t rounded = (number + 0x7FFF + (number >> 16 & 1)) >> 16;
    return (half)((number & 0x7FFFFFFF) > 0x7F800000 ? 0x7FC0 : rounded);
}

#if defined(__F16C__) || defined(__aarch64__)
#define HAS_FLOAT16 /* in its instructions */
#endif

#ifdef HAS_FLOAT16
static inline float from_float16(half bits) {
    union { half bits; _Float16 value; } both = {.bits = bits};
    return (float)both.value;
}

static inline half to_float16(float value) {
    union { _Float16 value; half bits; } both = {.value = (_Float16)value};
    return both.bits;
}
#endif

#define CONVERT(name, from, to)                                                                                        \
    KERNEL(decode_##name)(const half *source, float *out, int64_t count) {                                             \
        for (int64_t i = 0; i < count; i++) out[i] = from(source[i]);                                                  \
    }                                                                                                                  \
    KERNEL(encode_##name)(const float *source, half *out, int64_t count) {                                             \
        for (int64_t i = 0; i < count; i++) out[i] = to(source[i]);                                                    \
    }

CONVERT(bfloat16, from_bfloat16, to_bfloat16)
#ifdef HAS_FLOAT16
CONVERT(float16, from_float16, to_float16)
#endif
