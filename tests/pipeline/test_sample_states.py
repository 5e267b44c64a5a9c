"""A program that changes its data between the epochs of one loader, and data that changes as it is read."""

import dataclasses
import os
import pickle
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.identity import object_walk, recorded_identity
from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher
from warmstore.pipeline import sample_states

pytestmark = pytest.mark.forks

COUNT = 8
calls = [0]


@pytest.fixture(autouse=True)
def no_calls() -> Iterator[None]:
    calls[0] = 0
    yield
    Lazy.factor = 1.0


def counted(value: Any) -> Any:
    calls[0] += 1
    return value


def doubled(value: Any) -> Any:
    return value * 2


def content(sample: Any) -> Any:
    calls[0] += 1
    return sample.content()


@dataclasses.dataclass
class Lazy:
    """A sample that decodes itself when it is first asked."""

    number: int
    image: Any = None
    factor = 1.0

    def content(self) -> Any:
        if self.image is None:
            self.image = np.full(3, float(self.number))
        return self.image * self.factor


class Data:
    """A data set that knows its epoch, and remembers what it has read."""

    def __init__(self) -> None:
        self.epoch = 0
        self.read: dict[tuple[int, int], Any] = {}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return self.read.setdefault((index, self.epoch), np.full(3, float(index + 10 * self.epoch)))


class Member:
    """A sample that knows all the others."""

    def __init__(self, number: int, all_of_them: list[Any]) -> None:
        self.number, self.all = number, all_of_them

    def content(self) -> Any:
        return np.full(3, self.number + sum(one.number for one in self.all))


def epochs_of(
    source: Any, first: Callable[[Any], Any], edits: Sequence[Callable[[], object]], folder: Any
) -> list[int]:
    """How many samples each epoch of one loader computes, with the program's edits between. All must be right."""
    pipe = ws.Pipeline(source).step(first).step(doubled)
    plan = plan_of(pipe, [(2, "disk", "raw")], folder=folder)
    found = []
    with pipe.loader(plan, batch_size=3, workers=0, sampler=ws.Sequential()) as loader:
        for edit in (lambda: None, *edits):
            edit()
            calls[0] = 0
            got = [sample for batch in loader for sample in np.asarray(batch)]
            found.append(calls[0])
            assert len(got) == len(source)
            np.testing.assert_array_equal(got, [doubled(first(source[at])) for at in range(len(source))])
    return found


def nothing() -> None:
    """No edit."""


def test_a_data_set_that_is_told_the_epoch(tmp_path):
    data = Data()

    def set_epoch(epoch: int) -> Callable[[], None]:
        return lambda: setattr(data, "epoch", epoch)

    found = epochs_of(data, counted, [nothing, set_epoch(1), nothing, set_epoch(0)], tmp_path)
    assert found == [COUNT, 0, COUNT, 0, COUNT]


def test_arrays_in_a_list(tmp_path):
    source = [np.full(3, float(number)) for number in range(COUNT)]
    assert epochs_of(source, counted, [nothing, lambda: source[3].fill(99), nothing], tmp_path) == [COUNT, 0, 1, 0]


def test_dicts_in_a_list(tmp_path):
    source = [{"x": np.full(3, float(number))} for number in range(COUNT)]

    def x_of(sample: Any) -> Any:
        calls[0] += 1
        return sample["x"]

    edits = [nothing, lambda: source[5].update(x=np.zeros(3)), lambda: source[0]["x"].fill(7)]
    assert epochs_of(source, x_of, edits, tmp_path) == [COUNT, 0, 1, 1]


def test_an_array(tmp_path):
    source = np.arange(3.0 * COUNT).reshape(COUNT, 3)
    assert epochs_of(source, counted, [nothing, lambda: source[2].fill(-1), nothing], tmp_path) == [COUNT, 0, 1, 0]


@pytest.mark.parametrize("dtype", ["U4", "S4", ">f8", "object"])
def test_arrays_are_checked_in_the_form_in_which_they_were_identified(dtype, tmp_path):
    def number_of(sample: Any) -> Any:
        calls[0] += 1
        return np.full(3, float(sample))

    source = np.array([str(number) for number in range(COUNT)]).astype(dtype)
    found = epochs_of(source, number_of, [nothing, lambda: source.__setitem__(3, "99"), nothing], tmp_path)
    assert found == [COUNT, 0, 1, 0]


