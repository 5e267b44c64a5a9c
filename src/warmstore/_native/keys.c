/* Users' ids as 128-bit keys; what these are, `records/index/sample_keys.py` says. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define XXH_INLINE_ALL
#include "xxhash.h"

#define SIGNED 0x77735F7369676E64ull
#define UNSIGNED 0x77735F756E736967ull

int64_t keys_of(PyObject *ids, uint64_t *keys, int *small) {
    Py_ssize_t count = PyList_Size(ids);
    *small = 1;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *id = PyList_GetItem(ids, at); /* nothing below runs code that could take it away */
        uint64_t *key = keys + 2 * at;
        if (PyUnicode_Check(id)) {
            Py_ssize_t length;
            const char *text = PyUnicode_AsUTF8AndSize(id, &length);
            if (!text) {
                PyErr_Clear(); /* no Unicode, as Python will say */
                return at;
            }
            XXH128_hash_t hash = XXH3_128bits(text, (size_t)length);
            key[0] = __builtin_bswap64(hash.high64); /* as the digest's bytes stand */
            key[1] = __builtin_bswap64(hash.low64);
            *small = 0;
        } else if (PyLong_CheckExact(id)) {
            int overflow;
            long long number = PyLong_AsLongLongAndOverflow(id, &overflow);
            key[0] = (uint64_t)number;
            key[1] = SIGNED;
            if (overflow < 0) return at;
            if (overflow > 0) {
                key[0] = PyLong_AsUnsignedLongLong(id);
                if (PyErr_Occurred()) {
                    PyErr_Clear();
                    return at;
                }
                key[1] = UNSIGNED;
                *small = 0;
            }
        } else
            return at;
    }
    return count;
}
