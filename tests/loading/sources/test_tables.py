"""Frames and tables as sources: the values are those of the rows, whatever library and layout holds them."""

import datetime
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import warmstore as ws

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

COUNT = 7
AT = np.array([5, 0, 2, 5])
TEXT = list("abcdefg")


def batch_of(source: Any, **options: Any) -> Any:
    """The samples at AT."""
    return ws.Dataset(source, **options).__getitems__(AT).batch


def plain(values: Any) -> Any:
    """As Python has it."""
    if isinstance(values, dict):
        return {name: plain(part) for name, part in values.items()}
    return (
        [plain(value) for value in values] if isinstance(values, list) else getattr(values, "tolist", lambda: values)()
    )


def test_fields_are_names_in_any_iterable(store: ws.RecordStore) -> None:
    frame = pd.DataFrame({"x": range(COUNT), "y": range(COUNT), "z": range(COUNT)})
    names = ["x", "z"]
    for fields in (frame.columns.drop("y"), np.array(names), dict.fromkeys(names), (name for name in names)):
        assert list(batch_of(frame, fields=fields)) == names
    assert list(batch_of({"a": frame, "b": frame}, fields=iter(names))["b"]) == names
    assert list(batch_of(store, fields=pd.Index(["title", "number"]))) == ["title", "number"]
    with pytest.raises(KeyError, match="has no column 'w'"):
        ws.Loader(frame, 2, fields=pd.Index(["w"]))


def test_columns_of_pandas() -> None:
    frame = pd.DataFrame(
        {
            "whole": np.arange(COUNT, dtype=np.int16),
            "float": [0.0, np.nan, 2, 3, 4, 5, 6],
            "truth": [True, False] * 3 + [True],
            "text": ["a", None, *TEXT[2:]],
            "raw": [b"a\0"] * COUNT,
            "category": pd.Categorical(list("abcabca")),
            "nullable": pd.array([None, *range(1, COUNT)], dtype="Int64"),
            "ragged": [[1.0] * at for at in range(COUNT)],
            "struct": [{"x": at, "name": str(at)} for at in range(COUNT)],
            "object": [np.full((2, at), at) for at in range(COUNT)],
            "mixed": [1, "a", None, 2.5, b"", "u", []],
            "complex": np.arange(COUNT) * 1j,
        }
    )
    batch = batch_of(frame)
    assert batch["whole"].dtype == np.int16
    assert batch["whole"].tolist() == AT.tolist()
    assert batch["float"].tolist() == [5, 0, 2, 5]
    assert np.isnan(ws.Dataset(frame)[1]["float"])  # a number, and no gap
    assert batch["truth"].dtype == bool
    assert batch["truth"].tolist() == [False, True, True, False]
    assert batch["text"] == ["f", "a", "c", "f"]
    assert ws.Dataset(frame)[1]["text"] is None
    assert {type(text) for text in batch["text"]} == {str}
    assert batch["raw"] == [b"a\0"] * 4
    assert batch["category"] == ["c", "a", "c", "c"]
    assert batch["nullable"].tolist() == [5, None, 2, 5]
    assert plain(batch["ragged"]) == [[1.0] * at for at in AT]
    assert plain(batch["struct"]) == {"x": AT.tolist(), "name": [str(at) for at in AT]}
    assert [value.shape for value in batch["object"]] == [(2, at) for at in AT]
    assert batch["mixed"] == ["u", 1, None, "u"]
    assert batch["complex"].tolist() == (AT * 1j).tolist()


def test_times_of_pandas() -> None:
    times = pd.Series(pd.date_range("2020-01-01", periods=COUNT, unit="ns"))
    times[2] = pd.NaT
    frame = pd.DataFrame({"at": times, "zone": times.dt.tz_localize("Europe/Berlin"), "span": times - times[0]})
    batch = batch_of(frame)
    assert batch["at"].dtype == "M8[ns]"
    assert batch["at"].astype("M8[D]").astype(str).tolist() == ["2020-01-06", "2020-01-01", "NaT", "2020-01-06"]
    assert batch["zone"][1] == np.datetime64("2019-12-31T23:00")
    assert batch["span"].astype("m8[D]").astype(float)[[0, 1]].tolist() == [5, 0]
    assert np.isnat(batch["span"][2])


