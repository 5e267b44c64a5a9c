"""Filters within one process: lengths, samples, order, sources, and what is refused."""

import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from tests.pipeline.making import check, expected, plan_of, same
from tests.slow import thinned
from torch.utils.data import DataLoader

import warmstore as ws

pytestmark = pytest.mark.forks

COUNT = 40


def decode(index: int) -> Any:
    """A sample."""
    return {"x": np.full(3, index, np.float32), "index": index}


def multiple(value: Any, of: int = 3) -> bool:
    """Every third sample, or so."""
    return bool(value["index"] % of == 0)


def small(value: Any) -> Any:
    """Samples below 20, with a NumPy bool."""
    return value["x"][0] < 20


def shake(value: Any, rng: np.random.Generator) -> Any:
    """A random step."""
    return {**value, "x": value["x"] + rng.random(3, np.float32)}


def indices(batches: Any) -> list[int]:
    return [at for batch in batches for at in np.asarray(batch["index"]).tolist()]


@pytest.mark.parametrize("folder", [False, True])
def test_lengths_and_samples(tmp_path: Path, folder: bool) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple, folder=tmp_path if folder else None, of=3)
    pipe = pipe.step(shake, random=True)
    assert repr(pipe) == "Pipeline(some of 40 samples, decode -> multiple -> shake)"
    assert len(pipe) == 14
    assert repr(pipe) == "Pipeline(14 samples, decode -> multiple -> shake)"
    assert pipe[2]["index"] == 6
    assert pipe[-1]["index"] == 39
    with pytest.raises(IndexError):
        pipe[14]
    assert [step.name for step in pipe.steps] == ["decode", "shake"]
    unfiltered = ws.Pipeline(range(0, COUNT, 3)).step(decode).step(shake, random=True)
    for workers in (0, 2):
        with pipe.loader(None, 4, workers=workers, seed=5) as loader:
            assert len(loader) == 4
            check(loader, lambda epoch: expected(unfiltered, 4, 5, epoch), range(2))
    with pipe.dataset(seed=1) as data:
        assert len(data) == 14
        found = list(DataLoader(data, 4, num_workers=2))
        assert indices(found) == list(range(0, COUNT, 3))


@pytest.mark.parametrize("tier", thinned(2, ["disk", "memory"]))
@pytest.mark.parametrize("workers", [0, 2])
def test_a_plan_for_what_passes(tmp_path: Path, tier: str, workers: int) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple).step(shake, random=True)
    plan = plan_of(pipe, [(1, tier, "raw")], [10], folder=tmp_path)
    unfiltered = ws.Pipeline(range(0, COUNT, 3)).step(decode).step(shake, random=True)
    with pipe.loader(plan, 4, workers=workers, seed=5) as loader:
        check(loader, lambda epoch: expected(unfiltered, 4, 5, epoch), range(3))


def test_a_plan_of_a_profile(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple).step(shake, random=True)
    profile = pipe.profile(folder=tmp_path, seconds=0.5, max_workers=0)
    plan = pipe.plan(profile=profile, disk="40MB", folder=tmp_path)
    assert plan.samples == 14
    with pipe:
        pipe.fill(plan, progress=False)
    assert any((tmp_path / "warmstore-samples").glob("2-raw-*/about.json"))  # the answers


def test_filtered_and_unfiltered_pipelines_share_samples(tmp_path: Path) -> None:
    whole = ws.Pipeline(range(COUNT)).step(decode)
    with whole:
        whole.fill(plan_of(whole, [(1, "disk", "raw")], [COUNT], folder=tmp_path), progress=False)
    for folder in (None, tmp_path):
        pipe = whole.filter(multiple, folder=folder).filter(small)
        with pipe:
            filled = pipe.fill(plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=tmp_path), progress=False)
        assert (filled.computed, filled.found) == (0, 7)


def test_filters_follow_each_other() -> None:
    pipe = ws.Pipeline(range(COUNT)).filter(odd).step(decode).filter(multiple).filter(multiple, of=5)
    assert repr(pipe) == "Pipeline(some of 40 samples, odd -> decode -> multiple -> multiple_2)"
    assert [pipe[at]["index"] for at in range(len(pipe))] == [15]
    nothing = pipe.filter(multiple, of=2)
    with pytest.warns(RuntimeWarning, match="filter 'multiple_3' passes none of 1 samples"):
        assert len(nothing) == 0
    assert list(nothing.loader(None, 4, workers=0)) == []


def odd(index: int) -> bool:
    return index % 2 == 1


def numbers(index: int) -> np.ndarray[Any, Any]:
    return np.arange(index, index + 4, dtype=np.float32)


