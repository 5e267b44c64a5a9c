"""Verifying a store: every committed byte is read and compared with its hash; damage is reported by record."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import Damaged, NotAStore
from warmstore.records.format.chunk_names import chunk_bytes
from warmstore.records.format.manifest import (
    NAME,
    Manifest,
    copy_is_damaged,
    is_damaged,
    read_manifest,
    write_manifest,
)
from warmstore.records.log.log_entries import DELETED, MERGED, SEALED, UPDATED, Entries
from warmstore.records.maintenance.rewrite import rewrite
from warmstore.records.store_session import StoreSession
from warmstore.records.write.generation import Generation
from warmstore.storage.files import COPY
from warmstore.storage.progress import progress_bar

_ROWS = 4096


@dataclass(frozen=True)
class Problem:
    """Some damaged values: the chunk's file, the field, and the positions of the records.

    Without a field, no value of a live record is damaged. The damage is in replaced or deleted values, in one byte of a
    header, which was corrected, or in the footer, which only other readers of Arrow files use.
    """

    chunk: str
    field: str
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Report:
    """What `verify` found.

    records, bytes: what was read. problems: damage in chunks. files: other damaged files, which have intact copies.
    lost: edits that are not applied because they or an earlier edit are damaged. repaired: whether damaged files were
    restored and damaged values made absent.
    """

    records: int
    bytes: int
    problems: tuple[Problem, ...]
    repaired: bool = False
    files: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems and not self.files and not self.lost

    def __str__(self) -> str:
        if self.ok:
            return f"{self.records:,} records, {self.bytes:,} bytes: all match their checksums"
        values = sum(len(problem.positions) for problem in self.problems)
        lines = [f"{self.records:,} records, {self.bytes:,} bytes: {values:,} values are damaged or missing"]
        lines += [f"  {name} is damaged; its copy is intact" for name in self.files]
        for problem in self.problems:
            if not problem.field:
                lines.append(f"  {problem.chunk}: damaged outside the values of records")
                continue
            shown = ", ".join(map(str, problem.positions[:5])) + (", ..." if len(problem.positions) > 5 else "")
            lines.append(
                f"  {problem.chunk}: {len(problem.positions):,} of field {problem.field!r}, at positions {shown}"
            )
        lines += [f"  not applied: {edit}" for edit in self.lost]
        repaired = "repaired: damaged values are absent now, all others were kept"
        return "\n".join([*lines, f"  {repaired if self.repaired else 'repair=True keeps all others'}"])


def check(session: StoreSession, *, repair: bool, progress: bool | None) -> Report:
    """See `RecordStore.verify`."""
    generation = session.generation
    entries = generation.log.read(0)[: generation.snapshot.entries]
    bad_batches, chunks = _bad_batches(generation, entries, progress)
    problems = [*_bad_values(generation, bad_batches)]
    named = {problem.chunk for problem in problems}
    problems += [Problem(chunk, "", ()) for chunk in sorted(chunks - named)]
    # The files of a closed generation may be gone already.
    lists = entries[np.isin(entries["kind"], (UPDATED, DELETED, MERGED))]
    files = () if generation.is_superseded() else _bad_files(session, generation, lists)
    lost = (*(f"entry {number} of the log" for number in generation.log.lost), *generation.batches.lost_edits)
    repaired = repair and bool(problems or files or lost)
    nbytes = chunk_bytes(generation.folder)  # a repair removes them
    if repair and files:
        generation.log.mend_copy()
        generation.batches.numbers.mend(lists)
        write_manifest(session.path, _manifest_of(session), session.files)
    if repair and (problems or lost):
        rewrite(session, generation.manifest.fields, {}, repair=True, progress=progress, label="repair")
    return Report(generation.snapshot.length, nbytes, tuple(problems), repaired, files, lost)


def _manifest_of(session: StoreSession) -> Manifest:
    """The description on the disk: others may have annotated it. If it and its copy are damaged, that in memory."""
    try:
        return read_manifest(session.path, session.files)
    except (Damaged, NotAStore):
        return session.generation.manifest


def _bad_files(session: StoreSession, generation: Generation, lists: Entries) -> tuple[str, ...]:
    """The names of damaged files that have intact copies. `lists`: the entries that refer to lists of numbers."""
    folder = generation.folder.name
    names = []
    if is_damaged(session.path, session.files):
        names.append(NAME)
    if generation.log.is_damaged:
        names.append(f"{folder}/log")
    if generation.manifest.format >= 4:
        if copy_is_damaged(session.path, _manifest_of(session), session.files):
            names.append(f"{folder}/{NAME}{COPY}")
        if generation.log.copy_differs():
            names.append(f"{folder}/log{COPY}")
    return (*names, *(f"{folder}/{name}" for name in generation.batches.numbers.damaged(lists)))


def _bad_batches(generation: Generation, entries: Entries, progress: bool | None) -> tuple[set[int], set[str]]:
    """The numbers of live batches that do not match their hashes, and the names of chunks with any damage."""
    batches = generation.batches
    known = entries[batches.live_entries()]
    sealed = entries[(entries["kind"] == SEALED) & (entries["body_hash"] != 0)]
    total = int((known["header"] + known["body"]).sum())
    bad, chunks, done = set(), set(), 0
    with progress_bar(None, total, 0, "verify", progress) as advance:
        for number, entry in enumerate(known):
            chunk = int(entry["chunk"])
            if chunk not in batches.evicted:
                if not batches.chunks.is_whole(entry):
                    bad.add(number)
                if number in bad or batches.chunks.has_mended_header(entry):
                    chunks.add(batches.chunks.path(chunk).name)
            done += int(entry["header"]) + int(entry["body"])
            advance(0, done)
        # Other sealed chunks have no live rows: they were evicted or merged, or belong to a failed update.
        has_rows = np.isin(sealed["chunk"], known["chunk"]) & ~np.isin(sealed["chunk"], list(batches.evicted))
        for entry in sealed[has_rows]:
            if not batches.chunks.footer_is_whole(entry, known):
                chunks.add(batches.chunks.path(int(entry["chunk"])).name)
    return bad, chunks


def _bad_values(generation: Generation, bad_batches: set[int]) -> Iterator[Problem]:
    """The damaged values in some batches."""
    if not bad_batches:
        return
    gatherer = generation.recheck()
    snapshot = gatherer.snapshot
    found: dict[tuple[str, str], list[Any]] = {}
    for first in range(0, snapshot.length, _ROWS):
        positions = np.arange(first, min(first + _ROWS, snapshot.length), dtype=np.int64)
        rows = snapshot.rows_at(positions)
        which = snapshot.batch_of(rows)
        inside = np.isin(which, list(bad_batches))
        positions, rows, which = positions[inside], rows[inside], which[inside]
        if not len(rows):
            continue
        for name in generation.manifest.fields:
            bad = gatherer.gather(snapshot, name, rows, which).bad
            if bad is not None and bad.any():
                chunks = snapshot.chunk[which[bad]]
                for chunk in np.unique(chunks).tolist():
                    file = generation.batches.chunks.path(chunk).name
                    found.setdefault((file, name), []).append(positions[bad][chunks == chunk])
    for (chunk, name), parts in sorted(found.items()):
        yield Problem(chunk, name, tuple(np.concatenate(parts).tolist()))
