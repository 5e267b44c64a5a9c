/* Many compressed records in one call, by functions of libraries that Python has opened. */

#include "floor.h"

#include <stdatomic.h>
#include <string.h>

#define LZ4_HEADER 4 /* bytes before a block, which say how long it was: as Python's lz4 writes it */

typedef unsigned long long (*zstd_size)(const void *, size_t);
typedef void *(*zstd_create)(void);
typedef size_t (*zstd_free)(void *);
typedef size_t (*zstd_decompress)(void *, void *, size_t, const void *, size_t);
typedef size_t (*zstd_with_dictionary)(void *, void *, size_t, const void *, size_t, const void *);
typedef unsigned (*zstd_is_error)(size_t);
typedef int (*lz4_decompress)(const char *, char *, int, int);

int64_t decompressed_sizes(const struct codec *codec, const struct records *records, int64_t *sizes) {
    for (int64_t at = 0; at < records->count; at++) {
        const uint8_t *data = records->memory + records->starts[at];
        int64_t length = records->lengths[at], size = 0;
        if (!length) {
            size = 0;
        } else if (codec->kind == LZ4) {
            uint32_t header = 0;
            if (length < LZ4_HEADER) return at;
            for (int byte = 0; byte < LZ4_HEADER; byte++) header |= (uint32_t)data[byte] << 8 * byte;
            size = header;
            if (size > INT32_MAX) return at;
        } else {
            unsigned long long said = ((zstd_size)codec->functions[ZSTD_SIZE])(data, (size_t)length);
            if (said > LONGEST_RECORD) return at; /* also where it is not known, or no frame */
            size = (int64_t)said;
        }
        sizes[at] = size;
    }
    return records->count;
}

struct job {
    const struct codec *codec;
    const struct records *records;
    const int64_t *ends;
    uint8_t *out;
    int64_t in_piece;
    _Atomic(void *) contexts[MOST_CONTEXTS]; /* that nobody uses now */
    _Atomic int64_t bad;
};

static void *context_of(struct job *job) {
    for (int at = 0; at < MOST_CONTEXTS; at++) {
        void *found = atomic_exchange(&job->contexts[at], NULL);
        if (found) return found;
    }
    return ((zstd_create)job->codec->functions[ZSTD_CREATE])();
}

static void give_back(struct job *job, void *context) {
    for (int at = 0; at < MOST_CONTEXTS; at++) {
        void *empty = NULL;
        if (atomic_compare_exchange_strong(&job->contexts[at], &empty, context)) return;
    }
    ((zstd_free)job->codec->functions[ZSTD_FREE])(context);
}

static int is_done(const struct codec *codec, void *context, uint8_t *out, int64_t size, const uint8_t *data,
                   int64_t length) {
    if (codec->kind == LZ4)
        return size <= INT32_MAX && length - LZ4_HEADER <= INT32_MAX &&
               ((lz4_decompress)codec->functions[LZ4_DECOMPRESS])((const char *)data + LZ4_HEADER, (char *)out,
                                                                  (int)(length - LZ4_HEADER), (int)size) == (int)size;
    size_t done;
    const void *dictionary = codec->functions[ZSTD_DICTIONARY];
    if (dictionary)
        done = ((zstd_with_dictionary)codec->functions[ZSTD_WITH_DICTIONARY])(context, out, (size_t)size, data,
                                                                            (size_t)length, dictionary);
    else
        done = ((zstd_decompress)codec->functions[ZSTD_DECOMPRESS])(context, out, (size_t)size, data, (size_t)length);
    return !((zstd_is_error)codec->functions[ZSTD_IS_ERROR])(done) && done == (size_t)size;
}

static void decompress_some(const void *data, int64_t piece) {
    struct job *job = (struct job *)(uintptr_t)data;
    const struct records *records = job->records;
    int64_t first = piece * job->in_piece, last = first + job->in_piece;
    if (last > records->count) last = records->count;
    void *context = job->codec->kind == ZSTD ? context_of(job) : NULL;
    for (int64_t at = first; at < last; at++) {
        int64_t begin = at ? job->ends[at - 1] : 0, size = job->ends[at] - begin;
        const uint8_t *input = records->memory + records->starts[at];
        if (!records->lengths[at]) continue;
        if ((job->codec->kind == ZSTD && !context) ||
            !is_done(job->codec, context, job->out + begin, size, input, records->lengths[at]))
            atomic_store(&job->bad, at);
    }
    if (context) give_back(job, context);
}

int64_t decompress_records(const struct codec *codec, const struct records *records, const int64_t *ends, uint8_t *out,
                           int threads) {
    struct job job = {.codec = codec, .records = records, .ends = ends, .out = out};
    job.in_piece = records->count / (8 * (threads > 1 ? threads : 1)) + 1;
    atomic_store(&job.bad, -1);
    pool_run(decompress_some, &job, (records->count + job.in_piece - 1) / job.in_piece, threads);
    for (int at = 0; at < MOST_CONTEXTS; at++) {
        void *context = atomic_load(&job.contexts[at]);
        if (context) ((zstd_free)codec->functions[ZSTD_FREE])(context);
    }
    return atomic_load(&job.bad);
}
