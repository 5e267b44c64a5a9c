"""A step that fails on a sample: the error is raised, the sample is left out, or a function gives the result."""

import contextlib
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.pipeline.making import plan_of, same, sample
from tests.slow import either, thinned
from torch.utils.data import DataLoader

import warmstore as ws

pytestmark = pytest.mark.forks

COUNT = 24
BAD = frozenset({4, 5, 17})  # none of which is among the samples that the schema of a tier is inferred from
GOOD = sorted(set(range(COUNT)) - BAD)


def decode(index: int, bad: frozenset[int] = BAD, vary: bool = False) -> Any:
    """A row of three, or of varying length."""
    if index in bad:
        raise OSError(f"file {index} is truncated")
    return {"x": np.full(index % 4 + 1 if vary else 3, index), "index": index}


def zeros(error: Exception, value: int) -> Any:
    """A row that stands for one that cannot be made."""
    return {"x": np.full(3, -value), "index": value}


def double(value: Any) -> Any:
    """A later step."""
    return {**value, "x": value["x"] * 2}


def jitter(value: Any, rng: np.random.Generator, bad: frozenset[int] = frozenset()) -> Any:
    """A random step, which may fail."""
    if value["index"] in bad:
        raise ValueError(f"no crop of {value['index']}")
    return {**value, "x": value["x"] + rng.integers(0, 9)}


