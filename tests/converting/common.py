"""What the tests of all formats share."""

from typing import Any

import numpy as np
import pytest
from tests.faults.children import same

import warmstore as ws
from warmstore.converting import arrow_columns, conversion, record_columns, record_source
from warmstore.converting.objects import iterable

ALL_DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "M8[ns]", "M8[s]", "M8[D]", "m8[ms]", "m8[25us]"),
]
ML_DTYPES = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]


def holds(store: ws.RecordStore, columns: dict[str, Any]) -> None:
    """Assert that a store holds exactly these columns, bit for bit and in this order; None stands for no value."""
    assert list(store.fields) == list(columns)
    count = len(next(iter(columns.values())))
    assert len(store) == count
    values = store[:]
    for name, expected in columns.items():
        for at in range(count):
            value = values[name][at]
            value = None if np.ma.is_masked(value) else value
            assert same(value, expected[at]), (name, at, value, expected[at])


def present(store: ws.RecordStore) -> dict[str, list[bool]]:
    """Which records have a value, for each field."""
    return {name: store.present(name).tolist() for name in store.fields}


def small_batches(monkeypatch: pytest.MonkeyPatch, size: int = 1000, rows: int = 7, flush: int = 3000) -> None:
    """Make conversions read and commit tiny batches, so that small tests cross many borders."""
    for module in (record_source, record_columns, iterable, arrow_columns):
        monkeypatch.setattr(module, "BATCH_BYTES", size)
        monkeypatch.setattr(module, "BATCH_ROWS", rows)
    monkeypatch.setattr(conversion, "_FLUSH_BYTES", flush)
    monkeypatch.setattr(conversion, "_FLUSH_ROWS", 3 * rows)
