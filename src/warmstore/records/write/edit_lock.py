"""The edit lock: one process at a time edits, merges or rewrites a store."""

from contextlib import AbstractContextManager
from pathlib import Path

from warmstore.storage.files import Files, file_lock


def edit_lock(path: Path, files: Files, *, wait: bool = True) -> AbstractContextManager[bool]:
    """Hold a store's edit lock. Without `wait` the context is False if another process holds it."""
    return file_lock(path / "edit.lock", files, wait=wait)