class Once:
    """Fail for some samples the first time that a process or its children call for them, by files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, index: int) -> Any:
        with (self.folder / f"{index}").open("a") as calls:
            calls.write(f"{os.getpid()}\n")
        if index in BAD and len((self.folder / f"{index}").read_text().split()) == 1:
            raise TimeoutError(f"no answer for {index}")
        return decode(index, frozenset())

    def calls(self) -> dict[int, int]:
        return {int(path.name): len(path.read_text().split()) for path in self.folder.iterdir()}


@pytest.fixture
def once(tmp_path: Path) -> Once:
    (tmp_path / "calls").mkdir()
    return Once(tmp_path / "calls")


def indices(batches: Any) -> list[int]:
    return [at for batch in batches for at in np.asarray(batch["index"]).tolist()]


def warned() -> Any:
    return pytest.warns(RuntimeWarning, match=r"left out the bad sample \d+: OSError: file \d+ is truncated")


@pytest.mark.parametrize("tier", thinned(2, [None, "disk", "memory"]))
@pytest.mark.parametrize(
    ("workers", "method"), [(0, None), (2, "fork"), pytest.param(2, "spawn", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("vary", [False, True])
def test_a_loader_skips_and_counts(
    tmp_path: Path, tier: str | None, workers: int, method: str | None, vary: bool
) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, vary=vary, on_error="skip").step(double).step(jitter, random=True)
    plan = tier and plan_of(pipe, [(2, tier, "raw")], [COUNT - 4], folder=tmp_path)
    with pipe.loader(plan, 5, workers=workers, seed=2, start_method=method) as loader:
        for epoch in range(3):
            if epoch:
                batches = list(loader)
            else:
                with warned() as said:
                    batches = list(loader)
                assert len(said) == 1
            assert len(batches) == len(loader) == 5
            assert sorted(indices(batches)) == GOOD
            assert loader.skipped == len(BAD) * (epoch + 1)
            for batch in batches:
                for at, index in enumerate(batch["index"].tolist()):
                    assert same(np.asarray(batch["x"][at]), sample(pipe, index, 2, epoch)["x"])


def test_a_sample_fails_behind_what_is_kept(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, bad=frozenset()).step(jitter, random=True, bad=BAD, on_error="skip")
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)
    with pipe.loader(plan, 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match="ValueError: no crop of"):
            assert sorted(indices(loader)) == GOOD
        assert sorted(indices(loader)) == GOOD  # all of them are read from the disk
        assert loader.skipped == 6


def halve(batch: Any, bad: frozenset[int] = frozenset()) -> Any:
    """A batched step that fails on a batch with a bad sample."""
    if found := bad & set(batch["index"].tolist()):
        raise ValueError(f"cannot halve {min(found)}")
    return {"x": batch["x"] / 2, "index": batch["index"]}


def halve_none(error: Exception, value: Any) -> Any:
    """What `halve` gives where it fails, for a sample."""
    return {"x": np.full(3, -1.0), "index": value["index"]}


@pytest.mark.parametrize(
    ("on_error", "cached", "vary"), thinned(6, itertools.product(["skip", halve_none], [False, True], [False, True]))
)
def test_batched_steps(tmp_path: Path, vary: bool, cached: bool, on_error: Any) -> None:
    other = frozenset({7, 8})
    pipe = ws.Pipeline(range(COUNT)).step(decode, vary=vary, on_error="skip").step(double)
    pipe = pipe.step(halve, batched=True, bad=other, on_error=on_error).step(halve, batched=True)
    plan = plan_of(pipe, [(2, "disk", "raw")], [COUNT], folder=tmp_path) if cached else None
    left_out = BAD | other if on_error == "skip" else BAD
    with pipe.loader(plan, 6, workers=0, sampler=ws.Sequential()) as loader:
        for epoch in range(2):
            with contextlib.nullcontext() if epoch else warned():
                batches = list(loader)
            assert indices(batches) == sorted(set(range(COUNT)) - left_out)
            for batch in batches:
                for x, index in zip(batch["x"], batch["index"].tolist(), strict=True):
                    right = [index / 2] * (index % 4 + 1 if vary else 3)
                    assert x.tolist() == ([-0.5] * 3 if index in other else right)
            assert loader.skipped == len(left_out) * (epoch + 1)
    profile = pipe.profile(seconds=3, max_workers=0)
    assert profile.samples == COUNT - len(left_out)


def test_a_batched_step_raises_by_default() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip").step(halve, batched=True, bad=frozenset({7}))
    with warned(), pytest.raises(ValueError, match="cannot halve 7") as caught:
        list(pipe.loader(None, 6, workers=0, sampler=ws.Sequential()))
    assert "warmstore: in step 'halve' of sample 7" in caught.value.__notes__


@pytest.mark.parametrize("vary", [False, True])
def test_full_batches_repeat_copies(vary: bool) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, vary=vary, on_error="skip").step(halve, batched=True)
    with warned():
        batches = list(pipe.loader(None, 6, workers=0, sampler=ws.Sequential(), uneven="full"))
    assert batches[0]["index"].tolist() == [0, 1, 2, 3, 3, 3]
    assert batches[0]["valid"].tolist() == [True] * 4 + [False] * 2
    batches[0]["x"][5][:] = 9
    assert batches[0]["x"][4].tolist() == [1.5] * (4 if vary else 3)


def test_full_batches_stay_full() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip")
    with warned():
        batches = list(pipe.loader(None, 5, workers=0, sampler=ws.Sequential(), uneven="full"))
    assert [len(batch["x"]) for batch in batches] == [5] * 5
    assert [at for batch in batches for at in batch["index"][batch["valid"]].tolist()] == GOOD
    assert batches[0]["index"].tolist() == [0, 1, 2, 3, 3]


def test_a_function_gives_the_result(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def instead(error: Exception, value: int) -> Any:
        asked.append((str(error), value))
        return zeros(error, value)

    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error=instead).step(double)
    assert pipe[4]["x"].tolist() == [-8] * 3  # later steps run on it
    assert asked == [("file 4 is truncated", 4)]
    for made in (None, plan_of(pipe, [(2, "disk", "raw")], [COUNT], folder=tmp_path)):
        with pipe.loader(made, 5, workers=0, sampler=ws.Sequential()) as loader:
            for _ in range(2):
                (batch,) = (np.concatenate([batch["x"] for batch in loader]),)
                assert batch[:, 0].tolist() == [-2 * at if at in BAD else 2 * at for at in range(COUNT)]
            assert loader.skipped == 0
    assert len(asked) == 1 + 4 * len(BAD)


@pytest.mark.parametrize("on_error", thinned(2, ["skip", zeros]))
@pytest.mark.parametrize("stage", [1, 2])
def test_nothing_is_kept_of_a_failure(tmp_path: Path, once: Once, on_error: Any, stage: int) -> None:
    """The error of a network passes: the next epoch has the true sample, and keeps it."""
    pipe = ws.Pipeline(range(COUNT)).step(once, on_error=on_error).step(double)
    plan = plan_of(pipe, [(stage, "disk", "raw")], [COUNT], folder=tmp_path / "cache")

    def epoch(loader: Any) -> list[int]:
        found = np.concatenate([batch["x"] for batch in loader])
        return sorted(found[:, 0].tolist())

    true = [2 * at for at in range(COUNT)]
    with pipe.loader(plan, 5, workers=0) as loader:
        if on_error == "skip":
            with pytest.warns(RuntimeWarning, match="TimeoutError: no answer for"):
                assert epoch(loader) == [2 * at for at in GOOD]
        else:
            assert epoch(loader) == sorted([-2 * at for at in BAD] + [2 * at for at in GOOD])
        assert epoch(loader) == true
        calls = once.calls()
        assert [calls[at] for at in BAD] == [2, 2, 2]
        assert epoch(loader) == true
    with pipe.loader(plan, 5, workers=0) as loader:
        assert epoch(loader) == true
    assert once.calls() == calls  # kept by now


@pytest.mark.parametrize("workers", [0, 2])
def test_filling_goes_on_after_a_failure(tmp_path: Path, once: Once, workers: int) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(once, on_error="skip")
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path / "cache")
    with pipe:
        assert pipe.fill(plan, 5, workers=workers, progress=False).computed == len(GOOD)
        again = pipe.fill(plan, 5, workers=workers, progress=False)
        assert (again.computed, again.found) == (len(BAD), len(GOOD))


def test_the_policy_is_no_part_of_the_identity(tmp_path: Path, once: Once) -> None:
    for on_error in ("skip", zeros, lambda error, value: None, "raise"):
        pipe = ws.Pipeline(range(COUNT)).step(once, name="once", on_error=on_error)  # type: ignore[arg-type]
        plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path / "cache")
        if on_error == "skip":
            with pipe:
                pipe.fill(plan, 5, progress=False)
                pipe.fill(plan, 5, progress=False)
        before = once.calls()
        with pipe.loader(plan, 5, workers=0) as loader:
            assert len(indices(loader)) == COUNT
        assert once.calls() == before


PROGRAM = """
import sys
import warnings
from pathlib import Path
from tests.pipeline.making import plan_of
from tests.pipeline.test_on_error import COUNT, Once, double, indices
from tests.slow import thinned
import warmstore as ws

