"""What is kept of results, where, and how it survives other processes, damage, full disks and small folders."""

import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm
from tests.faults.seam import FullDisk, Removing
from tests.slow import either, thinned

import warmstore as ws
from warmstore.functions.function_cache import FunctionCache
from warmstore.functions.large_values import LARGE
from warmstore.functions.results import ResultStore
from warmstore.storage.history import read_history


@dataclasses.dataclass
class Box:
    size: int
    pixels: Any = None


Pair = namedtuple("Pair", "first second")


class Odd:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd) and self.x == other.x

    def __hash__(self) -> int:
        return self.x


RESULTS = {
    "none": None,
    "number": 3,
    "large number": 1 << 80,
    "float": float("inf"),
    "text": "ä",
    "surrogate": "\ud800",
    "empty": "",
    "bytes": b"\0\xff",
    "dict": {"a": [1, 2.5, "x", None], 3: (True, b"y"), None: {}},
    "ordered": OrderedDict(b=1, a=2),
    "pair": Pair(1, [Pair("x", None)]),
    "box": Box(3, np.arange(5, dtype=np.uint8)),
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "zero-dimensional": np.array(3.5),
    "no elements": np.zeros((0, 3), np.float32),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "dates": np.array(["2020-01-01"], "datetime64[D]"),
    "scalar": np.float32(1.5),
    "tensor": torch.arange(3, dtype=torch.bfloat16),
    "large": np.arange(LARGE, dtype=np.uint8),
    "large and odd": [np.zeros(3, np.uint8), np.arange(LARGE, dtype=np.float64)],
    "large text": "xy" * LARGE,
}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray | torch.Tensor):
        other_type = type(other) is type(one) and other.dtype == one.dtype and other.shape == one.shape
        return bool(other_type and (torch.equal(one, other) if isinstance(one, torch.Tensor) else _equal(one, other)))
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return same(vars(one), vars(other)) if isinstance(one, Box) else bool(one == other)


def _equal(one: Any, other: Any) -> bool:
    return bool((one == other).all()) and one.strides == other.strides


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def result_of(name: str) -> Any:
    return RESULTS[name]


@pytest.mark.parametrize("name", thinned(3, RESULTS))
def test_hits_equal_misses_pending_and_stored(folder: Path, name: str) -> None:
    f = ws.cached(folder)(result_of)
    expected = f(name)
    assert same(f(name), expected)
    f.cache.flush()
    for _ in range(2):
        assert same(f(name), expected)
    f.cache.close()
    assert same(f(name), expected)
    assert f.cache.stats().misses == 1
    f.cache.close()


@pytest.mark.parametrize("size", [16, LARGE])
@pytest.mark.parametrize("kind", ["array", "tensor", "list"])
def test_what_a_caller_writes_into_a_result_is_not_in_the_next(folder: Path, size: int, kind: str) -> None:
    def make(size: int) -> Any:
        array = np.zeros(size)
        return {"array": array, "tensor": torch.from_numpy(array), "list": [array, array]}[kind]

    f = ws.cached(folder)(make)
    for _ in range(4):
        value = f(size)
        array = value[0] if kind == "list" else value
        assert array[0] == 0
        array[:] = 1
        if kind == "list":
            assert value[1] is array  # as the function returned it
        f.cache.flush()
    assert f.cache.stats().misses == 1
    f.cache.close()
    assert (np.asarray(f(size))[..., 0] == 0).all()
    f.cache.close()


def test_a_large_result_outlives_its_store(folder: Path) -> None:
    f = ws.cached(folder)(lambda: np.arange(LARGE))
    f()
    f.cache.flush()
    kept = f()
    f.cache.clear()
    f.cache.close()
    assert (kept == np.arange(LARGE)).all()


def test_with_too_many_mappings_large_results_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("warmstore.storage.memory.private_pages._MOST", 2)
    f = ws.cached(folder)(lambda: np.arange(LARGE))
    f()
    f.cache.flush()
    kept = [f() for _ in range(5)]
    for value in kept:
        value += 1
    assert (f() == np.arange(LARGE)).all()
    f.cache.close()


