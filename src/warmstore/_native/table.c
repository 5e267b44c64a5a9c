/* A hash table in shared memory from 128-bit keys to numbers of rows, made for looking up whole batches.

   A key is spread to a fingerprint of 64 bits. The table is cut into partitions by a fingerprint's top bits, each a power
   of two of buckets by the bits below, each bucket 16 fingerprints and then their 16 values; a full bucket goes on in the
   next. A partition's place stands in a directory of 4,096 words: its first bucket << 8 | log2 of its buckets, or 0.

   Readers take no lock, in this process or another: a value is written before its fingerprint, and a partition's new
   place after its contents. Its old place may become another's, so a reader looks at the directory before and after, and
   again where the partition was moved meanwhile. What it finds is a proposal that the caller confirms by the row's own
   key, so a torn or damaged table gives wrong rows at worst; nothing outside of it is read or written.

   Small non-negative ints may stand in a second table, an array of rows + 1 by number, which is asked first. */

#include "floor.h"

#include <string.h>

#define PARTITION(fingerprint) ((fingerprint) >> 52)
#define SLOTS 16
#define BUCKET (2 * SLOTS) /* words */
#define GROUP 64           /* keys whose memory is asked for before the first is looked at */
#define SIGNED 0x77735F7369676E64ull /* the high half of an int's key */

#define LOAD(place) __atomic_load_n(place, __ATOMIC_RELAXED)
#define STORE(place, value) __atomic_store_n(place, value, __ATOMIC_RELAXED)

/* splitmix64's finaliser (Steele, Lea and Flood 2014), never 0. */
static inline uint64_t spread(uint64_t low, uint64_t high) {
    uint64_t mixed = low ^ high;
    mixed ^= mixed >> 30;
    mixed *= 0xBF58476D1CE4E5B9ull;
    mixed ^= mixed >> 27;
    mixed *= 0x94D049BB133111EBull;
    mixed ^= mixed >> 31;
    return mixed ? mixed : 1;
}

struct partition {
    int64_t entry;            /* of the directory */
    int64_t base, mask, home; /* buckets: the first, how many less one, and where a fingerprint belongs */
};

static inline struct partition partition_of(uint64_t fingerprint, int64_t entry) {
    int64_t level = entry & 0xFF;
    if (level > 40) level = 40; /* of a damaged directory; that it leads outside is seen below */
    struct partition found = {entry, entry >> 8, ((int64_t)1 << level) - 1, (int64_t)(fingerprint >> (52 - level))};
    return found;
}

/* Where a partition's probe of that number lies; the bucket may not exist. */
static inline int64_t bucket_of(const struct partition *partition, int64_t probe) {
    return partition->base + ((partition->home + probe) & partition->mask);
}

static inline int exists(const struct table *table, int64_t bucket) { return bucket > 0 && bucket < table->buckets; }

static inline uint64_t *cells_of(const struct table *table, int64_t bucket) { return table->words + bucket * BUCKET; }

static inline void ask_for(const uint64_t *cells) {
    __builtin_prefetch(cells, 0, 3);
    __builtin_prefetch(cells + SLOTS / 2, 0, 3);
}

/* The slot of a fingerprint in a bucket; else minus one minus the slots that are taken. */
static inline int slot_of(const uint64_t *cells, uint64_t fingerprint) {
    for (int slot = 0; slot < SLOTS; slot++) {
        uint64_t there = __atomic_load_n(cells + slot, __ATOMIC_ACQUIRE);
        if (there == fingerprint) return slot;
        if (!there) return -1 - slot;
    }
    return -1 - SLOTS;
}

/* The row of a fingerprint, or -1; `beyond` is set where the directory leads to a bucket that is not known to exist. */
static int64_t find(const struct table *table, uint64_t fingerprint, struct partition *at, int *beyond) {
    for (int64_t probe = 0; probe <= at->mask; probe++) {
        int64_t bucket = bucket_of(at, probe);
        if (!exists(table, bucket)) {
            *beyond = 1;
            return -1;
        }
        uint64_t *cells = cells_of(table, bucket);
        int slot = slot_of(cells, fingerprint);
        if (slot >= 0) return (int64_t)LOAD(cells + SLOTS + slot);
        if (slot > -1 - SLOTS) return -1; /* only behind a full bucket may a key lie in the next one */
    }
    return -1;
}

/* `find`, once more where the partition was moved meanwhile: its old place may be another's by now. */
static int64_t find_still(const struct table *table, uint64_t fingerprint, struct partition *at, int *beyond) {
    for (;;) {
        int is_beyond = 0;
        int64_t row = find(table, fingerprint, at, &is_beyond);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        int64_t entry = __atomic_load_n(table->directory + PARTITION(fingerprint), __ATOMIC_ACQUIRE);
        if (entry == at->entry) {
            *beyond |= is_beyond;
            return row;
        }
        *at = partition_of(fingerprint, entry);
    }
}

