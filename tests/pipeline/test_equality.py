"""Whatever is kept where: the batches are those of the uncached pipeline, bit for bit."""

import tempfile
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from tests.pipeline.functions import KINDS, change, change_in_place, make, shake, slow_image, unwrap
from tests.pipeline.making import check, expected, plan_of, same
from tests.slow import either, thinned

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.sample_generators import sample_generator
from warmstore.pipeline.tiers import sample_store

pytestmark = pytest.mark.forks

STEPS = [(change, {"by": 2}, False), (change_in_place, {}, False), (unwrap, {}, False), (shake, {"most": 4}, True)]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    pipe = ws.Pipeline(range(draw(st.integers(1, 30)))).step(make, kind=draw(st.sampled_from(KINDS)))
    for function, arguments, random in draw(st.lists(st.sampled_from(STEPS), max_size=3)):
        pipe = pipe.step(function, random=random, **arguments)
    return pipe


@st.composite
def layouts(draw: st.DrawFn, pipe: Pipeline) -> dict[str, Any]:
    places = st.tuples(
        st.integers(0, pipe.cacheable), st.sampled_from(["memory", "disk"]), st.sampled_from(["raw", "zstd"])
    )
    placements = draw(st.lists(places, max_size=4, unique=True))
    left, counts = len(pipe), []
    for _ in placements:
        counts.append(draw(st.integers(0, left)))
        left -= counts[-1]
    budget = st.sampled_from([1, 50_000, 90_000, 120_000, 64 << 20])
    return {"placements": placements, "counts": counts, "memory": draw(budget), "disk": draw(budget)}


@settings(max_examples=either(10, 30), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_pipeline_under_any_plan(data: st.DataObject) -> None:
    pipe = data.draw(pipelines())
    options = data.draw(layouts(pipe))
    batch_size, seed = data.draw(st.integers(1, 12)), data.draw(st.integers(0, 3))
    flush = data.draw(st.sampled_from([1, 2000, sample_store.FLUSH]))
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # small budgets and refused values say so
        patch.setattr(sample_store, "FLUSH", flush)
        plan = plan_of(pipe, folder=Path(name), **options)
        for run in range(2):
            with pipe.loader(plan, batch_size, workers=0, seed=seed) as loader:
                for epoch in range(2):
                    check(loader, lambda epoch: expected(pipe, batch_size, seed, epoch), range(epoch, epoch + 1))
                    for quota in quotas(loader):
                        assert quota.used() <= max(quota.limit, 8192), (run, epoch)


@pytest.mark.parametrize("kind", thinned(4, [kind for kind in KINDS if kind != "refused"]))
def test_batches_that_are_kept_whole(kind: str) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind=kind)
    with pipe.loader(plan_of(pipe, [(1, "memory", "raw")], [20]), 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
        assert (loader._source.cached.open().rows >= 0).all()


def quotas(loader: ws.Loader) -> list[Any]:
    kept = loader._source.cached.layout
    return [] if kept is None else [place.quota for place in kept.places]


def test_what_is_compared_with_is_what_the_functions_give() -> None:
    pipe = ws.Pipeline(range(10)).step(make, kind="dict").step(shake, random=True).step(change)
    uncached = pipe.loader(batch_size=4, workers=0, seed=7)
    check(uncached, lambda epoch: expected(pipe, 4, 7, epoch), range(3))
    rng = sample_generator(0, 0, 3, 1)
    assert same(pipe[3], change(shake(make(3, "dict"), rng)))
    first, second = (
        next(iter(pipe.loader(batch_size=10, workers=0, seed=seed, sampler=ws.Sequential()))) for seed in (0, 1)
    )
    assert not np.array_equal(first["x"], second["x"])


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_by_worker_processes(tmp_path: Path, start_method: str) -> None:
    pipe = ws.Pipeline(range(61)).step(make, kind="mixed").step(change).step(shake, random=True)
    plan = plan_of(
        pipe, [(1, "memory", "raw"), (2, "disk", "zstd"), (2, "memory", "raw")], [20, 20, 10], folder=tmp_path
    )
    with pipe.loader(plan, 8, workers=2, seed=5, start_method=start_method) as loader:
        assert loader.workers == 0
        check(loader, lambda epoch: expected(pipe, 8, 5, epoch), range(3))
    here = pipe.loader(plan, 8, workers=0, seed=5)
    check(here, lambda epoch: expected(pipe, 8, 5, epoch), range(1))
    here.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_labels_stay_with_their_samples(tmp_path: Path, workers: int) -> None:
    pairs = [(at, f"{at % 7}") for at in range(60)]
    pipe = ws.Pipeline(pairs).step(lambda pair: {"x": np.full((2, 3), pair[0]), "label": int(pair[1])})
    pipe = pipe.step(lambda sample: (sample["x"] * 3, sample["label"]), name="last")
    places = [(0, "memory", "raw"), (1, "disk", "zstd"), (2, "memory", "raw")]
    plan = plan_of(pipe, places, [15, 15, 15], folder=tmp_path)
    with pipe.loader(plan, 8, workers=workers, seed=4, start_method="fork") as loader:
        for epoch in range(3):
            order = ws.Shuffle(seed=4).indices(0, 60, 60, epoch).tolist()
            seen = [(int(x[0, 0]), int(y)) for images, labels in loader for x, y in zip(images, labels, strict=True)]
            assert seen == [(at * 3, at % 7) for at in order]


def test_torch_batches_by_worker_processes(tmp_path: Path) -> None:
    import torch

    pipe = ws.Pipeline(range(20)).step(slow_image).step(change)
    plan = plan_of(pipe, [(2, "memory", "raw")], [10])
    with pipe.loader(plan, 8, workers=2, seed=1, to="torch") as loader:
        for epoch in range(2):
            for got, wanted in zip(loader, expected(pipe, 8, 1, epoch), strict=True):
                assert isinstance(got, torch.Tensor)
                assert same(got.numpy(), wanted)


def test_each_sample_exactly_once_over_all_ranks(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(50)).step(make, kind="number").step(shake, random=True)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [20, 20], folder=tmp_path)
    loaders = [pipe.loader(plan, 7, workers=0, seed=2, rank=rank, world_size=3, uneven="allow") for rank in range(3)]
    for epoch in range(2):
        for rank, loader in enumerate(loaders):
            check(
                loader,
                lambda epoch, rank=rank: expected(pipe, 7, 2, epoch, rank=rank, world=3),
                range(epoch, epoch + 1),
            )
    memory = {str(one.folder) for loader in loaders for one in loader._source.held if hasattr(one, "limit")}
    assert len(memory) == 1  # the ranks of a machine share it
    rows = [loader._source.cached.open().rows for loader in loaders]
    for loader in loaders:
        loader.close()
    assert all((one >= 0).sum() == 40 for one in rows[-1:])
    assert not Path(memory.pop()).exists()


