"""Any iterable: of records, whose first one fixes the fields, or of batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.converting.common import holds, present, small_batches
from tests.faults.children import FIELDS, check, columns, record

import warmstore as ws
from warmstore.converting.conversion_draft import draft_of


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
    with pytest.raises(ws.SchemaMismatch, match=r"record 10 has the field 'y', which none of the first 7.*fields="):
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


def broken(yielded: int = 100) -> Iterator[dict[str, Any]]:
    yield from ({"x": n, "t": f"{n}"} for n in range(yielded))
    raise ZeroDivisionError


def test_an_error_of_the_iterable_keeps_what_came_before(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        ws.convert(broken(), tmp_path / "store")
    assert not (tmp_path / "store").exists()
    with ws.RecordStore.open(draft_of(tmp_path / "store")) as store:
        begun, identity = len(store), store._manifest.id
        assert 0 < begun <= 100
    with ws.convert(({"x": n, "t": f"{n}"} for n in range(150)), tmp_path / "store") as store:
        holds(store, {"x": np.arange(150), "t": [f"{n}" for n in range(150)]})
        assert store._manifest.id == identity
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_other_records_begin_where_they_differ(tmp_path: Path, codec: str) -> None:
    fields: dict[str, Any] = {"x": ws.Array("int64", (), codec), "t": ws.Text(codec)}
    others: list[list[dict[str, Any]]] = [
        [{"x": n, "t": f"{n}" if n != 50 else "other"} for n in range(150)],
        [{"x": n + (n == 3), "t": f"{n}"} for n in range(150)],
        [{"x": n} if n == 30 else {"x": n, "t": f"{n}"} for n in range(150)],
        [
            {"t": f"{n}"} if n == 0 else {"x": n, "t": f"{n}"} for n in range(150)
        ],  # the bytes of an absent 0 are the same
        [{"x": n, "t": f"{n}"} for n in range(20)],
    ]
    for number, other in enumerate(others):
        with pytest.raises(ZeroDivisionError):
            ws.convert(broken(), tmp_path / f"{number}", fields=fields)
        with ws.convert((record for record in other), tmp_path / f"{number}", fields=fields) as store:
            holds(store, {name: [record.get(name) for record in other] for name in ("x", "t")})
        assert len(list(tmp_path.iterdir())) == number + 1


def test_other_fields_begin_anew(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        ws.convert(broken(), tmp_path / "store")
    with ws.convert([{"x": float(n)} for n in range(30)], tmp_path / "store", metadata={"why": 1}) as store:
        holds(store, {"x": np.arange(30.0)})
        assert store.metadata["why"] == 1


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


def test_a_record_that_lacks_a_field_has_no_value(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {},
        {"x": None, "j": None},
        {"x": 1, "t": "a"},
        {"j": {"a": 1}, "r": np.zeros(2)},
    ] * 5
    with ws.convert(records, tmp_path / "store") as store:
        names = ("x", "j", "t", "r")
        assert present(store) == {
            name: [name in record and (name == "j" or record[name] is not None) for record in records] for name in names
        }
        holds(store, {name: [record.get(name) for record in records] for name in names})


def test_a_field_of_a_later_record_needs_fields(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [*({"x": n} for n in range(20)), {"x": 20, "y": "late"}]
    with pytest.raises(ws.SchemaMismatch, match="record 20 has the field 'y'"):
        ws.convert(records, tmp_path / "store")
    with ws.convert(records, tmp_path / "a", fields={"x": ws.Array("int64"), "y": ws.Text()}) as store:
        holds(store, {"x": np.arange(21), "y": [*[None] * 20, "late"]})
    with ws.convert(records, tmp_path / "b", fields=["x"]) as store:
        holds(store, {"x": np.arange(21)})


def test_none_in_lists_is_absent(tmp_path: Path) -> None:
    columns = {"x": [None, 1, 2], "t": ["a", None, None], "r": [None, np.zeros(2), None], "b": [b"a", None, b""]}
    with ws.convert(columns, tmp_path / "arrays") as store:
        holds(store, columns)
        assert present(store) == {name: [value is not None for value in values] for name, values in columns.items()}
    with ws.convert([columns], tmp_path / "batches", batched=True) as store:
        holds(store, columns)


@pytest.mark.parametrize("form", ["arrays", "batches", "records"])
def test_masked_arrays(tmp_path: Path, form: str) -> None:
    whole = np.ma.MaskedArray(np.arange(8).reshape(4, 2), [[False] * 2, [True] * 2, [False] * 2, [True] * 2])
    partly = np.ma.MaskedArray(np.arange(8).reshape(4, 2), [[False] * 2, [True] * 2, [False, True], [False] * 2])

    def source(array: Any) -> Any:
        if form == "records":
            return [{"x": None if row.mask.all() else row} for row in array]
        return {"x": array} if form == "arrays" else [{"x": array}]

    batched = form == "batches"
    with ws.convert(source(whole), tmp_path / "store", batched=batched) as store:
        holds(store, {"x": [np.array([0, 1]), None, np.array([4, 5]), None]})
    with pytest.raises(ws.SchemaMismatch, match=r"field 'x'.*masked"):
        ws.convert(source(partly), tmp_path / "other", batched=batched)


def test_a_batch_with_other_fields_is_refused(tmp_path: Path) -> None:
    for other in ({"x": [1]}, {"x": [1], "y": [2], "z": [3]}):
        with pytest.raises(ws.SchemaMismatch, match=r"a batch has the fields \['x', 'y'\]; got"):
            ws.convert([{"x": [1], "y": [1]}, other], tmp_path / "store", batched=True)


def _stopped(records: Iterator[Any], count: int, error: type[BaseException] = KeyboardInterrupt) -> Iterator[Any]:
    for number, each in enumerate(records):
        if number == count:
            raise error
        yield each


@pytest.mark.parametrize("count", [3, 100])
def test_a_generator_that_has_begun_is_not_the_source_again(tmp_path: Path, count: int) -> None:
    generator = ({"x": n} for n in range(200))
    with pytest.raises(KeyboardInterrupt):
        ws.convert(_stopped(generator, count), tmp_path / "store")
    for _ in range(2):
        with pytest.raises(ws.BadSource, match="the generator has begun"):
            ws.convert(generator, tmp_path / "store")
    with pytest.raises(ws.BadSource, match="the generator has begun"):
        ws.convert(generator, tmp_path / "store", fields={"x": ws.Array("int64")})
    with ws.convert(({"x": n} for n in range(200)), tmp_path / "store") as store:
        holds(store, {"x": np.arange(200)})


@pytest.mark.parametrize("more", [{}, {"fields": {"x": ws.Array("int64")}}])
def test_an_iterator_that_lacks_the_records_of_the_draft_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    iterator = iter([{"x": n} for n in range(200)])
    with pytest.raises(KeyboardInterrupt):
        ws.convert(_stopped(iterator, 100), tmp_path / "store")
    for _ in range(2):
        with pytest.raises(ws.StoreExists, match=r"\.store\.converting has records .* Make a new iterator"):
            ws.convert(iterator, tmp_path / "store", **more)
    with ws.convert(iter([{"x": n} for n in range(200)]), tmp_path / "store") as store:  # goes on
        holds(store, {"x": np.arange(200)})


def test_an_iterator_is_converted_where_its_target_was_not_begun(tmp_path: Path) -> None:
    generator = ({"x": n} for n in range(50))
    next(generator)
    with ws.convert(generator, tmp_path / "store") as store:
        holds(store, {"x": np.arange(1, 50)})
    with pytest.raises(KeyboardInterrupt):
        ws.convert(_stopped(iter([{"x": n} for n in range(200)]), 100), tmp_path / "other")
    with ws.convert([{"x": -n} for n in range(200)], tmp_path / "other") as store:  # a list has all its records
        holds(store, {"x": -np.arange(200)})


def test_a_batch_may_lack_a_field_that_was_passed(tmp_path: Path) -> None:
    batches = [{"x": [1, 2]}, {"x": [3], "y": ["a"]}, {"x": [4], "j": [None]}]
    fields = {"x": ws.Array("int64"), "y": ws.Text(), "j": ws.Json()}
    with ws.convert(batches, tmp_path / "store", batched=True, fields=fields) as store:
        holds(store, {"x": [1, 2, 3, 4], "y": [None, None, "a", None], "j": [None] * 4})
        assert present(store)["j"] == [False, False, False, True]
    with pytest.raises(ws.SchemaMismatch, match="a batch has the fields"):
        ws.convert(batches[::-1], tmp_path / "other", batched=True, fields=["x", "j"])
    with pytest.raises(ws.SchemaMismatch, match="a batch has the fields"):
        ws.convert([{"z": [1]}], tmp_path / "other", batched=True, fields=fields)