class TestPickles:
    def test_other_objects_are_refused_with_a_remedy(self, folder: Path) -> None:
        f = ws.cached(folder)(Odd.__hash__)
        g = ws.cached(folder)(lambda x: {"odd": Odd(x)})
        assert f(Odd(1)) == 1
        with pytest.raises(ws.UnsupportedType, match=r"the result of .* odd is a .*Odd.*allow_pickle=True"):
            g(1)
        f.cache.close()
        g.cache.close()

    def test_they_are_pickled_where_it_is_allowed(self, folder: Path) -> None:
        def make(x: int) -> Any:
            return {"odd": Odd(x)}

        f = ws.cached(folder, allow_pickle=True)(make)
        assert [f(1), f(1)] == [{"odd": Odd(1)}] * 2
        assert f.cache.stats().hits == 1
        f.cache.close()
        assert not ws.cached(folder)(make).check_call_in_cache(2)
        with pytest.raises(ws.UnsupportedType):  # it is not unpickled, and so computed again
            ws.cached(folder)(make)(1)

    def test_what_cannot_be_pickled_either(self, folder: Path) -> None:
        with pytest.raises(ws.UnsupportedType, match="it cannot be pickled"):
            ws.cached(folder, allow_pickle=True)(lambda: lambda: 1)()


class TestHandle:
    def test_stats_and_clear(self, folder: Path) -> None:
        f = ws.cached(folder)(lambda x: np.full(100, x))
        for x in (1, 2, 1):
            f(x)
        stats = f.cache.stats()
        assert (stats.hits, stats.misses, stats.entries + stats.pending, stats.refused) == (1, 2, 2, 0)
        assert stats.hit_rate == pytest.approx(1 / 3)
        assert "1 hits, 2 misses (33.3%); 2 results" in str(stats)
        f.cache.clear()
        assert f.cache.stats().entries == f.cache.stats().pending == 0
        assert not f.check_call_in_cache(1)
        f(1)
        assert f.check_call_in_cache(1)
        f.cache.close()
        assert f.check_call_in_cache(1)
        f.cache.close()

    def test_clear_of_nothing(self, folder: Path) -> None:
        ws.cached(folder)(abs).cache.clear()
        assert not folder.exists()

    def test_call_computes_again_and_keeps_the_new_result(self, folder: Path) -> None:
        count = [0]

        def f(x: int) -> int:
            count[0] += 1
            return count[0]

        g = ws.cached(folder)(f)
        assert [g(1), g(1), g.call(1), g(1)] == [1, 1, 2, 2]
        g.cache.flush()
        assert [g(1), g.call(1), g(1)] == [2, 3, 3]
        g.cache.flush()
        assert g(1) == 3
        g.cache.close()

    def test_the_seconds_of_all_runs_count(self, folder: Path) -> None:
        clock = iter(range(0, 1000, 10))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warmstore.functions.function_cache.time.perf_counter", lambda: next(clock))
            f = ws.cached(folder)(lambda x: x)
            f(1)
            f.cache.close()
            f(1)
        assert f.cache.stats().seconds_saved == pytest.approx(10)
        f.cache.close()

    def test_the_history_says_what_each_run_did(self, folder: Path) -> None:
        f = ws.cached(folder)(result_of)
        for name in ("text", "text", "array"):
            f(name)
        f.cache.close()
        (record,) = read_history(f.cache.path)
        assert (record["kind"], record["hits"], record["misses"], record["entries"]) == ("functions", 1, 2, 2)
        assert record["bytes"] > 0

    def test_two_objects_of_one_function_find_each_others_results(self, folder: Path) -> None:
        one, other = ws.cached(folder)(result_of), ws.cached(folder)(result_of)
        one("text")
        assert other.check_call_in_cache("text")
        one.cache.close()
        other.cache.close()

    def test_a_long_name(self, folder: Path) -> None:
        def f() -> int:
            return 1

        names = []
        for end in "ab":
            f.__qualname__ = "ä" * 300 + end
            g = ws.cached(folder)(f)
            g()
            names.append(g.cache.path.name)
            g.cache.close()
        assert names[0] != names[1]
        assert max(map(len, names)) <= 200

    def test_a_folder_with_other_data(self, folder: Path) -> None:
        f = ws.cached(folder)(result_of)
        ws.RecordStore.create(f.cache.path, {"x": ws.Array("int64")}).close()
        with pytest.raises(ws.StoreExists, match="other data than results of"):
            f("text")


