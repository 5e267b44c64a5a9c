"""Rewriting a store into its next generation: to rebalance it, to change its fields, or to drop damaged values.

The live records are copied, densely and in order, while other processes append. Then, under the log's lock, the rest is
copied, the old log is closed and store.json names the new generation. A rewrite that is killed before that leaves the
store unchanged, and the next rewrite removes its files. A process that reads the closed log continues in the new
generation.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.errors import Closed, PositionError, SchemaMismatch
from warmstore.records.format.chunk_names import chunk_bytes
from warmstore.records.format.encoded_rows import EncodedRows, GatheredColumn, stored_rows
from warmstore.records.format.fields import Fields
from warmstore.records.format.manifest import Manifest, read_manifest, remove_leftovers, write_manifest
from warmstore.records.format.value_encoding import compressed, encode
from warmstore.records.log.log_entries import ADOPTED, CLOSED, NOWHERE, new_entry
from warmstore.records.log.log_files import create_log
from warmstore.records.read.gather import Gatherer
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.store_session import BATCH_BYTES, StoreSession
from warmstore.records.write.generation import Generation
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.array_types import Bools, Int64
from warmstore.storage.progress import Advance, progress_bar

Make = Callable[[int, int], Any]
"""Values of a new field for positions [first, last)."""
Keep = Callable[[Int64], Bools]
"""Which of some rows to keep: bool [n]."""


@dataclass(frozen=True)
class Utilisation:
    """The use of a store's chunks before a rewrite, and their size afterwards. Rows and bytes."""

    records: int
    rows_before: int
    bytes_before: int
    bytes_after: int

    @property
    def before(self) -> float:
        """Share of rows that were live, 0 to 1."""
        return self.records / max(self.rows_before, 1)

    def __str__(self) -> str:
        return (
            f"{self.records:,} records: {self.before:.1%} of {self.bytes_before:,} bytes were in use, "
            f"{self.bytes_after:,} bytes now"
        )


def rewrite(
    session: StoreSession,
    fields: Fields,
    make: dict[str, Make],
    *,
    repair: bool = False,
    progress: bool | None = None,
    label: str = "rebalance",
    keep: Keep | None = None,
) -> Utilisation:
    """Write the live records into the next generation.

    Args:
        fields: the fields of the new generation; those not in `make` are copied, compressed as they are.
        make: functions that return the values of new or changed fields, by field.
        repair: make damaged values absent instead of raising.
        progress: show a bar; None shows one on a terminal or in a notebook.
        keep: which rows to copy, of those committed before the rewrite starts; all by default.

    Raises:
        Damaged: a record does not match its checksum or an edit is lost, and `repair` is off. The store is unchanged.
        SchemaMismatch: a function in `make` returned values that do not fit, or not one per record. The same.
        PositionError: a function in `make` changed the store. It stays as the function left it.
        NotAStore: the folder has another store now, which stays as it is.
    """
    with session.editing():
        if not repair:
            session.check_edits()
        old, files = session.generation, session.files
        check_unchanged = functools.partial(_check_unchanged, session, old, old.manifest, old.commits)
        rows_before, bytes_before = old.snapshot.rows, chunk_bytes(old.folder)
        # Read again: other processes may have changed its metadata.
        manifest = replace(session.latest(old.manifest), generation=old.manifest.generation + 1, fields=fields)
        folder = session.path / manifest.generation_folder
        remove_leftovers(session.path, old.manifest, files)
        new = None
        try:
            files.make_folder(folder)
            create_log(folder, files)
            new = Generation(session.path, manifest, session.writing, files, write=True)
            with progress_bar(old.snapshot.length, None, 0, label, progress) as advance:
                done = 0
                while done < old.snapshot.rows:
                    # A later row may say that one was deleted which is copied already, so all later ones are kept.
                    done = _copy(old, new, make, done, repair, advance, check_unchanged, None if done else keep)
                    old.refresh()
                new.seal()
                files.sync_folder(session.path)
                with old.log.locked():
                    old.refresh()
                    while done < old.snapshot.rows:
                        done = _copy(old, new, make, done, repair, advance, check_unchanged)
                    new.seal()
                    _carry_adopted(old, new)
                    session.check_in_place()  # what took this folder meanwhile is not replaced
                    old.log.append_locked(new_entry(CLOSED, 0))
                    write_manifest(session.path, manifest, files)
        except BaseException:
            if new is not None:
                new.release()
            # The error may come after store.json was replaced. The new generation is the store then, but a power
            # failure may bring the old store.json back. So both generations stay until the next rewrite.
            found = read_manifest(session.path, files)
            if (found.id, found.generation) == (old.manifest.id, old.manifest.generation):
                remove_leftovers(session.path, old.manifest, files)
            raise
        session.generation = new
        old.release()
        remove_leftovers(session.path, manifest, files)
        return Utilisation(new.snapshot.length, rows_before, bytes_before, chunk_bytes(new.folder))


