"""The log of a store's generation and its lists of numbers, opened by what store.json says of both."""

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
    """The log of the generation that a manifest names; a context manager, which closes it.

    Args:
        path: the store's folder.
        superseded, salvage: as `Log` takes them.

    Raises:
        NotAStore: neither the log nor its copy is there.
    """
    log = path / manifest.generation_folder / "log"
    return Log(log, files, manifest.seed, write=write, superseded=superseded, salvage=salvage)


def open_numbers(path: Path, manifest: Manifest, files: Files) -> Numbers:
    """The lists of numbers of the generation that a manifest names. `path` is the store's folder."""
    return Numbers(path / manifest.generation_folder, files, manifest.seed)
