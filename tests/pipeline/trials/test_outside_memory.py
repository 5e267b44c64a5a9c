"""Steps that write into memory that is shared: within a sample, with other samples, with the source, with a table."""

import dataclasses
import functools
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from tests.faults.children import in_child
from tests.pipeline.making import check, expected, plan_of, same
from tests.pipeline.recipes import SAMPLES, plots
from tests.slow import either, thinned

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.tiers import sample_store
from warmstore.pipeline.trials import trial, write_watch
from warmstore.pipeline.trials.outside_memory import ReachableObjects
from warmstore.pipeline.trials.write_watch import WriteWatch

pytestmark = pytest.mark.forks

COUNT = 40
CALLS: Counter[str] = Counter()


@settings(max_examples=either(3, 8), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_sharing_and_any_writes(data: st.DataObject) -> None:
    fill_and_read(data)


@pytest.mark.slow
@settings(max_examples=either(15, 50), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_more_sharing_and_writes(data: st.DataObject) -> None:
    fill_and_read(data)


def fill_and_read(data: st.DataObject) -> None:
    """Draw a pipeline, whose steps share memory and write to it, and places for its results; compare all epochs."""
    plot = data.draw(plots())
    last = plot.pipe().cacheable
    places = st.tuples(st.integers(0, last), st.sampled_from(["memory", "disk"]), st.sampled_from(["raw", "zstd"]))
    placements = data.draw(st.lists(places, min_size=1, max_size=2, unique=True))
    counts = [SAMPLES // len(placements)] * len(placements)
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        patch.setattr(sample_store, "FLUSH", data.draw(st.sampled_from([1, 2000, sample_store.FLUSH])))
        for _ in range(2):
            pipe = plot.pipe()
            plan = plan_of(pipe, placements, counts, folder=Path(name))
            with pipe.loader(plan, 5, workers=0, seed=3) as loader:
                check(loader, functools.partial(expected, plot.pipe(), 5, 3), range(3))
                if plot.is_private:
                    assert (loader._source.cached.open().rows >= 0).all()


def image(index: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(index).integers(0, 90, (4, 3)).astype(np.float32)


def images() -> list[Any]:
    return [image(at) for at in range(COUNT)]


def counted(index: int) -> Any:
    CALLS["made"] += 1
    return image(index)


def as_it_is(value: Any) -> Any:
    CALLS["made"] += 1
    return value


def add(value: Any) -> Any:
    """Add one, in place, to the first array there is."""
    part = value
    while isinstance(part, dict | list | tuple):
        part = next(iter(part.values())) if isinstance(part, dict) else part[0]
    part += 1
    return value


def double(value: Any) -> Any:
    """Another value, of fresh memory."""
    if isinstance(value, dict):
        return {name: double(part) for name, part in value.items()}
    return np.asarray(value) * 2


def add_at_random(value: Any, rng: np.random.Generator) -> Any:
    return add(value) if rng.random() < 0.4 else value


def with_clean(x: Any) -> Any:
    return {"x": x, "clean": x, "half": x[:2]}


def with_feature(sample: Any) -> Any:
    CALLS["made"] += 1
    return {**sample, "feature": sample["x"].sum()}


def load(sample: Any) -> Any:
    """Set an entry of the source's own dict, to the same each time."""
    CALLS["made"] += 1
    sample["x"] = image(sample["index"])
    return sample


def scale(sample: Any) -> Any:
    """Set an entry of the source's own dict, to another each time."""
    sample["x"] = sample["x"] * 2
    return sample


def look_up(index: int, table: Any) -> Any:
    CALLS["made"] += 1
    return table[index]


def blank(index: int, table: Any, at: int) -> Any:
    CALLS["made"] += 1
    return table if index == at else image(index)


def as_tensor(value: Any) -> Any:
    return torch.from_numpy(value)


def filled(index: int, buffer: Any) -> Any:
    CALLS["made"] += 1
    buffer[...] = image(index)
    return buffer


@dataclasses.dataclass
class Case:
    """A pipeline made anew each time. step: after how many steps to keep. kept: whether that may be."""

    pipe: Callable[[], Pipeline]
    step: int
    kept: bool


def counts() -> Pipeline:
    return ws.Pipeline(range(COUNT))


CASES = {
    "one array twice": Case(lambda: counts().step(counted).step(with_clean).step(add), 2, True),
    "and at random": Case(lambda: counts().step(counted).step(with_clean).step(add_at_random, random=True), 2, True),
    "a tensor over an array": Case(lambda: counts().step(counted).step(as_tensor).step(add), 2, True),
    "a source's arrays, read": Case(lambda: ws.Pipeline(images()).step(as_it_is).step(double), 1, True),
    "a source's arrays, in a dict": Case(
        lambda: ws.Pipeline([{"x": one} for one in images()]).step(with_feature).step(double), 1, True
    ),
    "a source's arrays, written": Case(lambda: ws.Pipeline(images()).step(as_it_is).step(add), 1, False),
    "a source's arrays, written before": Case(lambda: ws.Pipeline(images()).step(add).step(double), 2, False),
    "the source's array": Case(lambda: ws.Pipeline(np.stack(images())).step(as_it_is).step(add), 1, False),
    "the source's tensor": Case(
        lambda: ws.Pipeline(list(torch.from_numpy(np.stack(images())).clone())).step(as_it_is).step(add), 1, False
    ),
    "the raw values": Case(lambda: ws.Pipeline(images()).step(add), 0, False),
    "at random": Case(lambda: ws.Pipeline(images()).step(as_it_is).step(add_at_random, random=True), 1, False),
    "an entry set": Case(lambda: ws.Pipeline([{"index": at} for at in range(COUNT)]).step(load).step(double), 1, True),
    "an entry changed": Case(lambda: ws.Pipeline([{"x": x} for x in images()]).step(scale).step(double), 1, False),
    "a table": Case(lambda: counts().step(lambda at, x: x, x=image(0), name="x").step(add), 1, False),
    "a table, read": Case(lambda: counts().step(look_up, table=images()).step(double), 1, True),
    "a table's rows": Case(lambda: counts().step(look_up, table=np.stack(images())).step(add), 1, False),
    "a table's rows, used up": Case(lambda: counts().step(look_up, table=images()).step(add).step(double), 3, False),
    "a table's rows as tensors": Case(
        lambda: counts().step(look_up, table=np.stack(images())).step(as_tensor).step(add), 2, False
    ),
    "a table of tensors": Case(
        lambda: counts().step(look_up, table=torch.from_numpy(np.stack(images())).clone()).step(add), 1, False
    ),
    "one sample's": Case(lambda: counts().step(blank, table=image(0), at=17).step(add), 1, False),
    "one sample's, read": Case(lambda: counts().step(blank, table=image(0), at=17).step(double), 1, True),
    "a buffer": Case(lambda: counts().step(filled, buffer=image(0)).step(add), 1, True),
    "one sample's as a tensor": Case(
        lambda: counts().step(blank, table=image(0), at=17).step(as_tensor).step(add), 2, False
    ),
    "one sample's as a tensor, read": Case(
        lambda: counts().step(blank, table=image(0), at=17).step(as_tensor).step(double), 2, True
    ),
    "a memo": Case(lambda: counts().step(functools.lru_cache(image)).step(add), 1, False),
}


def ways() -> Iterator[Any]:
    """Every case in every tier; the short run has every third, and workers, who start slowly, for every twelfth."""
    for tier, codec, workers in (("memory", "raw", 0), ("disk", "zstd", 0), ("disk", "zstd", 2), ("memory", "raw", 2)):
        for at, (name, case) in enumerate(CASES.items()):
            short = (tier == "memory") == (not workers) and not at % (12 if workers else 3)
            marks = () if short else pytest.mark.slow
            yield pytest.param(case, tier, codec, workers, id=f"{name}-{tier}-{workers}", marks=marks)


@pytest.mark.parametrize(("case", "tier", "codec", "workers"), thinned(5, list(ways())))
@pytest.mark.filterwarnings("ignore:.*nothing is kept here:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*so samples are computed:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*cannot be (kept|stored):RuntimeWarning")
def test_as_uncached(tmp_path: Path, case: Case, tier: str, codec: str, workers: int) -> None:
    """Also by the next process, which begins with a source and tables that nobody has written to."""
    for run in range(2):
        pipe = case.pipe()
        plan = plan_of(pipe, [(case.step, tier, codec)], [COUNT], folder=tmp_path)
        with (
            pipe.loader(plan, 8, workers=workers, seed=1, start_method="fork") as loader,
            case.pipe().loader(None, 8, workers=workers, seed=1, start_method="fork") as plain,
        ):
            for epoch in range(4):
                CALLS.clear()
                got = list(loader)
                calls = CALLS["made"]
                assert same(got, list(plain)), (run, epoch)
                if not workers and case.kept:
                    assert bool(calls) == (not case.step or (not epoch and (not run or tier == "memory")))
            if not workers:
                kept = loader._source.cached.open().rows >= 0
                assert kept.all() if case.kept else not kept.any()


def run(pipe: Pipeline, plan: Any, epochs: int = 3) -> tuple[list[Any], Any]:
    """The batches of some epochs, and which samples are kept then."""
    with pipe.loader(plan, 8, workers=0, seed=1) as loader:
        batches = [list(loader) for _ in range(epochs)]
        stores = loader._source.cached.open()
        return batches, None if stores is None else stores.rows >= 0


@pytest.mark.filterwarnings("ignore:.*nothing is kept here:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*so samples are computed:RuntimeWarning")
def test_a_step_that_writes_is_added_later(tmp_path: Path) -> None:
    """What was kept says that it lay in memory from outside; writing there has to reach the source."""
    read = ws.Pipeline(images()).step(as_it_is).step(double)
    _, kept = run(read, plan_of(read, [(1, "disk", "raw")], [COUNT], folder=tmp_path))
    assert kept.all()
    for function, random in ((add, False), (add_at_random, True)):
        pipe, plain = (ws.Pipeline(images()).step(as_it_is).step(function, random=random) for _ in range(2))
        batches, kept = run(pipe, plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path))
        assert not kept.any()
        assert same(batches, run(plain, None)[0])
        assert same(pipe.source, plain.source)


@pytest.mark.filterwarnings("ignore:.*nothing is kept here:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*so samples are computed:RuntimeWarning")
def test_samples_are_made_in_their_order_whatever_is_kept(tmp_path: Path) -> None:
    def made() -> Pipeline:
        pipe = counts().step(counted).step(lambda x, total: {"total": total, "x": x}, total=np.zeros(1), name="both")
        return pipe.step(add).step(double)

    pipe = made()
    batches, kept = run(pipe, plan_of(pipe, [(1, "memory", "raw")], [15]))
    assert kept.sum() == 15
    assert same(batches, run(made(), None)[0])


def written_where_it_lies(x: Any) -> Any:
    if x[0] == 7 or x[0] > COUNT:
        x += 1000  # in the source
    return x


def refused_at_first(x: Any) -> Any:
    if COUNT < x[0] < 2000:
        raise ValueError("a value that no other sample has")
    return x * 2


@pytest.mark.filterwarnings("ignore:.*nothing is kept here:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:left out the bad sample:RuntimeWarning")
def test_a_sample_that_was_written_is_not_kept_where_a_later_step_fails(tmp_path: Path) -> None:
    def made() -> Pipeline:
        source = [np.full(4, number) for number in range(COUNT)]
        return ws.Pipeline(source).step(written_where_it_lies).step(refused_at_first, on_error="skip")

    pipe = made()
    batches, _ = run(pipe, plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path))
    assert same(batches, run(made(), None)[0])


@pytest.mark.parametrize("step", [0, 1, 2])
def test_filling_and_opening_leave_no_trace(tmp_path: Path, step: int) -> None:
    def made() -> Pipeline:
        return ws.Pipeline([{"x": x} for x in images()]).step(scale).step(add)

    pipe = made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        pipe.fill(plan_of(pipe, [(step, "disk", "raw")], [COUNT], folder=tmp_path), workers=0, progress=False)
        assert same(pipe.source, made().source)
        batches, _ = run(pipe, plan_of(pipe, [(step, "disk", "raw")], [COUNT], folder=tmp_path))
    assert same(batches, run(made(), None)[0])


def test_measuring_leaves_no_trace_and_the_plan_says_what_is_written() -> None:
    def made() -> Pipeline:
        pipe = ws.Pipeline([{"index": at} for at in range(COUNT)]).step(load, name="load")
        return pipe.step(lambda value, table: (value["x"], table), table=image(0), name="pair").step(scaled, name="add")

    pipe = made()
    found = pipe.profile(seconds=1.0, max_workers=0, samples=COUNT)
    assert same(pipe.source, made().source)
    assert same(pipe.steps[1].arguments["table"], image(0))
    assert [bool(stage.trouble) for stage in found.stages] == [True, False, True, True]
    assert [bool(stage.stored) for stage in found.stages] == [False, True, False, False]
    text = " ".join(str(pipe.plan(profile=found, memory="100MB", workers=0)).split())
    assert (
        "the result of step 'pair' shares memory with the source, an argument, a global or a memo, and a step writes"
        in text
    )


def scaled(pair: Any) -> Any:
    pair[1][...] *= 2
    return pair[0] + pair[1]


def test_a_sample_of_which_a_part_is_written_only_now_and_then_is_found_by_measuring() -> None:
    pipe = counts().step(blank, table=image(0), at=17).step(add)
    found = pipe.profile(seconds=1.0, max_workers=0, samples=COUNT)
    assert [bool(stage.trouble) for stage in found.stages] == [False, True, True]


def test_what_is_not_kept_is_said_once(tmp_path: Path) -> None:
    pipe = counts().step(blank, table=image(0), at=17).step(add)
    with pipe.loader(plan_of(pipe, [(1, "memory", "raw")], [COUNT]), 8, workers=0) as loader:
        with pytest.warns(RuntimeWarning, match="the result of step 'blank' shares memory with") as said:
            list(loader)
        assert len(said) == 1
        list(loader)


def parts_of(values: list[Any]) -> list[Any]:
    return list(ReachableObjects(values).parts())


def test_parts_that_others_refer_to() -> None:
    held = image(0)
    assert [part is held for part in parts_of([{"x": held, "y": image(1)}])] == [True]
    assert parts_of([{"x": [image(1), (image(2)[1:], bytearray(b"a"))]}]) == []
    view = held[1:]
    del view
    (part,) = parts_of([held[1:]])
    assert part.base is held
    inner = [1]
    value = {"a": inner}
    assert parts_of([value]) == [value, inner]
    del inner
    assert parts_of([value]) == [value, value["a"]]


def test_what_cannot_be_written_is_no_matter() -> None:
    held = np.broadcast_to(image(0), (2, 4, 3))
    text, numbers = "abc", (1, 2.5)
    assert parts_of([held, np.frombuffer(b"abcd", np.uint8), text, numbers, None, print]) == []


def test_tensors_that_others_refer_to() -> None:
    held = torch.arange(6).reshape(2, 3)
    flat = held.view(-1)
    assert [part is held for part in parts_of([[held]])] == [True]
    del flat
    assert len(parts_of([held[0]])) == len(parts_of([held.detach().numpy()])) == 1
    assert parts_of([torch.arange(6).reshape(2, 3)[0], torch.zeros(3)]) == []
    assert len(parts_of([torch.from_numpy(image(0)), torch.zeros(3).numpy()])) == 2  # nobody says
    assert parts_of([torch.zeros(3).to_sparse()]) == []


def test_samples_of_one_batch_refer_to_one_block() -> None:
    block = np.zeros((3, 4))
    raws = [{"x": block[at]} for at in range(3)]
    del block
    beside = ReachableObjects(raws)
    assert list(ReachableObjects([raws[0]], beside).parts()) == []
    assert list(ReachableObjects([raws[0]["x"][1:]], beside).parts()) == []
    kept = raws[1]["x"]
    assert [part is kept for part in ReachableObjects([raws[1]], beside).parts()] == [True]
    del kept


CONTENTS = {
    "array": (np.arange(6.0).reshape(2, 3), lambda x: x.__setitem__((1, 2), np.nan)),
    "turned": (np.arange(6.0).reshape(2, 3).T, lambda x: x.__setitem__((1, 1), -0.0)),
    "gaps": (np.zeros((300, 400))[::2, 1:], lambda x: x.__setitem__((149, 398), -0.0)),
    "complex": (np.zeros(2, complex), lambda x: x.fill(1j)),
    "times": (np.zeros(2, "M8[s]"), lambda x: x.fill(np.datetime64(5, "s"))),
    "records": (np.zeros(2, [("a", "i4"), ("b", "f8")]), lambda x: x["b"].fill(1)),
    "mask": (np.ma.masked_array([1.0, 2.0], [False, True]), lambda x: x.__setitem__(0, np.ma.masked)),
    "new mask": (np.ma.masked_array([1.0, 2.0]), lambda x: x.__setitem__(0, np.ma.masked)),
    "objects": (np.array([[1], None, "a"], object), lambda x: x.__setitem__(0, [1])),
    "tensor": (torch.zeros(3, dtype=torch.bfloat16), lambda x: x.add_(1)),
    "trained": (torch.nn.Parameter(torch.zeros(3)), lambda x: x.data.add_(1)),
    "list": ([1, [2]], lambda x: x.__setitem__(1, [2])),
    "longer": ([1, [2]], lambda x: x.append(3)),
    "dict": ({"a": [1]}, lambda x: x.update(a=[1])),
    "key": ({"a": 1, "b": 1}, lambda x: x.update(a=x.pop("a"))),
    "set": ({1, 2}, lambda x: x.add(3)),
    "bytes": (bytearray(b"abc"), lambda x: x.extend(b"d")),
    "object": (Case(counts, 1, True), lambda x: setattr(x, "step", 2)),
}


@pytest.mark.parametrize(("part", "change"), CONTENTS.values(), ids=CONTENTS)
def test_what_is_written_is_seen_and_put_back(part: Any, change: Callable[[Any], Any]) -> None:
    found = WriteWatch([part], copies=True)
    found.look(3)
    assert found
    assert found.written() == []
    before = found.now()
    change(part)
    assert found.written() == [3]
    assert before.written() == [0]
    found.restore()
    assert found.written() == before.written() == []


def test_memory_of_which_nobody_says_who_refers_to_it() -> None:
    """It counts as from outside: where a step writes there, the sample is made twice, and kept if it is the same."""
    table = np.stack(images())
    for made, kept in ((counts().step(counted), True), (counts().step(look_up, table=table), False)):
        CALLS.clear()
        pipe = made.step(as_tensor).step(add)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            _, rows = run(pipe, plan_of(pipe, [(2, "memory", "raw")], [COUNT]), epochs=1)
        assert rows.all() == kept
        assert not kept or CALLS["made"] <= 2 * COUNT + 8  # the examples
    assert same(table, np.stack(images()) + 1)


@pytest.mark.filterwarnings("ignore:.*nothing is kept here:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*so samples are computed:RuntimeWarning")
def test_a_step_that_writes_is_added_to_tensors_over_arrays(tmp_path: Path) -> None:
    """Each sample that the step writes to is made anew once, and is kept without its mark then, among the others."""
    read = counts().step(counted).step(as_tensor).step(double)
    _, kept = run(read, plan_of(read, [(2, "disk", "raw")], [COUNT], folder=tmp_path))
    assert kept.all()
    CALLS.clear()
    run(read, plan_of(read, [(2, "disk", "raw")], [COUNT], folder=tmp_path))
    assert not CALLS
    for calls in (True, False):
        CALLS.clear()
        pipe = counts().step(counted).step(as_tensor).step(add)
        batches, kept = run(pipe, plan_of(pipe, [(2, "disk", "raw")], [COUNT], folder=tmp_path))
        assert kept.all()
        assert bool(CALLS) == calls
        assert same(batches, run(counts().step(counted).step(as_tensor).step(add), None)[0])
    assert not list(tmp_path.rglob("others"))


def test_each_step_is_looked_at(tmp_path: Path) -> None:
    """Samples that are kept before it say nothing of what a step hands out."""

    def made() -> Pipeline:
        return counts().step(counted).step(as_tensor).step(tensor_of, table=image(0)).step(add)

    pipe = made()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        plan = plan_of(pipe, [(0, "memory", "raw"), (2, "memory", "raw"), (3, "memory", "raw")], [10, 10, 10])
        batches, _ = run(pipe, plan)
    assert same(batches, run(made(), None)[0])


def tensor_of(value: Any, table: Any) -> Any:
    return torch.from_numpy(table)


def test_large_parts_are_compared_for_a_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_watch, "_LARGE", 8)
    part = image(0)
    for large in (True, False):
        found = WriteWatch([part], large=large)
        found.look(0)
        assert found.parts[0] is part
        part += 1
        assert bool(found.written()) == large
    large_parts, compared = trial.LargeParts(), []
    for at in range(70):
        compared += [at] if large_parts.are_compared() else []
        large_parts.seen += 1
    assert compared == [0, 1, 2, 3, 4, 8, 16, 32, 64]


def test_next_process(tmp_path: Path) -> None:
    """Kept by a process of its own, and found here."""

    def made() -> Pipeline:
        return counts().step(counted).step(with_clean).step(add_at_random, random=True)

    def fill(say: Any) -> None:
        say(int(run(made(), plan_of(made(), [(2, "disk", "raw")], [COUNT], folder=tmp_path), 1)[1].sum()))

    assert in_child(fill).said == [COUNT]
    CALLS.clear()
    batches, _ = run(made(), plan_of(made(), [(2, "disk", "raw")], [COUNT], folder=tmp_path))
    assert not CALLS
    assert same(batches, run(made(), None)[0])
