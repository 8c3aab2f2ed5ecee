// Copies many pieces of memory with one launch: into a fusion buffer, out of it, or scaled in place.
//
// Compiled once for each pair of element types. device_packing.py defines the macros: SOURCE and TARGET are two of the
// element types below, PIECES is the length of the table, THREADS the threads of a block, and CHUNK the elements that a
// block moves. Blocks begin at multiples of LINE elements in the target's memory. NVRTC compiles it without the
// toolkit's headers, so nothing is included. A C++ compiler compiles it, too, after a prelude that defines PRELUDE:
// tests/simulator/kernel_prelude.h.

// Arithmetic ----------------------------------------------------------------------------------------------------------
// As PTX instructions, because cupy compiles with -ftz=true, which would flush subnormal numbers to zero.

#ifndef PRELUDE
__device__ __forceinline__ float half_to_float(unsigned short half) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(half));
    return result;
}

__device__ __forceinline__ unsigned short float_to_half(float value) {
    unsigned short result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
}

__device__ __forceinline__ double float_to_double(float value) {
    double result;
    asm("cvt.f64.f32 %0, %1;" : "=d"(result) : "f"(value));
    return result;
}

__device__ __forceinline__ float double_to_float(double value) {
    float result;
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(result) : "d"(value));
    return result;
}

__device__ __forceinline__ float multiply(float left, float right) {
    float result;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(result) : "f"(left), "f"(right));
    return result;
}

__device__ __forceinline__ double multiply(double left, double right) { return left * right; }
#endif

__device__ __forceinline__ void assign(float& to, float value) { to = value; }
__device__ __forceinline__ void assign(float& to, double value) { to = double_to_float(value); }
__device__ __forceinline__ void assign(double& to, float value) { to = float_to_double(value); }
__device__ __forceinline__ void assign(double& to, double value) { to = value; }

union Bits {
    float value;
    unsigned bits;
};

// Round to odd: a float that rounds to the same half-precision number as `value` does. Where the float is not exact,
// its last bit is odd, so it never lies exactly in the middle of two half-precision numbers, and is not rounded twice.
__device__ __forceinline__ float round_to_odd(double value) {
    Bits nearest;
    nearest.value = double_to_float(value);
    double rounded = float_to_double(nearest.value);
    bool is_inexact = rounded != value && value == value;
    bool is_beyond = value < 0 ? rounded < value : rounded > value;
    nearest.bits = (nearest.bits - is_beyond) | is_inexact;
    return nearest.value;
}

// Element types: the type that they are computed in, and the conversions ----------------------------------------------

struct byte {
    unsigned char bits;
};
struct float16 {
    unsigned short bits;
};
struct bfloat16 {
    unsigned short bits;
};
struct float32 {
    float value;
};
struct float64 {
    double value;
};

__device__ __forceinline__ float load(float16 element) { return half_to_float(element.bits); }
__device__ __forceinline__ float load(float32 element) { return element.value; }
__device__ __forceinline__ double load(float64 element) { return element.value; }
__device__ __forceinline__ float load(bfloat16 element) {
    Bits number;
    number.bits = (unsigned)element.bits << 16;
    return number.value;
}

__device__ __forceinline__ void store(float16& element, float value) { element.bits = float_to_half(value); }
__device__ __forceinline__ void store(float32& element, float value) { element.value = value; }
__device__ __forceinline__ void store(bfloat16& element, float value) {
    Bits number;
    number.value = value;
    if ((number.bits & 0x7fffffff) > 0x7f800000) {
        element.bits = (unsigned short)(number.bits >> 16 | 0x40);  // a quiet NaN
    } else {
        element.bits = (unsigned short)((number.bits + 0x7fff + (number.bits >> 16 & 1)) >> 16);
    }
}
__device__ __forceinline__ void store(float16& element, double value) { store(element, round_to_odd(value)); }
__device__ __forceinline__ void store(bfloat16& element, double value) { store(element, round_to_odd(value)); }
__device__ __forceinline__ void store(float32& element, double value) { assign(element.value, value); }
__device__ __forceinline__ void store(float64& element, double value) { element.value = value; }

// Words: elements that one instruction moves. They are moved as integers, and read as elements in registers -----------

template <int BYTES>
struct Integers;
template <>
struct Integers<1> {
    unsigned char part;
};
template <>
struct Integers<2> {
    unsigned short part;
};
template <>
struct Integers<4> {
    unsigned part;
};
template <>
struct alignas(8) Integers<8> {
    unsigned part[2];
};
template <>
struct alignas(16) Integers<16> {
    unsigned part[4];
};

template <typename Element, int WIDTH>
union Word {
    Integers<WIDTH * sizeof(Element)> integers;
    Element elements[WIDTH];
};

// The number of elements of a type below an address.
template <typename Element>
__device__ __forceinline__ unsigned elements_below(const Element* address) {
    return (unsigned)((unsigned long long)address / sizeof(Element));
}

// How a block's elements are divided into words of WIDTH elements: some before the first whole word, the words, and
// some after the last.
template <int WIDTH, typename Target>
struct Split {
    int before, words, behind;

    __device__ __forceinline__ Split(const Target* target, int count) {
        before = (int)(0u - elements_below(target)) & (WIDTH - 1);
        before = before < count ? before : count;
        words = (count - before) / WIDTH;
        behind = before + words * WIDTH;
    }

