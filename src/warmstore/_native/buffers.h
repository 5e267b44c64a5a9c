/* What the functions that Python calls share: they check the buffers that come in, and set an error where one is wrong. */

#ifndef WARMSTORE_BUFFERS_H
#define WARMSTORE_BUFFERS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "floor.h"

/* Whether a buffer has a number of items of 8 bytes, where such items may stand; sets an error if not. */
int has_items(const Py_buffer *buffer, int64_t count, const char *name);

int has_bytes(const Py_buffer *buffer, int64_t length, const char *name);

/* Whether all spans lie in memory of `size` bytes. `lengths` may be NULL for spans of one `width`. */
int are_inside(const int64_t *starts, const int64_t *lengths, int64_t width, int64_t count, int64_t size);

/* Seeds are one for all, or one each; the step from one to the next, or -1 with an error set. */
int step_of_seeds(const Py_buffer *seeds, int64_t count);

/* Let Python's lock go for work on so many bytes, unless that takes some microseconds: having it back may take 5 ms. Returns
   what `take_back` needs. */
PyThreadState *let_go(int64_t bytes);

void take_back(PyThreadState *state);

/* None, or NULL where an error is set. */
PyObject *done(int is_good);

/* Where rows of a column lie, as Python says it; sets an error if it cannot be. */
int are_batches(struct batches *batches, const Py_buffer *memory, const Py_buffer *bases, const Py_buffer *first_row);

/* Room for so many addresses, which must be freed, or NULL with an error set. */
int64_t *room_for(int64_t count);

/* Whether a column of this width can be copied into a buffer; sets an error if not. */
int fits(const Py_buffer *out, int64_t count, int64_t width);

#endif