def test_columns_of_polars() -> None:
    frame = pl.DataFrame(
        {
            "whole": [0, 1, None, 3, 4, 5, 6],
            "float": [0.0, float("nan"), None, 3.0, 4.0, 5.0, 6.0],
            "text": TEXT,
            "category": pl.Series(list("abcabca"), dtype=pl.Categorical),
            "vector": pl.Series([[float(at)] * 2 for at in range(COUNT)], dtype=pl.Array(pl.Float32, 2)),
            "ragged": [[1] * at for at in range(COUNT)],
            "struct": [{"x": at, "name": str(at)} for at in range(COUNT)],
            "day": [datetime.date(2020, 1, 1 + at) for at in range(COUNT)],
            "object": pl.Series([{"x": at} for at in range(COUNT)], dtype=pl.Object),
        }
    )
    batch = batch_of(frame)
    assert batch["whole"].tolist() == [5, 0, None, 5]
    assert batch["float"].tolist() == [5, 0, None, 5]
    assert np.isnan(ws.Dataset(frame)[1]["float"])
    assert batch["text"] == ["f", "a", "c", "f"]
    assert batch["category"] == ["c", "a", "c", "c"]
    assert batch["vector"].tolist() == [[at, at] for at in AT]
    assert plain(batch["ragged"]) == [[1] * at for at in AT]
    assert plain(batch["struct"]) == {"x": AT.tolist(), "name": [str(at) for at in AT]}
    assert batch["day"].tolist() == [datetime.date(2020, 1, 1 + at) for at in AT]
    assert plain(batch["object"]) == {"x": AT.tolist()}
    assert batch_of(frame["whole"]).tolist() == [5, 0, None, 5]


TABLE = pa.table(
    {
        "whole": pa.array(range(COUNT), pa.uint8()),
        "gaps": pa.array([None, 1.5, None, 3, 4, 5, 6]),
        "half": pa.array(np.arange(COUNT, dtype=np.float16)),
        "truth": pa.array([None, True, False, True, True, True, False]),
        "large": pa.array(TEXT, pa.large_string()),
        "view": pa.array(TEXT, pa.string_view()),
        "raw": pa.array([b"\0"] * COUNT),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(COUNT * 6).reshape(COUNT, 2, 3)),
        "pair": pa.array([None if at == 2 else [at, at] for at in range(COUNT)], pa.list_(pa.int32(), 2)),
        "pairs": pa.array([[at, None] for at in range(COUNT)], pa.list_(pa.int32(), 2)),
        "words": pa.array([["a"] * at for at in range(COUNT)]),
        "two": pa.array([["a", "b"]] * COUNT, pa.list_(pa.string(), 2)),
        "lists": pa.array([None if at == 2 else [1] * at for at in range(COUNT)], pa.list_(pa.int8())),
        "listview": pa.array([[at] * at for at in range(COUNT)], pa.list_view(pa.int8())),
        "deep": pa.array([[[1] * at, []] for at in range(COUNT)]),
        "records": pa.array([[{"x": at}] for at in range(COUNT)]),
        "struct": pa.array([{"x": at, "y": {"z": str(at)}} for at in range(COUNT)]),
        "code": pa.array(list("abcabca")).dictionary_encode(),
        "codes": pa.array([["a", "b"]] * COUNT, pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        "time": pa.array([at * 10**9 for at in range(COUNT)], pa.timestamp("ns")),
        "never": pa.array([None] * COUNT, pa.timestamp("s")),
        "date64": pa.array([datetime.date(2020, 1, 1 + at) for at in range(COUNT)], pa.date64()),
        "clock": pa.array(list(range(COUNT)), pa.time32("s")),
        "decimal": pa.array(range(COUNT)).cast(pa.decimal128(25)),
        "null": pa.nulls(COUNT),
    }
)
EXPECTED = {
    "whole": [5, 0, 2, 5],
    "gaps": [5, None, None, 5],
    "half": [5, 0, 2, 5],
    "truth": [True, None, False, True],
    "large": ["f", "a", "c", "f"],
    "view": ["f", "a", "c", "f"],
    "raw": [b"\0"] * 4,
    "tensor": np.arange(COUNT * 6).reshape(COUNT, 2, 3)[AT].tolist(),
    "pair": [[5, 5], [0, 0], [None, None], [5, 5]],
    "pairs": [[5, None], [0, None], [2, None], [5, None]],
    "words": [["a"] * 5, [], ["a"] * 2, ["a"] * 5],
    "two": [["a", "b"]] * 4,
    "lists": [[1] * 5, [], None, [1] * 5],
    "listview": [[5] * 5, [], [2] * 2, [5] * 5],
    "deep": [[[1] * 5, []], [[], []], [[1] * 2, []], [[1] * 5, []]],
    "records": [[{"x": 5}], [{"x": 0}], [{"x": 2}], [{"x": 5}]],
    "struct": {"x": [5, 0, 2, 5], "y": {"z": ["5", "0", "2", "5"]}},
    "code": ["c", "a", "c", "c"],
    "codes": [["a", "b"]] * 4,
    "time": [at * 10**9 for at in AT.tolist()],
    "never": [None] * 4,
    "date64": [datetime.datetime(2020, 1, 1 + at) for at in AT.tolist()],
    "clock": [datetime.timedelta(seconds=at) for at in AT.tolist()],
    "decimal": [5, 0, 2, 5],
    "null": [None] * 4,
}


