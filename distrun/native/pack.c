/* Many arrays into one, and back: the twin of `pack` and `unpack` in distrun/tensor_fusion/packing.py. */

#include "variant.h"

/* A numpy array, from the last word of its head as an object of CPython on. numpy keeps these fields as they are, since
 * its macros compile their places into other packages. */
typedef struct {
    const void *class;
    char *data;
    int dimensions;
    const int64_t *extents, *strides;
    const void *base, *type;
    int flags;
} array;

#define CONTIGUOUS 0x1
#define WRITEABLE 0x400

static inline const array *at(const char *object, int64_t head) { return (const array *)(object + head); }

static inline int is_flat(const array *given, int flags) {
    return given->dimensions == 1 && (given->flags & flags) == flags;
}

/* Whether the `parts` are flat, have the class and the type of `whole`, and together its length. */
static inline int fit(char *const *parts, int64_t count, const array *whole, int flags, int64_t head) {
    int64_t length = 0;
    for (int64_t i = 0; i < count; i++) {
        const array *part = at(parts[i], head);
        if (part->class != whole->class || part->type != whole->type || !is_flat(part, flags)) return 0;
        length += part->extents[0];
    }
    return length == whole->extents[0];
}

static inline void copy(char *restrict to, const char *restrict from, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++) to[i] = from[i];
}

/* `objects` is an array of arrays, and `buffer` an array of elements of `size` bytes. Of an object's bytes, `head` are
 * before `array`. Returns 0, with nothing done, if these are not flat arrays that fit. */
#define MOVE(name, of_parts, of_whole, to, from)                                                                       \
    EXPORT int JOIN(name, VARIANT)(const char *objects, const char *buffer, int64_t size, int64_t head) {              \
        const array *whole = at(buffer, head);                                                                         \
        char *const *parts = (char *const *)at(objects, head)->data;                                                   \
        int64_t count = at(objects, head)->extents[0];                                                                 \
        if (!is_flat(whole, of_whole) || !fit(parts, count, whole, of_parts, head)) return 0;                          \
        for (int64_t i = 0, done = 0; i < count; i++) {                                                                \
            const array *part = at(parts[i], head);                                                                    \
            int64_t bytes = part->extents[0] * size;                                                                   \
            copy(to, from, bytes);                                                                                     \
            done += bytes;                                                                                             \
        }                                                                                                              \
        return 1;                                                                                                      \
    }

MOVE(pack, CONTIGUOUS, CONTIGUOUS | WRITEABLE, whole->data + done, part->data)
MOVE(unpack, CONTIGUOUS | WRITEABLE, CONTIGUOUS, part->data, whole->data + done)