SCRIPT = """
import sys
import numpy as np
import warmstore as ws

calls = []

@ws.cached(sys.argv[1])
def f(x):
    calls.append(x)
    return np.full(1000, x)

def check(first, last):
    for x in range(first, last):
        assert (f(x) == x).all()
"""


def run(folder: Path, source: str, *, status: int = 0, fresh: bool = False) -> str:
    path = folder.parent / "script.py"
    path.write_text(SCRIPT + textwrap.dedent(source))
    done = (subprocess.run if fresh else warm.run)(
        [sys.executable, str(path), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    return str(done.stdout)


class TestProcesses:
    def test_pending_results_are_written_at_exit_and_found_by_the_next_run(self, folder: Path) -> None:
        run(folder, "check(0, 5)\nassert f.cache.stats().pending")
        run(folder, "check(0, 5)\nassert not calls")

    def test_pending_results_are_written_at_sigterm(self, folder: Path) -> None:
        run(folder, "import os, signal\ncheck(0, 5)\nos.kill(os.getpid(), signal.SIGTERM)\nimport time\ntime.sleep(60)",
            status=-15)  # fmt: skip
        run(folder, "check(0, 5)\nassert not calls")

    def test_a_forked_child_leaves_pending_results_to_its_parent(self, folder: Path) -> None:
        run(folder, """
            import os
            check(0, 5)
            if not os.fork():
                check(0, 8)
                f.cache.close()
                os._exit(0)
            assert os.wait()[1] == 0
            check(0, 8)
            f.cache.flush()
            assert calls == [0, 1, 2, 3, 4], calls
        """)  # fmt: skip

    def test_the_history_of_a_forked_child_has_its_own_calls(self, folder: Path) -> None:
        run(folder, """
            import os
            from warmstore.storage.history import read_history
            for _ in range(2):
                check(0, 5)
            f.cache.flush()
            if not os.fork():
                check(0, 2)
                check(7, 8)
                f.cache.close()
                os._exit(0)
            assert os.wait()[1] == 0
            *_, last = read_history(f.cache.path)
            assert last["pid"] != os.getpid()
            assert (last["hits"], last["misses"], last["computed"]) == (2, 1, 1), last
            assert last["saved_seconds"] >= 0
        """)  # fmt: skip

    def test_lookups_before_the_first_result_is_stored_are_recorded_later(self, folder: Path) -> None:
        f = ws.cached(folder)(result_of)
        f("text")
        f("text")
        f.cache.clear()
        f.cache.flush()
        f("array")
        f.cache.close()
        *_, last = read_history(f.cache.path)
        assert (last["hits"], last["misses"]) == (1, 2)

    def test_many_processes_at_once(self, folder: Path) -> None:
        path = folder.parent / "script.py"
        path.write_text(SCRIPT + "check(0, 40)\nf.cache.flush()\ncheck(0, 40)\n")
        processes = [warm.popen([sys.executable, str(path), str(folder)]) for _ in range(3)]
        assert [process.wait() for process in processes] == [0] * 3
        run(folder, "check(0, 40)\nassert not calls\nassert f.cache.stats().entries >= 40")


class TestFaults:
    @pytest.mark.parametrize("is_flushed", [True, False])
    @pytest.mark.parametrize("again", ["", "by another", "flush", "clear"])
    def test_a_folder_that_is_removed_while_it_is_open(self, folder: Path, again: str, *, is_flushed: bool) -> None:
        """Every call that was no hit failed from then on, until the program ended."""
        calls = []

        def make(x: int) -> int:
            calls.append(x)
            return x

        f = ws.cached(folder, version="1")(make)
        f(1)
        if is_flushed:
            f.cache.flush()
        shutil.rmtree(folder)
        if again == "by another":
            other = ws.cached(folder, version="1")(make)
            other(5)
            other.cache.close()
        elif again:
            getattr(f.cache, again)()
        assert [f(2), f(3), f(2), f(1)] == [2, 3, 2, 1]
        assert len(calls) <= 5
        f.cache.close()
        calls.clear()
        third = ws.cached(folder, version="1")(make)
        assert [third(x) for x in (2, 3)] == [2, 3]
        if again == "by another":
            assert third(5) == 5
        assert calls == []
        third.cache.close()

    @pytest.mark.parametrize("max_size", [None, 10_000_000])
    @pytest.mark.parametrize("is_new", [False, True])
    def test_a_folder_that_is_removed_at_any_time(self, tmp_path: Path, max_size: int | None, *, is_new: bool) -> None:
        """Each operation of a lookup, and of keeping a result, failed after it."""
        random = np.random.default_rng(0)
        other, *keys = (random.bytes(16) for _ in range(3))
        has_removed, at = True, -1
        while has_removed:
            at += either(5, 1)
            files = Removing(tmp_path / str(at))
            store = ResultStore(files.folder, "f", "f", max_size, files)
            if not is_new:
                store.put(other, b"0", 9.0)
                store.flush()
            files.start(at)
            for key in keys:
                assert store.find(key) is None
                assert store.put(key, key[:1], 0.001)
                store.flush()
            has_removed = files.stop()
            for key in keys:
                assert store.find(key) in ([key[:1], None] if has_removed else [key[:1]])
            store.close()
        assert at > 30

    def test_a_folder_that_is_removed_before_the_end(self, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
        f = ws.cached(folder)(lambda x: x)
        f(1)
        f.cache.flush()
        shutil.rmtree(folder)
        f.cache.close()
        assert [record.getMessage() for record in caplog.records] == [
            f"{f.cache.path} was removed while it was open: what it had is computed anew"
        ]

    def test_damaged_results_are_computed_again(self, folder: Path) -> None:
        f = ws.cached(folder)(lambda x: np.full(500, x))
        f(1)
        f.cache.close()
        (chunk,) = folder.rglob("*.arrow")
        data = bytearray(chunk.read_bytes())
        at = data.find(np.full(500, 1).tobytes())
        data[at + 999] ^= 1
        chunk.write_bytes(data)
        assert (f(1) == 1).all()
        stats = f.cache.stats()
        assert (stats.misses, stats.damaged) == (2, 1)
        f.cache.close()
        assert (f(1) == 1).all()
        assert f.cache.stats().misses == 2
        f.cache.close()

    def test_a_full_disk_stops_nothing_and_is_tried_again(self, folder: Path, caplog: Any) -> None:
        disk = FullDisk()
        cache = FunctionCache(lambda x: np.full(1 << 17, x), folder, files=disk)
        assert cache._get((1,), {})[0] == 1
        disk.room = 0
        for x in range(2, 20):
            assert (cache._get((x,), {}) == x).all()
        assert caplog.text.count("wait for the disk") == 1
        with pytest.raises(ws.WriteFailed):
            cache.flush()
        disk.room = None
        cache.flush()
        cache.close()
        for x in range(1, 20):
            assert (cache._get((x,), {}) == x).all()
        assert cache.stats().misses == 19
        cache.close()

    @pytest.mark.forks
    def test_a_folder_that_cannot_be_written(self, seen_by_all: Path) -> None:
        folder = seen_by_all / "cache"
        f = ws.cached(folder)(result_of)
        f("text")
        f.cache.close()
        child = os.fork()
        if not child:
            status = 1
            try:
                os.setuid(65534)
                logging.disable()
                assert f("text") == "ä"
                assert f("number") == 3
                assert (f.cache.stats().misses, f.cache.stats().refused) == (2, 1)
                with pytest.raises(ws.ReadOnly):
                    f.cache.clear()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0

    def test_max_size(self, folder: Path) -> None:
        f = ws.cached(folder, max_size="8MB")(lambda x: np.full(1 << 15, x))
        for x in range(60):
            assert (f(x) == x).all()
            f.cache.flush()
        assert (f(59) == 59).all()
        stats = f.cache.stats()
        assert stats.hits == 1
        assert stats.bytes <= 8_000_000
        assert f.check_call_in_cache(58)
        assert not f.check_call_in_cache(0)
        assert (f(0) == 0).all()
        f.cache.close()

    def test_a_result_that_is_too_large_is_returned_and_not_kept(self, folder: Path, caplog: Any) -> None:
        f = ws.cached(folder, max_size="8MB")(lambda x: np.full(1 << 18, x))
        assert [len(f(1)), len(f(1))] == [1 << 18] * 2
        assert f.cache.stats().refused == 2
        assert caplog.text.count("with max_size a result may take an eighth of it") == 1
        f.cache.close()