int64_t table_lookup(const struct table *table, const uint64_t *keys, int64_t count, int64_t *rows, int *beyond) {
    int64_t found = 0;
    uint64_t fingerprints[GROUP];
    struct partition places[GROUP];
    *beyond = 0;
    for (int64_t first = 0; first < count; first += GROUP) {
        int64_t size = count - first < GROUP ? count - first : GROUP;
        const uint64_t *some = keys + 2 * first;
        for (int64_t at = 0; at < size; at++)
            if (some[2 * at + 1] == SIGNED && some[2 * at] < (uint64_t)table->direct_count)
                __builtin_prefetch(table->direct + some[2 * at], 0, 3);
        for (int64_t at = 0; at < size; at++) {
            uint64_t low = some[2 * at], high = some[2 * at + 1];
            int64_t row = -1;
            if (high == SIGNED && low < (uint64_t)table->direct_count) row = LOAD(table->direct + low) - 1;
            rows[first + at] = row;
            fingerprints[at] = 0;
            if (row >= 0) continue;
            uint64_t fingerprint = spread(low, high);
            int64_t entry = __atomic_load_n(table->directory + PARTITION(fingerprint), __ATOMIC_ACQUIRE);
            if (entry <= 0) continue;
            fingerprints[at] = fingerprint;
            places[at] = partition_of(fingerprint, entry);
            int64_t bucket = bucket_of(&places[at], 0);
            if (exists(table, bucket)) ask_for(cells_of(table, bucket));
        }
        for (int64_t at = 0; at < size; at++) {
            if (fingerprints[at]) rows[first + at] = find_still(table, fingerprints[at], &places[at], beyond);
            found += rows[first + at] >= 0;
        }
    }
    return found;
}

/* Put a fingerprint where it belongs: 1 where it is new, 0 where it was there, -1 where there is no room. */
static int place(const struct table *table, uint64_t fingerprint, int64_t entry, int64_t row) {
    struct partition at = partition_of(fingerprint, entry);
    for (int64_t probe = 0; entry > 0 && probe <= at.mask; probe++) {
        int64_t bucket = bucket_of(&at, probe);
        if (!exists(table, bucket)) return -1;
        uint64_t *cells = cells_of(table, bucket);
        int slot = slot_of(cells, fingerprint);
        if (slot >= 0) {
            STORE(cells + SLOTS + slot, (uint64_t)row);
            return 0;
        }
        if (slot == -1 - SLOTS) continue;
        STORE(cells + SLOTS + (-1 - slot), (uint64_t)row);
        __atomic_store_n(cells + (-1 - slot), fingerprint, __ATOMIC_RELEASE);
        return 1;
    }
    return -1;
}

void table_count(const uint64_t *keys, int64_t count, int64_t *coming) {
    for (int64_t at = 0; at < count; at++) coming[PARTITION(spread(keys[2 * at], keys[2 * at + 1]))]++;
}

int64_t table_insert(const struct table *table, int64_t *counts, const uint64_t *keys, const int64_t *rows,
                     int64_t count) {
    uint64_t fingerprints[GROUP];
    for (int64_t first = 0; first < count; first += GROUP) {
        int64_t size = count - first < GROUP ? count - first : GROUP;
        for (int64_t at = 0; at < size; at++) {
            uint64_t fingerprint = fingerprints[at] = spread(keys[2 * (first + at)], keys[2 * (first + at) + 1]);
            int64_t entry = table->directory[PARTITION(fingerprint)];
            if (entry <= 0) continue;
            struct partition partition = partition_of(fingerprint, entry);
            int64_t bucket = bucket_of(&partition, 0);
            if (!exists(table, bucket)) continue;
            ask_for(cells_of(table, bucket));
            ask_for(cells_of(table, bucket) + SLOTS);
        }
        for (int64_t at = 0; at < size; at++) {
            uint64_t number = PARTITION(fingerprints[at]);
            int added = place(table, fingerprints[at], table->directory[number], rows[first + at]);
            if (added < 0) return first + at;
            counts[number] += added;
        }
    }
    return count;
}

int table_grow(const struct table *table, int64_t *directory, const int64_t *partitions, const int64_t *entries,
               int64_t count) {
    __atomic_thread_fence(__ATOMIC_RELEASE); /* whoever sees the zeros sees that their place had been left */
    for (int64_t one = 0; one < count; one++) {
        int64_t old = directory[partitions[one]], fresh = entries[one];
        struct partition room = partition_of(0, fresh), left = partition_of(0, old);
        for (int64_t bucket = room.base; bucket <= room.base + room.mask; bucket++) {
            if (!exists(table, bucket)) return 0;
            for (int word = 0; word < BUCKET; word++) STORE(cells_of(table, bucket) + word, 0);
        }
        for (int64_t bucket = left.base; old > 0 && bucket <= left.base + left.mask; bucket++) {
            if (!exists(table, bucket)) return 0;
            uint64_t *cells = cells_of(table, bucket);
            for (int slot = 0; slot < SLOTS && cells[slot]; slot++)
                if (place(table, cells[slot], fresh, (int64_t)cells[SLOTS + slot]) < 0) return 0;
        }
        __atomic_store_n(directory + partitions[one], fresh, __ATOMIC_RELEASE);
    }
    return 1;
}
