"""A pipeline as a map-style data set, read by what reads such: DataLoader, samplers, accelerate, Grain."""

import itertools
import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.pipeline.functions import make, shake
from tests.pipeline.making import plan_of, same
from tests.slow import thinned
from torch.utils.data import DataLoader, DistributedSampler, Subset, SubsetRandomSampler, WeightedRandomSampler

import warmstore as ws
from warmstore.pipeline.sample_generators import sample_generator

pytestmark = pytest.mark.forks

COUNT = 40


@pytest.fixture
def pipe() -> ws.Pipeline:
    return ws.Pipeline(range(COUNT)).step(make, kind="array").step(shake, random=True)


def wanted(pipe: ws.Pipeline, index: int, epoch: int, seed: int = 0) -> Any:
    """The sample by the functions of the steps alone."""
    value = make(index, "array")
    return shake(value, sample_generator(seed, epoch, index, 1))


@pytest.mark.parametrize("tier", ["disk", "memory", None])
def test_samples_are_those_of_the_uncached_pipeline(pipe: ws.Pipeline, tmp_path: Path, tier: str | None) -> None:
    plan = tier and plan_of(pipe, [(1, tier, "raw")], [30], folder=tmp_path)
    with pipe.dataset(plan, seed=7) as data:
        assert len(data) == COUNT
        for epoch in range(3):
            data.set_epoch(epoch)
            for index in (*range(COUNT), -1):
                assert same(data[index], wanted(pipe, index % COUNT, epoch, seed=7))
        with pytest.raises(IndexError):
            data[COUNT]


def test_indices_from_the_end_of_a_subset(pipe: ws.Pipeline, tmp_path: Path) -> None:
    for plan in (None, plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)):
        with pipe.dataset(plan) as data:
            for index, row in zip((-1, 3, -COUNT), Subset(data, [-1, 3, -COUNT]).__getitems__([0, 1, 2]), strict=True):
                assert same(row, wanted(pipe, index % COUNT, 0))
            for outside in (COUNT, -COUNT - 1):
                with pytest.raises(IndexError, match="there are 40 samples"):
                    data.__getitems__([0, outside])
            with pytest.raises(TypeError, match="an index is one integer"):
                data.__getitems__([1.5])


def test_a_list_that_grows_and_shrinks_beside_a_plan(tmp_path: Path) -> None:
    numbers = list(range(COUNT))
    pipe = ws.Pipeline(numbers).step(make, kind="array")
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)) as data:
        numbers.append(7)
        assert len(list(data)) == len(data) == COUNT  # those of the plan
        with pytest.raises(IndexError, match="there are 40 samples"):
            data[COUNT]
        del numbers[30:]
        data.set_epoch(1)
        assert len(list(data)) == len(data) == 30


def test_the_last_epoch_there_is(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        data.set_epoch(2**64 - 2)
        assert data.epoch == 2**64 - 2
        assert same(data[3], wanted(pipe, 3, 2**64 - 2))


def test_a_step_that_raises_an_index_error_does_not_end_a_loop_over_samples() -> None:
    pipe = ws.Pipeline(range(8)).step(first_box)
    for samples in (pipe, pipe.dataset()):
        loop = iter(samples)
        assert [next(loop) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(IndexError, match="list index out of range"):
            next(loop)
        assert list(itertools.islice(iter(samples), 2)) == [0, 1]
    assert list(ws.Pipeline([3, 4])) == [3, 4]


def first_box(index: int) -> Any:
    return ([index] if index != 5 else [])[0]


@pytest.mark.parametrize(
    ("workers", "persistent", "method"),
    thinned(
        2,
        [
            (0, False, None),
            (2, True, "fork"),
            (2, False, "fork"),
            (2, True, "spawn"),
        ],
    ),
)
def test_a_data_loader_with_three_epochs(
    pipe: ws.Pipeline, tmp_path: Path, workers: int, persistent: bool, method: str | None
) -> None:
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)
    data = pipe.dataset(plan)
    loader: Any = DataLoader(
        data, 8, shuffle=True, num_workers=workers, persistent_workers=persistent, multiprocessing_context=method
    )
    for epoch in range(3):
        data.set_epoch(epoch)
        got = [np.asarray(sample) for batch in loader for sample in batch]
        right = [wanted(pipe, index, epoch) for index in range(COUNT)]
        assert sorted(sample.tobytes() for sample in got) == sorted(sample.tobytes() for sample in right)
    del loader
    data.close()
    with pipe.dataset(plan) as again:
        assert (again._source.cached.open().rows >= 0).all()  # all that the workers have made is there


@pytest.mark.parametrize("sampler", ["subset", "weighted", "distributed"])
def test_samplers_of_torch(pipe: ws.Pipeline, tmp_path: Path, sampler: str) -> None:
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)
    with pipe.dataset(plan) as data:
        made: Any = {
            "subset": SubsetRandomSampler(range(5, 25)),
            "weighted": WeightedRandomSampler([1.0] * COUNT, 60),
            "distributed": DistributedSampler(data, num_replicas=2, rank=1),
        }[sampler]
        data.set_epoch(1)
        known = {wanted(pipe, index, 1).tobytes() for index in range(COUNT)}
        got = [sample.numpy().tobytes() for batch in DataLoader(data, 8, sampler=made) for sample in batch]
        assert set(got) <= known
        assert len(got) == {"subset": 20, "weighted": 60, "distributed": 20}[sampler]


