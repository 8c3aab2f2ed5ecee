/* Swap a message and an array with another process, through the two rings between them in shared memory. What the rings
 * hold, and in what order it is written, is told in distrun/runtime/transport/shared_memory/mailbox.py. */

#include "variant.h"

#if defined(__x86_64__)
#define STORES_IN_ORDER 1
#define PAUSE() __builtin_ia32_pause()
#else
#define STORES_IN_ORDER 0
#define PAUSE() __asm__ volatile("yield")
#endif

enum { NO_ROOM = -1, SENT, ANSWERED, ASLEEP };
enum { PAUSES = 10 }; /* in one look: about as long as a look takes in Python */

struct swap {
    int64_t *out_head, *out_tail, *in_head, *in_tail;
    char *out, *in;   /* the rings */
    int64_t *asleep;  /* whether the reader of `out` sleeps */
    int64_t ring;     /* bytes of a ring */
    int64_t header;   /* of the message, and of the answer */
    int64_t nbytes;   /* of an array */
    int64_t is_double;
    int64_t looks;
    double factor;
};

static inline int64_t get(const int64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
static inline void set(int64_t *word, int64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }

static void copy(char *to, const char *from, int64_t nbytes) {
    for (int64_t i = 0; i < nbytes; i++) to[i] = from[i];
}

static void add(const char *a, const char *b, char *result, const struct swap *swap, int64_t nbytes) {
    if (swap->is_double) {
        const double *x = (const double *)a, *y = (const double *)b;
        for (int64_t i = 0; i < nbytes / 8; i++) ((double *)result)[i] = (x[i] + y[i]) * swap->factor;
    } else {
        const float *x = (const float *)a, *y = (const float *)b;
        for (int64_t i = 0; i < nbytes / 4; i++) ((float *)result)[i] = (x[i] + y[i]) * (float)swap->factor;
    }
}

/* Send a message of `header` and `array`. If an answer with the same header is there after at most `looks` looks, take
 * it, write the scaled sum of both arrays to `result`, which may be `array`, and return ANSWERED. Otherwise return SENT,
 * or ASLEEP, at once, if the other process has to be woken, or NO_ROOM if nothing was sent. */
EXPORT int64_t JOIN(swap, VARIANT)(const struct swap *swap, const char *array, char *result) {
    int64_t head = get(swap->out_head), tail = get(swap->in_tail), ring = swap->ring;
    int64_t length = 8 + swap->nbytes, whole = 8 + (length + 7) / 8 * 8;
    int64_t start = (head + 16) % ring, first = least(swap->nbytes, ring - start);

    if (head + whole - get(swap->out_tail) > ring) return NO_ROOM;
    *(int64_t *)(swap->out + head % ring) = length;
    *(int64_t *)(swap->out + (head + 8) % ring) = swap->header;
    copy(swap->out + start, array, first);
    copy(swap->out, array + first, swap->nbytes - first);
    set(swap->out_head, head + whole);

    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* as in Doorbell.ring */
    if (!STORES_IN_ORDER) return ASLEEP;
    if (get(swap->asleep)) {
        set(swap->asleep, 0);
        return ASLEEP;
    }
    for (int64_t left = swap->looks * PAUSES; get(swap->in_head) == tail; left--) {
        if (left <= 0) return SENT;
        PAUSE();
    }
    start = (tail + 16) % ring, first = least(swap->nbytes, ring - start);
    if (*(int64_t *)(swap->in + tail % ring) != length || *(int64_t *)(swap->in + (tail + 8) % ring) != swap->header)
        return SENT;
    add(array, swap->in + start, result, swap, first);
    add(array + first, swap->in, result + first, swap, swap->nbytes - first);
    set(swap->in_tail, tail + whole);
    return ANSWERED;
}
