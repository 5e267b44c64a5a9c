"""A state tells its data from other data of the same length, and knows the same data again wherever they are held."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import warmstore as ws
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.values.content_hash import ROWS, hash_of_plain, hash_of_values, spread

COUNT = 500


def identity(source: Any, **options: Any) -> Any:
    found = source_of(source, **options).identity
    assert json.loads(json.dumps(found)) == found
    return found


def test_rows_are_spread_evenly() -> None:
    for count in (0, 1, ROWS - 1, ROWS, ROWS + 1, 1000, 2**60):
        rows = spread(count)
        assert len(rows) == min(count, ROWS)
        if count:
            assert (rows[0], rows[-1]) == (0, count - 1)
            assert (np.diff(rows) >= 1).all()
            assert np.diff(rows).max(initial=0) <= -(-count // min(count, ROWS - 1))


def test_an_array_is_known_by_its_rows(tmp_path: Path) -> None:
    array = np.arange(COUNT * 2, dtype=np.float32).reshape(COUNT, 2)
    found = identity(array)
    assert (found["kind"], found["dtype"], found["shape"]) == ("array", "float32", [COUNT, 2])
    np.save(tmp_path / "x.npy", array)
    jax = pytest.importorskip("jax")
    for same in (array.copy(), torch.from_numpy(array), tmp_path / "x.npy", jax.numpy.asarray(array)):
        assert identity(same) == found
    for row in (0, COUNT - 1):
        other = array.copy()
        other[row] += 1
        assert identity(other)["hash"] != found["hash"]
    assert identity(array.astype(np.float64)) != found
    assert identity(array.reshape(COUNT, 2, 1)) != found
    assert identity(np.array([{1}], object))["hash"] is None  # what has no bytes of its own


def test_an_identity_is_computed_when_it_is_asked_for_and_once() -> None:
    array = np.arange(COUNT)
    source = source_of(array)
    array[0] = 7
    assert source.identity == identity(array)
    before = source.identity
    array[0] = 8
    assert source.identity == before
    assert pickle.loads(pickle.dumps(source)).identity == before


def test_lists_of_plain_values_are_known_by_all_of_them() -> None:
    for values in (
        [f"a{at}" for at in range(COUNT)],
        list(range(COUNT)),
        [b"x", b"y"],
        [1.5, 2],
        [Path("a/b"), Path("c")],
    ):
        found = identity(values)
        assert found["kind"] == "values"
        assert identity(tuple(values) if not isinstance(values[0], str) else list(values)) == found
        for at in (0, len(values) // 2, -1):
            other = list(values)
            other[at] = (
                other[at] / "x"
                if isinstance(other[at], Path)
                else other[at] + other[at] + other[at][:0]
                if isinstance(other[at], str | bytes)
                else -1
            )
            assert identity(other) != found
    assert identity([np.arange(2)] * 3) is None
    assert identity([{"x": 1}]) is None
    assert hash_of_plain(["ab", "c"]) != hash_of_plain(["a", "bc"])
    assert hash_of_plain(["1"]) != hash_of_plain([1])
    assert hash_of_plain(["\ud800"]) is not None


def test_a_long_range_is_known_without_a_look_at_each_number() -> None:
    long = 2**40
    loader = ws.Loader(range(long), 4, "shuffle")
    next(iter(loader))
    state = loader.state_dict()
    ws.Loader(range(0, long, 1), 4, "shuffle").load_state_dict(state)
    with pytest.raises(ws.BadState, match="identity"):
        ws.Loader(range(1, long + 1), 4, "shuffle").load_state_dict(state)
    assert identity(range(COUNT)) == identity(list(range(COUNT)))


def test_values_that_look_alike_have_other_hashes() -> None:
    values = [1, "1", b"1", True, None, 1.0, [1], [[1]], {"a": 1}, np.array([1]), np.array([1], "i4"), np.zeros((1, 0))]
    hashes = [hash_of_values([value]) for value in values]
    assert len(set(hashes)) == len(hashes)
    masked = np.ma.MaskedArray([1, 2], [False, True])
    assert hash_of_values(masked) == hash_of_values(np.ma.MaskedArray([1, 3], [False, True]))
    assert hash_of_values(masked) != hash_of_values(np.array([1, 0]))
    assert hash_of_values([object()]) is None


def test_sources_side_by_side_are_known_each(store: ws.RecordStore) -> None:
    x = np.arange(23)
    for source, names in (({"x": x, "s": store}, ["x", "s"]), ((x, store), ["0", "1"])):
        found = identity(source)
        assert (found["kind"], list(found["sources"])) == ("aligned", names)
        assert found["sources"][names[0]] == identity(x)
    mixed = identity(ws.Mixture({"a": x, "b": x + 1}, {"a": 0.5, "b": 0.5}))
    assert (mixed["kind"], mixed["parts"]["b"]) == ("mixture", identity(x + 1))


def test_a_table_is_known_by_its_schema_and_rows() -> None:
    table = pa.table(
        {"x": np.arange(COUNT), "name": [str(at) for at in range(COUNT)], "l": [[at] for at in range(COUNT)]}
    )
    found = identity(table)
    assert (found["kind"], found["rows"]) == ("table", COUNT)
    assert found["hash"] is not None
    chunked = pa.concat_tables([table.slice(0, 7), table.slice(7)])
    assert identity(chunked) == found
    assert identity(table.rename_columns(["x", "text", "l"])) != found
    assert identity(table, fields=["x"]) != found
    assert identity(table.set_column(0, "x", pa.array(np.r_[np.arange(COUNT - 1), -1])))["hash"] != found["hash"]
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": range(COUNT), "name": "a"})
    assert identity(frame) == identity(frame.copy()) != identity(frame.assign(name="b"))


def test_a_hugging_face_data_set_is_known_by_its_fingerprint() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    assert identity(data) == {"kind": "hugging_face", "fingerprint": data._fingerprint}
    assert identity(data.map(lambda row: {"x": row["x"] + 1})) != identity(data)


def test_a_store_is_known_by_its_deletes(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(5)})
        store.flush()
        first = identity(store)
        assert first == {"kind": "store", "store": store._manifest.id, "generation": 1, "deletes": 0}
        assert identity(store["x"]) == first
        store.extend({"x": np.arange(5)})
        store.flush()
        store.update(0, {"x": 9})
        assert identity(store) == first  # positions stay
        store.delete([0, 3])
        store.delete(1)
        assert identity(store) == {**first, "deletes": 2}
        with ws.RecordStore.open(tmp_path / "s") as other:
            assert identity(other) == identity(store)
        store.rebalance()
        assert identity(store) == {**first, "generation": 2}


def test_a_state_of_other_data_is_refused() -> None:
    state = ws.Loader(np.arange(10), 3).state_dict()
    ws.Loader(torch.arange(10), 3).load_state_dict(state)
    with pytest.raises(ws.BadState, match="identity"):
        ws.Loader(np.arange(10) + 1, 3).load_state_dict(state)
