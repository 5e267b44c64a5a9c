"""Parsers of the files of a store and of a cache, which are opened and read: a log, and a page of a key index."""

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from tests.faults.damaged_caches import FRESH, IDS, make_features, opened, wrong_answer
from tests.faults.stories import STORIES, Hasty

import warmstore as ws
from warmstore.records.index.key_index import HEADER
from warmstore.records.log.log_entries import ENTRY, SIZE

_PAGE = 4096


class StoreLog:
    """The log of a store with edits, in two equal copies whose entries are sealed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "store"

    @functools.cached_property
    def _store(self) -> tuple[Path, Path, int]:
        """The store, its log, and the seed of the log's hashes."""
        shutil.rmtree(self._folder, ignore_errors=True)
        story = STORIES["edited"](self._folder)
        return story.path, story.path / story.generation / "log", story.store._manifest.seed

    @functools.cached_property
    def seed(self) -> bytes:
        return self._store[1].read_bytes()

    def __call__(self, data: bytes) -> Any:
        """Open the store with these entries, read all of it, and verify it."""
        path, log, seed = self._store
        entries = np.frombuffer(data[: len(data) // SIZE * SIZE], ENTRY).copy()
        entries["sequence"] = np.arange(len(entries))
        entries["rows"] %= 1 << 16  # of billions the positions alone fill the memory
        for at in range(len(entries)):
            entries["hash"][at] = xxhash.xxh3_64_intdigest(entries[at : at + 1].tobytes()[:-8], seed)
        for copy in (log, log.with_name("log.copy")):
            copy.write_bytes(entries.tobytes())
        with ws.RecordStore.open(path, files=Hasty()) as store:
            store.verify(progress=False)
            return store.gather(slice(0, 1000))


class IndexHeader:
    """The first page of the key index of a cache, sealed. Whatever it says, nothing is wrong, and at worst missed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "cache"

    @functools.cached_property
    def _files(self) -> dict[Path, bytes]:
        shutil.rmtree(self._folder, ignore_errors=True)
        path = make_features(self._folder)
        return {file: file.read_bytes() for file in sorted(path.glob("keys-*.[di]*"), reverse=True)}

    @functools.cached_property
    def seed(self) -> bytes:
        return next(iter(self._files.values()))[:_PAGE]

    def __call__(self, data: bytes) -> Any:
        """Look up all ids in a cache whose index has this page, and put others."""
        for file, content in self._files.items():
            if file.suffix == ".index":
                header = np.frombuffer(data[: HEADER.itemsize].ljust(HEADER.itemsize, b"\0"), HEADER).copy()
                header["hash"] = xxhash.xxh3_64_intdigest(header.tobytes()[:-8])
                rest = data[HEADER.itemsize : _PAGE].ljust(_PAGE - HEADER.itemsize, b"\0")
                content = header.tobytes() + rest + content[_PAGE:]
            file.write_bytes(content)
        with opened(self._folder, read_only=True) as cache:
            problem, _ = wrong_answer(cache, IDS + FRESH, [*range(len(IDS)), 100, 101, 102])
            assert not problem, problem