@pytest.mark.parametrize("workers", [0, 2])
def test_goes_on_in_the_middle_of_an_epoch(tmp_path: Path, workers: int) -> None:
    pipe = ws.Pipeline(range(45)).step(make, kind="dict").step(shake, random=True)
    plan = plan_of(pipe, [(1, "memory", "raw")], [30])
    with pipe.loader(plan, 6, workers=workers, seed=4) as loader:
        list(loader)
        got = list(islice(loader, 3))
        state = loader.state_dict()
    with pipe.loader(None, 6, workers=2 - workers, seed=4) as other:
        other.load_state_dict(state)
        got += list(other)
    wanted = list(expected(pipe, 6, 4, 1))
    assert len(got) == len(wanted)
    assert all(map(same, got, wanted))
    with (
        pipe.loader(None, 6, workers=0, seed=5, sampler=ws.Shuffle(seed=4)) as wrong,
        pytest.raises(ws.BadState, match="seed"),
    ):
        wrong.load_state_dict(state)


def test_an_epoch_left_early_is_left_behind(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(64)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [64])
    with pipe.loader(plan, 4, workers=2, seed=0, epochs=3) as loader:
        assert len(list(islice(loader, 3))) == 3
        check(loader, lambda epoch: expected(pipe, 4, 0, epoch), range(1, 4))
        assert list(loader) == []


def test_every_batch_mixes_tiers(tmp_path: Path) -> None:
    """The numbers per batch are those of draws without replacement: their variance is the hypergeometric one."""
    total, batch_size, count = 4000, 50, 1000
    pipe = ws.Pipeline(range(total)).step(make, kind="number")
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [count, count], folder=tmp_path)
    with pipe.loader(plan, batch_size, workers=0, seed=9) as loader:
        list(loader)
        assignment = loader._source.cached.layout.placement
        for epoch in range(1, 3):
            order = ws.Shuffle(seed=9).indices(0, total, total, epoch)
            batches = [assignment[order[at : at + batch_size]] for at in range(0, total, batch_size)]
            share = count / total
            variance = batch_size * share * (1 - share) * (total - batch_size) / (total - 1)
            for placement in (0, 1):
                found = np.array([(batch == placement).sum() for batch in batches])
                assert found.min() > 0
                assert 0.5 < found.var() / variance < 1.7
        rows = loader._source.cached.open().rows
        assert (rows >= 0).sum() == 2 * count


def test_a_sample_asked_for_twice(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(12)).step(make, kind="tuple").step(shake, random=True)
    plan = plan_of(pipe, [(1, "memory", "raw"), (1, "disk", "raw")], [6, 6], folder=tmp_path)
    order = ws.Uniform(seed=3, samples=40)
    with pipe.loader(plan, 16, workers=0, sampler=order) as loader:
        check(loader, lambda epoch: expected(pipe, 16, 0, epoch, order), range(3))
    assert sum(store_records(loader)) <= 12


def store_records(loader: ws.Loader) -> list[int]:
    return [len(ws.RecordStore.open(path.parent)) for path in Path(loader_folder(loader)).rglob("store.json")]


def loader_folder(loader: ws.Loader) -> str:
    return str(loader._source.cached.layout.places[-1].folder.parent)


