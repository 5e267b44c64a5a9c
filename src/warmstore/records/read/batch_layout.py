"""Where the buffers of a record batch lie: the layout that its Arrow header holds."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from warmstore.records.format.fields import ArrowColumn
from warmstore.storage.array_types import Bytes


@dataclass(frozen=True)
class Layout:
    """The byte offsets and sizes of a batch's buffers in its body, in the order of `Batches.slots`.

    validity: the byte offset of the validity bits of a column in which a record has no value, at the column's first
    buffer; else -1.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    validity: tuple[int, ...]


def batch_layout(
    header: bytes, rows: int, body: int, schema: pa.Schema, columns: Sequence[ArrowColumn]
) -> Layout | None:
    """The layout in a batch's header; None if it is not that of a batch of `rows` records and `body` bytes.

    Args:
        header: whole, as its hash shows. Unverified bytes must never reach pyarrow.
    """
    # pyarrow reads the header alone, so the body may hold any bytes. Untouched pages take no memory.
    buffer: Bytes = np.empty(len(header) + body, np.uint8)
    buffer[: len(header)] = np.frombuffer(header, np.uint8)
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(buffer), schema)
    except (pa.ArrowException, OSError):  # the entry has another body than the header
        return None
    if batch.num_rows != rows:
        return None
    base = buffer.ctypes.data + len(header)
    places: list[tuple[int, int]] = []
    validity: dict[int, tuple[int, int]] = {}
    for array, column in zip(batch.columns, columns, strict=True):
        valid, *rest = array.buffers()
        if valid is not None:
            validity[len(places)] = valid.address - base, (rows + 7) // 8
        # The last buffers are the values. Before them a list has an empty validity buffer of its values.
        for values in rest[-1:] if column.width is not None else rest[-2:]:
            places.append((values.address - base, values.size) if values is not None and values.size else (0, 0))
    if any(not 0 <= offset <= offset + size <= body for offset, size in (*places, *validity.values())):
        return None
    offsets, sizes = zip(*places, strict=True) if places else ((), ())
    return Layout(offsets, sizes, tuple(validity.get(slot, (-1, 0))[0] for slot in range(len(places))))
