"""JSON Lines: all records fix the types, and nothing changes on the way."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.converting.common import holds, present, small_batches
from tests.slow import either

import warmstore as ws


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


def write(path: Path, records: list[Any]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def test_every_record_fixes_the_types(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"i": n, "f": n, "t": f"é{n}", "j": [n], "b": n % 2 == 0} for n in range(20)]
    records += [{"f": 0.5, "late": "x", "j": None}, {"i": None, "t": None, "b": None, "f": 1}]
    path = write(tmp_path / "x.jsonl", records)
    with ws.convert(path, tmp_path / "store") as store:
        assert store.fields == {
            "i": ws.Array("int64"),
            "f": ws.Array("float64"),
            "t": ws.Text(),
            "j": ws.Json(),
            "b": ws.Array("bool"),
            "late": ws.Text(),
        }
        for number, record in enumerate(records):
            row = store[number]
            assert {name: row[name] for name in record} == record
        assert present(store)["j"] == [True] * 21 + [False]
        assert present(store)["i"] == [True] * 20 + [False] * 2
        assert present(store)["late"] == [False] * 20 + [True, False]


def test_blank_lines_marks_and_gzip(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_bytes(b'\xef\xbb\xbf{"x": 1}\r\n\n  \n{"x": 2}')
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write('{"x": 3}\n')
    with ws.convert([tmp_path / "a.ndjson", tmp_path / "b.jsonl.gz"], tmp_path / "store") as store:
        holds(store, {"x": np.array([1, 2, 3])})


def test_what_one_field_cannot_hold_is_named(tmp_path: Path) -> None:
    for values, error, match in [
        ([1, "a"], ws.SchemaMismatch, r"'x' is of several types: int at .*x\.jsonl, line 1, str at .*x\.jsonl, line 2"),
        ([1, True], ws.SchemaMismatch, "several types: bool .* line 2, int"),
        ([1, [1]], ws.SchemaMismatch, "several types"),
        ([2**63], ws.UnsupportedType, "line 1: 'x' is an int beyond int64"),
        ([2**53 + 1, 0.5], ws.SchemaMismatch, "several types: float .* large int at"),
    ]:
        path = write(tmp_path / "x.jsonl", [{"x": value} for value in values])  # type: ignore[attr-defined]
        with pytest.raises(error, match=match):
            ws.convert(path, tmp_path / "store")
        target = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        with ws.convert(path, target, fields={"x": ws.Json()}) as store:
            holds(store, {"x": values})


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for line, match in [
        (b'{"x": ', "line 2 cannot be read"),
        (b"[1]", "line 2 is a list; a record is a JSON object"),
        (b'{"x": 1, "x": 2}', "line 2 cannot be read: the key 'x' occurs twice"),
        (b'{"x": "\xff"}', "line 2 cannot be read.*utf-8"),
        (b'{"x": 1e999}', "line 2 cannot be read: 1e999 is beyond float64"),
    ]:
        (tmp_path / "x.jsonl").write_bytes(b'{"x": 1}\n' + line)
        with pytest.raises(ws.BadSource, match=match):
            ws.convert(tmp_path / "x.jsonl", tmp_path / "store")
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b'{"x": 1}\n' * 1000)[:-9])
    with pytest.raises(ws.BadSource, match=r"x\.jsonl\.gz cannot be read"):
        ws.convert(tmp_path / "x.jsonl.gz", tmp_path / "store")


values = (
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False) | st.text() | st.just([1])
)


@settings(max_examples=either(30, 60))
@given(st.lists(st.dictionaries(st.sampled_from("ab"), values), min_size=1, max_size=6))
def test_what_is_converted_comes_back(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("jsonl")
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    try:
        store = ws.convert(path, folder / "store")
    except (ws.SchemaMismatch, ws.UnsupportedType):
        return
    with store:
        for number, record in enumerate(records):
            row = store[number]
            assert {name: row[name] for name in record} == record
            assert all(row[name] is None for name in row.keys() - record.keys())


@pytest.mark.parametrize("name", ["x.jsonl.gz-00000-of-00002", "X.JSONL.GZ"])
def test_the_name_says_that_lines_are_packed(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(b'{"x": 1}\n'))
    with ws.convert(tmp_path / name, tmp_path / "store") as store:
        holds(store, {"x": [1]})