@pytest.mark.parametrize("name", TABLE.column_names)
@pytest.mark.parametrize("chunks", [1, 3])
def test_columns_of_arrow(name: str, chunks: int) -> None:
    column = TABLE[name]
    if chunks > 1:
        column = pa.chunked_array([column.slice(0, 1).chunk(0), column.slice(1, 0).chunk(0), column.slice(1).chunk(0)])
    found = batch_of(pa.table({"x": column}))["x"]
    assert plain(found) == EXPECTED[name]
    assert plain(batch_of(column)) == EXPECTED[name]
    assert plain(pickle.loads(pickle.dumps(ws.Dataset(column))).__getitems__(AT).batch) == EXPECTED[name]


def test_record_batches_and_arrays() -> None:
    batch = TABLE.combine_chunks().to_batches()[0]
    assert batch_of(batch.select(["whole", "large"]))["large"] == EXPECTED["large"]
    assert batch_of(batch.column("whole")).tolist() == AT.tolist()
    assert batch_of(pd.Series(TEXT)) == EXPECTED["large"]
    assert batch_of(pd.Index(range(COUNT))).tolist() == AT.tolist()
    assert len(ws.Dataset(pa.chunked_array([], pa.int8()))) == 0


def test_a_tensor_whose_dimensions_are_permuted() -> None:
    kind = pa.fixed_shape_tensor(pa.int64(), [2, 3], permutation=[1, 0])
    column = pa.ExtensionArray.from_storage(kind, pa.array([list(range(6))] * COUNT, pa.list_(pa.int64(), 6)))
    assert batch_of(column)[0].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_nothing_in_a_batch_is_the_tables() -> None:
    frame = pd.DataFrame(
        {"x": np.arange(COUNT), "list": [[0] * at for at in range(COUNT)], "d": [{1, at} for at in range(COUNT)]}
    )
    table = TABLE.select(["whole", "tensor", "lists", "pair", "truth", "time"])
    for source in (frame, table, pl.DataFrame({"x": range(COUNT)})):
        before = plain(batch_of(source))
        batch = batch_of(source)
        for values in batch.values():
            for part in values if isinstance(values, list) else [values]:
                if isinstance(part, np.ndarray):
                    assert part.flags.writeable
                    part[...] = 1
                elif isinstance(part, set):
                    part.clear()
        assert plain(batch_of(source)) == before


def test_fields_choose_columns() -> None:
    for source in (TABLE, TABLE.to_batches()[0], pd.DataFrame({"x": [1] * COUNT, "whole": range(COUNT)})):
        assert list(batch_of(source, fields=["whole"])) == ["whole"]
        with pytest.raises(KeyError, match=r"no column 'hole'.*'whole'"):
            ws.Dataset(source, fields=["hole"])


@pytest.mark.parametrize(
    "source",
    [
        {"a": np.zeros(2), "b": np.zeros(2)},
        [{"a": 1, "b": 2}],
        ws.Dataset({"a": np.zeros(2)}),
        lambda: iter([{"a": 1, "b": 2}]),
        pa.array([1]),
    ],
    ids=lambda source: type(source).__name__,
)
def test_fields_of_what_has_none_are_refused(source: Any) -> None:
    for kind in (ws.Dataset, lambda source, fields: ws.Loader(source, 2, fields=fields)):
        with pytest.raises(ValueError, match=rf"fields=\['a'\] chooses among .*a {type(source).__name__} has none"):
            kind(source, fields=["a"])


def test_two_columns_of_one_name_are_refused() -> None:
    for source in (
        pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]),
        pd.DataFrame([[1, 2]], columns=["x", "x"]),
    ):
        with pytest.raises(ws.BadSource, match="two columns are called 'x'"):
            ws.Dataset(source)


def test_a_column_that_cannot_be_read_by_position() -> None:
    column = pa.array([["a"]] * 3, pa.list_(pa.string_view()))
    try:
        column.take(pa.array([0]))
    except pa.ArrowNotImplementedError:
        with pytest.raises(ws.BadSource, match="Cast it first"):
            ws.Dataset(column)
    else:
        assert ws.Dataset(column)[0] == ["a"]


def test_frames_in_a_loader() -> None:
    frame = pd.DataFrame({"x": np.arange(COUNT, dtype=np.float32), "name": TEXT})
    batches = list(ws.Loader({"frame": frame, "y": np.arange(COUNT)}, 3, to="torch"))
    assert [batch["frame"]["x"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5], [6]]
    assert batches[0]["frame"]["name"] == ["a", "b", "c"]
    assert ws.Loader(frame[["x"]], 3).workers == 0  # a mere copy
