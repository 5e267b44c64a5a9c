/* The hash table of keys, as Python calls it; each function has its twin in `twin_table.py`. `module.c` lists them. */

#include "buffers.h"

#include <stdlib.h>

#define FEW_KEYS 4096 /* for which Python's lock is kept, see buffers.c */

int64_t keys_of(PyObject *ids, uint64_t *keys, int *small); /* keys.c */

/* Checks what a table is made of. */
static int is_table(struct table *table, const Py_buffer *directory, const Py_buffer *words, const Py_buffer *direct) {
    if (!has_items(directory, PARTITIONS, "directory")) return 0;
    if (table->buckets < 0 || table->buckets > words->len / BUCKET_BYTES || (uintptr_t)words->buf % 8) {
        PyErr_Format(PyExc_ValueError, "buckets=%lld; words has %zd bytes", (long long)table->buckets, words->len);
        return 0;
    }
    if (direct && (table->direct_count < 0 || table->direct_count > direct->len / 8 || (uintptr_t)direct->buf % 8)) {
        PyErr_Format(PyExc_ValueError, "direct_count=%lld; direct has %zd bytes", (long long)table->direct_count,
                     direct->len);
        return 0;
    }
    table->directory = directory->buf;
    table->words = words->buf;
    table->direct = direct ? direct->buf : NULL;
    return 1;
}

PyObject *py_lookup(PyObject *self, PyObject *args) {
    Py_buffer directory, words, direct, keys, rows;
    long long buckets, direct_count;
    int good, beyond = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*Ly*Ly*w*:lookup", &directory, &words, &buckets, &direct, &direct_count, &keys, &rows))
        return NULL;
    struct table table = {.buckets = buckets, .direct_count = direct_count};
    int64_t count = rows.len / 8, found = 0;
    good = is_table(&table, &directory, &words, &direct) && has_items(&rows, count, "rows") &&
           has_items(&keys, 2 * count, "keys");
    if (good && count <= FEW_KEYS)
        found = table_lookup(&table, keys.buf, count, rows.buf, &beyond);
    else if (good) {
        Py_BEGIN_ALLOW_THREADS
        found = table_lookup(&table, keys.buf, count, rows.buf, &beyond);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&directory);
    PyBuffer_Release(&words);
    PyBuffer_Release(&direct);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&rows);
    return good ? Py_BuildValue("Li", (long long)found, beyond) : NULL;
}

/* Columns as Python gives them, and as `fetch_rows` takes them. */
struct columns {
    Py_ssize_t count;
    struct {
        Py_buffer bases, out;
    } *buffers;
    struct fetch_column *plain;
};

/* Read a tuple of (bases, width, out); 0 where an error is set. `release_columns` in any case. */
static int read_columns(struct columns *columns, PyObject *tuple, int64_t rows, int64_t batches) {
    size_t count = (size_t)PyTuple_Size(tuple);
    columns->buffers = malloc(count * sizeof *columns->buffers + 1);
    columns->plain = malloc(count * sizeof *columns->plain + 1);
    if (!columns->buffers || !columns->plain) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t at = 0; at < count; at++) {
        Py_buffer *bases = &columns->buffers[at].bases, *out = &columns->buffers[at].out;
        PyObject *item = PyTuple_GetItem(tuple, (Py_ssize_t)at);
        long long width;
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a column is a tuple of bases, width and out");
            return 0;
        }
        if (!PyArg_ParseTuple(item, "y*Lw*:fetch", bases, &width, out)) return 0;
        columns->count++;
        if (!has_items(bases, batches, "bases") || !fits(out, rows, width)) return 0;
        columns->plain[at] = (struct fetch_column){bases->buf, width, out->buf};
    }
    return 1;
}

static void release_columns(struct columns *columns) {
    while (columns->count--) {
        PyBuffer_Release(&columns->buffers[columns->count].bases);
        PyBuffer_Release(&columns->buffers[columns->count].out);
    }
    free(columns->buffers);
    free(columns->plain);
}