def test_samples_that_no_check_can_tell_apart_are_computed(tmp_path):
    """The program gives them objects of a class that the first look has not met."""
    source = [{"x": float(number)} for number in range(COUNT)]

    def annotate() -> None:
        for sample in source:
            sample["lazy"] = Lazy(0)

    def x_of(sample: Any) -> Any:
        calls[0] += 1
        return np.full(3, sample["x"])

    assert epochs_of(source, x_of, [nothing, annotate, nothing], tmp_path) == [COUNT, 0, COUNT, COUNT]


def test_samples_that_remember(tmp_path):
    """What samples keep as they are read is no edit; what the program sets is, also of their class."""
    source = [Lazy(number) for number in range(COUNT)]

    def edit() -> None:
        source[2].number, source[2].image = 50, None

    found = epochs_of(source, content, [nothing, edit, nothing, lambda: setattr(Lazy, "factor", 3.0)], tmp_path)
    assert found[1] == found[3] == 0
    assert 1 <= found[2] <= 2  # once more, to see whether what it remembers makes a difference
    assert found[4] >= COUNT


def test_they_are_found_by_the_next_loader(tmp_path):
    source = [Lazy(number) for number in range(COUNT)]
    pipe = ws.Pipeline(source).step(content)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    for expected in (True, False, False):
        calls[0] = 0
        with pipe.loader(plan, batch_size=3, workers=0) as loader:
            assert sum(map(len, loader)) == COUNT
        assert bool(calls[0]) == expected


def test_samples_that_know_each_other(tmp_path):
    source: list[Any] = []
    source += [Member(number, source) for number in range(COUNT)]
    found = epochs_of(source, content, [nothing, lambda: setattr(source[1], "number", 70), nothing], tmp_path)
    assert found == [COUNT, 0, COUNT, 0]


def test_they_are_looked_at_again_for_each_loader():
    """Also where looking takes so long that epochs do without."""
    source: list[Any] = []
    source += [Member(number, source) for number in range(COUNT)]
    pipe = ws.Pipeline(source).step(content)
    before = pipe.identities.states.look()
    source[1].number = 70
    assert pipe.identities.states.look().each[0].tolist() != before.each[0].tolist()


def test_samples_that_come_to_know_each_other():
    """Their classes alone were looked at before."""
    source = [Member(number, []) for number in range(COUNT)]
    pipe = ws.Pipeline(source).step(content)
    pipe.identities.states.look()
    source[0].all = source
    before = pipe.identities.states.look()
    source[1].number = 70
    assert pipe.identities.states.look().each[0].tolist() != before.each[0].tolist()


def test_threads_that_make_samples_at_once():
    source = [{"number": number} for number in range(2)]
    states = ws.Pipeline(source).step(dict).identities.states
    keys = states.look().each
    first, second = (states.making([number]) for number in range(2))
    with ThreadPoolExecutor(1) as other:
        first.__enter__()
        other.submit(second.__enter__).result()
        first.__exit__(None, None, None)
        other.submit(second.__exit__, None, None, None).result()
    assert states.are_unchanged(np.arange(2), keys).all()
    source[0]["number"] = 7  # by the program
    assert states.are_unchanged(np.arange(2), keys).tolist() == [False, True]


def test_a_list_that_becomes_shorter_while_its_samples_are_made():
    """Another loader of the pipeline has looked at it meanwhile."""
    source = [{"number": number} for number in range(4)]
    states = ws.Pipeline(source).step(dict).identities.states
    keys = states.look().each
    with states.making([1, 3]), states.making([2]):
        del source[2:]
        states.look()
        source[1]["number"] = 7  # by a step
    assert states.are_unchanged(np.arange(2), keys).all()
    with states.making([3]):  # of before
        pass


def test_a_loader_that_is_collected_while_its_samples_are_identified(monkeypatch):
    """Its thread waits for what another thread holds, which must not wait for the end of that thread."""
    states = ws.Pipeline([{"number": 0}]).step(dict).identities.states
    keys = states.look().each
    crew, begun, identify = ThreadPrefetcher(1), threading.Event(), sample_states.identify_samples

    def make(number: int) -> None:
        begun.set()
        with states.making([number]):
            pass

    def identified(*args: Any, **options: Any) -> Any:
        crew._begin(make, 0)
        begun.wait()
        crew.close()  # as the garbage collector does at any moment
        return identify(*args, **options)

    monkeypatch.setattr(sample_states, "identify_samples", identified)
    assert np.array_equal(states.look().each, keys)


