"""A batch stacked on the way equals one stacked at the end, whatever the samples, or says that it cannot be."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.loading.collate import stack
from warmstore.pipeline.stacked_batch import Reused, StackedBatch, Uneven, merged

rng = np.random.default_rng(0)

ALIKE: dict[str, list[Any]] = {
    "arrays": [rng.random((3, 4), np.float32) for _ in range(5)],
    "reversed": [rng.random((3, 4))[:, ::-1] for _ in range(5)],
    "no axes": [np.array(at) for at in range(5)],
    "bytes": [b"ab" * at for at in range(5)],
    "numbers": list(range(5)),
    "dicts": [{"x": rng.random(7), "label": at, "name": str(at)} for at in range(5)],
    "tuples": [(rng.random(7), {"of": np.arange(3) + at}) for at in range(5)],
    "objects": [np.array([{}], object) for _ in range(5)],
    "other byte order": [np.arange(3, dtype=">i4") for _ in range(5)],
}

UNEVEN: dict[str, list[Any]] = {
    "shapes": [np.zeros(3), np.zeros(1)],
    "dtypes": [np.zeros(3), np.zeros(3, np.float32)],
    "kinds": [np.zeros(3), [1.0, 2.0, 3.0]],
    "keys": [{"x": np.zeros(1)}, {"y": np.zeros(1)}],
    "more keys": [{"x": np.zeros(1)}, {"x": np.zeros(1), "y": 1}],
    "deep": [(1, {"of": np.zeros(1)}), (1, {"of": np.zeros(2)})],
    "lengths": [(np.zeros(1),), (np.zeros(1), 2)],
}


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[name], other[name]) for name in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tolist() == other.tolist()
    return bool(one == other)


@pytest.mark.parametrize("values", ALIKE.values(), ids=ALIKE)
def test_equals_a_stack_of_all(values: list[Any]) -> None:
    batch = StackedBatch(len(values), alike=True)
    for place in (3, 0, 4, 1, 2):
        batch.put(place, values[place])
    assert same(batch.stacked(), stack(values))


@pytest.mark.parametrize("values", UNEVEN.values(), ids=UNEVEN)
def test_samples_that_are_not_alike(values: list[Any]) -> None:
    batch = StackedBatch(len(values), alike=True)
    batch.put(0, values[0])
    with pytest.raises(Uneven):
        batch.put(1, values[1])


def test_shapes_that_vary_once_in_a_while() -> None:
    pipe = ws.Pipeline(list(range(12))).step(lambda value: np.full(2 if value == 9 else 1, value))
    with pipe.loader(None, batch_size=4, workers=0, sampler=ws.Sequential()) as loader:
        batches = list(loader)
    assert [type(batch) for batch in batches] == [np.ndarray, np.ndarray, list]
    assert [value.tolist() for value in batches[2]] == [[8], [9, 9], [10], [11]]


def batch_of(rows: list[int]) -> Any:
    return {"x": np.array(rows, np.float32)[:, None], "of": (np.array(rows), [str(row) for row in rows])}


BUFFER, WORDS = np.zeros(8), ["a"]


def into_buffer(index: int) -> Any:
    BUFFER[: index + 1] = index
    return BUFFER[: index + 1]


def into_list(index: int) -> Any:
    WORDS[:] = ["a"] * index
    return {"words": WORDS, "index": index}


def into_tensor(index: int) -> Any:
    BUFFER[: index + 1] = index
    return (torch.from_numpy(BUFFER)[: index + 1], "of varying length")


@pytest.mark.parametrize("function", [into_buffer, into_list, into_tensor])
def test_a_step_that_fills_one_buffer_anew(tmp_path: Path, function: Any) -> None:
    pipe = ws.Pipeline(range(6)).step(function, version="1", ignore=["BUFFER", "WORDS"])
    wanted = [repr(stack([copy.deepcopy(function(index)) for index in part])) for part in (range(4), range(4, 6))]
    for plan in (None, plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)):
        with pipe.loader(plan, 4, workers=0, sampler=ws.Sequential()) as loader:
            for _ in range(2):
                assert [repr(batch) for batch in loader] == wanted


def test_what_one_sample_has_twice_is_not_reused() -> None:
    kept = np.zeros(3)
    values = [{"x": x, "clean": x, "name": "a", "at": Path("a")} for x in (np.zeros(2), np.zeros(3), kept)]
    batch = StackedBatch(3, alike=False, finds_reuse=True)
    for at, value in enumerate(values):
        batch.put(at, value)
    with pytest.raises(Reused):
        batch.put(2, (kept,))


def test_parts_are_merged_in_their_places() -> None:
    made = merged([(np.array([3, 0]), batch_of([3, 0])), (np.array([1, 2]), batch_of([1, 2]))], 4)
    assert same(made, batch_of([0, 1, 2, 3]))


@pytest.mark.parametrize(
    "other",
    [
        {"x": np.zeros((1, 1))},
        {"x": np.zeros((1, 2), np.float32), "of": (np.zeros(1, np.int64), ["a"])},
        {"x": np.zeros((1, 1), np.float64), "of": (np.zeros(1, np.int64), ["a"])},
        {"x": np.zeros((1, 1), np.float32), "of": (np.zeros(1, np.int64), np.zeros(1))},
        {"x": np.zeros((1, 1), np.float32), "of": (["a"], ["a"])},
        {"of": (np.zeros(1, np.int64), ["a"]), "x": np.zeros((1, 1), np.float32)},
        [None],
    ],
)
def test_parts_of_other_forms_are_not_merged(other: Any) -> None:
    assert merged([(np.array([0]), batch_of([0])), (np.array([1]), other)], 2) is None
    if isinstance(other, dict):
        assert merged([(np.array([1]), other), (np.array([0]), batch_of([0]))], 2) is None
