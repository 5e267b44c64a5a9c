/* The values of dicts, compared with those of before by their addresses. No object is touched. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

int same_values(PyObject *dicts, const uintptr_t *addresses, int64_t count) {
    int64_t seen = 0;
    for (Py_ssize_t at = 0; at < PyList_Size(dicts); at++) {
        PyObject *dict = PyList_GetItem(dicts, at), *value;
        if (!PyDict_Check(dict)) {
            PyErr_SetString(PyExc_TypeError, "dicts must be a list of dicts");
            return -1;
        }
        if (PyDict_Size(dict) > count - seen) return 0;
        Py_ssize_t place = 0;
        while (PyDict_Next(dict, &place, NULL, &value))
            if (addresses[seen++] != (uintptr_t)value) return 0;
    }
    return seen == count;
}