def test_an_edit_within_an_epoch_is_not_kept_for_what_was(tmp_path):
    """Samples that were edited after the epoch began are not found by who has them unedited."""

    def source() -> list[Any]:
        return [{"x": np.full(3, float(number))} for number in range(COUNT)]

    def loader_of(samples: list[Any]) -> Any:
        pipe = ws.Pipeline(samples).step(dict.copy, name="copy")
        plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
        return pipe.loader(plan, batch_size=2, workers=0, sampler=ws.Sequential())

    edited = source()
    with loader_of(edited) as loader:
        for number, _ in enumerate(loader):
            if number == 0:
                edited[0]["x"][:] = -1  # read already, and not yet written
                edited[7]["x"][:] = -1  # not yet read
    for samples in (source(), edited):
        with loader_of(samples) as loader:
            got = np.concatenate([batch["x"] for batch in loader])
        np.testing.assert_array_equal(got, [sample["x"] for sample in samples])


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("edited_in", [0, 1])
def test_rows_behind_a_filter_that_are_edited_within_an_epoch(tmp_path, monkeypatch, edited_in, is_busy):
    """The edit was taken for the memory of the next call: the row was never computed again. On a busy machine nobody
    looked for it."""
    if is_busy:  # no check is brief there
        monkeypatch.setattr(sample_states, "_BRIEF", 0.0)
        monkeypatch.setattr(sample_states, "_FIRST", 0.0)
    rows = np.arange(2 * COUNT).reshape(COUNT, 2)
    memo = {}
    pipe = ws.Pipeline(rows).step(lambda row: row + 0 * memo.setdefault(int(row[0]), 0))
    pipe = pipe.filter(lambda row: row[1] < 100).step(doubled)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    with pipe.loader(plan, batch_size=2, workers=0, sampler=ws.Sequential()) as loader:
        for epoch in range(4):
            for number, _ in enumerate(loader):
                if epoch == edited_in and number == 1:
                    rows[1:, 1] = -7
            got = np.concatenate(list(loader)) if epoch > edited_in else None
            assert got is None or got[1:, 1].tolist() == [-14] * (COUNT - 1)


def test_a_file_that_is_edited_as_it_is_read(tmp_path):
    """What was read then is not found by who has the file as it was."""
    path = tmp_path / "number.txt"
    path.write_text("1")
    before = path.stat()
    edits = [lambda: None, lambda: path.write_text("2")]  # a sample is read first to see what samples look like

    class Reader:
        def __identity__(self) -> str:
            return "reader"

        def __call__(self, sample: dict[str, Any]) -> Any:
            if edits:
                edits.pop(0)()
            return np.array([int(path.read_text())])

    def first_of_all() -> int:
        pipe = ws.Pipeline([{"path": str(path)}]).step(Reader())
        plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path / "kept")
        with pipe.loader(plan, batch_size=1, workers=0) as loader:
            return int(next(iter(loader))[0, 0])

    assert first_of_all() == 2
    assert not edits
    path.write_text("1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert first_of_all() == 1


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_in_workers(tmp_path, method):
    source = [Lazy(number) for number in range(COUNT)]
    pipe = ws.Pipeline(source).step(content)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path, workers=2)
    with pipe.loader(plan, batch_size=2, workers=2, sampler=ws.Sequential(), start_method=method) as loader:
        for _ in range(2):
            got = np.concatenate([np.asarray(batch) for batch in loader])
            np.testing.assert_array_equal(got[:, 0], np.arange(COUNT))


def test_what_is_known_of_samples_can_be_pickled():
    pipe = ws.Pipeline([Lazy(number) for number in range(COUNT)]).step(content)
    before = pipe.identities.states.look()
    again = pickle.loads(pickle.dumps(pipe)).identities.states.look()
    assert again.name == before.name
    assert again.each.tolist() == before.each.tolist()


