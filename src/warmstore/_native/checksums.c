/* Checksums with what every processor has, and the choice of better ones. */

#define NAMED(name) name##_plain
#include "hashing.h"

#define PIECE (64 * 1024) /* bytes */

#if defined(__x86_64__)
void hash_piece_avx2(const void *data, int64_t piece);
#define HASH_PIECE (__builtin_cpu_supports("avx2") ? hash_piece_avx2 : hash_piece_plain)
#else
#define HASH_PIECE hash_piece_plain
#endif

static void run(struct hashed *job, int64_t bytes, int threads) {
    if (!job->count) return;
    int64_t each = bytes / job->count + 1;
    job->in_piece = each < PIECE ? PIECE / each : 1;
    pool_run(HASH_PIECE, job, (job->count + job->in_piece - 1) / job->in_piece, threads);
}

void checksum_rows(const uint8_t *rows, int64_t count, int64_t width, const uint64_t *seeds, int seed_step,
                   uint64_t *sums, int threads) {
    struct hashed job = {rows, NULL, NULL, count, width, 1, seeds, seed_step, sums};
    run(&job, count * width, threads);
}

void checksum_spans(const uint8_t *memory, const int64_t *starts, const int64_t *lengths, int64_t count,
                    const uint64_t *seeds, int seed_step, uint64_t *sums, int threads) {
    struct hashed job = {memory, starts, lengths, count, 0, 1, seeds, seed_step, sums};
    int64_t bytes = 0;
    for (int64_t at = 0; at < count; at++) bytes += lengths[at];
    run(&job, bytes, threads);
}
