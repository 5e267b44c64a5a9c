"""The copies of the compiled floor in plain NumPy: see `twin`."""

import numpy as np

from warmstore._native.twin_checks import Bytes, Int64, check_inside, check_length


def gather(memory: Bytes, addresses: Int64, width: int, out: Bytes, threads: int) -> None:
    """Copy `width` bytes from each address into rows one after the other.

    Args:
        memory: uint8, any length.
        addresses: int64 [n], bytes from the beginning of `memory` on.
        out: n * width bytes.

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: `width` or the length of a buffer is wrong.
    """
    count = len(addresses)
    if not 0 <= width <= len(memory):
        raise ValueError(f"width={width}; expected 0 to {len(memory)}")
    check_length("out", out, count * width)
    check_inside(addresses, np.full(count, width), len(memory))
    if width and count:
        rows = np.ndarray((len(memory) - width + 1,), f"V{width}", memory, strides=(1,))
        out.reshape(-1).view(np.uint8)[:] = rows[addresses].view(np.uint8)


def gather_rows(
    memory: Bytes,
    bases: Int64,
    first_row: Int64,
    span: int,
    limit: int,
    rows: Int64,
    width: int,
    out: Bytes,
    threads: int,
) -> bool:
    """Copy rows of a column that is stored in batches.

    Args:
        memory: uint8, any length.
        bases: int64 [batches], the address that row 0 of the whole column would have in `memory`.
        first_row: int64 [batches], rising.
        span: rows of every batch but the last, or 0 if batches differ.
        limit: rows of the column.
        rows: int64 [n].
        width: bytes of a row.
        out: n * width bytes.

    Returns:
        Whether all rows exist and lie in `memory`. Otherwise nothing is copied.

    Raises:
        ValueError: a number or the length of a buffer is wrong.
    """
    addresses = _addresses(len(memory), bases, first_row, span, limit, rows, width)
    check_length("out", out, len(rows) * width)
    if addresses is not None and len(rows):
        gather(memory, addresses, width, out, threads)
    return addresses is not None


def gather_spans(memory: Bytes, starts: Int64, lengths: Int64, out: Bytes, threads: int) -> None:
    """Copy spans of different lengths one after the other.

    Args:
        memory: uint8, any length.
        starts, lengths: int64 [n], bytes.
        out: uint8 [sum of lengths].

    Raises:
        IndexError: not all of it lies in `memory`.
        ValueError: the length of a buffer is wrong.
    """
    check_length("lengths", lengths, starts.nbytes)
    check_inside(starts, lengths, len(memory))
    check_length("out", out, int(lengths.sum()))
    at, target = 0, out.reshape(-1).view(np.uint8)
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        target[at : at + length] = memory[start : start + length]
        at += length


def _addresses(
    size: int, bases: Int64, first_row: Int64, span: int, limit: int, rows: Int64, width: int
) -> Int64 | None:
    """The addresses of rows in memory of `size` bytes; None if a row is outside."""
    if width < 1 or span < 0 or limit < 0:
        raise ValueError(f"width={width}, span={span}, limit={limit}")
    check_length("first_row", first_row, bases.nbytes)
    if not len(rows):
        return np.zeros(0, np.int64)
    if not len(bases) or rows.min() < 0 or rows.max() >= min(limit, (1 << 62) // width):
        return None
    batch = rows // span if span else np.maximum(np.searchsorted(first_row, rows, side="right") - 1, 0)
    if batch.max() >= len(bases):
        return None
    addresses: Int64 = bases[batch] + rows * width
    return addresses if addresses.min() >= 0 and addresses.max() <= size - width else None
