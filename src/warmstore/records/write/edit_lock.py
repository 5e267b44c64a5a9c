"""The lock of editors: one process at a time edits, merges or rewrites a store."""

from contextlib import AbstractContextManager
from pathlib import Path

from warmstore.storage.files import Files, file_lock


def edit_lock(path: Path, files: Files, *, wait: bool = True) -> AbstractContextManager[bool]:
    """Hold the lock of a store's editors; without `wait` it may not be had, and False says so."""
    return file_lock(path / "edit.lock", files, wait=wait)
