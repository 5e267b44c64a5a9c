"""Kept answers of filters: later runs, growth, edits, several processes, errors, and the budget of their folder."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tests import warm
from tests.pipeline.making import numbered_files, plan_of
from tests.slow import thinned

import warmstore as ws
from warmstore.pipeline.tiers.tier_quota import tier_quota
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.lease import is_locked

pytestmark = pytest.mark.forks

COUNT = 60
calls = [0]


def read(path: Path) -> Any:
    """The bytes of a file."""
    return np.frombuffer(path.read_bytes(), np.uint8)


def bright(value: Any, least: int = 30) -> bool:
    """A predicate that counts its calls."""
    calls[0] += 1
    return bool(value[0] >= least)


@pytest.fixture(autouse=True)
def _other_tests_counted_nothing() -> None:
    """Where one left as many calls as a step had counted, the next one would be taken for the step's own memory."""
    calls[0] = 0


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return numbered_files(tmp_path / "data", COUNT + 10, 8)


def evaluated(paths: list[Path], folder: Path, *, step: Any = read, **arguments: Any) -> int:
    """How many samples a new pipeline evaluates; those that pass are the right ones."""
    before = calls[0]
    pipe = ws.Pipeline(paths).step(step).filter(bright, folder=folder, **arguments)
    found = [int(pipe[at][0]) for at in range(len(pipe))]
    least = arguments.get("least", 30)
    assert found == [path.read_bytes()[0] for path in paths if path.read_bytes()[0] >= least]
    made, calls[0] = calls[0] - before, before  # the counter is memory of the step, which the program must not change
    return made


