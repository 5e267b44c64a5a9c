"""Copying some records of a store into another store, without decoding their values.

The records are chosen by position or by a function of them. Values are copied as they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from warmstore.errors import PositionError, SchemaMismatch
from warmstore.records.format.encoded_rows import stored_rows
from warmstore.records.read.index_arguments import as_positions, unmasked
from warmstore.records.store_session import BATCH_BYTES, StoreSession
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.array_types import Int64
from warmstore.storage.progress import progress_bar

_BLOCK = 4096

Gather = Callable[[slice], dict[str, Any]]
"""`RecordStore.gather`, of a range of positions."""


def copy_kept(source: StoreSession, target: StoreSession, keep: Any, gather: Gather, progress: bool | None) -> None:
    """Copy records of one store to another with the same or fewer fields, in their stored form.

    Args:
        keep: an index for `gather`, or a function of batches of records that returns one bool per record.
        gather: `RecordStore.gather` of the source.

    Raises:
        PositionError: the source was edited meanwhile.
    """
    generation = source.generation
    gatherer = generation.gatherer
    snapshot = gatherer.snapshot
    names = list(target.generation.manifest.fields)
    positions: range | Int64 = range(snapshot.length) if callable(keep) else as_positions(keep, snapshot.length)
    read = list(generation.manifest.fields) if callable(keep) else names
    queue = WriteBuffer()
    with progress_bar(len(positions), None, 0, "filter", progress) as advance:
        for block in gatherer.blocks(read, positions, BATCH_BYTES, _BLOCK):
            wanted = _wanted(keep, gather, block) if callable(keep) else block
            if source.generation is not generation or source.snapshot.edits != snapshot.edits:
                raise PositionError(f"{source.path} was edited while it was filtered; filter it again")
            if len(wanted):
                gathered = generation.read(names, wanted, gatherer, snapshot)
                queue.add({name: stored_rows(rows) for name, rows in zip(names, gathered, strict=True)})
            for batch in queue.taken(BATCH_BYTES):
                target.commit_rows(batch)
            advance(len(block), None)
        for batch in queue.taken(BATCH_BYTES, rest=True):
            target.commit_rows(batch)


def _wanted(keep: Callable[[dict[str, Any]], Any], gather: Gather, block: Int64) -> Int64:
    """The positions of a block of consecutive ones for which `keep` is true."""
    mask = np.asarray(unmasked(keep(gather(slice(int(block[0]), int(block[-1]) + 1)))))
    if mask.dtype != np.bool_ or mask.shape != block.shape:
        raise SchemaMismatch(
            f"the filter must return one bool per record, {len(block)} of them; it returned {mask.dtype} "
            f"of shape {mask.shape}"
        )
    wanted: Int64 = block[mask]
    return wanted
