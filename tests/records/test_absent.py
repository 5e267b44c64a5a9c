"""What has no value has none after everything that copies, moves or hands out records, for every kind of field."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.faults.children import same
from tests.slow import thinned

import warmstore as ws

ABSENT = [False, True, False, True, True, False]
COUNT = len(ABSENT)

KINDS: dict[str, tuple[Any, list[Any]]] = {
    "int": (ws.Array("int64"), list(np.arange(COUNT))),
    "bool": (ws.Array("bool"), list(np.arange(COUNT) % 2 == 0)),
    "float": (ws.Array("float32", (2,)), list(np.full((COUNT, 2), np.nan, np.float32))),
    "time": (ws.Array("M8[s]"), list(np.array(["NaT", 1, "NaT", 3, 4, "NaT"], "M8[s]"))),
    "times": (ws.Array("m8[h]", (2,)), list(np.array([["NaT", 1]] * COUNT, "m8[h]"))),
    "complex": (ws.Array("complex64"), list(np.arange(COUNT).astype(np.complex64))),
    "brain": (ws.Array("bfloat16", (2,)), list(np.zeros((COUNT, 2), ml_dtypes.bfloat16))),
    "no bytes": (ws.Array("int8", (2, 0)), list(np.zeros((COUNT, 2, 0), np.int8))),
    "list": (ws.Ragged("int16"), [np.arange(at, dtype=np.int16) for at in range(COUNT)]),
    "points": (ws.Ragged("M8[D]", 2), [np.zeros((at, 2), "M8[D]") for at in range(COUNT)]),
    "bytes": (ws.Bytes(), [b""] * COUNT),
    "text": (ws.Text(), [""] * COUNT),
    "json": (ws.Json(), [None, 1, {"a": None}, [], "", None]),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["raw", "zstd"])
def store(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> ws.RecordStore:
    """Six records with a value `x` or without one, in two batches; `n` is the number of the record."""
    field, values = KINDS[kind]
    fields = {"x": dataclasses.replace(field, codec=request.param), "n": ws.Array("int64")}
    made = ws.RecordStore.create(tmp_path / "s", fields)
    nothing = np.ma.masked if kind == "json" else None
    for first, last in ((0, 4), (4, COUNT)):
        some = [nothing if ABSENT[at] else values[at] for at in range(first, last)]
        made.extend({"x": some, "n": np.arange(first, last)})
        made.flush()
    return made


def assert_kept(store: ws.RecordStore, values: list[Any]) -> None:
    """Each record of a store is as the fixture made the one of its number."""
    numbers = store["n"][:].tolist()
    assert store.present("x").tolist() == [not ABSENT[number] for number in numbers]
    for at, number in enumerate(numbers):
        value = store[at]["x"]
        expected = None if ABSENT[number] else values[number]
        assert same(bytes(value) if isinstance(value, memoryview) else value, expected), (at, value, expected)


def updated(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.update([1, 2], {"n": [1, 2]})
    return store


def deleted(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.delete([0, 1])
    return store


def rebalanced(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.delete(2)
    store.rebalance(progress=False)
    return store


def filtered(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    return store.filter(tmp_path / "filtered", [5, 4, 3, 1])


def filtered_by_a_function(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    return store.filter(tmp_path / "filtered", lambda batch: batch["n"] != 2)


def mapped(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.map_field("n", lambda batch: batch["n"] + 0, progress=False)
    return store


def with_another_field(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    field = store.fields["x"]
    store.add_field("more", field, progress=False)
    assert not store.present("more").any()
    store.drop_field("more", progress=False)
    return store


def reopened(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.close()
    return ws.RecordStore.open(store.path)


def repaired(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    store.seal()
    chunk = next(store.path.rglob("*.arrow"))
    data = bytearray(chunk.read_bytes())
    data[-20] ^= 1  # of the footer
    chunk.write_bytes(data)
    assert store.verify(repair=True, progress=False).repaired
    return store


def exported(suffix: str) -> Callable[[ws.RecordStore, Path], ws.RecordStore]:
    def through(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
        return ws.convert(ws.export(store, tmp_path / f"x.{suffix}"), tmp_path / "back")

    return through


def as_table(store: ws.RecordStore, tmp_path: Path) -> ws.RecordStore:
    return ws.convert(store.to_arrow(), tmp_path / "back")


WAYS = {
    **{way.__name__: way for way in (updated, deleted, rebalanced, filtered, filtered_by_a_function, mapped)},
    **{way.__name__: way for way in (with_another_field, reopened, repaired, as_table)},
    **{suffix: exported(suffix) for suffix in ("arrow", "parquet")},
}


@pytest.mark.parametrize("way", thinned(4, WAYS))
def test_absent_stays_absent(store: ws.RecordStore, kind: str, tmp_path: Path, way: str) -> None:
    with WAYS[way](store, tmp_path) as other:
        assert len(other) >= 4
        assert_kept(other, KINDS[kind][1])
    store.close()


def test_an_update_makes_and_ends_absence(store: ws.RecordStore) -> None:
    field = store.fields["x"]
    value = store[0]["x"]
    store.update([0, 1], {"x": [np.ma.masked if isinstance(field, ws.Json) else None, value]})
    assert store.present("x").tolist() == [False, True, *(not absent for absent in ABSENT[2:])]
    assert same(store[1]["x"], value) or bytes(store[1]["x"]) == bytes(value)
    store.close()


def absent_in(batch: Any) -> list[bool]:
    """Which values of a batch say that they are absent."""
    if isinstance(batch, np.ma.MaskedArray):
        return np.ma.getmaskarray(batch).reshape(len(batch), -1).all(axis=1).tolist()
    return [value is None for value in batch]


def test_absent_values_are_seen_in_batches(store: ws.RecordStore) -> None:
    """A Json field hands out null for both: `present` tells them apart."""
    field = store.fields["x"]
    nulls = [isinstance(field, ws.Json) and value is None for value in KINDS["json"][1]]
    expected = [absent or null for absent, null in zip(ABSENT, nulls, strict=True)]
    no_elements = isinstance(field, ws.Array) and not field.width
    batches = [store[:]["x"], store.with_format("numpy")[:]["x"]]
    loader = ws.Loader(store, batch_size=COUNT)
    batches += [batch["x"] for batch in loader]
    loader.close()
    for batch in batches:
        if no_elements:
            assert isinstance(batch, np.ma.MaskedArray)  # of which no element can be masked
        else:
            assert absent_in(batch) == expected
    store.close()


def test_samples_without_elements_are_no_absent_ones(tmp_path: Path) -> None:
    """All samples of such a batch were None if one was absent."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int8", (0,))}) as store:
        store.extend({"x": [np.zeros(0, np.int8), None]})
        present, _ = store.__getitems__([0, 1])
        assert present["x"].shape == (0,)


