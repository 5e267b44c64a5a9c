/* Rows out of files, past their mappings: what is not there is marked, and no signal ends the process.

   What the system holds in memory is copied by the caller at once. What must come from a disk is asked for by many
   threads, since each waits for its own. */

#define _GNU_SOURCE
#include "floor.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#if defined(__linux__)
#include <sys/vfs.h>
#endif
#include <unistd.h>

#define LONGEST (1 << 20) /* bytes that are read as one */
#define TMPFS 0x01021994  /* the type of a file system in memory, as statfs(2) has it */

struct reads {
    const struct read_rows *rows;
    const int64_t *runs; /* each run's first row; one more says where the last ends */
};

static inline int64_t begin_of(const struct read_rows *rows, int64_t row) { return row ? rows->ends[row - 1] : 0; }

/* The row behind a run: rows that follow each other in one file. */
static int64_t end_of_run(const struct read_rows *rows, int64_t first) {
    int64_t begin = begin_of(rows, first), row = first + 1;
    while (row < rows->count && rows->files[row] == rows->files[first] &&
           rows->offsets[row] == rows->offsets[first] + rows->ends[row - 1] - begin &&
           rows->ends[row] - begin <= LONGEST)
        row++;
    return row;
}

/* Read so many bytes, waiting for them; how many were there. */
static int64_t read_whole(int file, uint8_t *out, int64_t length, int64_t offset) {
    int64_t done = 0;
    while (done < length) {
        ssize_t count = pread(file, out + done, (size_t)(length - done), offset + done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) break;
        done += count;
    }
    return done;
}

/* Read a run. Where not all of it is there, row by row: which of them are missing is known then. */
static void read_run(const void *data, int64_t run) {
    const struct reads *job = data;
    const struct read_rows *rows = job->rows;
    int64_t first = job->runs[2 * run], last = job->runs[2 * run + 1], begin = begin_of(rows, first);
    int64_t length = rows->ends[last - 1] - begin;
    if (read_whole(rows->files[first], rows->out + begin, length, rows->offsets[first]) == length) return;
    for (int64_t row = first; row < last; row++) {
        uint8_t *out = rows->out + begin_of(rows, row);
        int64_t bytes = rows->ends[row] - begin_of(rows, row);
        if (read_whole(rows->files[row], out, bytes, rows->offsets[row]) == bytes) continue;
        memset(out, 0, (size_t)bytes);
        rows->missing[row] = 1;
    }
}

/* Whether all of a run was in memory, and is copied now. Files of a tmpfs are, and it refuses to say so. */
static int is_in_memory(const struct read_rows *rows, int64_t first, int64_t last) {
#if defined(__linux__) && defined(RWF_NOWAIT)
    int64_t begin = begin_of(rows, first), length = rows->ends[last - 1] - begin;
    struct iovec into = {rows->out + begin, (size_t)length};
    struct statfs system;
    if (preadv2(rows->files[first], &into, 1, rows->offsets[first], RWF_NOWAIT) == length) return 1;
    return errno == EOPNOTSUPP && !fstatfs(rows->files[first], &system) && system.f_type == TMPFS &&
           read_whole(rows->files[first], rows->out + begin, length, rows->offsets[first]) == length;
#else
    (void)rows, (void)first, (void)last;
    return 0;
#endif
}

void read_rows(const struct read_rows *rows, int64_t *runs, int threads) {
    struct reads job = {rows, runs};
    int64_t waiting = 0;
    for (int64_t first = 0, last; first < rows->count; first = last) {
        last = end_of_run(rows, first);
        if (is_in_memory(rows, first, last)) continue;
        runs[2 * waiting] = first;
        runs[2 * waiting++ + 1] = last;
    }
    pool_run(read_run, &job, waiting, threads);
}

#if defined(__linux__)
#define POPULATE_READ 22 /* since Linux 5.14; fails for bytes that reading would answer with a signal */
#define PAGES 1024       /* that are asked for at once */

static int map_pages(uint8_t *first, uint8_t *last, int64_t page) {
    unsigned char resident[PAGES];
    for (uint8_t *part = first; part < last; part += PAGES * page) {
        int64_t length = last - part < PAGES * page ? last - part : PAGES * page;
        if (mincore(part, (size_t)length, resident)) return 0;
        for (int64_t at = 0; at < (length + page - 1) / page; at++)
            if (!(resident[at] & 1)) return 0;
    }
    return !madvise(first, (size_t)(last - first), POPULATE_READ);
}

int map_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t width) {
    int64_t page = sysconf(_SC_PAGESIZE);
    for (int64_t row = 0; row < count; row++) {
        uintptr_t first = (uintptr_t)memory + (uintptr_t)addresses[row];
        if (!map_pages((uint8_t *)(first & -(uintptr_t)page), (uint8_t *)(first + (uintptr_t)width), page)) return 0;
    }
    return 1;
}
#else
int map_rows(const uint8_t *memory, const int64_t *addresses, int64_t count, int64_t width) {
    (void)memory, (void)addresses, (void)count, (void)width;
    return 0;
}
#endif
