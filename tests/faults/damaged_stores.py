"""Record stores to damage: each story of `stories`, with its copies, its edits and its chunks."""

import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.faults.corruption_campaign import EXACT, REPORTED, Damage, Lost, Subject, Wrong, put_back
from tests.faults.damage import DEEP, QUICK, files_of, headers_of, wrong
from tests.faults.stories import STORIES, Story

import warmstore as ws
from warmstore.records.log.log_entries import BATCH, COPIED, ENTRY, STAGED

_DEEP = 16
"""One damage in so many is repaired, and written to, in copies."""
_VALUE = re.compile(r" of records? .* is ")
"""In what `damage.wrong` says of a value that is not what was stored."""


@dataclass
class _Chunk:
    """A chunk of a story. headers: bytes in which one wrong byte is searched. rows: by the end of their batch."""

    headers: set[int]
    rows: dict[int, list[int]] = field(default_factory=dict)

    def damaged_rows(self, damage: Damage, size: int) -> set[int]:
        """The positions whose batch a damage touches."""
        found, start = set(), 0
        for end, positions in sorted(self.rows.items()):
            if any(touched.start < end and touched.stop > start for touched in damage.touched(size)):
                found.update(positions)
            start = end
        return found


class StoreSubject:
    """A record store with a past."""

    def __init__(self, name: str) -> None:
        self.name = f"store, {name}"
        self._make = STORIES[name]
        self._story: Story | None = None
        self._chunks: dict[str, _Chunk] = {}
        self._sizes: dict[str, int] = {}

    def make(self, root: Path, *, other: bool) -> None:
        story = self._make(root / "s")
        if not other:
            self._story = story
            self._chunks = _chunks_of(story)
            self._sizes = {file: path.stat().st_size for file, path in files_of(story).items()}

    def files(self, root: Path) -> dict[str, Path]:
        assert self._story is not None
        return {file: root / path.relative_to(self._story.path.parent) for file, path in files_of(self._story).items()}

    def judge(self, root: Path, damage: Damage) -> str:
        assert self._story is not None
        chunk = self._chunks.get(damage.file)
        exact = chunk is None or (damage.is_one_byte and damage.at in chunk.headers)
        noticed = exact and damage.is_one_byte
        lost: set[tuple[str, int]] = set()
        is_foreign = put_back(self._story.path, damage)
        depth = QUICK if zlib.crc32(str(damage).encode()) % _DEEP else DEEP
        problem = wrong(
            self._story,
            [self._story.entries],
            depth=depth,
            scratch=root / "scratch",
            exact=exact,
            noticed=noticed,
            lost_values=lost,
        )
        if problem:
            raise (Wrong if _VALUE.search(problem) else Lost)(problem)
        if chunk is not None:
            beyond = {at for _, at in lost} - chunk.damaged_rows(damage, self._sizes[damage.file])
            if beyond:
                raise Lost(f"the records {sorted(beyond)} are lost, whose batches are whole")
            if damage.is_one_byte and len({name for name, _ in lost}) > 1:
                raise Lost(f"one wrong byte loses several fields: {sorted(lost)}")
        return REPORTED if lost or is_foreign else EXACT


def _chunks_of(story: Story) -> dict[str, _Chunk]:
    with ws.RecordStore.open(story.path) as store:
        snapshot = store._snapshot
        batches = snapshot.batch_of(snapshot.rows_at(np.arange(snapshot.length)))
        numbers = snapshot.chunk
    entries = np.frombuffer((story.path / story.generation / "log").read_bytes(), ENTRY)
    chunks = {}
    for file in files_of(story):
        if file.isdecimal():
            chunk = chunks[file] = _Chunk(set(headers_of(story, file)))
            mine = entries[(entries["chunk"] == int(file)) & np.isin(entries["kind"], (BATCH, STAGED, COPIED))]
            ends = sorted({int(one["offset"] + one["header"] + one["body"]) for one in mine})
            here = np.flatnonzero(numbers == int(file)).tolist()
            assert len(ends) >= len(here), (story.path, file)
            for batch, end in zip(here, ends, strict=False):
                chunk.rows[end] = np.flatnonzero(batches == batch).tolist()
    return chunks


SUBJECTS: list[Subject] = [StoreSubject(name) for name in STORIES]
