"""Evicting chunks: their rows are removed for good and their disk space is freed. Other rows stay where they are.

A log entry marks a chunk as evicted; then its file is unlinked, never cut short. A process that has the chunk mapped
reads the right bytes until it reads the log, and skips the rows afterwards. After a kill in between, the next eviction
of the chunk removes the file.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path

from warmstore.errors import NotAStore, ReadOnly
from warmstore.records.format.chunk_names import chunk_path
from warmstore.records.format.generation_log import open_log
from warmstore.records.format.manifest import FORMAT, Manifest, read_manifest, remove_leftovers
from warmstore.records.log.commit_log import GenerationClosed, Log
from warmstore.records.log.log_entries import EVICTED, new_entry
from warmstore.records.write.edit_lock import edit_lock
from warmstore.storage.files import Files


def evict(path: Path, folder: str, chunks: Collection[int], files: Files) -> None:
    """Remove chunks from a store. A live writer of an evicted chunk continues in a new one.

    Args:
        path: the store's folder.
        folder: the folder of the chunks' generation. Nothing happens if the store is in a later generation.

    Raises:
        ReadOnly: the store is of an earlier format; see `upgrade`.
        OSError: the log cannot be written.
    """
    manifest = read_manifest(path, files)
    if manifest.generation_folder != folder:
        return
    if manifest.format < FORMAT:
        raise ReadOnly(f"{path} is of format {manifest.format}, whose chunks cannot be evicted; upgrade it first")
    # The generation may be closed or removed meanwhile.
    with contextlib.suppress(GenerationClosed), _opened_log(path, manifest, files) as log:
        entries = log.read(0)
        done = set(entries["chunk"][entries["kind"] == EVICTED].tolist())
        for chunk in chunks:
            if chunk not in done:
                log.append(new_entry(EVICTED, chunk))
        for chunk in chunks:
            files.remove(chunk_path(path / folder, chunk))


def _opened_log(path: Path, manifest: Manifest, files: Files) -> Log:
    def superseded() -> bool:
        return read_manifest(path, files).generation > manifest.generation

    try:
        return open_log(path, manifest, files, write=True, superseded=superseded)
    except NotAStore:
        raise GenerationClosed(str(path)) from None


def remove_abandoned(path: Path, files: Files) -> None:
    """Remove what failed or killed rewrites left, unless another process is editing the store."""
    with edit_lock(path, files, wait=False) as held:
        if held:
            remove_leftovers(path, read_manifest(path, files), files)
