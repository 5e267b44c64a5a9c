/* Checks of buffers that come from Python; see buffers.h. */

#include "buffers.h"

#include <stdlib.h>

/* Letting Python's lock go costs little, but to have it back one may wait for another thread's turn to end, 5 ms. So it is
   kept for what takes some microseconds. */
#define FEW_BYTES (64 * 1024)

int has_items(const Py_buffer *buffer, int64_t count, const char *name) {
    if (buffer->len == count * 8 && (uintptr_t)buffer->buf % 8 == 0) return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes; expected %lld items of 8 bytes, aligned", name, buffer->len,
                 (long long)count);
    return 0;
}

int has_bytes(const Py_buffer *buffer, int64_t length, const char *name) {
    if (buffer->len == length) return 1;
    PyErr_Format(PyExc_ValueError, "%s has %zd bytes; expected %lld", name, buffer->len, (long long)length);
    return 0;
}

int are_inside(const int64_t *starts, const int64_t *lengths, int64_t width, int64_t count, int64_t size) {
    for (int64_t at = 0; at < count; at++) {
        int64_t length = lengths ? lengths[at] : width;
        if (length < 0 || length > size || starts[at] < 0 || starts[at] > size - length) {
            PyErr_Format(PyExc_IndexError, "span %lld is [%lld, %lld + %lld), and the memory has %lld bytes", (long long)at,
                         (long long)starts[at], (long long)starts[at], (long long)length, (long long)size);
            return 0;
        }
    }
    return 1;
}

int step_of_seeds(const Py_buffer *seeds, int64_t count) {
    if (seeds->len == 8 && count != 1) return has_items(seeds, 1, "seeds") ? 0 : -1;
    return has_items(seeds, count, "seeds") ? 1 : -1;
}

PyThreadState *let_go(int64_t bytes) { return bytes > FEW_BYTES ? PyEval_SaveThread() : NULL; }

void take_back(PyThreadState *state) {
    if (state) PyEval_RestoreThread(state);
}

PyObject *done(int is_good) {
    if (!is_good) return NULL;
    Py_RETURN_NONE;
}

int are_batches(struct batches *batches, const Py_buffer *memory, const Py_buffer *bases, const Py_buffer *first_row) {
    batches->memory = memory->buf;
    batches->size = memory->len;
    batches->bases = bases->buf;
    batches->first_row = first_row->buf;
    batches->count = bases->len / 8;
    if (batches->span < 0 || batches->rows < 0) {
        PyErr_Format(PyExc_ValueError, "span=%lld, limit=%lld", (long long)batches->span, (long long)batches->rows);
        return 0;
    }
    return has_items(bases, batches->count, "bases") && has_items(first_row, batches->count, "first_row");
}

int64_t *room_for(int64_t count) {
    int64_t *room = malloc((size_t)count * 8 + 1);
    if (!room) PyErr_NoMemory();
    return room;
}

int fits(const Py_buffer *out, int64_t count, int64_t width) {
    if (width >= 1 && width <= INT64_MAX / (count + 1)) return has_bytes(out, count * width, "out");
    PyErr_Format(PyExc_ValueError, "width=%lld", (long long)width);
    return 0;
}
