"""Formats of objects in memory: one module a format, named after it, with `open_source`; `columns` is of several."""
