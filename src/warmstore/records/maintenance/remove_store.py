"""Removing a store with its folder, so that other processes see all of it or nothing."""

from pathlib import Path

from warmstore.errors import ReadOnly
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.storage.files import Files


def remove_store(path: Path, files: Files | None = None) -> None:
    """Remove a store. It is renamed first: a killed removal leaves a hidden folder, and never half a store.

    Raises:
        NotAStore, Damaged: it cannot be read.
        ReadOnly: a live process is writing to it, or the folder cannot be changed.
    """
    files = files or Files()
    writers = sum(chunk.writing for chunk in chunk_states(path))
    if writers:
        raise ReadOnly(f"{path} is being written by {writers} live process(es); end them first")
    removed = path.with_name(f".{path.name[:100]}.cleared.tmp")
    files.rename(path, removed)
    files.remove_folder(removed)