def _check_unchanged(session: StoreSession, old: Generation, manifest: Manifest, commits: int) -> None:
    """Raise if this process has changed the store since it began to rewrite it: its lock keeps other threads out."""
    if session.generation is old and old.is_released:
        raise Closed(f"the function that makes new values closed {session.path}, so the store is not rewritten")
    if session.generation is not old or old.manifest != manifest or old.commits != commits or session.pending.count:
        raise PositionError(
            f"the function that makes new values changed {session.path}, so the store is not rewritten: change it "
            "before or afterwards"
        )


def _carry_adopted(old: Generation, new: Generation) -> None:
    """Record which chunks of other stores the new generation has, so that they are not attached again."""
    entries = old.log.read(0)
    for entry in entries[entries["kind"] == ADOPTED]:
        origin = new_entry(ADOPTED, NOWHERE, rows=int(entry["rows"]), body_hash=int(entry["body_hash"]))
        new.log.append(origin)
    new.refresh()


def _copy(
    old: Generation,
    new: Generation,
    make: dict[str, Make],
    done: int,
    repair: bool,
    advance: Advance,
    check_unchanged: Callable[[], None],
    keep: Keep | None = None,
) -> int:
    """Copy all rows after the first `done`; return how many rows were committed."""
    snapshot, gatherer = old.snapshot, old.recheck()  # checks every row again: it may be damaged since its first read
    names = (old if make else new).manifest.fields  # a function of records gets all of their fields
    queue = WriteBuffer()
    rest = range(snapshot.positions_below(done) if done else 0, snapshot.length)
    for positions in gatherer.blocks(names, rest, BATCH_BYTES):
        first, last = int(positions[0]), int(positions[-1]) + 1
        if keep is not None:
            positions = positions[keep(snapshot.rows_at(positions))]
        block: dict[str, EncodedRows] = {}
        for name, field in new.manifest.fields.items():
            if name in make:
                made = encode(name, field, make[name](first, last))
                if made.count != last - first:
                    raise SchemaMismatch(
                        f"field {name!r} needs one value for each of {last - first:,} records; the function returned "
                        f"{made.count:,}"
                    )
                block[name] = compressed(field, made)
            elif repair:
                block[name] = _healthy(gatherer, snapshot, name, positions)
            else:
                block[name] = stored_rows(old.read([name], positions, gatherer)[0])
        check_unchanged()
        queue.add(block)
        for batch in queue.taken(BATCH_BYTES):
            new.commit(batch, stored=True)
        advance(last - first, None)
    for batch in queue.taken(BATCH_BYTES, rest=True):
        new.commit(batch, stored=True)
    new.refresh()
    return snapshot.rows


def _healthy(gatherer: Gatherer, snapshot: Snapshot, name: str, positions: Int64) -> EncodedRows:
    """Stored rows, with damaged ones made absent."""
    rows = snapshot.rows_at(positions)
    gathered = gatherer.gather(snapshot, name, rows, snapshot.batch_of(rows))
    if gathered.bad is None or not gathered.bad.any():
        return stored_rows(gathered)
    bad = gathered.bad
    absent = bad if gathered.absent is None else bad | gathered.absent
    if gathered.data is not None:
        return stored_rows(GatheredColumn(np.where(bad[:, None], 0, gathered.data), None, None, None, absent))
    assert gathered.spans is not None
    spans = replace(gathered.spans, lengths=np.where(bad, 0, gathered.spans.lengths))
    shapes = None if gathered.shapes is None else np.where(bad[:, None], 0, gathered.shapes)
    return stored_rows(GatheredColumn(None, spans, shapes, None, absent))
