"""Values that vary in length come as a list, padded, or packed, from stores and from everything else alike."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import warmstore as ws
from warmstore.loading.collate import Collation, stack
from warmstore.pipeline.stacked_batch import repeated
from warmstore.records.format.value_encoding import Packed

LENGTHS = [3, 0, 5]


@pytest.fixture(params=["store", "list"])
def source(request: pytest.FixtureRequest, store: ws.RecordStore) -> Any:
    if request.param == "store":
        return store
    return [store[at] for at in range(len(store))]


def batch_of(source: Any, collate: Any, at: Any = LENGTHS) -> Any:
    return ws.Dataset(source, collate=collate).__getitems__(np.array(at)).batch


def test_lists_are_left_alone(source: Any) -> None:
    batch = batch_of(source, "list")
    assert [value.shape for value in batch["points"]] == [(3, 2), (0, 2), (5, 2)]
    assert [bytes(value) for value in batch["jpeg"]] == [b"\3" * 3, b"", b"\5" * 5]


def test_packed_is_what_attention_kernels_take(source: Any) -> None:
    batch = batch_of(source, "packed")
    points = batch["points"]
    assert points["values"].dtype == np.float32
    assert points["values"].tolist() == [[3, 3]] * 3 + [[5, 5]] * 5
    assert points["cu_seqlens"].dtype == np.int32
    assert points["cu_seqlens"].tolist() == [0, 3, 3, 8]
    assert points["max_seqlen"] == 5
    assert batch["jpeg"]["values"].tolist() == [3] * 3 + [5] * 5
    assert batch["title"] == ["title 3", "title 0", "title 5"]
    assert batch["number"].tolist() == LENGTHS


def test_padded_has_lengths_and_a_mask(source: Any) -> None:
    points = batch_of(source, {"points": ws.Pad(-1)})["points"]
    assert points["values"].shape == (3, 5, 2)
    assert points["lengths"].tolist() == LENGTHS
    assert points["mask"].tolist() == [[at < length for at in range(5)] for length in LENGTHS]
    assert (points["values"][~points["mask"]] == -1).all()
    assert points["values"][points["mask"]].tolist() == [[3, 3]] * 3 + [[5, 5]] * 5
    longer = batch_of(source, {"points": ws.Pad(length=7)})["points"]
    assert longer["values"].shape == (*longer["mask"].shape, 2) == (3, 7, 2)
    with pytest.raises(ws.SchemaMismatch, match="points has length 5, more than 4"):
        batch_of(source, {"points": ws.Pad(length=4)})


def test_each_field_its_way(source: Any) -> None:
    batch = batch_of(source, {"points": "packed", "jpeg": "pad", "title": "packed"})
    assert set(batch["points"]) == {"values", "cu_seqlens", "max_seqlen"}
    assert set(batch["jpeg"]) == {"values", "lengths", "mask"}
    assert batch["title"]["values"].tobytes() == b"title 3title 0title 5"


def test_a_nested_batch(store: ws.RecordStore) -> None:
    batch = batch_of({"a": store, "p": store["points"]}, {"a": {"points": "packed"}, "p": "pad"})
    assert batch["a"]["points"]["max_seqlen"] == 5
    assert isinstance(batch["a"]["jpeg"], list)
    assert batch["p"]["values"].shape == (3, 5, 2)


def test_nothing_but_empty_values(source: Any) -> None:
    assert batch_of(source, {"jpeg": "pad"}, [0])["jpeg"]["values"].shape == (1, 0)
    packed = batch_of(source, {"points": "packed"}, [0, 0])["points"]
    assert packed["cu_seqlens"].tolist() == [0, 0, 0]
    assert packed["values"].shape == (0, 2)
    assert packed["max_seqlen"] == 0


def test_values_of_one_length_by_chance_are_what_the_others_are() -> None:
    rows = [{"x": np.full(2, at)} for at in range(3)]
    assert isinstance(batch_of(rows, "list", [0, 1])["x"], np.ndarray)
    assert [value.tolist() for value in batch_of(rows, {"x": "list"}, [0, 1])["x"]] == [[0, 0], [1, 1]]
    assert batch_of(rows, {"x": "packed"}, [0, 1])["x"]["values"].tolist() == [0, 0, 1, 1]


def test_absent_values_have_length_0(tmp_path: Any) -> None:
    with ws.RecordStore.create(tmp_path / "gaps", {"p": ws.Ragged("float32", 2)}) as store:
        store.extend({"p": [None, np.ones((2, 3), np.float32), None]})
    for source in (store.path, [{"p": None}, {"p": np.ones((2, 3), np.float32)}, {"p": None}]):
        packed = batch_of(source, {"p": "packed"}, [0, 1, 2])["p"]
        assert packed["cu_seqlens"].tolist() == [0, 0, 2, 2]
        assert packed["values"].shape == (2, 3)
        assert batch_of(source, {"p": "pad"}, [0, 1, 2])["p"]["lengths"].tolist() == [0, 2, 0]


def test_values_that_do_not_fit_together() -> None:
    def refused(values: list[Any], message: str) -> None:
        with pytest.raises(ws.SchemaMismatch, match=message):
            batch_of([{"x": value} for value in values], {"x": "packed"}, [0, 1])

    refused([np.zeros((2, 3)), np.zeros((4, 5))], "differ in more than their first dimension")
    refused([np.zeros(2), np.zeros(3, int)], r"dtypes \['float64', 'int64'\]")
    refused([np.zeros(2), np.zeros((3, 1))], r"dimensions \[1, 2\]")
    refused([np.zeros(()), np.zeros(2)], "dimensions")


def test_names_and_ways_that_are_not() -> None:
    rows = [{"x": np.zeros(at)} for at in range(3)]
    with pytest.raises(KeyError, match=r"names 'y', which batches do not have; they have \['x'\]"):
        ws.Loader(rows, 2, collate={"y": "pad"})
    for way in ("stack", 3, {"x": "stack"}, None):
        with pytest.raises(ValueError, match="collate must be"):
            ws.Loader(rows, 2, collate=way)
    with pytest.raises(ValueError, match="length of a Pad"):
        ws.Pad(length=0)
    with pytest.raises(ws.SchemaMismatch, match="x does not vary in length"):
        Collation.of({"x": "pad"})({"x": 3})


def test_long_batches_count_in_int64() -> None:
    class Huge(np.ndarray):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 2**31

    values = np.zeros(4).view(Huge)
    found = Collation.of("packed")(Packed(values, np.array([0, 4])))
    assert found["cu_seqlens"].dtype == np.int64


def test_everything_goes_to_torch(store: ws.RecordStore) -> None:
    (batch, *_) = ws.Loader(store, 4, collate={"points": "packed", "jpeg": "pad"}, to="torch", workers=2)
    assert batch["points"]["cu_seqlens"].dtype == torch.int32
    assert batch["points"]["max_seqlen"] == 3
    assert batch["jpeg"]["mask"].dtype == torch.bool
    assert batch["title"][3] == "title 3"


def test_stacking_keeps_dtypes() -> None:
    for dtype in (np.float16, np.float32, np.longdouble):
        assert stack([dtype(1), dtype(2)]).dtype == dtype
    assert stack([np.zeros(2, np.float16), np.zeros(2, np.float16)]).dtype == np.float16
    assert isinstance(stack([np.zeros(2, np.float16), np.zeros(2)]), list)
    assert stack([b"a", b"bc"]) == [b"a", b"bc"]


def test_lists_of_arrays_of_several_shapes_stay_lists() -> None:
    crops = [[np.full((size, 2), at) for size in (3, 1)] for at in range(2)]
    assert stack(crops) == crops
    assert stack([{"crops": one} for one in crops])["crops"] == crops
    assert stack([[1, 2], [3, 4]]).tolist() == [[1, 2], [3, 4]]


def test_arrays_of_objects_are_collated_as_lists_are() -> None:
    ragged, names = np.empty(3, object), np.array(["a", "bc", "d"], object)
    ragged[:] = [np.full(at, at, np.float32) for at in range(3)]
    for given in ("pad", {"x": "pad"}):
        batch = batch_of({"x": ragged, "name": names}, given, [1, 2])
        assert batch["x"]["values"].tolist() == [[1, 0], [2, 2]]
        assert batch["name"].tolist() == ["bc", "d"]
        assert batch["name"].dtype == object
    assert batch_of(ragged, "packed", [0, 1])["cu_seqlens"].tolist() == [0, 0, 1]
    assert batch_of(ragged, "list", [0, 1]).dtype == object
    tensors = next(iter(ws.Loader({"x": ragged}, 3, collate={"x": "list"}, to="torch")))["x"]
    assert [tensor.tolist() for tensor in tensors] == [[], [1], [2, 2]]


def test_empty_lists_have_the_type_of_the_others() -> None:
    tokens = [{"ids": ids} for ids in ([1, 2], [], [3])]
    assert [value.dtype for value in batch_of(tokens, "list", [0, 1, 2])["ids"]] == [np.int64] * 3
    assert batch_of(tokens, "packed", [0, 1, 2])["ids"]["cu_seqlens"].tolist() == [0, 2, 2, 3]
    assert batch_of(tokens, {"ids": "pad"}, [1, 2])["ids"]["values"].tolist() == [[0], [3]]
    points = stack([[], [[1, 2]], [[], []]])
    assert [value.shape for value in points] == [(0, 2), (1, 2), (2, 0)]
    assert {value.dtype for value in points} == {np.dtype(np.int64)}
    assert [value.dtype for value in stack([[], [1], [True]])] == [np.float64, np.int64, np.bool_]  # which one is open


@pytest.mark.parametrize("samples", [[{"a": 1}, {"a": 2, "b": 3}], [{"a": 1, "b": 3}, {"a": 2}]])
def test_samples_with_different_keys_are_refused(samples: Any) -> None:
    for loader in (ws.Loader(samples, 2), ws.Pipeline(samples).loader(batch_size=2, workers=0)):
        with loader, pytest.raises(ws.SchemaMismatch, match="'b'"):
            list(loader)


def test_unsigned_beside_signed_integers_are_not_rounded() -> None:
    exact = 2**53 + 1  # NumPy makes floats of the two
    for values in ([np.uint64(exact), np.int64(-2)], [np.int64(-exact), np.uint64(3)], [np.uint64(exact), np.int64(2)]):
        found = stack(values)
        assert found.dtype == np.int64
        assert found.tolist() == [int(value) for value in values]
    assert stack([np.uint64(2**63 + 1), np.int64(-2)]) == [2**63 + 1, -2]
    assert stack([2.0**60, 3]).dtype == np.float64


def test_integers_are_never_rounded() -> None:
    large = 2**63 + 1
    for values in ([large, 1], [1, large], [np.uint64(large), np.int64(1)]):
        assert stack(values).dtype == np.uint64
        assert stack(values).tolist() == values
    for values in ([large, -1], [-1, large], [2**64, 1]):
        assert stack(values) == values
    assert stack([[large, 1], [1, large]]).tolist() == [[large, 1], [1, large]]
    assert stack([[large, -1], [1, 2]]) == [[large, -1], [1, 2]]
    assert stack([1e30, 1]).tolist() == [1e30, 1]  # floats stay floats


def test_masked_arrays_stay_masked() -> None:
    plain, masked = np.arange(2), np.ma.MaskedArray([2, 3], [False, True])
    for samples in ([plain, masked], [masked, plain], [masked, masked]):
        found = stack(samples)
        assert isinstance(found, np.ma.MaskedArray)
        assert found.tolist() == [sample.tolist() for sample in samples]
    with ws.Pipeline([masked] * 3).loader(batch_size=2, workers=0, uneven="allow") as loader:
        assert [batch.mask.tolist() for batch in loader] == [[[False, True]] * 2, [[False, True]]]
    assert repeated(stack([masked]), 3).mask.tolist() == [[False, True]] * 3


def test_masked_elements_stay_masked_where_values_are_padded_or_packed() -> None:
    """A transform runs after the collation, so it could not fill what had become a number."""
    column = pa.array([[1, None, 3], [4], [5, 6]])
    wanted = {"pad": [[1, None, 3], [4, 0, 0], [5, 6, 0]], "packed": [1, None, 3, 4, 5, 6]}
    for collate, values in [*wanted.items(), (ws.PackRows(4), [[1, None, 3, 4], [5, 6, 0, 0]])]:
        (batch,) = ws.Loader({"x": pa.table({"x": column})}, 3, collate=collate)
        assert batch["x"]["x"]["values"].tolist() == values
        (batch,) = ws.Loader(pa.table({"x": column[1:]}), 3, collate=collate)
        assert type(batch["x"]["values"]) is np.ndarray
        with pytest.raises(ws.SchemaMismatch, match=r"x\.values has records without a value"):
            next(iter(ws.Loader(pa.table({"x": column}), 3, collate=collate, to="torch")))
    masked = np.ma.MaskedArray([[1, 2], [3, 4]], [[False, True], [False, False]])
    (batch,) = ws.Loader({"x": masked}, 2, collate={"x": "pad"})
    assert batch["x"]["values"].tolist() == [[1, None], [3, 4]]
