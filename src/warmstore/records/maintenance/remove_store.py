"""Removing a store with its folder, so that other processes see all of it or nothing."""

import contextlib
import re
from pathlib import Path

from warmstore.errors import ReadOnly, StoreExists
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.storage.files import Files
from warmstore.storage.folder_removal import hide, sweep_hidden
from warmstore.storage.reading_lease import unread

_OWN = re.compile(
    r"(g\d{4,}|store\.json|cost\.json|warmstore-history\.jsonl|edit\.lock|keys-.+\.(index|direct|lock)|\.copy|\.pull(\.lock)?)"
    r"(\..+)?"
)
"""The names in the folder of a record store, a feature cache, or the results of a function; with drafts and copies."""


def remove_store(path: Path, files: Files | None = None) -> None:
    """Remove a store. A killed removal leaves no half of it: see `folder_removal`. Where `path` is a link, the link
    goes, too.

    Raises:
        NotAStore, Damaged: it cannot be read.
        StoreExists: the folder has something that is not the store's, such as another store.
        ReadOnly: a live process uses it, or the folder cannot be changed.
    """
    files = files or Files()
    folder = path.resolve()
    writers = sum(chunk.writing for chunk in chunk_states(folder))
    if writers:
        raise ReadOnly(f"{path} is being written by {writers} live process(es); end them first")
    others = sorted(entry.name for entry in folder.iterdir() if not _OWN.fullmatch(entry.name))
    if others:
        raise StoreExists(f"{path} also has {others[0]!r}, which is not the store's; move that elsewhere first")
    with unread(folder) as unused:
        if not unused:
            raise ReadOnly(f"{path} is in use by a live process; end it, or let it close the cache, first")
        removed = hide(folder, files)
    if path.is_symlink():
        files.remove(path)
    _remove(removed, files)
    sweep_hidden(folder.parent)


def _remove(folder: Path, files: Files) -> None:
    while folder.exists():
        with contextlib.suppress(FileNotFoundError):  # another process sweeps it
            files.remove_folder(folder)
