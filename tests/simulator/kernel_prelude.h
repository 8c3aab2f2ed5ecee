// What CUDA C++ has and C++ has not, as far as distrun's kernels need it: to be included before a kernel's source, which then
// runs on the CPU, one thread of one block after the other. Whoever calls a kernel sets blockIdx, threadIdx, blockDim and
// gridDim before each call.

#pragma once
#define PRELUDE

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct KernelIndex {
    unsigned x = 0, y = 0, z = 0;
};
inline thread_local KernelIndex blockIdx, threadIdx;
inline thread_local KernelIndex blockDim{1, 1, 1}, gridDim{1, 1, 1};

// The instructions that packing.cu and quantising.cu use, rounding to nearest even as the GPU's do.

inline float divide(float left, float right) { return left / right; }
inline float add(float left, float right) { return left + right; }
inline float round_to_even(float value) { return __builtin_rintf(value); }

inline double float_to_double(float value) { return value; }
inline float double_to_float(double value) { return (float)value; }
inline float multiply(float left, float right) { return left * right; }
inline double multiply(double left, double right) { return left * right; }

inline float half_to_float(unsigned short half) {
    const unsigned fraction = half & 0x3ff, exponent = half >> 10 & 0x1f;
    union {
        unsigned bits;
        float value;
    } result;
    if (exponent == 0) {
        result.value = (float)fraction * 0x1p-24f;
    } else {
        result.bits = (exponent == 0x1f ? 0xffu : exponent + 112) << 23 | fraction << 13;
    }
    result.bits |= (half & 0x8000u) << 16;
    return result.value;
}

inline unsigned short float_to_half(float value) {
    union {
        float value;
        unsigned bits;
    } given;
    given.value = value;
    const unsigned sign = given.bits >> 16 & 0x8000, size = given.bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7fff;                           // not a number
    if (size >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // 65520 and more round to infinity
    if (size < 0x38800000) {                                        // below 2**-14: multiples of 2**-24
        given.bits = size;
        given.value += 0.5f;  // whose last bit is 2**-24
        return (unsigned short)(sign | (given.bits - 0x3f000000));
    }
    return (unsigned short)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}
