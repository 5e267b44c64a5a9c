"""The ends of processes, and forks: pending rows are flushed by whoever owns them, once."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.faults import processes
from tests.faults.children import FIELDS, check, columns, in_child, record, well
from tests.slow import thinned

import warmstore as ws
from warmstore.storage.lifecycle import Closeable

pytestmark = pytest.mark.forks

NUMBER = {"x": ws.Array("int64")}
START = """
import sys, os, threading
import warmstore as ws
store = ws.RecordStore.open(sys.argv[1], "a")
store.append({'x': 1})
"""


@pytest.mark.parametrize(
    ("end", "code"),
    thinned(
        2,
        [
            ("", 0),
            ("sys.exit(3)", 3),
            ("raise RuntimeError", 1),
            ("del store; os._exit(0)", 0),
            ("store = None; os._exit(0)", 0),
            ("kept = [store]; kept.append(kept); del store", 0),
            ("thread = threading.Thread(target=lambda: store.append({'x': 1})); thread.start()", 0),
            ("import atexit; atexit.register(lambda: None)", 0),
            ("sys.settrace(None); store.flush(); store.append({'x': 1})", 0),
            ("import torch, multiprocessing", 0),
        ],
    ),
)
def test_rows_pending_at_the_end_of_a_process_are_flushed(tmp_path: Path, end: str, code: int) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    ran = subprocess.run(
        [sys.executable, "-c", START + end, str(tmp_path / "s")], capture_output=True, text=True, check=False
    )
    assert ran.returncode == code, ran.stderr
    assert ("Traceback" in ran.stderr) == ("raise" in end)
    rows = 2 if end.count("append({") else 1
    assert ws.RecordStore.open(tmp_path / "s")[:]["x"].tolist() == [1] * rows
    (chunk,) = (tmp_path / "s").rglob("*.arrow")
    assert chunk.read_bytes().endswith(b"ARROW1")  # sealed


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_many_rows_pending_at_the_end_of_a_process_are_flushed(tmp_path: Path, codec: str) -> None:
    """They are hashed and compressed in threads, which Python has ended by then."""
    code = f"""
import sys, numpy as np
import warmstore as ws
store = ws.RecordStore.create(sys.argv[1], {{"x": ws.Array("int64", (1000,), codec={codec!r})}})
store.extend({{"x": np.random.default_rng(0).integers(0, 99, (300, 1000))}})
cache = ws.FeatureCache(sys.argv[2], "f", codec={codec!r})
cache.put_batch(range(300), np.ones((300, 1000)))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s"), str(tmp_path / "c")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert len(ws.RecordStore.open(tmp_path / "s")) == 300
    with ws.FeatureCache(tmp_path / "c", "f", read_only=True) as cache:
        assert len(cache) == 300


FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
"""
"""No file grows beyond 10 bytes from here on."""
CACHE = """
import sys, torch
import warmstore as ws
cache = ws.FeatureCache(sys.argv[1], "f")
module = ws.CachedModule(torch.nn.Linear(2, 2).requires_grad_(False).eval(), cache)
module(torch.ones(3, 2), cache_ids=[1, 2, 3])
"""
SHELVES = """
import sys
from pathlib import Path
from tests.pipeline.functions import slow_image
from tests.pipeline.making import plan_of
import warmstore as ws
pipe = ws.Pipeline(range(20)).step(slow_image)
loader = pipe.loader(plan_of(pipe, [(1, "disk", "raw")], [20], folder=Path(sys.argv[1])), 4, workers=0)
batches = iter(loader)
next(batches)
"""


def ended(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    """A process that ran some code to its end."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [Path.cwd(), *sys.path]))}
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.parametrize(
    ("end", "code"),
    thinned(
        3,
        [
            ("", 120),
            ("sys.exit(0)", 120),
            ("sys.stderr.flush(); print('told', file=sys.stderr, flush=True)", 120),
            ("sys.stderr = None", 120),
            ("raise RuntimeError", 1),
            ("raise KeyboardInterrupt", -signal.SIGINT),
            ("import atexit; atexit.register(print, 'others have their turn')", 120),
            ("import logging; logging.basicConfig(filename='/dev/null')", 120),
        ],
    ),
)
def test_rows_that_are_lost_at_the_exit_are_a_status(tmp_path: Path, end: str, code: int) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    ran = ended(START + FULL + end, tmp_path / "s")
    assert ran.returncode == code, ran.stderr
    if "None" not in end:
        assert ran.stderr.count("could not be closed; rows that were still pending are lost") == 1
        assert "File too large" in ran.stderr
    assert ("others have their turn" in ran.stdout) == ("others" in end)
    with ws.RecordStore.open(tmp_path / "s") as store:
        assert len(store) == 0


