"""The chunks of a store: what is committed in each, and whether a process writes to it. Rows are not read."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.records.format.chunk_names import chunk_numbers, chunk_path
from warmstore.records.format.fields import columns_of
from warmstore.records.format.generation_log import open_log, open_numbers
from warmstore.records.format.manifest import read_manifest
from warmstore.records.log.log_entries import DELETE, EVICTED, SEALED
from warmstore.records.read.live_batches import live_batches
from warmstore.records.store_reader import StoreReader
from warmstore.storage.files import Files, is_locked


@dataclass(frozen=True)
class ChunkState:
    """One chunk's file.

    nbytes: of the file. state: "sealed", "open" (without a footer, which other Arrow readers need), "missing", or
    "uncommitted" (without a committed row). writing: whether a live process holds its lock.
    """

    name: str
    records: int
    batches: int
    nbytes: int
    state: str
    writing: bool


def chunk_states(path: Path) -> list[ChunkState]:
    """The chunks of a store's current generation, by number.

    Raises:
        NotAStore, Damaged: as for `RecordStore.open`.
    """
    files = Files()
    manifest = read_manifest(path, files)
    folder = path / manifest.generation_folder
    with open_log(path, manifest, files, write=False) as log:
        entries = log.read(0)
    evicted = entries["chunk"][entries["kind"] == EVICTED]
    live = live_batches(entries, 0, open_numbers(path, manifest, files)).entries
    batches = entries[np.union1d(live, np.flatnonzero(entries["kind"] == DELETE))]
    batches = batches[~np.isin(batches["chunk"], evicted)]
    sealed = set(entries["chunk"][entries["kind"] == SEALED].tolist())
    on_disk = set(chunk_numbers(folder))
    states = []
    for number in sorted(on_disk.union(batches["chunk"].tolist())):
        of_chunk = batches[batches["chunk"] == number]
        file = chunk_path(folder, number)
        if number not in on_disk:
            state = "missing"
        elif number in sealed:
            state = "sealed"
        else:
            state = "open" if len(of_chunk) else "uncommitted"
        states.append(
            ChunkState(
                name=f"{folder.name}/{file.name}",
                records=int(of_chunk["rows"][of_chunk["kind"] != DELETE].sum()),
                batches=len(of_chunk),
                nbytes=file.stat().st_size if state != "missing" else 0,
                state=state,
                # A chunk without a commit may be new: testing its lock could make its writer fail.
                writing=state == "open" and is_locked(file),
            )
        )
    return states


def field_bytes(store: StoreReader) -> dict[str, int]:
    """Bytes of each field's committed values, with their offsets, shapes and checksums. Evicted ones do not count."""
    snapshot = store._snapshot
    is_there: Any = slice(None) if snapshot.gaps is None else ~snapshot.gaps.holds(snapshot.first_row)
    sizes = iter(snapshot.size)
    taken = {}
    for name, field in store.fields.items():
        # One buffer for a column of fixed width, two for one of varying width, as in `Batches.slots`.
        buffers = sum(1 if column.width is not None else 2 for column in columns_of(name, field))
        taken[name] = sum(int(next(sizes)[is_there].sum()) for _ in range(buffers)) if snapshot.batches else 0
    return taken
