import errno
import io
import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.children import in_child
from tests.faults.seam import FullDisk
from tests.pipeline.functions import fail_at
from tests.pipeline.profiles import profile as made_up
from tests.slow import thinned

import warmstore as ws
from warmstore.pipeline.profile import disk_speed, profiler, step_profiler, throughput
from warmstore.pipeline.profile.disk_speed import measure_disk
from warmstore.pipeline.profile.profile import Disk, Profile
from warmstore.pipeline.profile.profiler import profile
from warmstore.pipeline.tiers import tier_folders
from warmstore.records.format import fields
from warmstore.storage import checked_json

pytestmark = pytest.mark.forks


class Clock:
    """A clock that only the steps of these tests, and looks at it, move: a machine's own is never the same twice."""

    def __init__(self) -> None:
        self.worked = self.waited = self.queued = 0.0

    def process_time(self) -> float:
        self.worked += 1e-7
        return self.worked

    def perf_counter(self) -> float:
        return self.process_time() + self.waited + self.queued

    def work(self, seconds: float) -> None:
        self.worked += seconds

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        self.queued += 2 * seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(step_profiler, "time", clock)
    monkeypatch.setattr(step_profiler, "_seconds_in_queue", lambda: clock.queued)
    return clock


def work(seconds: float) -> None:
    getattr(step_profiler.time, "work", time.sleep)(seconds)


def wait(seconds: float) -> None:
    getattr(step_profiler.time, "wait", time.sleep)(seconds)


def heavy(value: int) -> np.ndarray:
    work(0.002)
    return np.full((8, 256), value, np.float64)


def heavier(value: int) -> np.ndarray:
    return np.full((16, 256), value, np.float64)


def light(value: np.ndarray) -> np.ndarray:
    work(0.0003)
    return value.astype(np.uint8)