def test_only_new_and_changed_samples_are_evaluated(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    assert evaluated(paths[:COUNT], cache) == COUNT
    assert evaluated(paths[:COUNT], cache) == 0
    assert evaluated([paths[COUNT + 2], *paths[: COUNT + 1]], cache) == 2  # it has grown
    assert evaluated(paths[::-2], cache) == 5
    paths[7].write_bytes(b"\x50" * 9)
    assert evaluated(paths[:COUNT], cache) == 1
    assert evaluated(paths[:COUNT], cache, least=40) == COUNT  # another argument
    assert evaluated(paths[:COUNT], cache, least=40) == evaluated(paths[:COUNT], cache) == 0
    assert evaluated(paths[:COUNT], cache, version="2") == COUNT
    assert evaluated(paths[:COUNT], cache, step=other_read) == COUNT


def other_read(path: Path) -> Any:
    return np.frombuffer(path.read_bytes() + b"end", np.uint8)


def test_the_folder_of_a_plan_keeps_answers(tmp_path: Path, paths: list[Path]) -> None:
    before = calls[0]
    pipe = ws.Pipeline(paths).step(read).filter(bright)
    assert len(pipe._resolve(tmp_path / "cache")) == 40
    other = pipe.filter(few, folder=tmp_path / "other")
    assert len(other._resolve(tmp_path / "cache")) == 10
    calls[0] = before
    assert evaluated(paths, tmp_path / "cache") == 0
    versions = {name: len(list((tmp_path / name).glob("*/*/about.json"))) for name in ("cache", "other")}
    assert versions == {"cache": 1, "other": 1}


def few(value: Any) -> bool:
    return bool(value[0] >= COUNT)


def test_answers_and_other_pipelines_are_no_reason_for_new_samples(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("decode", "load"):
        pipe = ws.Pipeline(range(8)).filter(lambda index: index > 2).step(float, name=name)
        with pipe.loader(plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path), workers=0) as loader:
            list(loader)
    assert "computed anew" not in caplog.text


def test_edits_of_code_evaluate_anew(tmp_path: Path, program: Callable[..., ModuleType]) -> None:
    def run(least: int) -> list[int]:
        module = program(f"""
            def above(value):
                return value > {least}
        """)
        pipe = ws.Pipeline(range(COUNT)).filter(module.above, folder=tmp_path / "cache")
        return [pipe[at] for at in range(len(pipe))]

    assert run(30) == list(range(31, COUNT))
    assert run(50) == list(range(51, COUNT))
    assert run(30) == list(range(31, COUNT))


def test_answers_that_are_known_already_are_kept_with_a_plan(tmp_path: Path, paths: list[Path]) -> None:
    pipe = ws.Pipeline(paths).step(read).filter(bright)
    before = calls[0]
    assert len(pipe) == 40
    plan = plan_of(pipe, [(1, "disk", "raw")], [40], folder=tmp_path / "cache")
    with pipe.loader(plan, 8, workers=0) as loader:
        assert len(list(loader)) == 5
    longer = pipe.step(np.copy).filter(bright, least=50)
    assert len(longer) == 20
    made, calls[0] = calls[0] - before, before
    assert made == COUNT + 10 + 40
    assert evaluated(paths, tmp_path / "cache") == 0


@pytest.mark.slow
def test_the_samples_of_a_first_run_are_those_of_a_second(tmp_path: Path) -> None:
    """The calls of the pass are no changes by the program, so the second run, without a pass, finds what was kept."""
    source = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        import numpy as np
        import warmstore as ws
        from tests.pipeline.making import plan_of

        counts = {{"decode": 0, "even": 0, "last": 0}}

        class Meter:
            scale = 1.0

            def __init__(self):
                self.seen, self.rows = 0, np.zeros(2)

        meter = Meter()

        class Sample:
            def __init__(self, index):
                self.index, self.content = index, None

        def decode(sample):
            counts["decode"] += 1
            meter.seen += 1
            Meter.scale = meter.seen
            meter.rows[:] = meter.seen
            if sample.content is None:
                sample.content = np.full(4, sample.index)
            return sample.content.copy()

        def even(value):
            counts["even"] += 1
            return bool(value[0] % 2 == 0)

        def last(value):
            counts["last"] += 1
            return value + (counts["last"] + meter.seen + Meter.scale) * 0 + int(meter.rows[0]) * 0

        if __name__ == "__main__":
            folder = Path({str(tmp_path)!r})
            source = [Sample(index) for index in range(40)]
            pipe = ws.Pipeline(source).step(decode).filter(even, folder=folder).step(last)
            plan = plan_of(pipe, [(2, "disk", "raw")], [20], folder=folder)
            with pipe.loader(plan, 8, workers=int(sys.argv[1])) as loader:
                found = sorted(int(value) for batch in loader for value in batch[:, 0])
            assert found == list(range(0, 40, 2)), found
            print(len(pipe), counts["decode"], counts["even"], counts["last"])
    """
    assert run(tmp_path, source, "0") == [[20, 68, 40, 28]]  # eight were computed for the schema
    assert run(tmp_path, source, "0") == [[20, 0, 0, 0]]
    assert run(tmp_path, source, "2") == [[20, 0, 0, 0]]


def run(folder: Path, source: str, *arguments: str, times: int = 1) -> list[list[int]]:
    """Run a program in processes of its own, at once; the numbers that each prints last."""
    path = folder / "program.py"
    path.write_text("\n".join(line.removeprefix("        ") for line in source.splitlines()))
    command = [sys.executable, str(path), *arguments]
    started = [
        warm.popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(times)
    ]
    found = []
    for process in started:
        output, errors = process.communicate()
        assert process.returncode == 0, errors
        found.append([int(word) for word in output.split()])
    return found


def test_processes_at_once_evaluate_each_sample_once(tmp_path: Path) -> None:
    source = f"""
        import sys
        import time
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        import warmstore as ws

        counts = [0]

        def slow(value):
            counts[0] += 1
            time.sleep(0.005)
            return value < 20

        if __name__ == "__main__":
            print(len(ws.Pipeline(range(100)).filter(slow, folder={str(tmp_path / "cache")!r})), counts[0])
    """
    found = run(tmp_path, source, times=3)
    assert [length for length, _ in found] == [20] * 3
    assert sum(count for _, count in found) == 100


def test_a_pass_that_was_ended_goes_on(tmp_path: Path, paths: list[Path]) -> None:
    """What was evaluated before an error is kept."""
    bad = Path(tmp_path / "bad")
    pipe = ws.Pipeline(paths).step(read).filter(Judge(tmp_path / "bad"), folder=tmp_path / "cache")
    bad.write_text("50")
    with pytest.raises(OSError, match="gone"):
        len(pipe)
    bad.write_text("")
    before = calls[0]
    assert len(ws.Pipeline(paths).step(read).filter(Judge(bad), folder=tmp_path / "cache")) == len(paths)
    assert calls[0] - before == len(paths) - 50


class Rewritten:
    """A step, during whose first call for a file somebody writes to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = False

    def __identity__(self) -> str:
        return "rewritten"

    def __call__(self, path: Path) -> Any:
        if path == self.path and not self.done:
            self.done = True
            path.write_bytes(b"\x50" * 9)
        return read(path)


class Judge:
    """A predicate that fails for a sample that a file names; the file is no part of its identity."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __identity__(self) -> str:
        return "judge"

    def __call__(self, value: Any) -> bool:
        if self.path.read_text() == str(value[0]):
            raise OSError("gone")
        calls[0] += 1
        return True


class Flaky:
    """A step that fails on some samples until a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __identity__(self) -> str:
        return "flaky"

    def __call__(self, path: Path) -> Any:
        value = read(path)
        if value[0] in (40, 41) and not self.path.exists():
            raise TimeoutError(f"no answer for {value[0]}")
        return value


def dark(error: Exception, path: Path) -> Any:
    return np.zeros(8, np.uint8)


@pytest.mark.parametrize("workers", thinned(2, [0, 2]))
@pytest.mark.parametrize("on_error", ["skip", dark])
def test_answers_of_failures_are_not_kept(tmp_path: Path, paths: list[Path], on_error: Any, workers: int) -> None:
    def passing() -> list[int]:
        before = calls[0]
        pipe = ws.Pipeline(paths).step(Flaky(tmp_path / "healed"), on_error=on_error)
        pipe = pipe.filter(bright, folder=tmp_path / "cache", workers=workers)
        if on_error == "skip" and not (tmp_path / "healed").exists():
            with pytest.warns(RuntimeWarning, match="filter 'bright' leaves out the bad sample 4[01]: TimeoutError"):
                assert len(pipe) == 38
        found = [int(pipe[at][0]) for at in range(len(pipe))]
        calls[0] = before
        return found

    others = [number for number in range(30, COUNT + 10) if number not in (40, 41)]
    assert passing() == others
    (tmp_path / "healed").touch()
    assert passing() == list(range(30, COUNT + 10))
    assert evaluated_again(tmp_path, paths, on_error) == 0


def evaluated_again(folder: Path, paths: list[Path], on_error: Any) -> int:
    before = calls[0]
    assert (
        len(
            ws.Pipeline(paths).step(Flaky(folder / "healed"), on_error=on_error).filter(bright, folder=folder / "cache")
        )
        == COUNT - 20
    )
    made, calls[0] = calls[0] - before, before
    return made


@pytest.mark.parametrize("on_error", ["skip", dark])
def test_failures_are_tried_again_with_the_next_change(tmp_path: Path, paths: list[Path], on_error: Any) -> None:
    source = paths[:COUNT]
    pipe = ws.Pipeline(source).step(Flaky(tmp_path / "healed"), on_error=on_error).filter(bright)
    before = calls[0]
    with pytest.warns(RuntimeWarning, match="leaves out") if on_error == "skip" else contextlib.nullcontext():
        assert len(pipe) == 28
    calls[0] = before
    (tmp_path / "healed").touch()
    assert len(pipe._as_source()) == 28  # the samples of a pipeline are as they were while nothing has changed
    source += paths[COUNT:]
    assert len(pipe._as_source()) == 40
    made, calls[0] = calls[0] - before, before
    assert made == 10 + 2


def test_a_file_that_changes_during_the_pass(paths: list[Path]) -> None:
    """The answer for the content in between is not used once the file is as it was."""
    first, status = paths[5].read_bytes(), paths[5].stat()
    source = paths[:COUNT]
    pipe = ws.Pipeline(source).step(Rewritten(paths[5])).filter(bright)
    before = calls[0]
    assert len(pipe) == 31
    paths[5].write_bytes(first)
    os.utime(paths[5], ns=(status.st_atime_ns, status.st_mtime_ns))
    source += paths[COUNT:]
    found = pipe._as_source()
    calls[0] = before
    assert len(found) == 40


def test_errors_are_raised_by_default(tmp_path: Path, paths: list[Path]) -> None:
    pipe = ws.Pipeline(paths).step(Flaky(tmp_path / "healed")).filter(bright)
    with pytest.raises(TimeoutError, match="no answer for 40"):
        len(pipe)


def test_one_lease_keeps_the_answers_of_samples_that_grow(tmp_path: Path, paths: list[Path]) -> None:
    def leases() -> list[str]:
        return [name for name in map(os.path.realpath, Path("/proc/self/fd").iterdir()) if name.startswith(str(folder))]

    folder, source, before = tmp_path / "cache", paths[:COUNT], calls[0]
    pipe = ws.Pipeline(source).step(read).filter(bright, folder=folder)
    assert (len(pipe), len(leases())) == (30, 1)
    for path in paths[COUNT:]:
        source.append(path)
        pipe._as_source()
    assert (len(pipe), len(leases())) == (40, 1)
    del pipe
    assert not leases()
    calls[0] = before


def test_answers_lie_in_the_folder_of_tiers(tmp_path: Path, paths: list[Path]) -> None:
    cache = tmp_path / "cache"
    tier = cache / "warmstore-samples"
    pipe = ws.Pipeline(paths).step(read).filter(bright, folder=cache)
    assert len(pipe) == 40
    (version,) = (path.parent for path in tier.glob("*/about.json"))
    assert folder_bytes(version) < 100_000
    lock = version.with_name(version.name + ".lock")
    assert is_locked(lock)  # a pipeline uses it
    quota = tier_quota(tier, folder_bytes(tier))
    assert quota.free(1 << 20) < 1 << 20
    assert version.exists()
    del pipe
    assert not is_locked(lock)
    assert quota.free(50_000) >= 40_000  # it makes room for others
    assert not version.exists()
    assert evaluated(paths, cache) == len(paths)


def test_a_lost_marker_is_written_again_beside_answers(tmp_path: Path, paths: list[Path]) -> None:
    evaluated(paths, tmp_path)
    marker = tmp_path / "warmstore-samples" / "WARMSTORE"
    marker.unlink()
    assert evaluated(paths, tmp_path) == 0
    assert marker.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, paths: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    assert evaluated(paths, tmp_path / "file" / "cache") == len(paths)
    assert "the answers of filter 'bright' are not kept" in caplog.text