def test_a_program_that_keeps_its_rows_ends_well(tmp_path: Path) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    ran = ended(START + "store.close()" + FULL, tmp_path / "s")
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.slow
def test_samples_of_a_cache_that_are_lost_at_the_exit_are_a_status(tmp_path: Path) -> None:
    ran = ended(CACHE + FULL, tmp_path / "c")
    assert ran.returncode == 120, ran.stderr
    assert "could not be closed" in ran.stderr
    assert "File too large" in ran.stderr
    ran = ended(CACHE, tmp_path / "d")
    assert (ran.returncode, ran.stderr) == (0, "")


def test_a_pipeline_that_cannot_keep_samples_says_so_and_does_its_work(tmp_path: Path) -> None:
    """As in the middle of a run: its disk is there for speed alone, and nothing was promised to be there."""
    ran = ended(SHELVES + FULL, tmp_path / "c")
    assert ran.returncode == 0
    assert "nothing more is kept here, and what is missing is computed every time" in ran.stderr
    assert "File too large" in ran.stderr


@pytest.mark.parametrize(("has_pending", "code"), [(True, 120), (False, 0)])
def test_any_owner_of_rows_that_fails_to_close_is_a_status(tmp_path: Path, has_pending: bool, code: int) -> None:
    program = f"""
from tests.faults.test_exits import Failing
Failing._has_pending = {has_pending}
owner = Failing()
owner._register()
"""
    ran = ended(program, tmp_path)
    assert ran.returncode == code
    assert "could not be closed" in ran.stderr


def test_an_artifact_store_that_fails_to_close_loses_nothing(tmp_path: Path) -> None:
    program = """
import sys
from warmstore.compiling.store.artifact_store import ArtifactStore
class Failing(ArtifactStore):
    def close(self):
        raise OSError("no")
store = Failing(sys.argv[1])
"""
    ran = ended(program, tmp_path / "a")
    assert ran.returncode == 0
    assert "could not be closed; nothing was pending" in ran.stderr


def test_a_forked_child_ends_as_its_program_says(tmp_path: Path) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    code = START + "if os.fork():\n    os._exit(os.waitstatus_to_exitcode(os.wait()[1]))\n"
    ran = ended(code + "store.append({'x': 2})" + FULL, tmp_path / "s")
    assert ran.returncode == 0
    assert "could not be closed" in ran.stderr


@pytest.mark.parametrize("start", thinned(2, ["fork", "forkserver", "spawn"]))
def test_rows_pending_in_a_multiprocessing_child_that_returns(tmp_path: Path, start: str) -> None:
    path = tmp_path / "s"
    ws.RecordStore.create(path, FIELDS).close()
    child = multiprocessing.get_context(start).Process(target=processes.append, args=(path, 0, 5))
    child.start()
    child.join()
    assert child.exitcode == 0
    check(ws.RecordStore.open(path), range(5))


@pytest.fixture
def store(tmp_path: Path) -> ws.RecordStore:
    store = ws.RecordStore.create(tmp_path / "s", FIELDS)
    store.extend(columns(range(3)))
    store.flush()
    store.append(record(3))
    return store


def test_an_inherited_writer_is_inert(store: ws.RecordStore) -> None:
    files = {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()}

    def child(say: Callable[[Any], None]) -> None:
        check(store, range(3))  # the pending row is the parent's
        store.flush()
        store.close()
        say("closed")

    assert well(in_child(child)) == ["closed"]
    assert {path: path.read_bytes() for path in store.path.rglob("*") if path.is_file()} == files
    check(store, range(4))
    store.close()
    check(ws.RecordStore.open(store.path), range(4))


def test_a_child_may_append_on_its_own(store: ws.RecordStore) -> None:
    def child(say: Callable[[Any], None]) -> None:
        store.append(record(10))
        check(store, [0, 1, 2, 10])
        store.close()

    well(in_child(child))
    store.refresh()
    check(store, [0, 1, 2, 10, 3])
    store.close()
    check(ws.RecordStore.open(store.path), [0, 1, 2, 10, 3])
    assert len(list(store.path.rglob("*.arrow"))) == 2


