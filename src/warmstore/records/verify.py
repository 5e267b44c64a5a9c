"""Reading a store through and saying what is damaged, where, and what could be saved."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.records.generation import Generation
from warmstore.records.progress import progress_bar
from warmstore.records.rewrite import rewrite

if TYPE_CHECKING:
    from warmstore.records.store import RecordStore

_ROWS = 4096


@dataclass(frozen=True)
class Problem:
    """Some damaged values: the chunk's file, the field, and the positions of the records."""

    chunk: str
    field: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    records, bytes: read through. problems: what is damaged. repaired: whether damaged values were made absent.
    """

    records: int
    bytes: int
    problems: tuple[Problem, ...]
    repaired: bool = False

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems

    def __str__(self) -> str:
        if self.ok:
            return f"{self.records:,} records, {self.bytes:,} bytes: all match their checksums"
        lost = sum(len(problem.positions) for problem in self.problems)
        lines = [f"{self.records:,} records, {self.bytes:,} bytes: {lost:,} values are damaged or missing"]
        for problem in self.problems:
            few = ", ".join(map(str, problem.positions[:5])) + (", ..." if len(problem.positions) > 5 else "")
            lines.append(
                f"  {problem.chunk}: {len(problem.positions):,} of field {problem.field!r}, at positions {few}"
            )
        lines.append(
            "  they are absent now; all others were kept" if self.repaired else "  repair=True keeps all others"
        )
        return "\n".join(lines)


def check(store: "RecordStore", *, repair: bool, progress: bool | None) -> Report:
    """Check every live value against its checksum; see `RecordStore.verify`."""
    generation = store.session.generation
    length = generation.snapshot.length
    found: dict[tuple[str, str], list[int]] = {}
    with progress_bar(length, None, 0, "verify", progress) as advance:
        for first in range(0, length, _ROWS):
            positions = np.arange(first, min(first + _ROWS, length), dtype=np.int64)
            for chunk, field, bad in _damaged(generation, positions):
                found.setdefault((chunk, field), []).extend(bad)
            advance(len(positions), None)
    problems = tuple(Problem(chunk, field, tuple(sorted(bad))) for (chunk, field), bad in sorted(found.items()))
    size = sum(path.stat().st_size for path in generation.folder.glob("*.arrow"))
    if repair and problems:
        rewrite(store, store.fields, {}, repair=True, progress=progress, label="repair")
    return Report(length, size, problems, repair and bool(problems))


def _damaged(generation: Generation, positions: Any) -> Iterator[tuple[str, str, list[int]]]:
    snapshot = generation.snapshot
    rows = snapshot.rows_at(positions)
    which = snapshot.batch_of(rows)
    for name in generation.manifest.fields:
        bad = generation.gatherer.gather(snapshot, name, rows, which).bad
        if bad is not None and bad.any():
            chunks = snapshot.chunk[which[bad]]
            for chunk in np.unique(chunks).tolist():
                yield f"{chunk:06d}.arrow", name, positions[bad][chunks == chunk].tolist()