def test_arrays_and_tensors_that_cannot_say_it_refuse(store: ws.RecordStore, tmp_path: Path) -> None:
    field = store.fields["x"]
    tensors = store.with_format("torch")
    loader = ws.Loader(store, batch_size=COUNT, to="torch")
    if isinstance(field, ws.Array):
        with pytest.raises(ws.SchemaMismatch, match=r"absent|without a value"):
            np.asarray(store["x"])
        with pytest.raises(ws.SchemaMismatch, match=r"'?x'? has records without a value"):
            tensors[:]
        with pytest.raises(ws.SchemaMismatch, match="without a value"):
            next(iter(loader))
        with pytest.raises(ws.SchemaMismatch, match="field 'x' has records without a value, the first at position 1"):
            ws.export(store, tmp_path / "x.npy", fields=["x"])
    elif not (isinstance(field, ws.Ragged) and field.dtype.startswith("M8")):
        assert [value is None for value in np.asarray(store["x"])] == [value is None for value in store[:]["x"]]
        assert absent_in(tensors[:]["x"]) == [value is None for value in store[:]["x"]]
        assert absent_in(next(iter(loader))["x"]) == [value is None for value in store[:]["x"]]
    loader.close()
    store.close()


def test_a_cache_refuses_what_is_masked(tmp_path: Path) -> None:
    values = np.ma.MaskedArray(np.ones((2, 3), np.float32), [[True] * 3, [False] * 3])
    with ws.FeatureCache(tmp_path, "f") as cache:
        for outputs in (values, {"a": values}):
            with pytest.raises(ws.SchemaMismatch, match=r"masked.*filled"):
                cache.put_batch([1, 2], outputs)
        cache.put_batch([1, 2], {"a": np.ma.MaskedArray(np.ones((2, 3), np.float32)), "b": None})
    with ws.FeatureCache(tmp_path, "f") as cache:
        found, missing = cache.get_batch([1, 2])
        assert found["b"] is None
        assert not len(missing)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "no bytes"])
