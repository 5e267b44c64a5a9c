"""Errors for values that are no sources of samples, with what to pass instead."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import BadSource, UnknownFormat, WarmstoreError
from warmstore.loading.sources import array_record
from warmstore.loading.values.value_types import is_of

_TABLES = {
    ".parquet": "read_parquet",
    ".csv": "read_csv",
    ".tsv": "read_csv",
    ".json": "read_json",
    ".jsonl": "read_json",
    ".ndjson": "read_json",
    ".feather": "read_feather",
    ".arrow": "read_feather",
    ".orc": "read_orc",
}


def refusal_of(value: Any) -> WarmstoreError:
    """The error for a value that is no source."""
    kind = type(value).__name__
    start = f"a {kind} is no source of samples: "
    if value is None:
        return BadSource("None is no source of samples: pass an array, a store or its path, a list, or a data set")
    if isinstance(value, Set):
        return BadSource(start + "it has no order. Pass sorted(...) of it, or a list")
    if is_of(value, ("torch", "DataLoader"), ("warmstore", "Loader")):
        return BadSource(start + "it makes batches itself. Pass what it reads from: loader.dataset")
    if is_of(value, ("polars", "LazyFrame")):
        return BadSource(start + "it is a query. Pass frame.collect()")
    if is_of(value, ("warmstore", "FeatureCache")):
        return BadSource(start + "its rows are a store. Pass cache.path, or RecordStore.open(cache.path)")
    if is_of(value, ("datasets", "DatasetDict")):
        return BadSource(start + f"it holds several. Pass one of them: {', '.join(map(repr, value))}")
    if isinstance(value, np.generic | int | float | complex):
        return BadSource(start + "it is one number. Pass an array, or a list")
    return BadSource(start + "it needs __len__, and __getitems__ or __getitem__")


def unknown_file(path: Path) -> WarmstoreError:
    """The error for a file or folder that is no source."""
    if path.is_dir():
        advice = array_record.advice(path) or "ws.convert makes a store of other formats"
        return UnknownFormat(f"{path} is a folder, no store. {advice}")
    reader = _TABLES.get(path.suffix.lower())
    if reader is not None:
        return UnknownFormat(
            f"{path} cannot be read by position; ws.convert makes a store of it. If it fits in memory, pass the frame "
            f"pandas.{reader}(...)"
        )
    return UnknownFormat(f"{path} is no store, .npy or .array_record file; ws.convert makes a store of other formats")
