/* From keys to the bytes of their rows, each row confirmed by the key that it carries.

   A piece of the job does all of it for some keys: look them up, copy their rows out of every column, compare. So a
   helper takes part in the lookup too, and lines that come from far are asked for while others are copied. */

#include "floor.h"

#include <stdatomic.h>
#include <string.h>

#define PIECE (64 * 1024) /* bytes of a piece: some keys are looked up together, and some pieces are for each thread */
#define FEWEST 8          /* keys of a piece */
#define MOST 1024
#define KEY 16 /* bytes */

struct job {
    const struct fetch *fetch;
    int64_t in_piece;
    int64_t *rows, *addresses, *own; /* [count] each */
    _Atomic int *is_lost, *beyond;
};

static int fetch_some(const struct job *job, int64_t first, int64_t count) {
    const struct fetch *fetch = job->fetch;
    const uint64_t *keys = fetch->keys + 2 * first;
    int64_t *rows = job->rows + first, *addresses = job->addresses + first, *own = job->own + first;
    const uint8_t *memory = fetch->own.memory;
    struct batches batches = fetch->own;
    int beyond = 0;
    int64_t found = table_lookup(&fetch->table, keys, count, rows, &beyond);
    if (beyond) atomic_store(job->beyond, 1);
    if (found < count || !addresses_of(&batches, rows, count, KEY, own)) return 0;
    for (int64_t at = 0; at < count; at++) __builtin_prefetch(memory + own[at], 0, 2);
    for (int64_t at = 0; at < fetch->width; at++) {
        const struct fetch_column *column = fetch->columns + at;
        batches.bases = column->bases;
        if (!addresses_of(&batches, rows, count, column->width, addresses)) return 0;
        copy_rows(memory, addresses, count, count, column->width, column->out + first * column->width);
    }
    /* Last, lest they belong to others than were copied: rows may go, and what comes in their place has other keys. */
    atomic_thread_fence(memory_order_acquire);
    for (int64_t at = 0; at < count; at++)
        if (memcmp(memory + own[at], keys + 2 * at, KEY)) return 0;
    return 1;
}

static void fetch_piece(const void *data, int64_t piece) {
    const struct job *job = data;
    int64_t first = piece * job->in_piece, left = job->fetch->count - first;
    if (atomic_load(job->is_lost)) return;
    if (!fetch_some(job, first, left < job->in_piece ? left : job->in_piece)) atomic_store(job->is_lost, 1);
}

int fetch_rows(const struct fetch *fetch, int64_t *room, int *beyond, int threads) {
    int64_t count = fetch->count, width = KEY;
    _Atomic int is_lost = 0, leads_beyond = 0;
    for (int64_t at = 0; count && at < fetch->width; at++) width += fetch->columns[at].width;
    struct job job = {fetch, PIECE / width, room, room + count, room + 2 * count, &is_lost, &leads_beyond};
    if (job.in_piece < FEWEST) job.in_piece = FEWEST;
    if (job.in_piece > MOST) job.in_piece = MOST;
    pool_run(fetch_piece, &job, (count + job.in_piece - 1) / job.in_piece, threads);
    *beyond = atomic_load(&leads_beyond);
    return !atomic_load(&is_lost);
}
