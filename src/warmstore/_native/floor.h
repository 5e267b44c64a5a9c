/* What the parts of the native floor share. Nothing here knows Python; `buffers.h`, `module.c` and `table_calls.c` do. */

#ifndef WARMSTORE_FLOOR_H
#define WARMSTORE_FLOOR_H

#include <stddef.h>
#include <stdint.h>

/* pool.c: work in pieces, done by the caller and by helper threads that wake in time. */

typedef void (*piece_function)(const void *job, int64_t piece);

/* Start caring for forks; once a process. */
void pool_init(void);

/* Do pieces 0 to `pieces` - 1 of a job, in up to `threads` threads, the caller's among them. Returns when all are done.
   Any number of threads may call this at once: one has the helpers, the others work alone. */
void pool_run(piece_function work, const void *job, int64_t pieces, int threads);

/* Helpers that are not asleep. */
int pool_awake(void);

/* gather.c: copies. Addresses are bytes from `memory` on, and have been checked. */

/* In the caller's thread. `known` addresses may be asked for ahead: those of `count` rows, and of some that come next. */
void copy_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t known, int64_t width,
               uint8_t *out);

void gather_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t width, uint8_t *out,
                 int threads);

/* Where rows of a column lie that comes in batches. */
struct batches {
    const uint8_t *memory;
    int64_t size;             /* bytes of memory */
    const int64_t *bases;     /* of each batch: where row 0 of the whole column would lie */
    const int64_t *first_row; /* of each batch */
    int64_t count;            /* batches */
    int64_t span;             /* rows of every batch but the last; 0 where they differ */
    int64_t rows;             /* in all of them */
};

/* The addresses of some rows; 0 where there is no such row, or it lies outside of the memory. */
int addresses_of(const struct batches *batches, const int64_t *rows, int64_t count, int64_t width, int64_t *addresses);

/* Spans one after the other; `ends[i]` is where span i ends in `out`. */
void gather_spans(const uint8_t *memory, const int64_t *starts, const int64_t *ends, int64_t count, uint8_t *out,
                  int threads);

/* checksums.c: xxh3-64 of each row, with a seed for each, or for all with `seed_step` 0. */

void checksum_rows(const uint8_t *rows, int64_t count, int64_t width, const uint64_t *seeds, int seed_step,
                   uint64_t *sums, int threads);

void checksum_spans(const uint8_t *memory, const int64_t *starts, const int64_t *lengths, int64_t count,
                    const uint64_t *seeds, int seed_step, uint64_t *sums, int threads);

/* codecs.c: records through functions of zstd (zstd.h) or LZ4 (lz4.h), whose addresses Python has. */

enum { ZSTD, LZ4 }; /* a codec's kind */
/* Where its functions stand; of zstd also a dictionary for decompressing, or NULL. */
enum { ZSTD_SIZE, ZSTD_CREATE, ZSTD_FREE, ZSTD_DECOMPRESS, ZSTD_WITH_DICTIONARY, ZSTD_IS_ERROR, ZSTD_DICTIONARY, FUNCTIONS };
enum { LZ4_DECOMPRESS };
#define LONGEST_RECORD (1ull << 40)
#define MOST_CONTEXTS 64

struct codec {
    int kind;
    void *const *functions; /* [FUNCTIONS] */
};

/* Compressed records; their places have been checked. */
struct records {
    const uint8_t *memory;
    const int64_t *starts, *lengths;
    int64_t count;
};

/* How many bytes each had, 0 for one of no bytes; returns the first that does not say so, or how many there are. */
int64_t decompressed_sizes(const struct codec *codec, const struct records *records, int64_t *sizes);

/* Decompress records one after the other; `ends[i]` is where record i ends in `out`. Returns one that cannot be
   decompressed, or -1. */
int64_t decompress_records(const struct codec *codec, const struct records *records, const int64_t *ends, uint8_t *out,
                           int threads);

/* read.c: rows out of files. */

struct read_rows {
    const int32_t *files;   /* a descriptor for each row */
    const int64_t *offsets; /* in that file */
    const int64_t *ends;    /* in `out` */
    int64_t count;
    uint8_t *out;
    uint8_t *missing; /* set to 1 for a row of which not all is there; its bytes are 0 */
};

/* `runs` is room for two numbers a row. */
void read_rows(const struct read_rows *rows, int64_t *runs, int threads);

/* Map the pages of rows of `width` bytes. Returns whether all of them are in the page cache and are mapped now; 0 also
   where the system cannot tell. */
int map_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t width);

/* table.c: rows by key. */

#define PARTITIONS 4096
#define BUCKET_BYTES 256

struct table {
    const int64_t *directory; /* [4096] */
    uint64_t *words;          /* buckets of 32 */
    int64_t buckets;          /* that are known to exist */
    const int64_t *direct;    /* rows + 1 by small int */
    int64_t direct_count;
};

/* The row of each key, or -1; returns how many were found. Keys are two words each. */
int64_t table_lookup(const struct table *table, const uint64_t *keys, int64_t count, int64_t *rows, int *beyond);

/* Add to `coming` [4096] how many keys go to each partition. */
void table_count(const uint64_t *keys, int64_t count, int64_t *coming);

/* Add keys to the hash table, or give known ones their new row; returns how many, which is less than all where one finds
   no room in its partition. */
int64_t table_insert(const struct table *table, int64_t *counts, const uint64_t *keys, const int64_t *rows,
                     int64_t count);

/* Copy partitions into empty room and publish their new places; 0 where that cannot be, in a damaged table. */
int table_grow(const struct table *table, int64_t *directory, const int64_t *partitions, const int64_t *entries,
               int64_t count);

/* fetch.c: rows by key, confirmed. */

struct fetch_column {
    const int64_t *bases; /* of its batches */
    int64_t width;
    uint8_t *out;
};

struct fetch {
    struct table table;
    struct batches own; /* where each row carries its key, 16 bytes; all columns have the same batches */
    const uint64_t *keys;
    int64_t count;
    const struct fetch_column *columns;
    int64_t width; /* columns */
};

/* Whether every key has a row that carries it, and all of these were copied; else what was copied is worth nothing.
   `room` is for three numbers a key, `beyond` as in `table_lookup`. */
int fetch_rows(const struct fetch *fetch, int64_t *room, int *beyond, int threads);

/* permute.c: places of a permutation. */

/* Where each place below `n` leads, over a rectangle of `sides` whose product is at least n, with 8 keys; 0 where a
   place is not below n. */
int permute_places(const uint64_t *places, int64_t count, uint64_t n, const uint64_t sides[2], const uint64_t *keys,
                   uint64_t *out);

#endif
