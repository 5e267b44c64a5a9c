"""Children that are forked while threads of their parent are at work: they wait for no lock that such a thread held."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import in_child, well
from tests.few_modules import search_few_modules
from tests.pipeline.functions import change, make, shake
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.compiling.packages.compiled_program import CompiledProgram
from warmstore.identity.patches import search
from warmstore.storage.cached_property import cached_property
from warmstore.storage.locks import is_held

pytestmark = pytest.mark.forks

FIELDS = {"x": ws.Array("float32", (8,)), "t": ws.Text()}
SECONDS = 60
Work = Callable[[int], object]


def rows(count: int) -> dict[str, Any]:
    return {"x": np.ones((count, 8), np.float32), "t": ["a"] * count}


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another thread holds a lock."""
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            begun.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.parametrize("of_the_log", [False, True])
def test_a_reader_in_a_child_that_was_forked_during_a_refresh(of_the_log: bool, tmp_path: Path) -> None:
    ws.RecordStore.create(tmp_path / "s", FIELDS).close()
    reader = ws.RecordStore.open(tmp_path / "s")
    with ws.RecordStore.open(tmp_path / "s", "a") as writer:
        writer.extend(rows(5))

    def read(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        reader.refresh()
        say((len(reader), reader["t"][:]))

    session = reader._session  # type: ignore[attr-defined]
    with held(session.generation.log.guard if of_the_log else session.lock):
        said = well(in_child(read))
    assert said == [(5, ["a"] * 5)]
    reader.close()


def test_a_reader_that_nobody_refreshes_is_not_opened_again_in_a_child(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as writer:
        writer.extend(rows(5))
    with ws.RecordStore.open(tmp_path / "s") as reader:
        before = reader._session  # type: ignore[attr-defined]
        assert well(in_child(lambda say: say(reader._session is before))) == [True]  # type: ignore[attr-defined]


def test_an_identity_in_a_child_that_was_forked_during_a_search() -> None:
    def identify(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        say([str(one) for one in ws.Pipeline(range(4)).step(change).identities.descriptions()])

    (before,) = well(in_child(identify))
    with held(search._namespaces.lock):
        assert well(in_child(identify)) == [before]


def test_a_cached_function_in_a_child_that_was_forked_during_its_first_call(tmp_path: Path) -> None:
    kept = ws.cached(folder=tmp_path / "f")(double)

    def call(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        say(kept(4))

    with closing(kept.cache), held(kept.cache._identity._lock):
        assert well(in_child(call)) == [8]


def test_a_data_set_in_a_child_that_was_forked_while_a_sample_was_read(tmp_path: Path) -> None:
    pipe = ws.Pipeline(range(4)).step(double)
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [4], folder=tmp_path)) as data:

        def read(say: Callable[[Any], None]) -> None:
            signal.alarm(SECONDS)
            say(data[3])

        with held(data._source.cached.lock):
            assert well(in_child(read)) == [6]


def test_a_compiled_program_in_a_child_that_was_forked_while_it_was_identified() -> None:
    program = CompiledProgram(double, {}, None, ())
    with held(program._lock):
        assert is_held(program._lock)
        assert well(in_child(lambda say: say(is_held(program._lock)))) == [False]


def test_an_attribute_in_a_child_that_was_forked_while_another_was_computed() -> None:
    begun, done = threading.Event(), threading.Event()

    class Some:
        def __init__(self, *, waits: bool) -> None:
            self.waits = waits

        @cached_property
        def value(self) -> int:
            if self.waits:
                begun.set()
                done.wait()
            return 5

    thread = threading.Thread(target=lambda: Some(waits=True).value)
    thread.start()
    begun.wait()

    def read(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        some = Some(waits=False)
        say((some.value, vars(some)["value"]))

    try:
        assert well(in_child(read)) == [(5, 5)]
    finally:
        done.set()
        thread.join()
    assert isinstance(Some.value, cached_property)


def records(folder: Path) -> tuple[list[Work], Work]:
    with ws.RecordStore.create(folder / "s", FIELDS) as store:
        store.extend(rows(100))
    shared, writer = ws.RecordStore.open(folder / "s"), ws.RecordStore.open(folder / "s", "a")

    def read(at: int) -> None:
        shared.refresh()
        shared[np.arange(0, len(shared), 7)]

    def write(at: int) -> None:
        writer.extend(rows(3))
        writer.flush()

    return [read, read, write], read


def identities(folder: Path) -> tuple[list[Work], Work]:
    def identify(at: int) -> None:
        ws.Pipeline(range(4)).step(change).identities.descriptions()

    return [identify, identify], identify


def cache(folder: Path) -> tuple[list[Work], Work]:
    found = ws.FeatureCache(folder / "c", "id", flush_every=4)

    def put(at: int) -> None:
        found.put_batch([f"{os.getpid()} {at} {i}" for i in range(4)], np.ones((4, 8), np.float32))
        found.get_batch([f"{os.getpid()} {at} {i}" for i in range(4)])

    return [put], put


def pipeline(folder: Path) -> tuple[list[Work], Work]:
    pipe: Any = ws.Pipeline(range(48)).step(make, kind="dict").step(change).step(shake, random=True)
    plan = plan_of(pipe, [(2, "disk", "raw"), (1, "memory", "raw")], [24, 24], folder=folder / "plan")

    def read(at: int) -> None:
        with pipe.loader(plan, 8, seed=at, workers=0) as loader:
            list(loader)

    return [read], read


def functions(folder: Path) -> tuple[list[Work], Work]:
    kept = ws.cached(folder=folder / "f")(double)

    def call(at: int) -> None:
        assert kept(at % 50) == 2 * (at % 50)

    return [call, call], call


def double(number: int) -> int:
    return 2 * number


@pytest.mark.slow
@pytest.mark.parametrize("work", [records, identities, cache, pipeline, functions])
def test_children_that_are_forked_while_threads_are_at_work(
    work: Callable[[Path], tuple[list[Work], Work]], tmp_path: Path
) -> None:
    def fork(say: Callable[[Any], None]) -> None:
        search_few_modules()
        threads, child = work(tmp_path)
        going = threading.Event()
        os.register_at_fork(after_in_parent=going.clear)  # the child is alone
        for each in threads:
            threading.Thread(target=again_and_again, args=(each, going), daemon=True).start()
        going.set()
        time.sleep(0.2)
        rng = np.random.default_rng(0)
        for _ in range(300):
            going.set()
            time.sleep(rng.random() * 0.04)
            well(in_child(lambda say: (signal.alarm(SECONDS), [child(at) for at in range(3)])))  # type: ignore[arg-type]
        say("done")

    assert well(in_child(fork)) == ["done"]


def again_and_again(work: Work, going: threading.Event) -> None:
    at = 0
    while True:
        going.wait()
        work(at)
        at += 1
