/* What every source file includes. Each file of kernels is compiled once for each set of instructions, with VARIANT as
 * the end of its functions' names; the caller chooses. No file calls the C library, so one library serves every libc.
 *
 * Results must be those of numpy, bit for bit: the build forbids contraction (a * b + c with a single rounding) and
 * every other change to floating-point arithmetic. */

#ifndef VARIANT_H
#define VARIANT_H

#include <stdint.h>

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define EXPORT __attribute__((visibility("default")))
#define KERNEL(name) EXPORT void JOIN(name, VARIANT)

typedef uint32_t __attribute__((aligned(1), may_alias)) bits; /* of a float, at any address */

static inline uint32_t bits_of(float value) {
    union { float value; uint32_t bits; } both = {.value = value};
    return both.bits;
}

static inline float float_of(uint32_t bits) {
    union { uint32_t bits; float value; } both = {.bits = bits};
    return both.value;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#endif
