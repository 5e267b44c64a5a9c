"""How fast are bulk edits, how fast is an edited store read, and does `rebalance` make it as good as new?

Three questions: edits of labels beside peers that can; gathers of 2 KiB rows from an edited, a rebalanced and a fresh
store of the same rows; the rebalance beside a plain copy of the same chunk files.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import warmstore as ws
from benchmarks.editors import DELETERS, PLAIN, UPDATERS, Edit, Editor, asks_of, deleted, updated
from benchmarks.gather import LIMIT, read_all
from benchmarks.keepers import BATCH, WARMSTORE, WIDTH, Gather, flat_writer
from benchmarks.report import Bar, Report, Table, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Contestant, Row, WrongValuesError, named, over, side_by_side

UPDATE, DELETE = "warmstore, update", "warmstore, delete"
EDITED, REBALANCED, FRESH = "warmstore, edited", "warmstore, rebalanced", "warmstore, fresh store of the same rows"
COPY, UNSYNCED, REBALANCE = "copyfile + fsync", "copyfile, not synced", "warmstore, rebalance"


@dataclass(frozen=True)
class RowEdits:
    """One update and one delete of 2 KiB rows."""

    updated: np.ndarray
    values: np.ndarray
    deleted: np.ndarray


def run(settings: Settings) -> Report:
    rows = np.random.default_rng(0).standard_normal((settings.pick(400_000, 8_192), WIDTH), dtype=np.float32)
    settings.break_in_disk(rows.nbytes * 4)
    count, size = settings.pick(1_000_000, 20_000), settings.pick(100_000, 2_000)
    updates = edit_labels(settings, UPDATERS, count, size, deleting=False)
    deletes = edit_labels(settings, DELETERS, count, size, deleting=True)

    folder = settings.folder / "edited"
    WARMSTORE.keep(folder, rows)
    edits, step = edits_of(rows)
    edited = edit_rows(settings, folder, edits)
    for edit in edits:
        rows[edit.updated] = edit.values
        rows = deleted(rows, edit.deleted)
    rebalanced = settings.folder / "rebalanced"
    copies = rebalance(settings, folder, rebalanced, len(rows))
    reads = gathers(settings, {EDITED: folder, REBALANCED: rebalanced}, rows)

    slower = {name: over(named(reads, name), named(reads, FRESH)) for name in (EDITED, REBALANCED)}
    copied = chunk_bytes(folder)
    per_second = {
        row.name: amount / row.median / 1e6 if row.median else None
        for row, amount in zip(copies, (copied, copied, chunk_bytes(rebalanced)), strict=True)
    }
    plain, ours = per_second[COPY], per_second[REBALANCE]
    return Report(
        "edits",
        f"Edits of {count:,} labels of 8 bytes, and of {len(rows) + len(edits) * step:,} rows of {WIDTH * 4} bytes.",
        (
            timings(f"Updates of {size:,} labels a call", updates, unit="ms", records=size),
            timings(f"Deletes of {size:,} labels a call", deletes, unit="ms", records=size),
            timings(f"{len(edits)} updates and {len(edits)} deletes of {step:,} rows", edited, unit="ms", records=step),
            timings(f"Gathers of {BATCH} rows afterwards, in the page cache", reads),
            Table(
                f"{copied / 1e6:,.0f} MB of chunks rewritten by rebalance, or only copied",
                ("", "median ms", "worst ms", "MB/s", "note"),
                tuple(
                    (row.name, row.median and row.median * 1e3, row.worst and row.worst * 1e3, rate, row.trouble)
                    for row, rate in zip(copies, per_second.values(), strict=True)
                ),
            ),
        ),
        (
            *(
                Bar.at_least(f"{what} labels a second", rate_of(named(found, "warmstore"), size), 200_000.0)
                for what, found in (("updated", updates), ("deleted", deletes))
            ),
            Bar.at_most("gather from the edited store over the fresh one's", slower[EDITED], 1.5),
            Bar.at_most("gather from the rebalanced store over the fresh one's", slower[REBALANCED], 1.1),
            Bar.at_least("rebalance's bytes a second over the synced copy's", ours and plain and ours / plain, 0.4),
        ),
        (
            "warmstore edits positions, and a delete moves the last records into the holes; LMDB and Lance edit keys. "
            "HF datasets, loaderx and ArrayRecord are written once.",
            "A copy counts the bytes of the chunk files, rebalance those of the new ones: only the live rows.",
            "Rebalance also checks the hash of every row and removes the old chunks.",
            "Every store was read back and compared with what the edits should have made of it.",
        ),
        tuple(line for found in (updates, deletes, edited, reads, copies) for line in broken_rows(found)),
    )


def rate_of(row: Row, records: int) -> float | None:
    return records / row.median if row.median else None


def edit_labels(settings: Settings, editors: tuple[Editor, ...], count: int, size: int, *, deleting: bool) -> list[Row]:
    """Every editor makes the same calls on labels of its own."""
    labels = np.random.default_rng(2).integers(0, 1 << 62, count)
    asks = asks_of(count, settings.pick(7, 3), size, deleting=deleting)
    by_position, by_key = updated(labels, asks), updated(labels, asks)
    if deleting:
        by_position, by_key = labels, np.delete(labels, np.concatenate([ask.keys for ask in asks]))
        for ask in asks:
            by_position = deleted(by_position, ask.positions)

    def contestant(editor: Editor) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Edit]:
            folder = settings.folder / editor.editor.__name__
            folder.mkdir()
            with editor.editor(folder, labels) as (edit, read_back):
                yield edit
                if read_back and not np.array_equal(read_back(), by_key if editor.by_key else by_position):
                    raise WrongValuesError("after the edits")
            shutil.rmtree(folder)

        role = {PLAIN: "limit", "warmstore": "warmstore"}.get(editor.name, "peer")
        return Contestant(editor.name, setup, role, editor.note)

    return side_by_side(list(map(contestant, editors)), asks, lambda ask, result: True)


def edits_of(rows: np.ndarray) -> tuple[list[RowEdits], int]:
    """Ten updates and ten deletes, of half a percent of the rows each, and how many rows that is."""
    rng, step = np.random.default_rng(4), len(rows) // 200
    lengths = range(len(rows), len(rows) - 10 * step, -step)
    return [
        RowEdits(
            rng.choice(length, step, replace=False),
            rng.standard_normal((step, WIDTH), dtype=np.float32),
            rng.choice(length, step, replace=False),
        )
        for length in lengths
    ], step


def edit_rows(settings: Settings, folder: Path, edits: list[RowEdits]) -> list[Row]:
    """Updates and deletes of one store, in turn with a plain write of the new rows."""
    plain = settings.folder / "plain"
    plain.mkdir()
    with ws.RecordStore.open(folder / "store", "a") as store, flat_writer(plain) as append:
        found = side_by_side(
            [
                Contestant(PLAIN, lambda: nullcontext(lambda edit: append(edit.values)), "limit", "the new rows"),
                Contestant(
                    UPDATE,
                    lambda: nullcontext(lambda edit: store.update(edit.updated, {"x": edit.values})),
                    "warmstore",
                ),
                Contestant(DELETE, lambda: nullcontext(lambda edit: store.delete(edit.deleted)), "warmstore"),
            ],
            edits,
            lambda edit, result: True,  # the gathers compare
        )
    shutil.rmtree(plain)
    return found


@dataclass
class Rebalancing:
    """Rebalances a new copy of the edited store in every turn; the last one stays."""

    edited: Path
    folder: Path
    store: ws.RecordStore = field(init=False)

    @contextmanager
    def setup(self) -> Iterator[Callable]:
        yield lambda turn: self.store.rebalance(progress=False)
        self.store.close()

    def prepare(self, turn: int) -> None:
        if turn:
            self.store.close()
            shutil.rmtree(self.folder)
        shutil.copytree(self.edited, self.folder)
        for path in self.folder.rglob("*"):
            synced(path)
        self.store = ws.RecordStore.open(self.folder / "store", "a")


def rebalance(settings: Settings, edited: Path, folder: Path, count: int) -> list[Row]:
    """A rebalance of the edited store beside copies of its chunk files."""
    target = settings.folder / "copies"
    sources = sorted(edited.rglob("*.arrow"))
    size = chunk_bytes(edited)

    def prepare(turn: int) -> None:
        target.mkdir()

    def copying(sync: bool) -> Callable:
        def copy(turn: int) -> int:
            for source in sources:
                shutil.copyfile(source, target / source.name)
                if sync:
                    synced(target / source.name)
            return chunk_bytes(target)

        return copy

    def right(turn: int, result: Any) -> bool:
        # What a copy left unwritten is dropped with it, not written in another's turn.
        shutil.rmtree(target, ignore_errors=True)
        return result == size if isinstance(result, int) else result.records == count

    rebalancing = Rebalancing(edited, folder)
    return side_by_side(
        [
            Contestant(COPY, lambda: nullcontext(copying(True)), "limit", prepare=prepare),
            Contestant(UNSYNCED, lambda: nullcontext(copying(False)), prepare=prepare),
            Contestant(REBALANCE, rebalancing.setup, "warmstore", prepare=rebalancing.prepare),
        ],
        range(settings.pick(5, 2)),
        right,
        check_every=1,
    )


def synced(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def chunk_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.arrow"))


def gathers(settings: Settings, stores: dict[str, Path], rows: np.ndarray) -> list[Row]:
    """Random reads of the same rows from each store, and from a fresh one of them."""
    fresh = settings.folder / "fresh"
    WARMSTORE.keep(fresh, rows)
    order = np.random.default_rng(1).permutation(len(rows))
    asks = np.split(order[: len(order) // BATCH * BATCH], len(order) // BATCH)[:1000]

    @contextmanager
    def limit() -> Iterator[Gather]:
        flat = torch.from_numpy(rows)
        yield lambda positions: torch.index_select(flat, 0, torch.from_numpy(positions))

    def contestant(name: str, folder: Path) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Gather]:
            with WARMSTORE.reader(folder) as gather:
                read_all(gather, rows)
                yield gather

        return Contestant(name, setup, "warmstore")

    return side_by_side(
        [Contestant(LIMIT, limit, "limit"), *(contestant(*one) for one in {FRESH: fresh, **stores}.items())],
        asks,
        lambda positions, result: np.array_equal(result, rows[positions]),
        reads=True,
    )