warnings.simplefilter("ignore")
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    pipe = ws.Pipeline(range(COUNT)).step(Once(folder / "calls"), on_error="skip").step(double)
    plan = plan_of(pipe, [(2, "disk", "raw")], [COUNT], folder=folder / "cache")
    with pipe.loader(plan, 5, workers=2) as loader:
        print(len(indices(loader)), loader.skipped)
"""


def test_a_second_run_tries_again(tmp_path: Path, once: Once) -> None:
    """Two runs in processes of their own, each with two workers."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run() -> list[int]:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = warm.run(
            [sys.executable, tmp_path / "program.py", tmp_path], capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, done.stderr
        return [int(word) for word in done.stdout.split()]

    assert run() == [len(GOOD), len(BAD)]
    assert run() == [COUNT, 0]
    assert run() == [COUNT, 0]
    assert [once.calls()[at] for at in BAD] == [2, 2, 2]


def test_states_are_behind_skipped_samples() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip").step(jitter, random=True)

    def loader() -> ws.Loader:
        return pipe.loader(None, 1, workers=0, seed=1, sampler=ws.Sequential())  # some batches are left out

    one = loader()
    states = [one.state_dict()]
    got = []
    with warned():
        for batch in one:
            got.append(batch)
            states.append(one.state_dict())
    assert indices(got) == GOOD
    for done in range(len(GOOD)):
        again = loader()
        again.load_state_dict(states[done])
        left = GOOD[done:]
        with warned() if done <= GOOD.index(18) else contextlib.nullcontext():
            batches = list(again)
        assert indices(batches) == left
        assert all(same(one, other) for one, other in zip(batches, got[done:], strict=True))


