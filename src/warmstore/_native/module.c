/* What Python sees of the floor: buffers come in, are checked, and the lock of the interpreter is let go while they are
   worked on. Nothing of Python is kept between calls. Each function has its twin of the same name in `twin.py`, whose
   docstring says what it does. */

#include "buffers.h"

#include <stdlib.h>

PyObject *changed_dicts(PyObject *dicts, const int64_t *sizes, const uintptr_t *addresses, int64_t count); /* values.c */

/* table_calls.c */
PyObject *py_lookup(PyObject *self, PyObject *args);
PyObject *py_fetch(PyObject *self, PyObject *args);
PyObject *py_count_partitions(PyObject *self, PyObject *args);
PyObject *py_insert(PyObject *self, PyObject *args);
PyObject *py_grow(PyObject *self, PyObject *args);
PyObject *py_keys(PyObject *self, PyObject *args);

static PyObject *py_gather(PyObject *self, PyObject *args) {
    Py_buffer memory, addresses, out;
    long long width;
    int threads, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*Lw*i:gather", &memory, &addresses, &width, &out, &threads)) return NULL;
    int64_t count = addresses.len / 8;
    good = width >= 0 && width <= memory.len;
    if (!good) PyErr_Format(PyExc_ValueError, "width=%lld; expected 0 to %zd", width, memory.len);
    good = good && has_items(&addresses, count, "addresses") && has_bytes(&out, count * width, "out") &&
           are_inside(addresses.buf, NULL, width, count, memory.len);
    if (good && width) {
        PyThreadState *state = let_go(out.len);
        gather_rows(memory.buf, addresses.buf, count, width, out.buf, threads);
        take_back(state);
    }
    PyBuffer_Release(&memory);
    PyBuffer_Release(&addresses);
    PyBuffer_Release(&out);
    return done(good);
}

static PyObject *py_map_rows(PyObject *self, PyObject *args) {
    Py_buffer memory, addresses;
    long long width;
    int good, are_mapped = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*L:map_rows", &memory, &addresses, &width)) return NULL;
    int64_t count = addresses.len / 8;
    good = width >= 0 && width <= memory.len;
    if (!good) PyErr_Format(PyExc_ValueError, "width=%lld; expected 0 to %zd", width, memory.len);
    good = good && has_items(&addresses, count, "addresses") && are_inside(addresses.buf, NULL, width, count, memory.len);
    if (good) {
        PyThreadState *state = let_go(count * width);
        are_mapped = map_rows(memory.buf, addresses.buf, count, width);
        take_back(state);
    }
    PyBuffer_Release(&memory);
    PyBuffer_Release(&addresses);
    return good ? PyBool_FromLong(are_mapped) : NULL;
}

static PyObject *py_gather_rows(PyObject *self, PyObject *args) {
    Py_buffer memory, bases, first_row, rows, out;
    long long span, limit, width;
    int threads, good, are_there = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*LLy*Lw*i:gather_rows", &memory, &bases, &first_row, &span, &limit, &rows, &width,
                          &out, &threads))
        return NULL;
    struct batches batches = {.span = span, .rows = limit};
    int64_t count = rows.len / 8, *addresses = NULL;
    good = are_batches(&batches, &memory, &bases, &first_row) && has_items(&rows, count, "rows") &&
           fits(&out, count, width) && (addresses = room_for(count));
    if (good && (are_there = addresses_of(&batches, rows.buf, count, width, addresses))) {
        PyThreadState *state = let_go(out.len);
        gather_rows(memory.buf, addresses, count, width, out.buf, threads);
        take_back(state);
    }
    free(addresses);
    PyBuffer_Release(&memory);
    PyBuffer_Release(&bases);
    PyBuffer_Release(&first_row);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    return good ? PyBool_FromLong(are_there) : NULL;
}

static PyObject *py_gather_spans(PyObject *self, PyObject *args) {
    Py_buffer memory, starts, lengths, out;
    int threads, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*w*i:gather_spans", &memory, &starts, &lengths, &out, &threads)) return NULL;
    int64_t count = starts.len / 8, total = 0, *ends = NULL;
    good = has_items(&starts, count, "starts") && has_items(&lengths, count, "lengths") &&
           are_inside(starts.buf, lengths.buf, 0, count, memory.len);
    if (good && !(ends = malloc((size_t)count * 8 + 1))) {
        PyErr_NoMemory();
        good = 0;
    }
    for (int64_t at = 0; good && at < count; at++) {
        total += ((const int64_t *)lengths.buf)[at];
        ends[at] = total;
        if (total > out.len) break; /* before it can overflow */
    }
    good = good && has_bytes(&out, total, "out");
    if (good) {
        PyThreadState *state = let_go(out.len);
        gather_spans(memory.buf, starts.buf, ends, count, out.buf, threads);
        take_back(state);
    }
    free(ends);
    PyBuffer_Release(&memory);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&out);
    return done(good);
}