@pytest.mark.parametrize("codec", ["raw", "zstd"])
@pytest.mark.parametrize("record", [0, 3])  # of a batch in which another record has no value, and of one with all
def test_a_checksum_that_another_field_of_the_record_has_for_no_value_is_damage(
    kind: str, codec: str, record: int, tmp_path: Path
) -> None:
    field, values = KINDS[kind]
    fields = {"x": dataclasses.replace(field, codec=codec), "other": ws.Text()}
    nothing = np.ma.masked if kind == "json" else None
    with ws.RecordStore.create(tmp_path / "s", fields) as made:
        made.extend({"x": [*values[:2], nothing], "other": [None, "b", None]})
        made.flush()
        made.extend({"x": values[:2], "other": [None, "b"]})
    chunk = next((tmp_path / "s").rglob("*.arrow"))
    with ws.RecordStore.open(tmp_path / "s", mode="r") as store:
        table = store.to_arrow(checksums=True)
        batch = slice(0, 3) if record < 3 else slice(3, 5)
        sums, others = (table[f"{name}::xxh3"].to_numpy()[batch] for name in fields)
    data, at = chunk.read_bytes(), record - batch.start
    swapped = sums.copy()
    swapped[at] = others[at]
    assert data.count(sums.tobytes()) == 1
    chunk.write_bytes(data.replace(sums.tobytes(), swapped.tobytes()))
    with ws.RecordStore.open(tmp_path / "s", mode="r") as store:
        with pytest.raises(ws.Damaged):
            store["x"][[record]]
        with pytest.raises(ws.Damaged):
            store["x"][[record, 2]]
        assert store.present("x")[[1, 2, 4]].tolist() == [True, False, True]
        assert same(store[1]["x"], values[1]) or bytes(store[1]["x"]) == bytes(values[1])


@pytest.fixture
def scores(tmp_path: Path) -> ws.RecordStore:
    """Records 1 and 3 have no score."""
    store = ws.RecordStore.create(tmp_path / "scores", {"id": ws.Array("int64"), "score": ws.Array("float64")})
    store.extend({"id": range(5), "score": [0.9, None, 0.2, None, 0.3]})
    return store


SELECTIONS: dict[str, Callable[[ws.RecordStore, Any, Path], list[int]]] = {
    "gather": lambda store, mask, _: list(store[mask]["id"]),
    "field": lambda store, mask, _: list(store["id"][mask]),
    "matrix": lambda store, mask, _: list(store["id"][(mask,)]),
    "arrow": lambda store, mask, _: store.to_arrow(mask)["id"].to_pylist(),
    "filter": lambda store, mask, path: list(store.filter(path, mask)["id"][:]),
    "function": lambda store, mask, path: list(store.filter(path, lambda batch: batch["score"] < 0.5)["id"][:]),
    "update": lambda store, mask, _: (store.update(mask, {"id": [-1] * 2}), list(np.flatnonzero(store["id"][:] < 0)))[
        1
    ],
    "delete": lambda store, mask, _: (store.delete(mask), sorted({*range(5)} - {*store["id"][:].tolist()}))[1],
}


@pytest.mark.parametrize("way", SELECTIONS)
def test_a_mask_that_is_masked_selects_what_is_true(scores: ws.RecordStore, tmp_path: Path, way: str) -> None:
    """What no value was compared with was selected as if that had been 0, and deleted."""
    scores.flush()
    mask = scores["score"][:] < 0.5
    assert isinstance(mask, np.ma.MaskedArray)
    assert SELECTIONS[way](scores, mask, tmp_path / "filtered") == [2, 4]
    scores.close()


def test_masked_positions_are_refused(scores: ws.RecordStore) -> None:
    positions = np.ma.MaskedArray([2, 0, 4], [False, True, False])
    for use in (scores.gather, scores.delete, lambda index: scores["id"][index]):
        with pytest.raises(ws.PositionError, match=r"element 1 of the positions is masked.*compressed"):
            use(positions)
    assert scores["id"][np.ma.MaskedArray([2, 0])].tolist() == [2, 0]
    assert scores[positions.compressed()]["id"].tolist() == [2, 4]
    scores.close()
