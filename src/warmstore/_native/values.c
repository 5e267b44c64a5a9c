/* The values of dicts, compared with those of before by their addresses. No object is touched. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

PyObject *changed_dicts(PyObject *dicts, const int64_t *sizes, const uintptr_t *addresses, int64_t count) {
    PyObject *found = PyList_New(0);
    for (Py_ssize_t at = 0; found && at < PyList_Size(dicts); at++) {
        PyObject *dict = PyList_GetItem(dicts, at), *value;
        int64_t size = sizes[at] < 0 ? 0 : sizes[at], seen = 0;
        if (!PyDict_Check(dict)) {
            PyErr_SetString(PyExc_TypeError, "dicts must be a list of dicts");
            Py_CLEAR(found);
            break;
        }
        if (size > count) {
            PyErr_SetString(PyExc_ValueError, "there are fewer addresses than values");
            Py_CLEAR(found);
            break;
        }
        int same = PyDict_Size(dict) == sizes[at];
        Py_ssize_t place = 0;
        while (same && PyDict_Next(dict, &place, NULL, &value)) {
            same = seen < size && addresses[seen] == (uintptr_t)value;
            seen++;
        }
        addresses += size;
        count -= size;
        if (same) continue;
        PyObject *number = PyLong_FromSsize_t(at);
        if (!number || PyList_Append(found, number) < 0) Py_CLEAR(found);
        Py_XDECREF(number);
    }
    return found;
}
