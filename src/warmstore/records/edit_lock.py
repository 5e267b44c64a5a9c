"""The lock of editors, in a file of its own: one process at a time edits, merges or rewrites a store."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from warmstore.records.files import Files


@contextlib.contextmanager
def edit_lock(path: Path, files: Files, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock of a store's editors; without `wait` it may not be had, and False says so."""
    try:
        descriptor = files.create(path / "edit.lock")
    except FileExistsError:
        descriptor = files.open(path / "edit.lock", write=True)
    try:
        held = files.lock(descriptor, wait=wait)
        try:
            yield held
        finally:
            if held:
                files.unlock(descriptor)  # a child that was forked meanwhile shares the lock until then
    finally:
        files.close(descriptor)