static PyObject *py_checksums(PyObject *self, PyObject *args) {
    Py_buffer rows, seeds, sums;
    long long width;
    int threads, step = -1, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*Ly*w*i:checksums", &rows, &width, &seeds, &sums, &threads)) return NULL;
    int64_t count = sums.len / 8;
    good = has_items(&sums, count, "sums") && (step = step_of_seeds(&seeds, count)) >= 0 && width >= 0 &&
           has_bytes(&rows, count * width, "rows");
    if (good) {
        PyThreadState *state = let_go(rows.len);
        checksum_rows(rows.buf, count, width, seeds.buf, step, sums.buf, threads);
        take_back(state);
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&seeds);
    PyBuffer_Release(&sums);
    return done(good);
}

static PyObject *py_span_checksums(PyObject *self, PyObject *args) {
    Py_buffer memory, starts, lengths, seeds, sums;
    int threads, step = -1, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*i:span_checksums", &memory, &starts, &lengths, &seeds, &sums, &threads))
        return NULL;
    int64_t count = sums.len / 8;
    good = has_items(&sums, count, "sums") && has_items(&starts, count, "starts") &&
           has_items(&lengths, count, "lengths") && (step = step_of_seeds(&seeds, count)) >= 0 &&
           are_inside(starts.buf, lengths.buf, 0, count, memory.len);
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        checksum_spans(memory.buf, starts.buf, lengths.buf, count, seeds.buf, step, sums.buf, threads);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&memory);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&seeds);
    PyBuffer_Release(&sums);
    return done(good);
}

static PyObject *py_read(PyObject *self, PyObject *args) {
    Py_buffer files, offsets, lengths, out, missing;
    int threads, good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*y*y*w*w*i:read", &files, &offsets, &lengths, &out, &missing, &threads)) return NULL;
    int64_t count = offsets.len / 8, total = 0, found = 0, *ends = NULL;
    good = has_items(&offsets, count, "offsets") && has_items(&lengths, count, "lengths") &&
           has_bytes(&files, 4 * count, "files") && has_bytes(&missing, count, "missing");
    if (good && !(ends = malloc((size_t)count * 24 + 1))) {
        PyErr_NoMemory();
        good = 0;
    }
    for (int64_t at = 0; good && at < count; at++) {
        int64_t length = ((const int64_t *)lengths.buf)[at];
        if (length < 0 || ((const int64_t *)offsets.buf)[at] < 0) {
            PyErr_Format(PyExc_ValueError, "row %lld has an offset or a length below 0", (long long)at);
            good = 0;
        }
        total += length;
        ends[at] = total;
        if (total > out.len) break; /* before it can overflow */
    }
    good = good && has_bytes(&out, total, "out");
    if (good) {
        struct read_rows rows = {files.buf, offsets.buf, ends, count, out.buf, missing.buf};
        Py_BEGIN_ALLOW_THREADS
        read_rows(&rows, ends + count, threads);
        for (int64_t at = 0; at < count; at++) found += rows.missing[at] != 0;
        Py_END_ALLOW_THREADS
    }
    free(ends);
    PyBuffer_Release(&files);
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&lengths);
    PyBuffer_Release(&out);
    PyBuffer_Release(&missing);
    return good ? PyLong_FromLongLong(found) : NULL;
}

/* Compressed records as Python says it. */
struct compressed {
    Py_buffer functions, memory, starts, lengths;
    struct codec codec;
    struct records records;
};

static int are_records(struct compressed *all, int kind) {
    int64_t count = all->starts.len / 8;
    if (kind != ZSTD && kind != LZ4) {
        PyErr_Format(PyExc_ValueError, "codec %d; expected 0 or 1", kind);
        return 0;
    }
    all->codec.kind = kind;
    all->codec.functions = all->functions.buf;
    struct records records = {all->memory.buf, all->starts.buf, all->lengths.buf, count};
    all->records = records;
    return has_items(&all->functions, FUNCTIONS, "functions") && has_items(&all->starts, count, "starts") &&
           has_items(&all->lengths, count, "lengths") &&
           are_inside(all->starts.buf, all->lengths.buf, 0, count, all->memory.len);
}

static void release_records(struct compressed *all) {
    PyBuffer_Release(&all->functions);
    PyBuffer_Release(&all->memory);
    PyBuffer_Release(&all->starts);
    PyBuffer_Release(&all->lengths);
}

static PyObject *py_decompressed_sizes(PyObject *self, PyObject *args) {
    struct compressed all;
    Py_buffer sizes;
    int kind, good;
    int64_t done = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy*y*y*y*w*:decompressed_sizes", &kind, &all.functions, &all.memory, &all.starts,
                          &all.lengths, &sizes))
        return NULL;
    good = are_records(&all, kind) && has_items(&sizes, all.records.count, "sizes");
    if (good) done = decompressed_sizes(&all.codec, &all.records, sizes.buf);
    release_records(&all);
    PyBuffer_Release(&sizes);
    return good ? PyLong_FromLongLong(done) : NULL;
}