def test_a_multiprocessing_child_may_append_to_what_it_inherits(store: ws.RecordStore) -> None:
    def child() -> None:
        store.append(record(10))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode == 0
    store.refresh()
    check(store, [0, 1, 2, 10, 3])


def test_a_child_that_lives_on_holds_none_of_the_locks(store: ws.RecordStore) -> None:
    (chunk,) = store.path.rglob("*.arrow")
    reading, writing = os.pipe()
    child: list[Any] = []

    started, start = os.pipe()

    def wait(say: Callable[[Any], None]) -> None:
        os.close(writing)
        os.write(start, b".")
        os.read(reading, 1)  # until the parent lets go

    thread = threading.Thread(target=lambda: child.append(in_child(wait)))
    thread.start()
    os.read(started, 1)
    descriptor = os.open(chunk, os.O_RDWR)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        store.close()
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody but the parent held it
    finally:
        os.close(descriptor)
        os.close(writing)
        thread.join()
        for one in (reading, started, start):
            os.close(one)
    well(child[0])


def test_a_child_that_was_forked_during_an_edit_does_not_keep_its_lock(store: ws.RecordStore) -> None:
    reading, writing = os.pipe()
    started, start = os.pipe()
    child: list[Any] = []

    def wait(say: Callable[[Any], None]) -> None:
        os.close(writing)
        os.write(start, b".")
        os.read(reading, 1)  # until the parent lets go

    with store._editing():
        thread = threading.Thread(target=lambda: child.append(in_child(wait)))
        thread.start()
        os.read(started, 1)
    descriptor = os.open(store.path / "edit.lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for one in (descriptor, writing):
            os.close(one)
        thread.join()
        for one in (reading, started, start):
            os.close(one)
    well(child[0])


def test_a_fork_while_another_thread_holds_the_lock(store: ws.RecordStore) -> None:
    def child(say: Callable[[Any], None]) -> None:
        store.append(record(4))
        store.flush()
        check(store, [0, 1, 2, 4])

    with store._session.lock, store._session.generation.log.locked():
        ended: list[Any] = []
        thread = threading.Thread(target=lambda: ended.append(in_child(lambda say: check(store, range(3)))))
        thread.start()
        thread.join()
        well(ended[0])
    well(in_child(child))


def test_a_reader_goes_on_in_the_child(store: ws.RecordStore) -> None:
    read = ws.RecordStore.open(store.path)
    store.flush()

    def child(say: Callable[[Any], None]) -> None:
        read.refresh()
        check(read, range(4))
        read.close()

    well(in_child(child))
    check(read, range(3))
    read.refresh()
    check(read, range(4))


def test_a_fork_after_torch_gathered_does_not_wait_for_ever(tmp_path: Path) -> None:
    """torch's threads do not survive a fork. The alarm is there to end a child that waits for them."""
    code = (
        "import os, signal, sys, numpy as np, torch, warmstore as ws\n"
        "torch.set_num_threads(2)\n"
        "store = ws.RecordStore.create(sys.argv[1], {'x': ws.Array('float32', (1024,))})\n"
        "values = np.random.default_rng(0).random((1000, 1024), np.float32)\n"
        "store.extend({'x': values})\n"
        "store.flush()\n"
        "assert (store[:]['x'] == values).all()\n"
        "torch.ones(1000, 1000) @ torch.ones(1000, 1000)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    signal.alarm(60)\n"
        "    os._exit(0 if (store[:]['x'] == values).all() else 3)\n"
        "sys.exit(os.waitpid(child, 0)[1] != 0)\n"
    )
    assert warm.run([sys.executable, "-c", code, tmp_path / "s"]).returncode == 0


class Counted(Closeable):
    _has_pending = True

    def __init__(self) -> None:
        self.closes = 0
        self.forks = 0
        self.closed = False

    def close(self) -> None:
        self.closes += 1

    def _after_fork(self) -> None:
        self.forks += 1


class Failing(Counted):
    def close(self) -> None:
        raise OSError("no")


def test_an_owner_is_told_of_forks_until_it_is_disowned() -> None:
    kept, let_go = Counted(), Counted()
    for one in (kept, let_go):
        one._register()
        one._register()
    let_go._unregister()

    def child(say: Callable[[Any], None]) -> None:
        say((kept.forks, let_go.forks))

    assert well(in_child(child)) == [(1, 0)]
    assert kept.forks == 0
    with kept as same:
        assert same is kept
    assert kept.closes == 1
    kept._unregister()


def test_a_failing_close_is_logged_where_nobody_can_catch_it(caplog: pytest.LogCaptureFixture) -> None:
    Failing().__del__()
    assert "could not be closed" in caplog.text
    caplog.clear()


TERMINATED = """
import signal, time
end = {end!r}
if end == "python in the main thread":
    while True:
        pass
elif end == "in a flush":
    store._session.lock.acquire()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
    store._session.lock.release()
time.sleep(100)
"""


@pytest.mark.parametrize("end", ["asleep", "python in the main thread", "in a flush"])
def test_sigterm_flushes_what_is_pending_and_ends_the_process(tmp_path: Path, end: str) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    code = START + "print('ready', flush=True)\n" + TERMINATED.format(end=end)
    command = [sys.executable, "-c", code, str(tmp_path / "s")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        if end != "in a flush":
            child.terminate()
        assert child.wait(60) == -signal.SIGTERM
    assert ws.RecordStore.open(tmp_path / "s")[:]["x"].tolist() == [1]


@pytest.mark.parametrize(
    "made", ["ws.RecordStore.open(sys.argv[1])", "ws.Loader([1, 2], 1)", "ws.Pipeline([1]).step(abs)"]
)
def test_readers_leave_the_signal_alone(tmp_path: Path, made: str) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    code = f"import signal, sys\nimport warmstore as ws\nmade = {made}\n"
    code += "sys.exit(signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL)"
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "s")], check=False).returncode == 0


