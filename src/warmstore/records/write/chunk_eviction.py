"""Evicting chunks: their rows are gone for good, their room is given back, and no other row moves or is copied.

An entry in the log says that a chunk is evicted; then its file is unlinked, never cut short. Whoever has it mapped goes
on reading the right bytes until it reads the log; afterwards the rows are gaps. Killed in between, the file is a
leftover that the next eviction of the chunk removes.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from warmstore.errors import NotAStore, ReadOnly
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import FORMAT, Manifest, read_manifest, remove_leftovers
from warmstore.records.log.commit_log import GenerationClosed
from warmstore.records.log.log_entries import EVICTED, new_entry
from warmstore.records.write.edit_lock import edit_lock
from warmstore.storage.files import Files


def evict(path: Path, folder: str, chunks: Collection[int], files: Files) -> None:
    """Take chunks out of a store, live writers' too, which then go on in new ones.

    Args:
        path: the store's folder.
        folder: of the generation whose chunks these are; nothing is done when the store has left it.

    Raises:
        ReadOnly: the store is of an earlier format; see `upgrade`.
        OSError: the log cannot be written.
    """
    manifest = read_manifest(path, files)
    if manifest.generation_folder != folder:
        return
    if manifest.format < FORMAT:
        raise ReadOnly(f"{path} is of format {manifest.format}, whose chunks may not be evicted; see upgrade")
    with contextlib.suppress(GenerationClosed):
        known = _write(path, manifest, chunks, files)
        for chunk in known:
            files.remove(path / folder / f"{chunk:06d}.arrow")


def _write(path: Path, manifest: Manifest, chunks: Collection[int], files: Files) -> list[int]:
    """Have the log say that chunks are evicted; return them."""

    def superseded() -> bool:
        return read_manifest(path, files).generation > manifest.generation

    try:
        log = open_log(path, manifest, files, write=True, superseded=superseded)
    except NotAStore:
        raise GenerationClosed(str(path)) from None
    with log:
        entries = log.read(0)
        done = set(entries["chunk"][entries["kind"] == EVICTED].tolist())
        for chunk in chunks:
            if chunk not in done:
                log.append(new_entry(EVICTED, chunk))
    return list(chunks)


def remove_abandoned(path: Path, files: Files) -> None:
    """Remove what rewrites left that failed or died, unless somebody edits the store now."""
    with edit_lock(path, files, wait=False) as held:
        if held:
            remove_leftovers(path, read_manifest(path, files), files)
