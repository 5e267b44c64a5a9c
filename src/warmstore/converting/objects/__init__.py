"""Formats of objects in memory: one module for each format, named after it, with `open_source`."""