    // The element outside words that a thread takes, as these are fewer than the threads. A number beyond the last
    // element means none.
    __device__ __forceinline__ int edge(int thread) const {
        return thread < before ? thread : behind + thread - before;
    }
};

// What is done to an element ------------------------------------------------------------------------------------------

template <typename Source, typename Target>
struct Cast {
    typedef decltype(load(Source()) + load(Target())) Number;
    Number factor;

    __device__ __forceinline__ explicit Cast(double given) { assign(factor, given); }

    template <int WIDTH>
    __device__ __forceinline__ void operator()(Word<Target, WIDTH>& target, const Word<Source, WIDTH>& source) const {
#pragma unroll
        for (int index = 0; index < WIDTH; ++index) {
            Number value;
            assign(value, load(source.elements[index]));
            store(target.elements[index], multiply(value, factor));
        }
    }
};

template <>
struct Cast<byte, byte> {
    __device__ __forceinline__ explicit Cast(double) {}

    template <int WIDTH>
    __device__ __forceinline__ void operator()(Word<byte, WIDTH>& target, const Word<byte, WIDTH>& source) const {
        target.integers = source.integers;
    }
};

// What a block does ---------------------------------------------------------------------------------------------------

// Moves words that are aligned in both memories. Each thread issues all of its loads before its first store. This is
// also correct for source == target, since a thread stores only what it has loaded itself.
template <int WIDTH, typename Source, typename Target>
__device__ __forceinline__ void move_words(const Source* source, Target* target, int count, Cast<Source, Target> cast) {
    typedef Word<Source, WIDTH> In;
    typedef Word<Target, WIDTH> Out;
    const int at_once = sizeof(In) < 16 && sizeof(Out) < 16 ? 8 : 4;
#pragma unroll 1
    for (int first = threadIdx.x; first < count; first += at_once * THREADS) {
        In loaded[at_once];
#pragma unroll
        for (int number = 0; number < at_once; ++number) {
            int index = first + number * THREADS;
            if (index < count) loaded[number].integers = ((const In*)source)[index].integers;
        }
#pragma unroll
        for (int number = 0; number < at_once; ++number) {
            int index = first + number * THREADS;
            Out result;
            cast(result, loaded[number]);
            if (index < count) ((Out*)target)[index].integers = result.integers;
        }
    }
}

template <typename Source, typename Target>
__device__ __forceinline__ void move_element(const Source* source, Target* target, Cast<Source, Target> cast) {
    Word<Source, 1> loaded;
    Word<Target, 1> result;
    loaded.integers = ((const Word<Source, 1>*)source)->integers;
    cast(result, loaded);
    ((Word<Target, 1>*)target)->integers = result.integers;
}

template <int WIDTH, typename Source, typename Target>
__device__ __forceinline__ void move(const Source* source, Target* target, int count, Cast<Source, Target> cast) {
    if constexpr (WIDTH > 1) {
        if ((elements_below(source) - elements_below(target)) % WIDTH) {
            move<WIDTH / 2>(source, target, count, cast);
            return;
        }
    }
    const Split<WIDTH, Target> split(target, count);
    move_words<WIDTH>(source + split.before, target + split.before, split.words, cast);
    const int edge = split.edge(threadIdx.x);
    if (WIDTH > 1 && edge < count) move_element(source + edge, target + edge, cast);
}

template <typename Target>
__device__ __forceinline__ void clear(Target* target, int count) {
    const int width = 16 / sizeof(Target);
    const Split<width, Target> split(target, count);
    const Word<Target, width> zero = {};
    Word<Target, width>* words = (Word<Target, width>*)(target + split.before);
#pragma unroll 4
    for (int index = threadIdx.x; index < split.words; index += THREADS) words[index].integers = zero.integers;
    const int edge = split.edge(threadIdx.x);
    if (edge < count) target[edge] = Target();
}

// The table -----------------------------------------------------------------------------------------------------------
// It is passed by value, as the kernel's parameter: nothing is uploaded, and a CUDA graph can record the launch.

struct Table {
    double factor;
    long long source[PIECES];  // addresses; 0 stands for zeros
    long long target[PIECES];
    long long count[PIECES];  // elements
    unsigned stop[PIECES];    // blocks up to and including this piece; after the last piece the largest number
};

extern "C" __global__ void __launch_bounds__(THREADS) pack(const Table table) {
    int piece = 0;
#pragma unroll
    for (int step = PIECES / 2; step; step /= 2) {
        if (table.stop[piece + step - 1] <= blockIdx.x) piece += step;
    }
    const SOURCE* source = (const SOURCE*)table.source[piece];
    TARGET* target = (TARGET*)table.target[piece];
    const long long count = table.count[piece];
    const long long block = blockIdx.x - (piece ? table.stop[piece - 1] : 0);
    long long start = block * CHUNK - elements_below(target) % LINE;
    const long long stop = start + CHUNK < count ? start + CHUNK : count;
    start = start < 0 ? 0 : start;
    if (source) {
        const int width = 16 / (sizeof(SOURCE) > sizeof(TARGET) ? sizeof(SOURCE) : sizeof(TARGET));
        move<width>(source + start, target + start, (int)(stop - start), Cast<SOURCE, TARGET>(table.factor));
    } else {
        clear(target + start, (int)(stop - start));
    }
}