def noisy(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return value + rng.integers(0, 2, value.shape, np.uint8)


def strange(value: np.ndarray) -> object:
    return object()


PIPE = ws.Pipeline(range(200)).step(heavy).step(light).step(noisy, random=True)


def measured(pipe: ws.Pipeline = PIPE, **told: object) -> Profile:
    return profile(pipe._chain, **{"seconds": 3.0, "max_workers": 0, "samples": 48, **told})


def test_steps_are_timed_and_weighed(clock: Clock) -> None:
    found = measured()
    source, first, second, third = found.stages
    assert [stage.name for stage in found.stages] == ["source", "heavy", "light", "noisy"]
    assert first.seconds[0] == pytest.approx(0.002, rel=0.01)
    assert second.seconds[0] == pytest.approx(0.0003, rel=0.01)
    assert (first.nbytes, second.nbytes) == ((8 * 8 * 256,), (8 * 256,))
    assert first.stored["raw"].nbytes[0] == pytest.approx(8 * 8 * 256, rel=0.01)
    assert first.stored["zstd"].nbytes[0] < 0.1 * first.nbytes[0]  # all numbers of a sample are equal
    assert 0 < first.stored["raw"].read[0] < 0.0001
    assert third.stored == {}  # random
    assert source.seconds[0] < 0.0001
    assert found.disk is None
    assert [one.workers for one in found.scaling] == [0]


def test_waiting_is_not_work_and_standing_in_a_queue_is_neither(clock: Clock) -> None:
    found = measured(ws.Pipeline([0.005] * 16).step(wait))
    assert found.stages[1].seconds[0] < 0.0001
    assert found.stages[1].wait[0] == pytest.approx(0.005, rel=0.01)
    assert found.stages[1].waiting(is_warm=True) == found.stages[1].wait  # nothing came from a disk


@pytest.mark.parametrize("grows", [True, False])
def test_waiting_for_a_disk_ends_when_the_page_cache_has_the_files(
    grows: bool, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = itertools.count()
    monkeypatch.setattr(step_profiler, "_bytes_from_disk", lambda: next(counter) if grows else None)
    found = measured(ws.Pipeline([0.005] * 16).step(wait))
    assert found.stages[1].waiting(is_warm=False)[0] == pytest.approx(0.005, rel=0.01)
    assert found.stages[1].waiting(is_warm=True) == (0.0,)  # also if the system does not count such bytes


@pytest.mark.skipif(not step_profiler._QUEUED.exists(), reason="this system does not count it")
def test_seconds_in_a_queue_only_grow() -> None:
    assert 0 <= step_profiler._seconds_in_queue() <= step_profiler._seconds_in_queue() < time.perf_counter()


def test_what_cannot_be_stored_says_why_and_what_comes_before_can(clock: Clock) -> None:
    found = measured(ws.Pipeline(range(20)).step(heavy).step(strange))
    assert found.stages[1].stored
    assert not found.stages[2].stored
    assert "object" in found.stages[2].trouble
    made = ws.Pipeline(range(20)).step(heavy).step(strange).plan(profile=found, memory="100MB", workers=0)
    assert [place.step for place in made.placements] == [1]
    assert "object" in str(made)


def test_samples_of_varied_size_are_put_into_buckets() -> None:
    source = [bytes(size) for size in range(1000, 101_000, 500)]
    found = measured(ws.Pipeline(source).step(len), samples=120)
    assert len(found.counts) == 4
    assert sum(found.counts) == len(source)
    raw = found.stages[0].nbytes
    assert raw[0] < raw[1] < raw[2] < raw[3]
    same = measured(ws.Pipeline([bytes(1000)] * 100).step(len))
    assert same.edges == ()


@pytest.mark.slow
def test_workers_are_doubled_and_their_memory_is_known() -> None:
    found = measured(seconds=3.0, max_workers=1, samples=32)
    assert [one.workers for one in found.scaling] == [0, 1]
    assert found.scaling[1].rate > 0
    assert found.scaling[1].nbytes > 1 << 20
    assert found.overhead > 0


def idle(value: int) -> int:
    time.sleep(0.02)
    return value


@pytest.mark.slow
@pytest.mark.parametrize(("cutoff", "tried"), [(0.1, [0, 1, 2, 4]), (10.0, [0, 1, 2])])
def test_workers_are_doubled_until_it_brings_too_little(cutoff: float, tried: list[int]) -> None:
    """Steps that only wait go as much faster as there are workers, however few cores there are."""
    pipe = ws.Pipeline(range(200)).step(idle)
    found = measured(pipe, max_workers=7, cutoff=cutoff, batch_size=4, samples=8)
    assert [one.workers for one in found.scaling] == tried


@pytest.mark.parametrize(
    ("name", "made_with", "asked"),
    thinned(
        5,
        [("samples", 48, 20), ("seconds", 1.0, 0.9), ("batch_size", 8, 4), ("max_workers", 0, 1), ("cutoff", 0.1, 0.2)],
    ),
)
def test_a_stored_profile_has_the_options_that_are_asked_for(
    name: str, made_with: float, asked: float, tmp_path: Path
) -> None:
    told = {"folder": tmp_path, "samples": 48, "seconds": 1.0, "batch_size": 8, "max_workers": 0, "cutoff": 0.1}
    first = profile(PIPE._chain, **told)
    assert getattr(first.options, name) == made_with
    assert profile(PIPE._chain, folder=tmp_path) == first  # nothing is asked for
    assert profile(PIPE._chain, **{**told, name: made_with}) == first
    second = profile(PIPE._chain, **{**told, name: asked})
    assert second != first
    assert getattr(second.options, name) == asked
    assert profile(PIPE._chain, folder=tmp_path) == second


def test_a_share_of_the_samples_is_a_number_of_them(tmp_path: Path) -> None:
    first = measured(samples=0.1, folder=tmp_path)
    assert first.options.samples == 20
    assert measured(samples=20, folder=tmp_path) == first


def slow(value: int) -> np.ndarray:
    time.sleep(1.2)
    return np.full(100, value)


@pytest.mark.slow
def test_steps_of_over_a_second_are_measured_within_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    began = time.perf_counter()
    found = profile(ws.Pipeline(range(100)).step(slow)._chain, seconds=5, max_workers=4, progress=True)
    assert time.perf_counter() - began < 8
    assert found.stages[1].wait[0] == pytest.approx(1.2, rel=0.1)
    assert [entry.workers for entry in found.scaling] == [0, 1, 2, 4]
    assert found.scaling[3].rate == pytest.approx(4 / 1.2, rel=0.1)  # computed: there is no time to measure it
    assert found.scaling[3].nbytes > 1 << 20
    shown = capsys.readouterr().err
    assert [name for name in ("steps", "stores", "the disk", "workers") if f"profiling {name}" not in shown] == []


def test_a_disk_with_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file that measures a disk takes a quarter of what is free; a full disk is not measured."""
    usage = shutil.disk_usage(tmp_path)
    written: list[int] = []

    def seen(file: io.FileIO, seconds: float, most: int) -> tuple[int, float]:
        written.append(most)
        return write(file, seconds, most)

    write = disk_speed._written
    monkeypatch.setattr(disk_speed, "_written", seen)
    for free, most in ((6 << 20, [6 << 18]), (100_000, [])):
        written.clear()
        monkeypatch.setattr(shutil, "disk_usage", lambda path, free=free: usage._replace(free=free))
        found = measured(folder=tmp_path, refresh=True)
        assert written == most
        assert (found.disk is not None) == bool(most)
        assert ("the disk is not measured" in caplog.text) == (not most)


def test_a_disk_that_cannot_be_read_is_an_error_of_the_disk(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(8192))
    descriptor = os.open(tmp_path / "file", os.O_WRONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk_speed._reads(descriptor, 8192, 4096, math.inf, 0)
    os.close(descriptor)


def test_a_profile_that_cannot_be_saved_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*told: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Profile, "save", full)
    assert measured(folder=tmp_path).samples == 48
    assert "the profile is not saved" in caplog.text


def test_no_room_for_the_stores_that_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "memory_room", lambda: 4000)
    found = measured()
    assert found.stages[1].stored["raw"].nbytes[0] == pytest.approx(8 * 8 * 256, rel=0.01)  # of one sample


def test_samples_and_seconds_are_those_asked_for() -> None:
    assert measured(samples=0.1).samples == 20
    slow = ws.Pipeline(range(200)).step(idle)
    assert measured(slow, samples=200, seconds=0.5).samples < 100
    for told in ({"samples": 0}, {"seconds": 0}, {"samples": math.inf}, {"seconds": math.nan}):
        with pytest.raises(ValueError, match="must be above zero"):
            measured(**told)


@pytest.mark.parametrize("number", [np.float32, np.int64])
def test_options_of_numpy_are_saved(number: Any, tmp_path: Path) -> None:
    measured(folder=tmp_path, seconds=number(1), cutoff=number(0))
    (path,) = tmp_path.glob("profile-*.json")
    saved = Profile.load(path)
    assert saved is not None
    assert saved.options.fulfil({"seconds": number(1), "cutoff": number(0)})


def test_invalid_options_are_named_and_no_profile_of_them_is_kept(tmp_path: Path) -> None:
    for told in ({"batch_size": 0}, {"max_workers": -1}, {"cutoff": -1.0}):
        with pytest.raises(ValueError, match=next(iter(told))):
            measured(folder=tmp_path, **told)
    assert not list(tmp_path.iterdir())
    measured(folder=tmp_path, batch_size=7)
    (path,) = tmp_path.glob("profile-*.json")
    assert Profile.load(path) is not None
    path.write_bytes(
        checked_json.to_bytes({**checked_json.from_bytes(path.read_bytes()), "options": {"batch_size": 0}})
    )
    assert Profile.load(path) is None  # as an earlier release kept it


def test_a_profile_of_another_model_of_processor_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = set()
    for name in ("a", "b"):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nmodel name\t: {name}\n\nprocessor\t: 1\nmodel name\t: x\n")
        monkeypatch.setattr(profiler, "_CPUINFO", tmp_path / "cpuinfo")
        assert profiler._processor() == name
        keys.add(profiler._key(ws.Pipeline(range(9)).step(abs)._chain))
    assert len(keys) == 2


def test_a_profile_is_found_again_until_the_code_changes(tmp_path: Path) -> None:
    first = measured(folder=tmp_path)
    assert measured(folder=tmp_path) == first
    assert measured(folder=tmp_path, refresh=True) != first
    data = ws.Pipeline(range(1, 201)).step(heavy).step(light).step(noisy, random=True)
    assert measured(data, folder=tmp_path).key != first.key
    other = ws.Pipeline(range(200)).step(heavier, name="heavy").step(light).step(noisy, random=True)
    assert measured(other, folder=tmp_path).key != first.key
    (path,) = (path for path in tmp_path.glob("profile-*.json") if first.key in path.name)
    path.write_text(path.read_text()[:100])  # cut short: measured anew
    assert measured(folder=tmp_path).key == first.key
    assert not [one for one in tmp_path.iterdir() if not one.name.startswith(("profile-", "."))]


def test_a_profile_survives_json(tmp_path: Path) -> None:
    for one in (made_up([0, (0.1, 0.2)], [1, 2], counts=(3, 4), squeezed=0.5), made_up([0.1], [1], disk=None)):
        one.save(tmp_path / "profile.json")
        assert Profile.load(tmp_path / "profile.json") == one
        assert Profile.load(tmp_path / "profile.json", "another key") is None


@pytest.mark.parametrize(
    ("before", "after"),
    [('"samples": 100', '"samples": 900'), ('"samples": 100', '"samples": "x"'), ('"stages": [', '"stages": ["x",')],
)
def test_a_damaged_profile_is_none(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "profile.json"
    made_up([0, (0.1, 0.2)], [1, 2], counts=(3, 4)).save(path)
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    assert Profile.load(path) is None


def test_every_figure_is_measured_twice(tmp_path: Path) -> None:
    found = ws.Pipeline(range(40)).step(heavy).step(strange).profile(samples=20, seconds=1, max_workers=0)
    found.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == found
    first, second = found.rounds()
    for stage, one, other in zip(found.stages, first.stages, second.stages, strict=True):
        (mean,), (early,), (late,) = stage.seconds, one.seconds, other.seconds
        assert min(early, late) - 1e-9 <= mean <= max(early, late) + 1e-9
        assert (one.nbytes, one.name) == (other.nbytes, other.name) == (stage.nbytes, stage.name)
        for codec, stored in stage.stored.items():
            assert one.stored[codec].read != other.stored[codec].read  # two times of a clock with nanoseconds
            assert stored.nbytes == one.stored[codec].nbytes
    assert made_up([0, 0.1], [1, 2]).rounds() == ()


def test_a_full_disk_leaves_the_profile_that_was_there(tmp_path: Path) -> None:
    before, now = made_up([0, 0.1], [1, 2]), made_up([0, 0.2], [1, 2])
    before.save(tmp_path / "profile.json")
    with pytest.raises(OSError, match="No space left"):
        now.save(tmp_path / "profile.json", FullDisk(100))
    assert Profile.load(tmp_path / "profile.json") == before


def test_an_empty_source_is_named() -> None:
    with pytest.raises(ws.BadSource, match="no samples"):
        measured(ws.Pipeline([]).step(heavy))


def test_a_disk_is_measured_and_nothing_stays(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, [1000, 100_000], 0.5, 8 << 20, 2)
    assert found.request == (1000, 100_000)
    assert all(rate > 0 for rate in (*found.alone, *found.together, found.write))
    assert list(tmp_path.iterdir()) == []


def test_killed_while_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*told: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    shared = tmp_path / "shared"  # in /dev/shm other processes measure, too
    shared.mkdir()
    monkeypatch.setattr(tier_folders, "SHARED", shared)
    for module, name in ((disk_speed, "_reads"), (step_profiler, "_encoded")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, die)
            assert in_child(lambda say: measured(folder=tmp_path / "plans")).signal == signal.SIGKILL
    assert list((tmp_path / "plans").iterdir()) == []
    assert list(shared.iterdir())
    tier_folders.sweep(shared)
    assert list(shared.iterdir()) == []


def test_steps_of_any_name_and_values_of_any_kind(caplog: pytest.LogCaptureFixture) -> None:
    pipe = ws.Pipeline(range(20)).step(heavy, name="load/" + "x" * 300).step(lambda value: threading.Lock(), name="..")
    assert [stage.name[:5] for stage in measured(pipe).stages] == ["sourc", "load/", ".."]
    assert not caplog.records


def test_a_step_that_draws_in_secret_is_named(caplog: pytest.LogCaptureFixture) -> None:
    generator = np.random.default_rng(0)

    def secret(value: np.ndarray) -> np.ndarray:
        return value + generator.random()

    class Hidden:
        """What nobody looks into."""

        value = 0

    def count(hidden: Hidden) -> int:
        hidden.value += 1
        return hidden.value

    drawn = ws.Pipeline(range(200)).step(heavy).step(secret).step(light)
    changed = ws.Pipeline([Hidden() for _ in range(20)]).step(count)
    for pipe, name, advice in ((drawn, "secret", "random=True"), (changed, "count", "random=True"), (PIPE, "", "")):
        caplog.clear()
        found = measured(pipe)
        assert [stage.name for stage in found.stages if stage.varies] == ([name] if name else [])
        text = str(pipe.plan(profile=found, memory="100MB", workers=0)).replace("\n", " ")
        assert (f"{name!r} made two different values of one sample" in text) == bool(name)
        assert advice in text
        assert ("two different values" in caplog.text) == bool(name)


def test_a_step_that_fails_is_named() -> None:
    pipe = ws.Pipeline(range(20)).step(fail_at, bad=13)
    with pytest.raises(ValueError, match="sample 13 is broken") as raised:
        measured(pipe)
    assert raised.value.__notes__ == ["warmstore: in step 'fail_at' of sample 13"]


@pytest.mark.slow
def test_only_its_own_workers_are_measured() -> None:
    held = "import sys, time; held = bytes(range(256)) * 2_000_000; print(flush=True); time.sleep(100)"
    with subprocess.Popen([sys.executable, "-c", held], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        found = measured(seconds=1.0, max_workers=1, samples=16)
        other.kill()
    assert 0 < found.scaling[1].nbytes < 400_000_000


def test_samples_of_large_values_are_not_all_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "LAST", 40 * 8 * 256)  # ten values of the last step
    run = step_profiler.run_steps(PIPE._chain, np.arange(200), [0] * 200, np.inf, lambda count: None)
    assert len(run.buckets) == 200
    assert len(run.last) == 48


def test_few_samples_of_large_values_are_computed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[int] = []
    run_stage = step_profiler._run_stage

    def counted(chain: Any, k: int, block: list[int], *rest: Any, **options: Any) -> list[float]:
        blocks.append(len(block))
        return run_stage(chain, k, block, *rest, **options)

    monkeypatch.setattr(step_profiler, "_run_stage", counted)
    for most, at_once in ((1 << 30, 16), (3 * 8 * 8 * 256 + 5000, 3), (1, 1)):
        blocks.clear()
        monkeypatch.setattr(step_profiler, "_BLOCK_BYTES", most)
        run = step_profiler.run_steps(PIPE._chain, np.arange(48), [0] * 48, np.inf, lambda count: None)
        assert len(run.buckets) == 48
        assert max(blocks) == at_once


def widened(value: np.ndarray) -> np.ndarray:
    return np.repeat(value, 100)


def narrowed(value: np.ndarray) -> np.ndarray:
    return value[:50].copy()


def test_a_stage_larger_than_a_record_is_not_cached_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the frames of a video before they are made smaller."""
    monkeypatch.setattr(fields, "LARGEST_RECORD", 50_000)
    pipe = ws.Pipeline([np.arange(number, number + 100) for number in range(20)]).step(widened).step(narrowed)
    found = measured(pipe, max_workers=0, seconds=30.0)  # also on a busy machine
    assert found.stages[1].stored == {}
    assert "a record of 80,016 bytes is too large: one holds at most 50,000" in found.stages[1].trouble
    assert set(found.stages[0].stored) == set(found.stages[2].stored) == {"raw", "zstd"}
    plan = pipe.plan(profile=found, memory="20MB")
    assert "too large" in plan.reasons[1]
    with pipe.loader(plan, batch_size=10, workers=0) as loader:
        assert [batch.shape for batch in loader] == [(10, 50)] * 2


def test_a_rank_measures_batches_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """As places are counted over all ranks, one of four ranks would seem four times as fast."""
    for name, value in {"RANK": 1, "WORLD_SIZE": 4, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    lengths: list[int] = []
    make = throughput.loader_of

    def kept(*given: Any, **options: Any) -> ws.Loader:
        loader = make(*given, **options)
        lengths.append(len(loader))
        return loader

    monkeypatch.setattr(throughput, "loader_of", kept)
    throughput.measure(PIPE._chain, 20, 0, 0.01)
    assert lengths == [10]


def test_bandwidth_lies_between_those_measured() -> None:
    disk = Disk((1000, 100_000), (10.0, 30.0), (20.0, 100.0), 1.0)
    assert disk.bandwidth(10_000, 1) == pytest.approx(20)
    assert disk.bandwidth(10_000, 8) == pytest.approx(60)
    assert disk.bandwidth(10, 8) == pytest.approx(20)
    assert disk.bandwidth(10_000, 2) == pytest.approx(40)


def test_few_workers_are_between_those_measured() -> None:
    found = made_up([0.01], [1], workers=[1, 4])
    assert found.at(2).rate == pytest.approx(200)
    assert found.at(9).rate == found.at(4).rate
    assert replace(found, scaling=found.scaling[:1]).at(2).rate == found.scaling[0].rate


def sparse(value: torch.Tensor) -> torch.Tensor:
    return value.to_sparse()


def dense(value: torch.Tensor) -> torch.Tensor:
    return value.to_dense()


def test_samples_of_any_form_are_profiled() -> None:
    for sample in ({"meta": {}, "x": np.arange(3)}, (), {}, ({}, ())):
        assert measured(ws.Pipeline([sample] * 50), max_workers=0).samples == 48
    pipe = ws.Pipeline([torch.eye(3)] * 50).step(sparse).step(dense)
    found = measured(pipe, max_workers=0)
    assert "sparse" in found.stages[1].trouble
    assert found.stages[1].nbytes == (0.0,)
    assert measured(ws.Pipeline([torch.eye(3).to_sparse()] * 50).step(dense), max_workers=0).stages[0].trouble
