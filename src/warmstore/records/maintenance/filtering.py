"""Copying some records of a store into another store, without decoding their values.

The records are chosen by position or by a function of them. Values are copied as they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from warmstore.errors import PositionError, SchemaMismatch
from warmstore.records.format.encoded_rows import stored_rows
from warmstore.records.read.index_arguments import as_positions
from warmstore.records.store_session import BATCH_BYTES, StoreSession
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.array_types import Int64
from warmstore.storage.progress import progress_bar

_BLOCK = 4096

Gather = Callable[[slice], dict[str, Any]]
"""`RecordStore.gather`, of a range of positions."""


def copy_kept(
    source: StoreSession, target: StoreSession, keep: Any, gather: Gather, nbytes: int, progress: bool | None
) -> None:
    """Copy records of one store to another with the same or fewer fields, in their stored form.

    Args:
        keep: an index for `gather`, or a function of batches of records that returns one bool per record.
        gather: `RecordStore.gather` of the source.
        nbytes: bytes of the source on the disk.

    Raises:
        PositionError: the source was edited meanwhile.
    """
    generation, edits = source.generation, source.snapshot.edits
    length = source.snapshot.length
    names = list(target.generation.manifest.fields)
    chosen = None if callable(keep) else as_positions(keep, length)
    total = length if chosen is None else len(chosen)
    step = max(1, min(_BLOCK, BATCH_BYTES * length // max(nbytes, 1)))
    queue = WriteBuffer()
    with progress_bar(total, None, 0, "filter", progress) as advance:
        for first in range(0, total, step):
            last = min(first + step, total)
            positions = _wanted(keep, gather, first, last) if chosen is None else chosen[first:last]
            if source.generation is not generation or source.snapshot.edits != edits:
                raise PositionError(f"{source.path} was edited while it was filtered; filter it again")
            if len(positions):
                gathered = generation.read(names, positions)
                queue.add({name: stored_rows(rows) for name, rows in zip(names, gathered, strict=True)})
            while queue.nbytes >= BATCH_BYTES:
                _commit_head(target, queue)
            advance(last - first, None)
        while queue.count:
            _commit_head(target, queue)


def _wanted(keep: Callable[[dict[str, Any]], Any], gather: Gather, first: int, last: int) -> Int64:
    """The positions in [first, last) for which `keep` is true."""
    mask = np.asarray(keep(gather(slice(first, last))))
    if mask.dtype != np.bool_ or mask.shape != (last - first,):
        raise SchemaMismatch(
            f"the filter must return one bool per record, {last - first} of them; it returned {mask.dtype} "
            f"of shape {mask.shape}"
        )
    return first + np.flatnonzero(mask)


def _commit_head(target: StoreSession, queue: WriteBuffer) -> None:
    count, block = queue.head(BATCH_BYTES)
    target.commit_rows(block)
    queue.drop(count)
