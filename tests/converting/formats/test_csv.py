"""CSV and TSV: types that hold for every row, and nothing that would not come back."""

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.converting.common import holds, present, small_batches
from tests.slow import either

import warmstore as ws


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


def column(folder: Path, cells: list[str]) -> tuple[Any, Any]:
    """The field and the values of a column with these cells, beside another one."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir()))}.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "x"])
        writer.writerows([str(number), cell] for number, cell in enumerate(cells))
    with ws.convert(path, path.with_suffix(".store")) as store:
        values = store[:]["x"]
        return store.fields["x"], values if isinstance(values, list) else values.tolist()


@pytest.mark.parametrize(
    ("cells", "field", "values"),
    [
        (["1", "-2", ""], ws.Array("int64"), [1, -2, None]),
        (["1", "NA", "null"], ws.Array("int64"), [1, None, None]),
        (["1", "2.5", "1e3"], ws.Array("float64"), [1.0, 2.5, 1000.0]),
        (["true", "False", "N/A"], ws.Array("bool"), [True, False, None]),
        (["a", "", "NA"], ws.Text(), ["a", "", "NA"]),
        (["007", "1"], ws.Text(), ["007", "1"]),
        (["-0", "1"], ws.Array("float64"), [-0.0, 1.0]),
        (["9223372036854775807", "1"], ws.Array("int64"), [9223372036854775807, 1]),
        (["9223372036854775808", "1"], ws.Text(), ["9223372036854775808", "1"]),
        (["9007199254740993", "1.5"], ws.Text(), ["9007199254740993", "1.5"]),
        (["1e999", "1"], ws.Text(), ["1e999", "1"]),
        (["a,b", 'c"d', "e\nf"], ws.Text(), ["a,b", 'c"d', "e\nf"]),
        (["", ""], ws.Text(), ["", ""]),
    ],
)
def test_a_type_fits_every_cell(tmp_path: Path, cells: list[str], field: Any, values: list[Any]) -> None:
    assert column(tmp_path / "x", cells) == (field, values)


def test_dates_and_times(tmp_path: Path) -> None:
    assert column(tmp_path / "x", ["2026-01-02"])[0] == ws.Array("M8[D]")
    assert column(tmp_path / "x", ["2026-01-02 03:04:05", "2026-01-02T03:04:05"])[0] == ws.Array("M8[s]")
    assert column(tmp_path / "x", ["2026-01-02 03:04:05", "2026-01-02 03:04:05.25"])[0] == ws.Array("M8[ns]")
    assert column(tmp_path / "x", ["2026-13-02"]) == (ws.Text(), ["2026-13-02"])


def test_a_later_block_decides_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    rows = 400_000  # more than pyarrow infers from
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "".join(f"{n},{n}\n" for n in range(rows)) + "x,0.5\n")
    with ws.convert(path, tmp_path / "store") as store:
        assert store.fields == {"a": ws.Text(), "b": ws.Array("float64")}
        assert (store[rows]["a"], store[rows]["b"], len(store)) == ("x", 0.5, rows + 1)


@settings(max_examples=either(20, 40))
@given(st.lists(st.floats() | st.integers(-(2**70), 2**70), min_size=1, max_size=9))
def test_numbers_come_back(tmp_path_factory: pytest.TempPathFactory, numbers: list[Any]) -> None:
    _, values = column(tmp_path_factory.mktemp("numbers"), [repr(number) for number in numbers])
    for value, number in zip(values, numbers, strict=True):
        back = type(number)(value) if isinstance(value, str) else value
        assert back == number or (back != back and number != number)


def test_several_files_compressed_and_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("x,y\n2.5,b\n")
    with ws.convert([tmp_path / "a.csv", tmp_path / "b.csv.gz"], tmp_path / "store") as store:
        holds(store, {"x": np.array([1.0, 2.5]), "y": ["a", "b"]})
    (tmp_path / "c.tsv").write_text("x\ty\n1\ta,b\n")
    with ws.convert(tmp_path / "c.tsv", tmp_path / "tabs") as store:
        holds(store, {"x": np.array([1]), "y": ["a,b"]})


def test_fields_say_other_types(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y,z\n1,a,1\n,b,2\n")
    fields: Any = {"x": ws.Array("float32"), "y": ws.Bytes(), "z": ws.Text()}
    with ws.convert(tmp_path / "a.csv", tmp_path / "store", fields=fields) as store:
        holds(store, {"x": [np.float32(1), None], "y": [b"a", b"b"], "z": ["1", "2"]})
        assert present(store)["x"] == [True, False]
    with pytest.raises(ws.SchemaMismatch, match="field 'x' is Ragged"):
        ws.convert(tmp_path / "a.csv", tmp_path / "b", fields={"x": ws.Ragged("int64")})


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    for name, content, match in [
        ("a.csv", b"x,y\n1,2\n3\n", r"a\.csv cannot be read.*Row #3"),
        ("b.csv", b"x,y\n1,\xff\n", r"b\.csv cannot be read.*UTF"),
        ("c.csv", b"x,x\n1,2\n", r"c\.csv: two columns have one name"),
        ("d.csv", b"", r"d\.csv"),
        ("e.csv", b"x,y\n", r"e\.csv: no records"),
        ("f.csv.gz", b"\x1f\x8b\x08\x00no gzip", r"f\.csv\.gz"),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ws.BadSource, match=match):
            ws.convert(tmp_path / name, tmp_path / "store")


@pytest.mark.parametrize("name", ["A.TSV", "t.tsv-00000-of-00001", "t.tsv.gz-00000-of-00002", "T.TSV.GZ"])
def test_the_name_says_what_is_between_cells(tmp_path: Path, name: str) -> None:
    data = b"a\tb\n1\tx,y\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if "gz" in name.lower() else data)
    with ws.convert(tmp_path / name, tmp_path / "store") as store:
        holds(store, {"a": [1], "b": ["x,y"]})


def test_an_empty_line_is_a_cell_of_a_single_column(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("a\n1\n\n3\n")
    with ws.convert(tmp_path / "1.csv", tmp_path / "1") as store:
        holds(store, {"a": [1, None, 3]})
    pyarrow.csv.write_csv(pa.table({"a": ["x", None, "z"]}), tmp_path / "2.csv")
    with ws.convert(tmp_path / "2.csv", tmp_path / "2") as store:
        holds(store, {"a": ["x", "", "z"]})
    (tmp_path / "3.csv").write_text("a,b\n1,2\n\n3,4\n\n")
    with ws.convert(tmp_path / "3.csv", tmp_path / "3") as store:
        holds(store, {"a": [1, 3], "b": [2, 4]})


def test_a_cell_may_be_larger_than_a_block(tmp_path: Path) -> None:
    large = "é" * 2_000_000
    with open(tmp_path / "x.csv", "w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], *([n, "x"] for n in range(1000)), [1000, large], [1001, "y"]])
    with ws.convert(tmp_path / "x.csv", tmp_path / "store") as store:
        holds(store, {"a": np.arange(1002), "b": ["x"] * 1000 + [large, "y"]})


def test_a_column_without_a_name_is_left_out_by_naming_the_others(tmp_path: Path) -> None:
    """As pandas writes an index."""
    (tmp_path / "x.csv").write_text(",a\n0,1\n1,2\n")
    with pytest.raises(ws.SchemaMismatch, match=r"field name '' must be .*\. Choose the others with fields=\[\.\.\.\]"):
        ws.convert(tmp_path / "x.csv", tmp_path / "store")
    with ws.convert(tmp_path / "x.csv", tmp_path / "store", fields=["a"]) as store:
        holds(store, {"a": np.array([1, 2])})