class Numbers(torch.utils.data.Dataset):
    """A data set of a program's own."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return numbers(index)


def first_is_even(value: Any) -> bool:
    value = value["x"] if isinstance(value, dict) else value
    return bool(value[0] % 2 == 0)


def plain(value: Any) -> Any:
    return value["x"] if isinstance(value, dict) else np.asarray(value)


@pytest.mark.parametrize("kind", thinned(2, ["store", "list", "array", "torch", "subset", "torch subset", "dict"]))
def test_sources(tmp_path: Path, kind: str) -> None:
    rows = np.stack([numbers(index) for index in range(COUNT)])
    source: Any = {"array": rows, "list": list(rows), "torch": Numbers(COUNT), "dict": {"x": rows}}.get(kind)
    wanted = rows[::2]
    if kind == "store":
        with ws.RecordStore.create(tmp_path / "store", {"x": ws.Array(np.float32, (4,))}) as made:
            made.extend({"x": rows})
        source = ws.RecordStore.open(tmp_path / "store")
    if kind == "subset":
        source, wanted = ws.Subset(list(rows), range(4, 11)), rows[4:11:2]
    if kind == "torch subset":
        source, wanted = torch.utils.data.Subset(Numbers(COUNT), list(range(4, 11))), rows[4:11:2]
    pipe = ws.Pipeline(source).filter(first_is_even, folder=tmp_path / "cache").step(plain)
    assert len(pipe) == len(wanted)
    plan = plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=tmp_path / "cache")
    for workers in (0, 2):
        with pipe.loader(plan, 4, workers=workers, sampler=ws.Sequential()) as loader:
            for _ in range(2):
                assert same(np.concatenate(list(loader)), wanted)


def test_subsets_and_splits_of_what_passes() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple)
    assert indices(ws.Loader(ws.Subset(pipe, [1, 3]), 4)) == [3, 9]
    train, test = ws.Subset(pipe, range(7)), ws.Subset(pipe, range(7, 14))
    assert sorted(indices(ws.Loader(train, 4)) + indices(ws.Loader(test, 4))) == list(range(0, COUNT, 3))


def test_states_resume_over_what_passes() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple)
    one = pipe.loader(None, 4, workers=0, seed=2)
    batches = iter(one)
    first = next(batches)
    state = one.state_dict()
    again = ws.Pipeline(range(COUNT)).step(decode).filter(multiple).loader(None, 4, workers=0, seed=2)
    again.load_state_dict(state)
    assert sorted(indices([first, *again])) == list(range(0, COUNT, 3))
    other = ws.Pipeline(range(COUNT)).step(decode).filter(multiple, of=3).filter(small)
    with pytest.raises(ws.BadState):
        other.loader(None, 4, workers=0, seed=2).load_state_dict(state)


def test_a_pickle_evaluates_anew() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(multiple)
    assert len(pickle.loads(pickle.dumps(pipe))) == len(pipe) == 14


@pytest.mark.slow
def test_a_predicate_is_not_sent_to_workers() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(lambda value: value["index"] < 8)
    with pipe.loader(None, 4, workers=2, start_method="spawn") as loader:
        assert sorted(indices(loader)) == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_with_workers(tmp_path: Path, workers: int) -> None:
    pipe = ws.Pipeline(range(300)).step(decode).filter(multiple, folder=tmp_path, workers=workers)
    assert len(pipe) == 100
    assert len(ws.Pipeline(range(300)).step(decode).filter(multiple, folder=tmp_path)) == 100


def test_what_is_refused() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode)
    with pytest.raises(ValueError, match="filter 'multiple' is after the random step 'shake'"):
        pipe.step(shake, random=True).filter(multiple)
    for result in (None, 1, "yes", np.ones(2, bool)):
        with pytest.raises(TypeError, match=r"filter 'given' must return True or False; it returned .* for sample 0"):
            len(pipe.filter(lambda value, given: given, name="given", given=result))
    for fine in (np.True_, np.array(True), torch.tensor(True)):
        assert len(pipe.filter(lambda value, given: given, given=fine)) == COUNT
    with pytest.raises(ValueError, match="two steps are called 'decode'"):
        pipe.filter(multiple, name="decode")
    with pytest.raises(TypeError, match="a step is a function"):
        pipe.filter(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="workers"):
        pipe.filter(multiple, workers=-1)
    assert len(pipe.filter(multiple, args={"of": 2})) == COUNT // 2


def test_what_has_no_identity_is_refused(tmp_path: Path) -> None:
    opened = (tmp_path / "file").open("w+")

    def judged(value: Any) -> bool:
        return opened.readable()

    pipe = ws.Pipeline(range(COUNT)).step(decode)
    with pytest.raises(ws.NoFingerprint, match=r"filter 'judged' needs an identity.*version="):
        len(pipe.filter(judged))
    assert len(pipe.filter(judged, version="1")) == COUNT
    opened.close()


def test_errors_in_a_pass() -> None:
    def broken(value: Any) -> bool:
        raise LookupError("no label")

    pipe = ws.Pipeline(range(COUNT)).step(decode).filter(broken)
    with pytest.raises(LookupError, match="no label") as caught:
        len(pipe)
    assert "warmstore: in step 'broken' of sample 0" in caught.value.__notes__


def test_a_pass_leaves_the_source_as_it_was() -> None:
    rows = np.zeros((COUNT, 2))

    def in_place(row: Any) -> Any:
        row += 1
        return row

    pipe = ws.Pipeline(rows).step(in_place).filter(lambda row: bool(row[0] == 1))
    assert len(pipe) == COUNT
    assert not rows.any()


def test_edits_are_seen_by_the_next_loader(program: Callable[..., ModuleType]) -> None:
    module = program("""
        limit = 10
        calls = []

        def below(index):
            return index < limit
    """)
    source = list(range(COUNT))
    pipe = ws.Pipeline(source).filter(module.below)
    assert len(pipe) == len(pipe.loader(None, 1, workers=0)) == 10
    module.limit = 20
    assert len(pipe.loader(None, 1, workers=0)) == len(pipe) == 20
    source[:10] = [100] * 10
    assert len(pipe.dataset()) == len(pipe) == 10
    source += [1, 2, 3]
    assert len(pipe._as_source()) == 13
