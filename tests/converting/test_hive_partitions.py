"""Hive partitions are fields."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from tests.converting.common import holds, present, small_batches

import warmstore as ws


def write(path: Path, first: int, **more: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"x": np.arange(first, first + 5), **more})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        pyarrow.feather.write_feather(table, str(path))


@pytest.fixture(params=["parquet", "feather"])
def folder(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    small_batches(monkeypatch, rows=2)
    for number, year in enumerate((2023, 2024)):
        write(tmp_path / "in" / f"year={year}" / "month=01" / f"part.{request.param}", 5 * number)
    return tmp_path / "in"


def test_partitions_are_fields(folder: Path, tmp_path: Path) -> None:
    expected = {"x": np.arange(10), "year": np.repeat([2023, 2024], 5), "month": ["01"] * 10}
    for number, source in enumerate([folder, str(folder / "*" / "*" / "part.*"), sorted(folder.rglob("part.*"))]):
        with ws.convert(source, tmp_path / f"{number}") as store:
            columns = expected if number < 2 else {name: expected[name] for name in ("x", "year")}
            assert {*store.fields} >= {*columns}
            assert all(np.array_equal(store[:][name], values) for name, values in columns.items())
    with ws.convert(folder, tmp_path / "some", fields={"year": ws.Text(), "x": ws.Array("int64")}) as store:
        holds(store, {"year": ["2023"] * 5 + ["2024"] * 5, "x": np.arange(10)})
    with ws.convert(next(folder.rglob("part.*")), tmp_path / "one") as store:
        assert list(store.fields) == ["x"]


def test_values_are_unquoted_and_the_default_partition_is_absent(tmp_path: Path) -> None:
    for number, name in enumerate(("a%2Fb", "__HIVE_DEFAULT_PARTITION__", "7")):
        write(tmp_path / "in" / f"k={name}" / "p.parquet", 5 * number)
    with ws.convert(tmp_path / "in", tmp_path / "store") as store:
        values = dict(zip(store[:]["x"].tolist(), store[:]["k"], strict=True))
        assert (values[0], values[5], values[10]) == ("a/b", None, "7")
        assert sum(present(store)["k"]) == 10


def test_the_field_of_a_partition_is_that_of_the_caller_or_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("0.5", "__HIVE_DEFAULT_PARTITION__", "2")):
        write(tmp_path / "in" / f"k={name}" / "p.parquet", 5 * number)
    fields = {"x": ws.Array("int64"), "k": ws.Array("float32")}
    with ws.convert(tmp_path / "in", tmp_path / "store", fields=fields) as store:
        assert store[:]["k"].dtype == np.float32
        assert store[:]["k"].tolist() == [0.5] * 5 + [2.0] * 5 + [None] * 5
    with pytest.raises(ws.SchemaMismatch, match=r"the partition k=0\.5 does not fit Array.*int32.*'k': ws\.Text\(\)"):
        ws.convert(tmp_path / "in", tmp_path / "other", fields={**fields, "k": ws.Array("int32")})


def test_partitions_that_do_not_agree_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a" / "k=1" / "p.parquet", 0)
    write(tmp_path / "a" / "l=1" / "p.parquet", 0)
    with pytest.raises(ws.BadSource, match=r"l=1/p\.parquet is in the partitions \['l'\], the first file in \['k'\]"):
        ws.convert(tmp_path / "a", tmp_path / "store")
    write(tmp_path / "b" / "k=1" / "p.parquet", 0, k=np.arange(5))
    with pytest.raises(ws.BadSource, match="'k' is a column and the name of a partition"):
        ws.convert(tmp_path / "b", tmp_path / "store")