class Listed:
    """A data set as those of folders of images are: a long list of files."""

    def __init__(self, count: int) -> None:
        self.samples = [(f"/nowhere/{number}.jpg", number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return np.full(3, float(self.samples[index][1]))


def test_a_long_list_is_not_looked_at_again_in_the_first_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded_identity, "_BRIEF", 0.0)
    source = Listed(20_000)
    pipe = ws.Pipeline(source).step(counted)
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    looks = []
    with pipe.loader(plan, batch_size=100, workers=0, sampler=ws.Sequential()) as loader:
        pipe.identities.states.look_again()
        look = object_walk.ObjectWalk.run
        monkeypatch.setattr(object_walk.ObjectWalk, "run", lambda self: (looks.append(self.name), look(self))[1])
        batches = iter(loader)
        next(batches)
        assert looks.count("source") <= 1  # at the beginning of the epoch
        source.samples[150] = ("/nowhere/150.jpg", -1)
        assert [*next(batches)[:, 0]][50] == -1
    pipe = ws.Pipeline(Listed(20_000)).step(counted)  # which has not been edited
    with pipe.loader(plan, batch_size=100, workers=0, sampler=ws.Sequential()) as loader:
        batches = iter(loader)
        next(batches)
        assert [*next(batches)[:, 0]][50] == 150


@dataclasses.dataclass
class Named:
    path: str
    label: int


def test_data_below_the_root_may_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever holds the paths of files, their samples have the same keys in another folder."""
    makers: list[Callable[[Path], Any]] = [
        lambda path: path,
        str,
        lambda path: (str(path), 3),
        lambda path: {"path": path, "label": 1},
        lambda path: Named(str(path), 2),
        lambda path: [str(path), *["more"] * 40],
    ]

    def keys(folder: Path, make: Callable[[Path], Any], root: Path | None) -> list[Any]:
        paths = [folder / f"{number}.bin" for number in range(COUNT)]
        pipe = ws.Pipeline([make(path) for path in paths], files="content", root=root)
        return pipe.identities.states.look().each.tolist()

    for number, name in enumerate(("one", "two")):
        (tmp_path / name / "data").mkdir(parents=True)
        for at in range(COUNT):
            (tmp_path / name / "data" / f"{at}.bin").write_bytes(bytes([at]))
            os.utime(tmp_path / name / "data" / f"{at}.bin", (number, number))
    one, two = tmp_path / "one" / "data", tmp_path / "two" / "data"
    for make in makers:
        known = keys(one, make, one)
        assert keys(two, make, two) == known
        assert keys(two, make, tmp_path) != known
        assert keys(two, make, None) != known
        assert len({tuple(key) for key in known}) == COUNT
    (two / "3.bin").write_bytes(b"changed")
    for make in makers:
        differs = [key != other for key, other in zip(keys(one, make, one), keys(two, make, two), strict=True)]
        assert differs == [at == 3 for at in range(COUNT)]
    for folder in (tmp_path, one):
        monkeypatch.chdir(folder)
        here, there = (keys(Path(os.path.relpath(place)), str, place) for place in (one, two))
        assert [key != other for key, other in zip(here, there, strict=True)] == differs
    monkeypatch.chdir(one)
    labels = ["0.bin", "./0.bin", str(one / "0.bin"), "0.bin/", "cat", "./cat", str(one / "cat")]
    each = ws.Pipeline([*labels, "-"], root=one).identities.states.look().each.tolist()
    assert len(set(map(tuple, each))) == len(labels) + 1
    outside = tmp_path / "two" / "data" / ".." / ".." / "one" / "data"  # written as if it were below
    assert keys(outside, str, two) != keys(outside, str, outside)


def test_an_interrupt_while_a_change_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object, **options: object) -> Any:
        raise KeyboardInterrupt

    arrays = [np.full(3, float(number)) for number in range(COUNT)]
    pipe = ws.Pipeline(arrays).step(doubled)
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)
    with pipe.loader(plan, COUNT, workers=0, sampler=ws.Sequential()) as loader:
        assert next(iter(loader))[0, 0] == 0
        arrays[0] += 21
        with monkeypatch.context() as patch:
            patch.setattr(sample_states, "replace", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        for _ in range(2):
            assert next(iter(loader))[0, 0] == 42