def test_a_batch_sampler_of_ours_tells_the_epoch(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        sampler = ws.BatchSampler(data, 8, sampler=ws.Sequential())
        loader: Any = DataLoader(data, batch_sampler=sampler, collate_fn=ws.collate)
        for epoch in range(2):
            got = torch.cat(list(loader))
            assert same(got.numpy(), np.stack([wanted(pipe, index, epoch) for index in range(COUNT)]))


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
def test_a_loader_of_ours_tells_the_epoch(pipe: ws.Pipeline, options: Any) -> None:
    """Through what holds the data set, too, and after a resume."""
    numbers = np.arange(COUNT)
    with pipe.dataset() as data, warnings.catch_warnings():
        warnings.simplefilter("error")
        for source, part in (
            (data, lambda batch: batch),
            (ws.Subset(data, numbers), lambda batch: batch),
            ({"x": data, "at": numbers}, lambda batch: batch["x"]),
            (ws.Dataset(pipe, collate=ws.Pad()), lambda batch: batch),
        ):
            with ws.Loader(source, 8, **options) as loader:
                for epoch in range(3):
                    got = np.concatenate([part(batch) for batch in loader])
                    assert same(got, np.stack([wanted(pipe, index, epoch) for index in range(COUNT)]))
                loader.set_epoch(1)
                batches = iter(loader)
                next(batches)
                state = loader.state_dict()
                rest = [part(batch) for batch in batches]
                loader.load_state_dict(state)
                assert same(np.concatenate([part(batch) for batch in loader]), np.concatenate(rest))


def test_an_epoch_that_the_program_sets_counts_above_that_of_a_loader(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        for epoch in (0, 5):
            data.set_epoch(epoch)
            (got,) = ws.Loader(data, COUNT)
            assert same(got, np.stack([wanted(pipe, index, epoch) for index in range(COUNT)]))


def test_a_subset_told_the_epoch_by_a_batch_sampler(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        for source in (ws.Subset(data, range(COUNT)), ws.Dataset(data)):
            sampler = ws.BatchSampler(source, 8)
            loader: Any = DataLoader(source, batch_sampler=sampler, collate_fn=ws.collate)
            for epoch in range(3):
                got = torch.cat(list(loader))
                assert same(got.numpy(), np.stack([wanted(pipe, index, epoch) for index in range(COUNT)]))


def test_states_of_batch_samplers_know_the_samples_and_the_seed(pipe: ws.Pipeline) -> None:
    def sampler(pipe: ws.Pipeline, seed: int = 0) -> Any:
        return ws.BatchSampler(pipe.dataset(seed=seed), 8, "shuffle")

    begun = sampler(pipe)
    next(iter(begun))
    state = begun.state_dict()
    sampler(pipe).load_state_dict(state)
    with pipe.loader(batch_size=8, sampler="shuffle") as loader:
        loader.load_state_dict(state)
    sampler(ws.Pipeline([*range(COUNT)])).load_state_dict(state | {"identity": None})  # as earlier releases wrote it
    shifted = ws.Pipeline(range(1, COUNT + 1)).step(make, kind="array").step(shake, random=True)
    for other, seed in ((shifted, 0), (pipe, 1)):
        with pytest.raises(ws.BadState, match="identity"):
            sampler(other, seed).load_state_dict(state)


def test_a_pickle_and_a_fork_follow_the_epoch(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        data.set_epoch(2)
        copy = pickle.loads(pickle.dumps(data))
        assert copy.epoch == 2
        assert same(copy[3], wanted(pipe, 3, 2))
        copy.close()


def test_a_worker_that_starts_begins_no_pass(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        assert same(data[0], wanted(pipe, 0, 0))
        before = data._shared.tolist()
        loader: Any = DataLoader(data, 4, sampler=range(4), num_workers=1, multiprocessing_context="spawn")
        list(loader)
        assert data._shared.tolist() == [0, 5, 0, *before[3:]]
        copy = pickle.loads(pickle.dumps(data))  # as on another machine, which has another clock
        assert copy._shared.tolist() == [0, 5, 0, 0, 0]
        loader = DataLoader(copy, 4, sampler=range(4), num_workers=1, multiprocessing_context="fork")
        list(loader)
        assert copy._shared[1] == 9  # its own workers share it
        copy.close()


def test_epochs_that_nobody_sets_are_said(pipe: ws.Pipeline) -> None:
    with pipe.dataset() as data:
        loader: Any = DataLoader(data, 8)
        with pytest.warns(RuntimeWarning, match="call set_epoch"):
            list(itertools.chain(loader, loader, loader))
    with pipe.dataset() as data, warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(4):
            data.set_epoch(epoch)
            list(DataLoader(data, 8))
    with pytest.raises(ValueError, match="epoch"):
        data.set_epoch(-1)


def test_accelerate_sets_the_epoch(pipe: ws.Pipeline) -> None:
    accelerate = pytest.importorskip("accelerate")
    with pipe.dataset() as data:
        loader = accelerate.Accelerator(cpu=True).prepare(DataLoader(data, 8))
        for epoch in range(2):
            loader.set_epoch(epoch)
            got = np.concatenate([batch.numpy() for batch in loader])
            assert same(got, np.stack([wanted(pipe, index, epoch) for index in range(COUNT)]))


def test_grain(pipe: ws.Pipeline) -> None:
    grain = pytest.importorskip("grain")
    with pipe.dataset() as data:
        got = list(grain.MapDataset.source(data).batch(8))
        assert same(np.concatenate(got), np.stack([wanted(pipe, index, 0) for index in range(COUNT)]))


def test_another_plan_is_refused(pipe: ws.Pipeline) -> None:
    other = ws.Pipeline(range(7)).step(make, kind="array")
    with pytest.raises(ValueError, match="the plan is for 7 samples"):
        pipe.dataset(plan_of(other, [(1, "memory", "raw")], [7]))
