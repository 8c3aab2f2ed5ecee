// Quantises gradients from many places in a GPU's memory into one array of bytes, and adds such arrays up.
//
// The bytes are as in runtime/backends/quantisation.py: the float32 scales of all blocks of 256 values, then the codes:
// integers of 8 bits, or a sign and a power of two in 4 bits. device_quantisation.py defines the macros: the BITS of a
// code, 8 or 4, PIECES and SOURCES, the lengths of the tables, and the THREADS of a block. A thread has 256 values to
// itself, which it reads twice, the second time from the cache, and no thread waits for another one. Like packing.cu,
// it is compiled by NVRTC, and by a C++ compiler after a prelude that defines PRELUDE:
// tests/simulator/kernel_prelude.h.

// As PTX instructions, so that nothing is fused, flushed to zero or approximated: the bits are the same as numpy's.
#ifndef PRELUDE
__device__ __forceinline__ float multiply(float left, float right) {
    float result;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(left), "f"(right));
    return result;
}

__device__ __forceinline__ float divide(float left, float right) {
    float result;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(left), "f"(right));
    return result;
}

__device__ __forceinline__ float add(float left, float right) {
    float result;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(left), "f"(right));
    return result;
}

__device__ __forceinline__ float round_to_even(float value) {
    float result;
    asm("cvt.rni.f32.f32 %0, %1;" : "=f"(result) : "f"(value));
    return result;
}
#endif

const int BLOCK = 256;
const float LEAST_SCALE = 1.504632769e-36f;  // 2**-119
const float NINE_SEVENTHS = 1.285714269f;    // cutting the mantissa then rounds up from 14/9 of a power of two
const float LARGE = 196608.0f;               // 1.5 * 2**17, where floats are 1/64 apart

union Bits {
    float value;
    unsigned bits;
};

// The parameters are passed by value: nothing is uploaded, and a CUDA graph can record the launch.

struct Quantised {
    long long raw;    // address of the bytes
    long long count;  // values
    long long lost;   // addresses of the last residuals and for the new ones; 0: none
    long long now;
    double factor;
    long long source[PIECES];  // addresses of float32; 0 stands for zeros
    long long stop[PIECES];    // values up to and including this piece; after the last piece all
};

struct Sum {
    long long out;  // address of float32
    long long count;
    long long sources;
    unsigned long long plain;  // a bit for each source: 1 if it is float32, not bytes
    double factor;             // of the sum
    long long raw[SOURCES];    // addresses, in the order of the addition
};

// A multiplied value, rounded to the nearest one that a code can represent.
__device__ __forceinline__ float rounded_to_code(float value) {
    if (BITS == 8) return round_to_even(value);
    Bits power;
    power.value = value;
    power.bits &= 0xff800000;
    return add(add(power.value, LARGE), -LARGE);  // zero if it was less than 1/64
}

__device__ __forceinline__ unsigned char code_of(float rounded) {
    if (BITS == 8) return (unsigned char)(int)rounded;
    Bits power;
    power.value = rounded;
    return (unsigned char)(power.bits >> 23 & 7 | power.bits >> 28 & 8);
}

__device__ __forceinline__ float rounded_of(unsigned char code) {
    if (BITS == 8) return (float)(signed char)code;
    Bits power;
    power.bits = code & 7 ? (unsigned)(code & 7) + 120 << 23 | (unsigned)(code & 8) << 28 : 0;
    return power.value;
}

__device__ __forceinline__ long long blocks_of(long long count) { return (count + BLOCK - 1) / BLOCK; }

// Reads the values of an array whose pieces are in many places, one after the other.
struct Reader {
    const Quantised& table;
    int piece;

    __device__ Reader(const Quantised& given, long long first) : table(given), piece(0) {
        for (int step = PIECES / 2; step; step /= 2) {
            if (table.stop[piece + step - 1] <= first) piece += step;
        }
    }

    // The value at a place, which must not be before the place of the last call.
    __device__ float at(long long place) {
        while (table.stop[piece] <= place) piece++;
        const float* source = (const float*)table.source[piece];
        float value = source ? source[place - (piece ? table.stop[piece - 1] : 0)] : 0.0f;
        if (table.factor != 1.0) value = multiply(value, (float)table.factor);
        return table.lost ? add(value, ((const float*)table.lost)[place]) : value;
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) quantise(const Quantised table) {
    const long long block = (long long)blockIdx.x * THREADS + threadIdx.x;
    const long long first = block * BLOCK;
    if (first >= table.count) return;
    const long long stop = first + BLOCK < table.count ? first + BLOCK : table.count;
    Bits largest;
    largest.bits = 0;  // as integers, magnitudes have the same order as floats, with NaN above all
    Reader reader(table, first);
    for (long long place = first; place < stop; place++) {
        Bits value;
        value.value = reader.at(place);
        value.bits &= 0x7fffffff;
        if (value.bits > largest.bits) largest.bits = value.bits;
    }
    float scale = BITS == 8 ? divide(largest.value, 127.0f) : largest.value;
    if (scale < LEAST_SCALE) scale = 0.0f;
    const bool is_finite = largest.bits < 0x7f800000;
    const float reciprocal = scale == 0.0f ? 0.0f : divide(BITS == 8 ? 1.0f : NINE_SEVENTHS, scale);
    ((float*)table.raw)[block] = scale;
    unsigned char* codes = (unsigned char*)table.raw + 4 * blocks_of(table.count);
    Reader again(table, first);
    for (long long place = first; place < stop; place++) {
        const float value = again.at(place);
        const float rounded = is_finite ? rounded_to_code(multiply(value, reciprocal)) : 0.0f;
        const unsigned char code = code_of(rounded);
        if (BITS == 8) {
            codes[place] = code;
        } else if (place % 2) {
            codes[place / 2] |= (unsigned char)(code << 4);
        } else {
            codes[place / 2] = code;
        }
        if (table.now) ((float*)table.now)[place] = is_finite ? add(value, -multiply(rounded, scale)) : 0.0f;
    }
}

__device__ __forceinline__ float restored(const unsigned char* raw, long long count, long long place) {
    const unsigned char* codes = raw + 4 * blocks_of(count);
    const unsigned char code = BITS == 8 ? codes[place] : codes[place / 2] >> (place % 2 ? 4 : 0) & 15;
    return multiply(rounded_of(code), ((const float*)raw)[place / BLOCK]);
}

__device__ __forceinline__ float value_of(const Sum& table, int source, long long place) {
    if (table.plain >> source & 1) return ((const float*)table.raw[source])[place];
    return restored((const unsigned char*)table.raw[source], table.count, place);
}

// A float32 source may be at the address of the sum.
extern "C" __global__ void __launch_bounds__(THREADS) add_up(const Sum table) {
    const long long place = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (place >= table.count) return;
    float sum = value_of(table, 0, place);
    for (int source = 1; source < table.sources; source++) sum = add(sum, value_of(table, source, place));
    if (table.factor != 1.0) sum = multiply(sum, (float)table.factor);
    ((float*)table.out)[place] = sum;
}