def test_sigterm_flushes_a_cache(tmp_path: Path) -> None:
    end = "print('ready', flush=True); import time; time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", CACHE + end, tmp_path], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        assert child.wait(60) == -signal.SIGTERM
    (store,) = tmp_path.rglob("store.json")
    assert len(ws.RecordStore.open(store.parent)) > 0


def test_a_handler_of_the_program_says_what_follows_a_sigterm(tmp_path: Path) -> None:
    """It may call the one that was there before, which flushes and no more. As Lightning's does."""
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    end = """
import signal, time
before = signal.getsignal(signal.SIGTERM)
told = []
def handle(number, frame):
    told.append(number)
    before(number, frame)
signal.signal(signal.SIGTERM, handle)
for count in (1, 2):
    os.kill(os.getpid(), signal.SIGTERM)
    while len(ws.RecordStore.open(sys.argv[1])) < count:
        time.sleep(0.01)
    store.append({'x': count + 1})
os._exit(7 if len(told) == 2 else 1)
"""
    ran = subprocess.run([sys.executable, "-c", START + end, str(tmp_path / "s")], check=False, timeout=60)
    assert ran.returncode == 7
    assert ws.RecordStore.open(tmp_path / "s")[:]["x"].tolist() == [1, 2]


def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    end = """
import signal, time
store._session.lock.acquire()  # for ever
for _ in range(2):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.2)
"""
    ran = subprocess.run([sys.executable, "-c", START + end, str(tmp_path / "s")], check=False, timeout=60)
    assert ran.returncode == -signal.SIGTERM


def default_at_sigterm(path: Path, pipe: Any) -> None:
    with ws.RecordStore.open(path, "a"):
        pipe.send(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)


def test_a_spawned_child_is_ended_by_sigterm_at_once(tmp_path: Path) -> None:
    """DataLoaders end their workers so, and take one that ends later for one that was killed."""
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe()
    child = context.Process(target=default_at_sigterm, args=(tmp_path / "s", its))
    child.start()
    assert ours.recv()
    child.join()


def test_a_forked_child_is_ended_by_sigterm_at_once(tmp_path: Path) -> None:
    """What is pending is the parent's. Loaders end their workers so."""
    ws.RecordStore.create(tmp_path / "s", NUMBER).close()
    end = """
import signal, time
child = os.fork()
if not child:
    time.sleep(100)
assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
time.sleep(0.1)
os.kill(child, signal.SIGTERM)
sys.exit(0 if os.WTERMSIG(os.wait()[1]) == signal.SIGTERM else 1)
"""
    ran = subprocess.run([sys.executable, "-c", START + end, str(tmp_path / "s")], check=False, timeout=60)
    assert ran.returncode == 0