PyObject *py_fetch(PyObject *self, PyObject *args) {
    Py_buffer directory, words, direct, keys, memory, own, first_row;
    PyObject *tuple;
    long long buckets, direct_count, span, limit;
    int threads, beyond = 0, found = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*Ly*Ly*y*y*y*LLO!i:fetch", &directory, &words, &buckets, &direct, &direct_count, &keys,
                          &memory, &own, &first_row, &span, &limit, &PyTuple_Type, &tuple, &threads))
        return NULL;
    struct fetch fetch = {.table = {.buckets = buckets, .direct_count = direct_count},
                          .own = {.span = span, .rows = limit},
                          .keys = keys.buf,
                          .count = keys.len / 16};
    struct columns columns = {0, NULL, NULL};
    int64_t *room = NULL, total = 0;
    int good = is_table(&fetch.table, &directory, &words, &direct) && has_items(&keys, 2 * fetch.count, "keys") &&
               are_batches(&fetch.own, &memory, &own, &first_row) && (room = room_for(3 * fetch.count)) &&
               read_columns(&columns, tuple, fetch.count, fetch.own.count);
    if (good) {
        fetch.columns = columns.plain;
        fetch.width = columns.count;
        for (Py_ssize_t at = 0; at < columns.count; at++) total += columns.buffers[at].out.len;
        PyThreadState *state = let_go(total);
        found = fetch_rows(&fetch, room, &beyond, threads);
        take_back(state);
    }
    release_columns(&columns);
    free(room);
    PyBuffer_Release(&directory);
    PyBuffer_Release(&words);
    PyBuffer_Release(&direct);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&memory);
    PyBuffer_Release(&own);
    PyBuffer_Release(&first_row);
    return good ? Py_BuildValue("NN", PyBool_FromLong(found), PyBool_FromLong(beyond)) : NULL;
}

PyObject *py_count_partitions(PyObject *self, PyObject *args) {
    Py_buffer keys, coming;
    int good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*:count_partitions", &keys, &coming)) return NULL;
    good = has_items(&keys, keys.len / 16 * 2, "keys") && has_items(&coming, PARTITIONS, "coming");
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        table_count(keys.buf, keys.len / 16, coming.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&coming);
    return done(good);
}

PyObject *py_insert(PyObject *self, PyObject *args) {
    Py_buffer directory, counts, words, keys, rows;
    long long buckets;
    int good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*w*Ly*y*:insert", &directory, &counts, &words, &buckets, &keys, &rows)) return NULL;
    struct table table = {.buckets = buckets};
    int64_t count = rows.len / 8, added = 0;
    good = is_table(&table, &directory, &words, NULL) && has_items(&counts, PARTITIONS, "counts") &&
           has_items(&rows, count, "rows") && has_items(&keys, 2 * count, "keys");
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        added = table_insert(&table, counts.buf, keys.buf, rows.buf, count);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&directory);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&words);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&rows);
    return good ? PyLong_FromLongLong(added) : NULL;
}

PyObject *py_grow(PyObject *self, PyObject *args) {
    Py_buffer directory, words, partitions, entries;
    long long buckets;
    int good, moved = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "w*w*Ly*y*:grow", &directory, &words, &buckets, &partitions, &entries)) return NULL;
    struct table table = {.buckets = buckets};
    int64_t count = partitions.len / 8;
    good = is_table(&table, &directory, &words, NULL) && has_items(&partitions, count, "partitions") &&
           has_items(&entries, count, "entries");
    for (int64_t at = 0; good && at < count; at++) {
        int64_t one = ((const int64_t *)partitions.buf)[at];
        if (one >= 0 && one < PARTITIONS) continue;
        PyErr_Format(PyExc_IndexError, "partition %lld; there are %d", (long long)one, PARTITIONS);
        good = 0;
    }
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        moved = table_grow(&table, directory.buf, partitions.buf, entries.buf, count);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&directory);
    PyBuffer_Release(&words);
    PyBuffer_Release(&partitions);
    PyBuffer_Release(&entries);
    return good ? PyBool_FromLong(moved) : NULL;
}

PyObject *py_keys(PyObject *self, PyObject *args) {
    PyObject *ids;
    Py_buffer keys;
    int64_t taken = 0;
    int small = 1;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!w*:keys", &PyList_Type, &ids, &keys)) return NULL;
    int good = has_items(&keys, 2 * PyList_Size(ids), "keys");
    if (good) taken = keys_of(ids, keys.buf, &small);
    PyBuffer_Release(&keys);
    return good ? Py_BuildValue("Li", (long long)taken, small) : NULL;
}
