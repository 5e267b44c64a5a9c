"""Opening the log of a generation and its lists of numbers, with the path and the seed from store.json."""

from collections.abc import Callable
from pathlib import Path

from warmstore.records.format.manifest import Manifest
from warmstore.records.log.commit_log import Log
from warmstore.records.log.number_lists import Numbers
from warmstore.storage.files import Files


def open_log(
    path: Path,
    manifest: Manifest,
    files: Files,
    *,
    write: bool,
    superseded: Callable[[], bool] = lambda: False,
    salvage: bool = False,
) -> Log:
    """Open the log of the generation that a manifest names. As a context manager it closes the log.

    Args:
        path: the store's folder.
        superseded, salvage: see `Log`.

    Raises:
        NotAStore: the log and its copy are missing.
    """
    log = path / manifest.generation_folder / "log"
    return Log(log, files, manifest.seed, write=write, superseded=superseded, salvage=salvage)


def open_numbers(path: Path, manifest: Manifest, files: Files) -> Numbers:
    """The lists of numbers of the generation that a manifest names. `path` is the store's folder."""
    return Numbers(path / manifest.generation_folder, files, manifest.seed)
