/* Places of a permutation by a generalised Feistel network over a rectangle of cells, with cycle walking. */

#include "floor.h"

#define ROUNDS 8
#define MULTIPLIER 0xBF58476D1CE4E5B9ull
#define SECOND_MULTIPLIER 0x94D049BB133111EBull

#define TOGETHER 8 /* cells: one waits for its products while others are worked on */

static uint64_t added(uint64_t left, uint64_t right, uint64_t side, uint64_t key) {
    uint64_t hash = (right + key) * MULTIPLIER;
    hash = ((hash ^ hash >> 32) * SECOND_MULTIPLIER) >> 32;
    left += hash * side >> 32; /* both factors are below 2^32, and so what is added is below the side */
    return left < left - side ? left : left - side;
}

static void network(uint64_t *cells, const uint64_t sides[2], const uint64_t *keys) {
    uint64_t left[TOGETHER], right[TOGETHER];
    for (int one = 0; one < TOGETHER; one++) {
        left[one] = cells[one] / sides[1];
        right[one] = cells[one] - left[one] * sides[1];
    }
    for (int round = 0; round < ROUNDS; round += 2) {
        for (int one = 0; one < TOGETHER; one++) left[one] = added(left[one], right[one], sides[0], keys[round]);
        for (int one = 0; one < TOGETHER; one++) right[one] = added(right[one], left[one], sides[1], keys[round + 1]);
    }
    for (int one = 0; one < TOGETHER; one++) cells[one] = left[one] * sides[1] + right[one];
}

int permute_places(const uint64_t *places, int64_t count, uint64_t n, const uint64_t sides[2], const uint64_t *keys,
                   uint64_t *out) {
    for (int64_t first = 0; first < count; first += TOGETHER) {
        int64_t size = count - first < TOGETHER ? count - first : TOGETHER;
        uint64_t cells[TOGETHER] = {0};
        for (int64_t one = 0; one < size; one++) {
            if (places[first + one] >= n) return 0; /* walking from there might never come back below n */
            cells[one] = places[first + one];
        }
        network(cells, sides, keys);
        for (int64_t one = 0; one < size; one++) {
            uint64_t walking[TOGETHER] = {cells[one]};
            while (walking[0] >= n) network(walking, sides, keys);
            out[first + one] = walking[0];
        }
    }
    return 1;
}