def test_an_order_of_the_users(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(12)).step(make, kind="array")
    plan = plan_of(pipe, [(1, "memory", "raw")], [12])
    with pipe.loader(plan, 5, workers=0, sampler=ws.Sequential()) as loader:
        check(loader, lambda epoch: expected(pipe, 5, 0, epoch, ws.Sequential()), range(2))


@pytest.mark.parametrize("kind", ["array", "varying", "turned", "mixed"])
def test_a_step_that_changes_what_was_kept(tmp_path: Path, kind: str) -> None:
    pipe = ws.Pipeline(range(20)).step(make, kind=kind).step(change_in_place).step(change_in_place, name="again")
    plan = plan_of(pipe, [(1, "memory", "raw"), (2, "disk", "raw")], [10, 10], folder=tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(3))


def test_another_plan_over_the_same_folder(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(40)).step(make, kind="array").step(change)
    for counts in ([10, 20], [20, 10], [0, 40], [40, 0], [13, 13]):
        plan = plan_of(pipe, [(1, "disk", "raw"), (2, "disk", "raw")], counts, folder=tmp_path)
        with pipe.loader(plan, 8, workers=0) as loader:
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
            assert (loader._source.cached.open().rows >= 0).sum() >= sum(counts)  # more where an earlier plan kept more


def watched_pipe(folder: Path) -> tuple[Pipeline, Plan, list[int]]:
    """Forty samples on the disk, and those that were computed."""
    seen: list[int] = []

    def watched(index: int) -> Any:
        seen.append(index)
        return make(index, "array")

    pipe = ws.Pipeline(range(40)).step(watched)
    return pipe, plan_of(pipe, [(1, "disk", "raw")], [40], folder=folder), seen


def test_two_that_fill_at_once_keep_each_sample_once(tmp_path: Path) -> None:
    pipe, plan, seen = watched_pipe(tmp_path)
    one, other = pipe.loader(plan, 8, workers=0), pipe.loader(plan, 8, workers=0)
    next(iter(one))
    next(iter(other))
    list(one)
    list(other)
    assert store_records(one) == [40]
    seen.clear()
    check(one, lambda epoch: expected(pipe, 8, 0, 2), range(1))
    assert len(seen) == 40  # those of `expected`
    one.close()
    other.close()


def test_each_epoch_begins_with_a_look_at_what_others_have_kept(tmp_path: Path) -> None:
    pipe, plan, seen = watched_pipe(tmp_path)
    with pipe.loader(plan, 8, workers=0) as one, pipe.loader(plan, 8, workers=0) as other:
        list(one)
        seen.clear()
        list(other)
        assert seen == []


def test_few_samples_of_another_shape(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(60)).step(odd_at, odd=(31, 47))
    plan = plan_of(pipe, [(1, "disk", "raw")], [60], folder=tmp_path)
    for _ in range(2):
        with pipe.loader(plan, 8, workers=0) as loader:
            check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
            assert (loader._source.cached.open().rows >= 0).sum() == 60
    assert sorted(store_records(loader)) == [2, 58]


def test_samples_whose_keys_are_equal_and_not_the_same(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(9)).step(keyed)
    plan = plan_of(pipe, [(1, "disk", "raw")], [9], folder=tmp_path)
    with pipe.loader(plan, 1, workers=0, sampler=ws.Sequential()) as loader:
        for _ in range(2):
            assert [repr(batch) for batch in loader] == [repr([keyed(index)]) for index in range(9)]


def keyed(index: int) -> Any:
    return [{True if index % 3 == 2 else 1: "a"}]


def odd_at(index: int, odd: tuple[int, ...]) -> Any:
    return np.full((4, 3) if index in odd else (3, 4), index)


def test_what_a_step_hands_on_of_the_source_is_not_the_sources_own() -> None:
    kept = [np.ones(count) for count in (2, 3, 4)]
    with ws.Pipeline(kept).step(lambda value: value[:2] if len(value) == 3 else value).loader(batch_size=3) as loader:
        for batch in loader:
            for value in batch:
                value += 1
    assert all((value == 1).all() for value in kept)


class OneBuffer:
    """A source that fills one buffer anew for each sample."""

    def __init__(self, count: int) -> None:
        self.count, self.buffer = count, np.zeros(3)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index
        return self.buffer


@pytest.mark.parametrize("way", ["uncached", "cached", "filled", "filtered"])
def test_a_source_that_fills_one_buffer_anew(tmp_path: Path, way: str) -> None:
    pipe = ws.Pipeline(OneBuffer(12), version="1")
    if way == "filtered":
        pipe = pipe.filter(lambda value: value[0] % 2 == 0)
    pipe = pipe.step(change, by=1)
    wanted = [[4.0 * index + 1] * 3 for index in range(0, 12, 2 if way == "filtered" else 1)]
    plan = None if way == "uncached" else plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    if plan is not None and way == "filled":
        pipe.fill(plan, workers=0)
    with pipe.loader(plan, 4, workers=0, sampler=ws.Sequential()) as loader:
        for _ in range(2):
            assert np.concatenate(list(loader)).tolist() == wanted