static PyObject *py_decompress(PyObject *self, PyObject *args) {
    struct compressed all;
    Py_buffer ends, out;
    int kind, threads, good;
    int64_t bad = -1, before = 0;
    (void)self;
    if (!PyArg_ParseTuple(args, "iy*y*y*y*y*w*i:decompress", &kind, &all.functions, &all.memory, &all.starts, &all.lengths,
                          &ends, &out, &threads))
        return NULL;
    good = are_records(&all, kind) && has_items(&ends, all.records.count, "ends");
    for (int64_t at = 0; good && at < all.records.count; at++) {
        int64_t end = ((const int64_t *)ends.buf)[at];
        good = end >= before && end <= out.len;
        if (!good) PyErr_Format(PyExc_ValueError, "record %lld ends at %lld", (long long)at, (long long)end);
        before = end;
    }
    if (good) {
        Py_BEGIN_ALLOW_THREADS
        bad = decompress_records(&all.codec, &all.records, ends.buf, out.buf, threads);
        Py_END_ALLOW_THREADS
    }
    release_records(&all);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&out);
    return good ? PyLong_FromLongLong(bad) : NULL;
}

static PyObject *py_permute(PyObject *self, PyObject *args) {
    Py_buffer places, keys, out;
    unsigned long long n, sides[2];
    int good;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*KKKy*w*:permute", &places, &n, &sides[0], &sides[1], &keys, &out)) return NULL;
    int64_t count = places.len / 8;
    good = has_items(&places, count, "places") && has_items(&keys, 8, "keys") && has_items(&out, count, "out");
    if (good && (!sides[0] || !sides[1] || sides[0] > UINT32_MAX || sides[1] > UINT32_MAX || sides[0] * sides[1] < n)) {
        PyErr_Format(PyExc_ValueError, "%llu x %llu cells for n=%llu", sides[0], sides[1], n);
        good = 0;
    }
    if (good) {
        PyThreadState *state = let_go(places.len);
        good = permute_places(places.buf, count, n, (const uint64_t[]){sides[0], sides[1]}, keys.buf, out.buf);
        take_back(state);
        if (!good) PyErr_Format(PyExc_IndexError, "a place is not below n=%llu", n);
    }
    PyBuffer_Release(&places);
    PyBuffer_Release(&keys);
    PyBuffer_Release(&out);
    return done(good);
}

static PyObject *py_changed_dicts(PyObject *self, PyObject *args) {
    PyObject *dicts, *found = NULL;
    Py_buffer sizes, addresses;
    (void)self;
    if (!PyArg_ParseTuple(args, "O!y*y*:changed_dicts", &PyList_Type, &dicts, &sizes, &addresses)) return NULL;
    if (has_items(&sizes, PyList_Size(dicts), "sizes") && has_items(&addresses, addresses.len / 8, "addresses"))
        found = changed_dicts(dicts, sizes.buf, addresses.buf, addresses.len / 8);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&addresses);
    return found;
}

static PyObject *py_helpers_awake(PyObject *self, PyObject *args) {
    (void)self, (void)args;
    return PyLong_FromLong(pool_awake());
}

static PyMethodDef functions[] = {
    {"gather", py_gather, METH_VARARGS, NULL},
    {"gather_rows", py_gather_rows, METH_VARARGS, NULL},
    {"gather_spans", py_gather_spans, METH_VARARGS, NULL},
    {"checksums", py_checksums, METH_VARARGS, NULL},
    {"span_checksums", py_span_checksums, METH_VARARGS, NULL},
    {"read", py_read, METH_VARARGS, NULL},
    {"map_rows", py_map_rows, METH_VARARGS, NULL},
    {"keys", py_keys, METH_VARARGS, NULL},
    {"lookup", py_lookup, METH_VARARGS, NULL},
    {"fetch", py_fetch, METH_VARARGS, NULL},
    {"count_partitions", py_count_partitions, METH_VARARGS, NULL},
    {"insert", py_insert, METH_VARARGS, NULL},
    {"grow", py_grow, METH_VARARGS, NULL},
    {"decompressed_sizes", py_decompressed_sizes, METH_VARARGS, NULL},
    {"decompress", py_decompress, METH_VARARGS, NULL},
    {"permute", py_permute, METH_VARARGS, NULL},
    {"changed_dicts", py_changed_dicts, METH_VARARGS, NULL},
    {"helpers_awake", py_helpers_awake, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int start(PyObject *module) {
    (void)module;
    pool_init();
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)start}, {0, NULL}};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "compiled", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModuleDef_Init(&definition); }
