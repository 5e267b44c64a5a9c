"""Tables and data frames in memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from tests.converting.common import holds, present, small_batches

import warmstore as ws

ROWS = 30


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    small_batches(monkeypatch)


def table() -> pa.Table:
    return pa.table(
        {
            "x": pa.array([n if n % 4 else None for n in range(ROWS)], pa.int32()),
            "l": pa.array([[n] * (n % 3) for n in range(ROWS)], pa.list_(pa.int64())),
            "t": [f"é{n}" for n in range(ROWS)],
        }
    )


def as_dataset(folder: Path) -> Any:
    pq.write_table(table(), folder / "x.parquet", row_group_size=4)
    return pyarrow.dataset.dataset(folder / "x.parquet")


@pytest.mark.parametrize(
    "source",
    [
        lambda folder: table(),
        lambda folder: table().combine_chunks().to_batches()[0],
        lambda folder: table().to_reader(max_chunksize=7),
        as_dataset,
    ],
    ids=["table", "batch", "reader", "dataset"],
)
def test_what_pyarrow_has(tmp_path: Path, source: Any) -> None:
    expected = {
        "x": [np.int32(n) if n % 4 else None for n in range(ROWS)],
        "l": [np.full(n % 3, n) for n in range(ROWS)],
        "t": [f"é{n}" for n in range(ROWS)],
    }
    for _ in range(2):  # again: it is compared
        with ws.convert(source(tmp_path), tmp_path / "store") as store:
            holds(store, expected)
    with ws.convert(source(tmp_path), tmp_path / "some", fields=["t"]) as store:
        holds(store, {"t": expected["t"]})


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    polars: Any = pytest.importorskip("polars")
    columns: dict[str, list[Any]] = {"x": [1], "t": ["a"], "o": [{"a": 1}]}
    frames = (pandas.DataFrame(columns)[:0], polars.DataFrame(columns)[:0])
    for empty in (table()[:0], table()[:0].to_reader(), *frames):
        with pytest.raises(ws.BadSource, match="no records"):
            ws.convert(empty, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_a_pandas_frame(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "n": np.arange(4, dtype=np.int8),
            "f": [1.0, float("nan"), 2.0, 3.0],
            "s": ["a", None, "c", "d"],
            "i": pandas.array([1, None, 3, 4], dtype="Int64"),
            "b": pandas.array([True, None, False, True], dtype="boolean"),
            "c": pandas.Categorical(["u", "v", None, "u"]),
            "o": [{"q": None}, None, [1], float("nan")],
            "a": [np.arange(3), None, np.zeros(3, np.int64), np.ones(3, np.int64)],
            "t": np.arange(4).astype("M8[s]"),
        }
    )
    expected = {
        "n": np.arange(4, dtype=np.int8),
        "f": np.array([1.0, float("nan"), 2.0, 3.0]),
        "s": ["a", None, "c", "d"],
        "i": [np.int64(1), None, np.int64(3), np.int64(4)],
        "b": [np.True_, None, np.False_, np.True_],
        "c": ["u", "v", None, "u"],
        "o": [{"q": None}, None, [1], None],
        "a": [np.arange(3), None, np.zeros(3, np.int64), np.ones(3, np.int64)],
        "t": np.arange(4).astype("M8[s]"),
    }
    with ws.convert(frame, tmp_path / "store") as store:
        holds(store, expected)
        assert present(store)["o"] == [True, False, True, False]


def test_times_of_pandas_with_a_zone_are_those_in_utc(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    times = np.array(["2024-03-31T00:30", "2024-03-31T01:30", "NaT"], "M8[us]")
    aware = pandas.Series(times).dt.tz_localize("UTC").dt.tz_convert("Europe/Berlin")
    frame = pandas.DataFrame({"at": aware, "x": [1, 2, 3]})
    sources = (frame, frame.set_index("at"), {"at": aware, "x": [1, 2, 3]}, {"at": pandas.Index(aware), "x": [1, 2, 3]})
    for number, source in enumerate(sources):
        with ws.convert(source, tmp_path / f"{number}") as store:
            holds(store, {"at": times, "x": np.array([1, 2, 3])})


def test_an_index_of_pandas_is_a_field_or_refused(tmp_path: Path) -> None:
    pandas: Any = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"k": [3, 4, 5], "l": ["a", "b", "d"], "x": [1, 2, 3]})
    with ws.convert(frame[1:], tmp_path / "range") as store:
        holds(store, {"k": np.array([4, 5]), "l": ["b", "d"], "x": np.array([2, 3])})
    with ws.convert(frame.set_index("k"), tmp_path / "named") as store:
        holds(store, {"k": np.array([3, 4, 5]), "l": ["a", "b", "d"], "x": np.array([1, 2, 3])})
    with ws.convert(frame.set_index(["k", "l"]), tmp_path / "levels") as store:
        holds(store, {"k": np.array([3, 4, 5]), "l": ["a", "b", "d"], "x": np.array([1, 2, 3])})
    with pytest.raises(ws.SchemaMismatch, match=r"index of the data frame is called .*rename_axis"):
        ws.convert(frame.set_index("l").rename_axis(None), tmp_path / "unnamed")
    with pytest.raises(ws.SchemaMismatch, match="fields have names of one str"):
        ws.convert(frame.rename(columns={"x": 7}), tmp_path / "numbers")
    with pytest.raises(ws.BadSource, match="called 'x'"):
        ws.convert(pandas.concat([frame, frame[["x"]]], axis=1), tmp_path / "twice")


def test_a_polars_frame(tmp_path: Path) -> None:
    polars: Any = pytest.importorskip("polars")
    frame = polars.DataFrame(
        {"x": [1, None, 3], "s": ["a", None, "c"], "l": [[1], None, []], "r": [{"q": 1}, None, {"q": 2}]}
    )
    with ws.convert(polars.concat([frame, frame], rechunk=False), tmp_path / "store") as store:
        once = {
            "x": [np.int64(1), None, np.int64(3)],
            "s": ["a", None, "c"],
            "l": [np.array([1]), None, np.zeros(0, np.int64)],
            "r": [{"q": 1}, None, {"q": 2}],
        }
        holds(store, {name: values + values for name, values in once.items()})
        assert present(store)["r"] == [True, False, True] * 2
    with pytest.raises(ws.UnknownFormat, match=r"source\.collect\(\)"):
        ws.convert(frame.lazy(), tmp_path / "lazy")


WIDE = 2**53 + 1
COLUMNS: dict[str, Any] = {
    "pyarrow": lambda: pa.array([WIDE, None, 3]),
    "chunks": lambda: pa.chunked_array([[WIDE], [None, 3]]),
    "pandas": lambda: pytest.importorskip("pandas").Series([WIDE, None, 3], dtype="Int64"),
    "index": lambda: pytest.importorskip("pandas").Index([WIDE, None, 3], dtype="Int64"),
    "extension": lambda: pytest.importorskip("pandas").array([WIDE, None, 3], dtype="Int64"),
    "polars": lambda: pytest.importorskip("polars").Series([WIDE, None, 3]),
}


@pytest.mark.parametrize("form", ["dict", "batches"])
@pytest.mark.parametrize("kind", COLUMNS)
def test_columns_in_a_dict_are_what_they_are_in_a_frame(tmp_path: Path, kind: str, form: str) -> None:
    columns = {"a": COLUMNS[kind](), "b": np.arange(3), "c": ["x", None, "z"]}
    source: Any = columns if form == "dict" else iter([columns])
    with ws.convert(source, tmp_path / "store", batched=form == "batches") as store:
        assert store.fields == {"a": ws.Array("int64"), "b": ws.Array("int64"), "c": ws.Text()}
        holds(store, {"a": [WIDE, None, 3], "b": np.arange(3), "c": ["x", None, "z"]})


def test_none_is_no_value_in_a_series_and_a_value_in_a_list(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    objects = pd.Series([{"a": 1}, None, {"b": 2}])
    with ws.convert({"j": objects, "k": [{"a": 1}, None, {}]}, tmp_path / "store") as store:
        assert present(store) == {"j": [True, False, True], "k": [True] * 3}  # None is a value in a list


@pytest.mark.parametrize("values", [range(3), {"a": 1}, "abc", {1, 2}], ids=repr)
def test_other_objects_are_no_columns(tmp_path: Path, values: Any) -> None:
    with pytest.raises(ws.UnsupportedType, match=r"field 'x' is a .*; pass an array, a list, or a column"):
        ws.convert({"x": values}, tmp_path / "store")


def test_periods_are_refused(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"p": pd.period_range("2024-01", periods=2, freq="M"), "x": [1, 2]})
    frame.to_parquet(tmp_path / "x.parquet")
    for number, source in enumerate((frame, tmp_path / "x.parquet", {"p": frame["p"]})):
        with pytest.raises(ws.UnsupportedType, match="column 'p' holds periods"):
            ws.convert(source, tmp_path / f"{number}")
    with ws.convert(frame, tmp_path / "chosen", fields=["x"]) as store:
        assert store[:]["x"].tolist() == [1, 2]
