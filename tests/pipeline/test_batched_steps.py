"""Batched steps: every way of consuming gives what the samples give one by one, and a false claim raises."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.pipeline.making import check, expected, plan_of, same
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import SchemaMismatch
from warmstore.pipeline.pipeline import Pipeline

pytestmark = pytest.mark.forks


class Pair(NamedTuple):
    x: Any
    y: int


def table(index: int) -> dict[str, Any]:
    rng = np.random.default_rng(index)
    return {"x": rng.random((4, 3)), "label": index, "name": f"n{index}"}


def scaled(batch: dict[str, Any], by: float) -> dict[str, Any]:
    batch["x"] *= by
    return batch


def named(batch: dict[str, Any]) -> dict[str, Any]:
    assert isinstance(batch["name"], list)
    return {
        **batch,
        "length": np.array([len(name) for name in batch["name"]]),
        "upper": [*map(str.upper, batch["name"])],
    }


def flipped(batch: dict[str, Any], rngs: Any) -> dict[str, Any]:
    flips = np.array([rng.random() < 0.5 for rng in rngs])
    return {**batch, "x": np.where(flips[:, None, None], batch["x"][:, ::-1], batch["x"])}


def whole(count: int = 40) -> Pipeline:
    pipe = ws.Pipeline(range(count)).step(table).step(scaled, batched=True, by=3.0)
    return pipe.step(named, batched=True).step(flipped, batched=True, random=True)


def flipped_one(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "x": sample["x"][::-1] if rng.random() < 0.5 else sample["x"]}


def reference(count: int = 40) -> Pipeline:
    """The samples of `whole`, from steps that know nothing of batches."""
    pipe = ws.Pipeline(range(count)).step(table)
    pipe = pipe.step(lambda sample, by: {**sample, "x": sample["x"] * by}, by=3.0)
    pipe = pipe.step(lambda sample: {**sample, "length": len(sample["name"]), "upper": sample["name"].upper()})
    return pipe.step(flipped_one, random=True)


PLACES: list[list[tuple[int, str, str]]] = [
    [],
    [(1, "memory", "raw")],
    [(1, "memory", "raw"), (1, "disk", "zstd")],
    [(2, "disk", "raw")],
    [(3, "memory", "raw"), (1, "disk", "raw")],
]


@pytest.mark.parametrize("placements", thinned(2, PLACES))
@pytest.mark.parametrize("workers", [0, 2])
def test_whole_batches_equal_samples_one_by_one(placements: Any, workers: int, tmp_path: Path) -> None:
    pipe = whole()
    plan = plan_of(pipe, placements, folder=tmp_path, workers=workers)
    with pipe.loader(plan, 7, seed=3, start_method="fork") as loader:
        check(loader, lambda epoch: expected(reference(), 7, 3, epoch), range(3))


def test_whole_batches_are_what_is_run(tmp_path: Path) -> None:
    sizes: list[int] = []

    def seen(batch: Any) -> Any:
        sizes.append(len(batch["label"]))
        return batch

    pipe = ws.Pipeline(range(40)).step(table).step(seen, batched=True, version="1", ignore=["sizes"])
    plan = plan_of(pipe, [(1, "memory", "raw")], [40], folder=tmp_path)
    with pipe.loader(plan, 10) as loader:
        for _ in range(2):
            list(loader)
    first = [10] + [1] * 10 + [10] * 3  # the first batch is compared with its samples
    assert sizes == first + [10] * 4


def test_samples_of_a_data_set_are_batches_of_one() -> None:
    pipe = whole()
    data = pipe.dataset(seed=3)
    with pipe.loader(batch_size=40, workers=0, seed=3, sampler=ws.Sequential()) as loader:
        (batch,) = list(loader)
    for index in (0, 17, 39):
        sample = data[index]
        assert list(sample) == list(batch)
        assert all(same(np.asarray(sample[name]), np.asarray(batch[name][index])) for name in batch)


def test_a_step_after_a_batched_one_gets_samples() -> None:
    pipe = ws.Pipeline(range(6)).step(table).step(scaled, batched=True, by=2.0).step(lambda sample: sample["x"].sum())
    with pipe.loader(batch_size=3, workers=0, sampler=ws.Sequential()) as loader:
        made = np.concatenate(list(loader))
    assert made.tolist() == [(table(index)["x"] * 2.0).sum() for index in range(6)]


def centred(batch: Any) -> Any:
    return {**batch, "x": batch["x"] - batch["x"].mean(0)}


def shorter(batch: Any) -> Any:
    return {**batch, "x": batch["x"][1:]}


def one_number(batch: Any) -> Any:
    return batch["x"].sum()


def float_labels(batch: Any) -> Any:
    return {**batch, "label": batch["label"] if len(batch["label"]) == 1 else batch["label"] + 0.0}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (centred, r"'centred' gave others: \['x'\], row 0"),
        (float_labels, r"'float_labels' gave others"),
        (shorter, "'shorter' is batched and must return"),
        (one_number, "'one_number' is batched and must return"),
    ],
)
def test_a_false_claim_raises(step: Callable[[Any], Any], message: str) -> None:
    pipe = ws.Pipeline(range(8)).step(table).step(step, batched=True)
    with pipe.loader(batch_size=4, workers=0) as loader, pytest.raises(SchemaMismatch, match=message):
        list(loader)


@pytest.mark.parametrize("kind", [tuple, Pair])
def test_a_false_claim_about_one_part_of_a_tuple_raises(kind: type) -> None:
    def centred_x(batch: Any) -> Any:
        return Pair(batch.x - batch.x.mean(0), batch.y) if kind is Pair else (batch[0] - batch[0].mean(0), batch[1])

    pipe = ws.Pipeline(range(8)).step(lambda index: (np.full(3, float(index)), index))
    pipe = pipe.step(lambda batch: Pair(*batch) if kind is Pair else batch, batched=True).step(centred_x, batched=True)
    with pipe.loader(batch_size=4, workers=0) as loader, pytest.raises(SchemaMismatch, match=r"\[0\], row 0"):
        list(loader)


def test_a_batch_of_one_does_not_count_as_compared() -> None:
    pipe = ws.Pipeline(range(5)).step(table).step(centred, batched=True)
    data = pipe.dataset()
    data[0]
    with pytest.raises(SchemaMismatch, match="gave others"):
        data.__getitems__([1, 2])


def test_an_error_names_the_sample() -> None:
    def refuse(batch: Any) -> Any:
        if (batch["label"] == 5).any():
            raise RuntimeError("five")
        return batch

    pipe = ws.Pipeline(range(8)).step(table).step(refuse, batched=True)
    with pipe.loader(batch_size=8, workers=0) as loader, pytest.raises(RuntimeError, match="five") as caught:
        list(loader)
    assert any("in step 'refuse' of sample 5" in note for note in caught.value.__notes__)


def test_an_error_of_whole_batches_says_so() -> None:
    def refuse(batch: Any) -> Any:
        if len(batch["label"]) > 1:
            raise RuntimeError("too many")
        return batch

    pipe = ws.Pipeline(range(8)).step(table).step(refuse, batched=True)
    with pipe.loader(batch_size=8, workers=0) as loader, pytest.raises(RuntimeError) as caught:
        list(loader)
    assert any("raise no error one by one" in note for note in caught.value.__notes__)


MIXED: dict[str, Callable[[int], Any]] = {
    "shapes": lambda index: {"x": np.ones(index % 3 + 1)},
    "numbers": lambda index: {"x": index if index % 2 else index / 3},
    "large numbers": lambda index: {"x": 2**63 + index if index % 2 else index},
    "objects": lambda index: {"x": [np.ones(2), "text"], "y": index},
    "tensors": lambda index: {"x": torch.full((2,), index)},
    "scalars": lambda index: np.float32(index) if index % 2 else np.float64(index),
    "names": lambda index: {"x": str(index)} if index % 2 else {"x": None},
}


def types(batch: Any) -> Any:
    """What tells dtypes and containers apart."""
    column = batch["x"] if isinstance(batch, dict) else batch
    kind = column.dtype.str if isinstance(column, np.ndarray) else "list"
    return {"kind": [kind] * len(column), "size": np.full(len(column), column[0].size if kind != "list" else 0)}


@pytest.mark.parametrize("name", thinned(3, MIXED))
@pytest.mark.parametrize("cached", [False, True])
def test_samples_that_do_not_stack_alike_run_one_by_one(name: str, cached: bool, tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(12)).step(MIXED[name]).step(types, batched=True)
    plan = plan_of(pipe, [(1, "disk", "raw")], [12], folder=tmp_path) if cached else None
    wanted = [pipe[index] for index in range(12)]
    with pipe.loader(plan, 4, workers=0, sampler=ws.Sequential()) as loader:
        for _ in range(2):
            batches = list(loader)
            assert [kind for batch in batches for kind in batch["kind"]] == [sample["kind"] for sample in wanted]
            assert np.concatenate([batch["size"] for batch in batches]).tolist() == [
                sample["size"] for sample in wanted
            ]


def test_samples_that_are_named_tuples() -> None:
    pipe = ws.Pipeline(range(8)).step(lambda index: Pair(np.full(3, index), index))
    pipe = pipe.step(lambda batch: batch._replace(x=batch.x * 2), batched=True)
    with pipe.loader(batch_size=4, workers=0, sampler=ws.Sequential()) as loader:
        batches = list(loader)
    assert type(batches[0]) is Pair
    assert batches[1].x[:, 0].tolist() == [8, 10, 12, 14]
    assert batches[1].y.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_order_of_a_batch_in_memory_does_not_depend_on_what_is_cached(library: str, tmp_path: Path) -> None:
    """Last bits of sums do."""

    def turned(index: int) -> Any:
        image = np.random.default_rng(index).random((16, 12, 3), np.float32)
        return image.transpose(2, 0, 1) if library == "numpy" else torch.from_numpy(image).permute(2, 0, 1)

    pipe = ws.Pipeline(range(16)).step(turned)
    strides = []
    for plan in (None, plan_of(pipe, [(1, "disk", "raw")], [16], folder=tmp_path), plan_of(pipe, [], folder=tmp_path)):
        with pipe.loader(plan, 8, workers=0) as loader:
            strides += [batch.strides for _ in range(2) for batch in loader]
    assert len(set(strides)) == 1


def test_what_a_step_keeps_does_not_reach_batches() -> None:
    held = np.zeros((4, 2))

    def fill(batch: Any) -> Any:
        held[: len(batch)] = batch[:, None]
        return held[: len(batch)]

    def both(batch: Any) -> Any:
        return {"a": batch, "b": batch}

    def add(batch: Any) -> Any:
        batch["a"] += 1
        return batch

    pipe = ws.Pipeline(range(8)).step(float).step(fill, batched=True, version="1", ignore=["held"])
    pipe = pipe.step(both, batched=True).step(add, batched=True)
    with pipe.loader(batch_size=4, workers=0, sampler=ws.Sequential()) as loader:
        first, second = list(loader)
    assert first["b"][:, 0].tolist() == [0, 1, 2, 3]
    assert first["a"][:, 0].tolist() == [1, 2, 3, 4]
    assert second["a"][:, 0].tolist() == [5, 6, 7, 8]


def test_being_batched_is_part_of_the_identity(tmp_path: Path) -> None:
    def length(batch: Any) -> Any:
        return np.array([len(batch)]) if batch.ndim == 1 else np.full(len(batch), -1)

    pipes = [
        ws.Pipeline(range(4)).step(lambda index: np.full(3, index)).step(length, batched=batched)
        for batched in (True, False)
    ]
    for pipe, value in zip(pipes, ([-1] * 4, [[3]] * 4), strict=True):
        plan = plan_of(pipe, [(2, "disk", "raw")], [4], folder=tmp_path)
        for _ in range(2):
            with pipe.loader(plan, 4, workers=0) as loader:
                (batch,) = list(loader)
            assert batch.tolist() == value


def test_generators_are_those_of_the_samples() -> None:
    def draw(batch: Any, rngs: Any) -> Any:
        assert len(rngs) == len(batch)
        return np.array([rng.random() for rng in rngs])

    def draw_one(value: Any, rng: np.random.Generator) -> float:
        return float(rng.random())

    ways = [
        ws.Pipeline(range(9)).step(draw, batched=True, random=True),
        ws.Pipeline(range(9)).step(draw_one, random=True),
    ]
    found = []
    for pipe in ways:
        with pipe.loader(batch_size=4, workers=0, seed=7) as loader:
            found.append([batch.tolist() for _ in range(2) for batch in loader])
    assert found[0] == found[1]
    assert same(found[0], found[1])


def test_the_profile_runs_whole_batches(tmp_path: Path) -> None:
    sizes: set[int] = set()

    def seen(batch: Any) -> Any:
        sizes.add(len(batch["label"]))
        return batch

    pipe = ws.Pipeline(range(64)).step(table).step(seen, batched=True, version="1", ignore=["sizes"])
    pipe.profile(folder=tmp_path, samples=32, seconds=1, max_workers=1)
    assert 16 in sizes
