/* Rows and spans out of mapped memory, one after the other. */

#include "floor.h"

#include <string.h>

#define PIECE (16 * 1024)      /* bytes of a piece of rows: some microseconds */
#define SPAN_PIECE (64 * 1024) /* bytes of a piece of spans */
#define LINE 64
#define PAGE 4096
#define MOST_AHEAD 16      /* rows */
#define BYTES_AHEAD 2048   /* of a row; the processor sees by itself how it goes on */

struct rows {
    const uint8_t *memory;
    const int64_t *addresses;
    int64_t count, width, in_piece;
    uint8_t *out;
};

/* Into the second cache: what waits for the first one has few places. A tenth faster at 2 KiB, a third at 64 bytes. */
static inline void fetch_ahead(const uint8_t *row, int64_t width) {
    int64_t bytes = width < BYTES_AHEAD ? width : BYTES_AHEAD;
    for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(row + at, 0, 2);
}

/* How many rows are on their way: about a page of them. */
static inline int64_t rows_ahead(int64_t width) {
    int64_t rows = PAGE / width;
    return rows < 2 ? 2 : rows > MOST_AHEAD ? MOST_AHEAD : rows;
}

/* Where the compiler knows the width, a copy is a few moves. */
#define COPY_WORDS(WIDTH)                                                                    \
    for (int64_t row = 0; row < count; row++) {                                              \
        if (row + 16 < count) __builtin_prefetch(memory + addresses[row + 16], 0, 3);        \
        memcpy(out + row * (WIDTH), memory + addresses[row], WIDTH);                         \
    }                                                                                        \
    return

void copy_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t known, int64_t width,
               uint8_t *out) {
    switch (width) {
        case 1: COPY_WORDS(1);
        case 2: COPY_WORDS(2);
        case 4: COPY_WORDS(4);
        case 8: COPY_WORDS(8);
        case 16: COPY_WORDS(16);
    }
    int64_t ahead = rows_ahead(width);
    for (int64_t row = 0; row < count; row++) {
        if (row + ahead < known) fetch_ahead(memory + addresses[row + ahead], width);
        memcpy(out + row * width, memory + addresses[row], (size_t)width);
    }
}

static void copy_piece(const void *data, int64_t piece) {
    const struct rows *job = data;
    int64_t first = piece * job->in_piece, left = job->count - first;
    copy_rows(job->memory, job->addresses + first, left < job->in_piece ? left : job->in_piece, left, job->width,
              job->out + first * job->width);
}

void gather_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t width, uint8_t *out,
                 int threads) {
    struct rows job = {memory, addresses, count, width, 1, out};
    if (width < PIECE) job.in_piece = PIECE / width;
    pool_run(copy_piece, &job, (count + job.in_piece - 1) / job.in_piece, threads);
}

/* Which batch of `span` rows a row is in; `share` is 1 / span. A division takes longer than all else. */
static inline int64_t batch_of(int64_t row, int64_t span, double share) {
    if (row >= (int64_t)1 << 51) return row / span;
    int64_t batch = (int64_t)((double)row * share), first = batch * span; /* one off at most */
    return batch + (row - first >= span) - (row < first);
}

int addresses_of(const struct batches *batches, const int64_t *rows, int64_t count, int64_t width, int64_t *addresses) {
    const int64_t *first_row = batches->first_row;
    int64_t batch = 0, limit = INT64_MAX / 2 / width; /* whose address is no overflow */
    double share = batches->span ? 1.0 / (double)batches->span : 0;
    for (int64_t at = 0; at < count; at++) {
        int64_t row = rows[at];
        if (row < 0 || row >= batches->rows || row > limit || !batches->count) return 0;
        if (batches->span) {
            batch = batch_of(row, batches->span, share);
        } else if (row < first_row[batch] || (batch + 1 < batches->count && row >= first_row[batch + 1])) {
            int64_t low = 0, high = batches->count; /* the last batch that begins at the row or before it */
            while (high - low > 1) {
                int64_t middle = low + (high - low) / 2;
                if (first_row[middle] <= row)
                    low = middle;
                else
                    high = middle;
            }
            batch = low;
        }
        if (batch >= batches->count) return 0;
        int64_t address = batches->bases[batch] + row * width;
        if (address < 0 || address > batches->size - width) return 0;
        addresses[at] = address;
    }
    return 1;
}

struct spans {
    const uint8_t *memory;
    const int64_t *starts, *ends;
    int64_t count, total;
    uint8_t *out;
};

static void copy_spans(const void *data, int64_t piece) {
    const struct spans *job = data;
    int64_t at = piece * SPAN_PIECE, last = at + SPAN_PIECE, low = 0, high = job->count;
    if (last > job->total) last = job->total;
    while (low < high) { /* the first span that ends behind the piece's beginning */
        int64_t middle = low + (high - low) / 2;
        if (job->ends[middle] <= at)
            low = middle + 1;
        else
            high = middle;
    }
    for (int64_t span = low; at < last; span++) {
        int64_t begin = span ? job->ends[span - 1] : 0, end = job->ends[span] < last ? job->ends[span] : last;
        if (span + 1 < job->count) fetch_ahead(job->memory + job->starts[span + 1], LINE);
        memcpy(job->out + at, job->memory + job->starts[span] + (at - begin), (size_t)(end - at));
        at = end;
    }
}

void gather_spans(const uint8_t *memory, const int64_t *starts, const int64_t *ends, int64_t count, uint8_t *out,
                  int threads) {
    struct spans job = {memory, starts, ends, count, count ? ends[count - 1] : 0, out};
    pool_run(copy_spans, &job, (job.total + SPAN_PIECE - 1) / SPAN_PIECE, threads);
}
