"""The size of each raw value, if it is known without reading the sample."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.identity.samples.selected_samples import SelectedSamples


def sizes_of(source: Any) -> np.ndarray[Any, np.dtype[np.int64]] | None:
    """Bytes of each sample's files and byte strings, int64 [n]; None if they are not known.

    They are known for lists and tuples of paths, bytes and arrays, or of tuples and dicts of these. Other sources
    would have to be read in full.
    """
    if isinstance(source, SelectedSamples):
        sizes = sizes_of(source.of)
        return None if sizes is None else sizes[source.indices]
    if not isinstance(source, list | tuple) or not any(map(_size, source[:3])):
        return None
    return np.fromiter(map(_size, source), np.int64, len(source))


def buckets_of(source: Any, edges: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int8]] | None:
    """The bucket of each sample, int8 [n]; None if there is one bucket."""
    sizes = sizes_of(source) if edges else None
    return None if sizes is None else bucket_of(sizes, edges)


def bucket_of(sizes: np.ndarray[Any, Any], edges: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int8]]:
    """The bucket of each source size, int8 [n]."""
    return np.searchsorted(np.asarray(edges), sizes, side="right").astype(np.int8)


def bytes_of(value: Any) -> int:
    """The `nbytes` of a value; 0 if it has none."""
    try:
        return int(getattr(value, "nbytes", 0))
    except Exception:  # properties raise anything: that of a sparse tensor a RuntimeError
        return 0


def _size(value: Any) -> int:
    if isinstance(value, str | os.PathLike):
        try:
            return Path(value).stat().st_size
        except (OSError, ValueError):  # a str that is no path
            return 0
    if isinstance(value, bytes | bytearray | memoryview):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_size, value))
    return bytes_of(value)
