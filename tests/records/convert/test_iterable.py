"""Any iterable: of records, whose first one fixes the fields, or of batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, check, columns, record
from tests.records.convert.common import holds, small_batches

import warmstore as ws


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


def test_fields_are_those_of_the_first_record(tmp_path: Path) -> None:
    first = {
        "flag": True,
        "number": 3,
        "float": 0.5,
        "complex": 1j,
        "single": np.float32(2),
        "array": np.zeros((2, 3), np.int16),
        "text": "é",
        "blob": bytearray(b"ab"),
        "json": {"a": [1, None]},
        "list": [1, 2],
        "nothing": None,
        "day": np.datetime64("2026-01-01", "D"),
    }
    with ws.convert([first, first], tmp_path / "store") as store:
        assert store.fields == {
            "flag": ws.Array("bool"),
            "number": ws.Array("int64"),
            "float": ws.Array("float64"),
            "complex": ws.Array("complex128"),
            "single": ws.Array("float32"),
            "array": ws.Array("int16", (2, 3)),
            "text": ws.Text(),
            "blob": ws.Bytes(),
            "json": ws.Json(),
            "list": ws.Json(),
            "nothing": ws.Json(),
            "day": ws.Array("M8[D]"),
        }
        assert store[1]["json"] == {"a": [1, None]}


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_the_same_records_again_only_open_the_store(tmp_path: Path, codec: str) -> None:
    fields: dict[str, Any] = {
        "x": ws.Array("int16", (40,), codec),
        "y": ws.Bytes(codec),
        "z": ws.Ragged("int8", 1, codec),
        "n": ws.Array("int64"),
    }

    def records(changed: str = "") -> Iterator[dict[str, Any]]:
        for n in range(50):
            values = {"x": np.full(40, n, np.int16), "y": b"ab" * n, "z": np.zeros(n, np.int8), "n": n}
            if n == 30 and changed:
                values[changed] = {"x": np.ones(40, np.int16), "y": b"bb" * n, "z": np.ones(n, np.int8), "n": 31}[
                    changed
                ]
            yield values

    ws.convert(records(), tmp_path / "store", fields=fields).close()
    with ws.convert(records(), tmp_path / "store", fields=fields) as store:
        assert len(store) == 50
    for name in fields:
        with pytest.raises(ws.StoreExists):
            ws.convert(records(name), tmp_path / "store", fields=fields)


def test_a_generator_of_records_and_one_of_batches(tmp_path: Path) -> None:
    with ws.convert((record(n) for n in range(100)), tmp_path / "records", fields=FIELDS) as store:
        check(store, range(100))
    batches = (columns(range(first, first + 25)) for first in range(0, 100, 25))
    with ws.convert(batches, tmp_path / "batches", fields=FIELDS, batched=True) as store:
        check(store, range(100))
    arrays = ({"x": np.arange(n, n + 30), "y": [f"{m}" for m in range(n, n + 30)]} for n in (0, 30))
    with ws.convert(arrays, tmp_path / "inferred", batched=True) as store:
        holds(store, {"x": np.arange(60), "y": [f"{n}" for n in range(60)]})


def test_a_record_that_does_not_fit_says_where(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"x": np.zeros(2)} for _ in range(10)]
    with pytest.raises(ws.SchemaMismatch, match=r"records from number 7 on.*ws\.Ragged"):
        ws.convert([*records, {"x": np.zeros(3)}], tmp_path / "a")
    with pytest.raises(ws.SchemaMismatch, match=r"a record has the fields \['x'\]; got \['y'\]"):
        ws.convert([*records, {"y": np.zeros(2)}], tmp_path / "b")
    with pytest.raises(ws.SchemaMismatch, match="a record must be a dict"):
        ws.convert([1, 2], tmp_path / "c")
    with pytest.raises(ws.UnsupportedType, match="field 'x': nothing holds a set"):
        ws.convert([{"x": {1}}], tmp_path / "d")
    assert not (tmp_path / "c").exists()


def test_an_empty_iterable_makes_no_store(tmp_path: Path) -> None:
    for batched in (False, True):
        with pytest.raises(ws.BadSource, match="no records"):
            ws.convert(iter(()), tmp_path / "store", batched=batched)
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_the_iterable_keeps_what_came_before(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, int]]:
        yield from ({"x": n} for n in range(100))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ws.convert(broken(), tmp_path / "store")
    with ws.RecordStore.open(tmp_path / "store") as store:
        begun = len(store)
        assert 0 < begun <= 100
    with ws.convert(({"x": n} for n in range(150)), tmp_path / "store") as store:
        holds(store, {"x": np.arange(150)})


def test_going_on_needs_the_same_records(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from ({"x": n, "t": f"{n}"} for n in range(100))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ws.convert(broken(), tmp_path / "store")
    others: list[list[dict[str, Any]]] = [
        [{"x": n, "t": f"{n}" if n != 50 else "other"} for n in range(150)],
        [{"x": n + (n == 3), "t": f"{n}"} for n in range(150)],
        [{"x": n, "t": f"{n}"} for n in range(20)],
    ]
    for other in others:
        with pytest.raises(ws.StoreExists, match="made from something else"):
            ws.convert(other, tmp_path / "store")


def test_a_complete_store_is_only_returned_for_the_same_records(tmp_path: Path) -> None:
    def records(count: int, change: int = -1) -> Iterator[dict[str, Any]]:
        return ({"x": n + (n == change), "r": np.arange(n % 3)} for n in range(count))

    for source in (lambda *a: records(*a), lambda *a: {"x": np.array([r["x"] for r in records(*a)])}):
        store = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        fields: Any = {"x": ws.Array("int64")}
        if isinstance(source(1), Iterator):
            fields |= {"r": ws.Ragged("int64")}
        ws.convert(source(100), store, fields=fields).close()
        with ws.convert(source(100), store, fields=fields) as same:
            assert len(same) == 100
        for other in (source(100, 99), source(99)):
            with pytest.raises(ws.StoreExists, match="made from something else"):
                ws.convert(other, store, fields=fields)
        with pytest.raises(ws.StoreExists, match="complete with 100 records, and the source has more"):
            ws.convert(source(101), store, fields=fields)
