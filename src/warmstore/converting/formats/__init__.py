"""Formats of files and folders: one module for each format, named after it, with `open_source`."""