def test_ranks_have_as_many_steps() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip")
    found: list[int] = []
    for rank in range(2):
        with warned():
            batches = list(pipe.loader(None, 4, workers=0, sampler=ws.Sequential(), rank=rank, world_size=2))
        assert len(batches) == 3
        found += indices(batches)
    assert sorted(found) == GOOD
    for workers in (0, 2):
        with (
            pipe.loader(None, 1, workers=workers, rank=0, world_size=2) as loader,
            pytest.raises(OSError, match="is truncated") as caught,
        ):
            list(loader)
        assert "would leave the others waiting" in "".join([str(caught.value), *getattr(caught.value, "__notes__", [])])


def test_a_map_style_data_set_raises_or_substitutes() -> None:
    pipe = ws.Pipeline(range(COUNT))
    with pytest.raises(ValueError, match=r"step 'decode' has on_error='skip'.*on_error=fn.*filter"):
        pipe.step(decode, on_error="skip").dataset()
    with pipe.step(decode).dataset() as data:
        with pytest.raises(OSError, match="file 4 is truncated") as caught:
            list(DataLoader(data, 4))
        assert "warmstore: in step 'decode' of sample 4" in caught.value.__notes__
    with pipe.step(decode, on_error=zeros).dataset() as data:
        for workers in (0, 2):
            found = np.concatenate([batch["x"] for batch in DataLoader(data, 4, num_workers=workers)])
            assert found[:, 0].tolist() == [-at if at in BAD else at for at in range(COUNT)]


def test_samples_by_index_raise() -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip")
    with pytest.raises(OSError, match="file 4 is truncated") as caught:
        pipe[4]
    assert caught.value.__notes__ == ["warmstore: in step 'decode' of sample 4"]
    loader = pipe.loader(None, 4, workers=0)
    with pytest.raises(ws.SampleSkipped, match="step 'decode' skips sample 4: file 4 is truncated") as skipped:
        loader.dataset[4]
    assert isinstance(skipped.value.__cause__, OSError)


@pytest.mark.parametrize("kind", ["subset", "aligned", "concatenated", "mixture"])
def test_pipelines_within_other_sources(kind: str) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error="skip")
    other = np.arange(COUNT) + 100
    made: dict[str, tuple[Any, Callable[[Any], Any], list[int]]] = {
        "subset": (ws.Subset(pipe, range(2, 9)), lambda batch: batch["index"], [2, 3, 6, 7, 8]),
        "aligned": ({"made": pipe, "other": other}, lambda batch: batch["other"] - 100, GOOD),
        "concatenated": (
            [ws.Subset(pipe, range(6)), ws.Subset(pipe, range(16, 20))], lambda batch: batch["index"],
            [0, 1, 2, 3, 16, 18, 19],
        ),
        "mixture": (ws.Mixture([pipe, pipe], weights=[1, 1]), lambda batch: batch["index"], []),
    }  # fmt: skip
    source, index, wanted = made[kind]
    if kind == "concatenated":
        import torch.utils.data

        source = torch.utils.data.ConcatDataset(source)
    loader = ws.Loader(source, 4, epochs=1)
    with warned():
        batches = list(itertools.islice(loader, 12))
    found = [at for batch in batches for at in index(batch).tolist()]
    if kind == "mixture":
        assert set(found) <= set(GOOD)
        assert loader.skipped
    else:
        assert found == wanted


