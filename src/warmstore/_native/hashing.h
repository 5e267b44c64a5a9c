/* The xxh3-64 of rows and spans; included once for every instruction set, with NAMED(name) making names. */

#define XXH_INLINE_ALL
#include "xxhash.h"

#include "floor.h"

struct hashed {
    const uint8_t *memory;
    const int64_t *starts, *lengths; /* of spans; without them there are rows of one width */
    int64_t count, width, in_piece;
    const uint64_t *seeds;
    int seed_step;
    uint64_t *sums;
};

void NAMED(hash_piece)(const void *data, int64_t piece) {
    const struct hashed *job = data;
    int64_t first = piece * job->in_piece, last = first + job->in_piece;
    if (last > job->count) last = job->count;
    for (int64_t at = first; at < last; at++) {
        const uint8_t *begin = job->memory + (job->starts ? job->starts[at] : at * job->width);
        size_t length = (size_t)(job->lengths ? job->lengths[at] : job->width);
        job->sums[at] = XXH3_64bits_withSeed(begin, length, job->seeds[at * job->seed_step]);
    }
}