def test_profiles_and_plans_of_what_fails(tmp_path: Path) -> None:
    for on_error in ("skip", zeros)[: either(1, 2)]:
        pipe = ws.Pipeline(range(COUNT)).step(decode, on_error=on_error).step(double).step(jitter, random=True)  # type: ignore[arg-type]
        with warned() if on_error == "skip" else contextlib.nullcontext():
            profile = pipe.profile(seconds=3, max_workers=1)
        assert profile.samples == (len(GOOD) if on_error == "skip" else COUNT)
        assert not any(stage.trouble or stage.varies for stage in profile.stages[:3])
        plan = pipe.plan(profile=profile, disk="30MB", folder=tmp_path)
        with warned() if on_error == "skip" else contextlib.nullcontext(), pipe.loader(plan, 5) as loader:
            assert len(indices(loader)) == (len(GOOD) if on_error == "skip" else COUNT)
    always = ws.Pipeline(range(COUNT)).step(decode, bad=frozenset(range(COUNT)), on_error="skip")
    with pytest.raises(ws.SampleSkipped, match="step 'decode' skips sample"):
        always.profile(seconds=0.5, max_workers=0)


@pytest.mark.parametrize("kind", [MemoryError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("on_error", ["skip", zeros])
def test_what_ends_a_program_ends_it(kind: type[BaseException], on_error: Any) -> None:
    def interrupted(value: int) -> Any:
        if value == 4:
            raise kind("now")
        return value

    pipe = ws.Pipeline(range(COUNT)).step(interrupted, on_error=on_error)
    with pytest.raises(kind), pipe.loader(None, 4, workers=0) as loader:
        list(loader)
    with pytest.raises(kind), pipe.loader(None, 4, workers=0, on_error="skip") as loader:
        list(loader)
    with pytest.raises(kind):
        pipe[4]


def test_errors_of_the_function_are_raised(program: Callable[..., ModuleType]) -> None:
    def refusing(error: Exception, value: int) -> Any:
        raise LookupError(f"nothing for {value}")

    pipe = ws.Pipeline(range(COUNT)).step(decode, on_error=refusing)
    with pytest.raises(LookupError, match="nothing for 4") as caught:
        pipe[4]
    assert isinstance(caught.value.__context__, OSError)
    with pytest.raises(ValueError, match=r"on_error must be .* step 'decode' has 'ignore'"):
        ws.Pipeline([1]).step(decode, on_error="ignore")  # type: ignore[arg-type]
    with pytest.raises(ws.NotPicklable, match="step 'decode' cannot be sent"):
        pipe.loader(None, 4, workers=1, start_method="spawn")


class Torn:
    """A source that cannot read every fifth sample."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        if index % 5 == 0:
            raise self.error(f"broken file {index}")
        return index


@pytest.mark.parametrize("error", [OSError, RuntimeError])
def test_samples_that_the_source_cannot_read_are_left_to_the_loader(tmp_path: Path, error: type[Exception]) -> None:
    pipe = ws.Pipeline(Torn(error), version="1").step(decode, bad=frozenset())
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    readable = [index for index in range(COUNT) if index % 5]
    for _ in range(2):
        with pipe.loader(plan, batch_size=4, on_error="skip") as loader:
            with pytest.warns(RuntimeWarning, match="left out the bad sample") as warned:
                assert sorted(int(index) for batch in loader for index in batch["index"]) == readable
            assert len(warned) == 1  # and none of the disk
    with pipe.loader(plan, batch_size=4, on_error="skip") as loader:
        stores = loader._source.cached.open()  # type: ignore[attr-defined]
        assert np.flatnonzero(stores.rows >= 0).tolist() == readable


def test_profiles_leave_out_what_the_source_cannot_read() -> None:
    pipe = ws.Pipeline(Torn(OSError), version="1").step(decode, bad=frozenset())
    with pytest.warns(RuntimeWarning, match="left out the bad sample"):
        profile = pipe.profile(samples=COUNT, seconds=1.0, max_workers=1, batch_size=4)
    assert profile.samples == COUNT - 5
    with pytest.raises(OSError, match="broken file"):
        ws.Pipeline(ws.Subset(Torn(OSError), [0, 5]), version="1").profile(seconds=0.5, max_workers=0)
