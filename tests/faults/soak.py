"""A soak: writers, editors, readers, rebalances, evictions, pushes and pulls in real processes, against a model.

    python -m tests.faults.soak [--operations 1000000] [--seed 0] [--watched build/soak.jsonl]

Every process does small operations until all together have done as many as are wanted. Meanwhile their memory,
descriptors, threads and mappings, and the disk, are watched. In the end nothing acknowledged may be missing.
"""

import argparse
import faulthandler
import itertools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from tests.faults.soak_courier import Courier
from tests.faults.soak_model import FIELDS, Sizes, judge_all, judge_cached
from tests.faults.soak_rests import rest
from tests.faults.soak_roles import CACHE_SIZE, Editor, Place, Writer, fill, run_reader, run_worker
from tests.faults.soak_watch import MOST_HEADS, MOST_THREADS, Watch, growth

import warmstore as ws
from warmstore.storage.disk_usage import entries_below

HANG = 180.0
"""Seconds without an operation after which a process hangs."""
LONG = 1_000_000
"""Operations from which on a soak must not grow."""
ALLOCATOR = {"MALLOC_ARENA_MAX": "2", "MALLOC_MMAP_THRESHOLD_": "131072"}
"""Where the environment has none: settings with which glibc's allocator gives large blocks back when they are freed,
and keeps no memory for each thread. What it keeps of peaks is more than a leak would show in minutes."""
_SAMPLES = 200


@dataclass(frozen=True)
class Soak:
    """How large a soak is. `threads`: of each of `readers` processes. start: how processes start.

    rest: seconds of a rest before what is left is counted; helpers of the native code end after 10 s.
    """

    operations: int
    seed: int = 0
    writers: int = 8
    editors: int = 2
    readers: int = 2
    threads: int = 4
    start: str = "spawn"
    hang: float = HANG
    rest: float = 12.0


@dataclass
class SoakResult:
    """What came of a soak: its operations, how it failed, and what its processes had after a tenth and in the end.

    at_a_tenth, in_the_end: means while they worked. rests: counts while they rested.
    """

    operations: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)
    at_a_tenth: dict[str, float] = field(default_factory=dict)
    in_the_end: dict[str, float] = field(default_factory=dict)
    rests: list[dict[str, float]] = field(default_factory=list)


Run = Callable[[Place, list[int]], None]
"""What a process runs, with the numbers of its workers."""


def roles(soak: Soak, sizes: Sizes) -> list[tuple[str, Run, list[int]]]:
    """The names of the processes, what they run, and the numbers of their workers."""
    numbers = itertools.count()
    found: list[tuple[str, Run, list[int]]] = []
    for writer in range(soak.writers):
        found.append((f"writer {writer}", partial(run_worker, Writer), [next(numbers)]))
    for editor in range(soak.editors):
        slots = sizes.edited_by(editor)
        found.append((f"editor {editor}", partial(run_worker, partial(Editor, slots=slots)), [next(numbers)]))
    for reader in range(soak.readers):
        found.append((f"reader {reader}", run_reader, [next(numbers) for _ in range(soak.threads)]))
    found.append(("courier", partial(run_worker, Courier), [next(numbers)]))
    return found


def campaign(soak: Soak, watched: Path | None = None) -> SoakResult:
    """Run a soak in a new folder, which stays if it fails. `watched`: a file for what is watched."""
    folder = Path(tempfile.mkdtemp(prefix="warmstore-soak-"))
    place = Place(folder, Sizes(soak.writers, soak.editors), soak.seed)
    place.remote.mkdir()
    place.table()
    ws.RecordStore.create(place.store, FIELDS).close()
    with place.cache() as cache:
        fill(cache, place.sizes.ids)  # from the first operation on it evicts
    result = SoakResult()
    began = time.monotonic()
    _run(soak, place, result, watched or folder / "watched.jsonl")
    if not result.failures:
        _finally(place, result)
    result.seconds = time.monotonic() - began
    if result.failures:
        result.failures.append(f"what is left is in {folder}")
    else:
        shutil.rmtree(folder)
    return result


def _run(soak: Soak, place: Place, result: SoakResult, watched: Path) -> None:
    context: Any = multiprocessing.get_context(soak.start)
    table = place.table()
    processes: dict[str, tuple[Any, list[int]]] = {}
    with patch.dict(os.environ, {**ALLOCATOR, **os.environ}):
        for name, run, numbers in roles(soak, place.sizes):
            process = context.Process(target=_child, args=(run, place, numbers, name), name=name)
            process.start()
            processes[name] = process, numbers
    watched.parent.mkdir(parents=True, exist_ok=True)
    watch = Watch(watched, place.folder, {name: process.pid for name, (process, _) in processes.items()})
    began, due, every = time.monotonic(), 0, max(soak.operations // _SAMPLES, 1)
    last = dict.fromkeys(processes, (-1, began))
    workers = [number for _, numbers in processes.values() for number in numbers]

    def goes_on() -> bool:
        return not table.stopped and all(process.is_alive() for process, _ in processes.values())

    def look() -> None:
        time.sleep(soak.rest)
        watch.sample_rest(table.operations, time.monotonic() - began)

    while goes_on():
        now, done = time.monotonic(), table.operations
        if done >= due:
            watch.sample(done, now - began)
            step = max(every // 5, 1) if done < soak.operations // 8 else every  # the mean at a tenth is of as many
            due = done - done % step + step
        if (done >= soak.operations // 10 and not watch.rests) or done >= soak.operations:
            try:
                rest(place, workers, look, goes_on, soak.hang)
            except TimeoutError as error:
                result.failures.append(str(error))
            last = dict.fromkeys(processes, (-1, time.monotonic()))
        if done >= soak.operations:
            break
        for name, (_, numbers) in processes.items():
            count = int(table.counts[numbers].sum())
            last[name] = (count, now) if count != last[name][0] else last[name]
            if now - last[name][1] > soak.hang:
                result.failures.append(f"{name} hangs")
        if result.failures:
            break
        time.sleep(0.05)
    table.stop()
    result.operations = table.operations
    result.at_a_tenth = watch.around(soak.operations // 10)
    result.in_the_end = watch.around(watch.samples[-1]["operations"])
    if watch.most_threads > MOST_THREADS:
        result.failures.append(f"a process had {watch.most_threads} threads")
    result.rests = watch.rests
    result.failures += [f"the remotes have {at['heads']} heads" for at in result.rests if at["heads"] > MOST_HEADS]
    if soak.operations >= LONG and len(result.rests) == 2:  # else a process has ended, which `_end` tells
        result.failures += growth({"uss": result.at_a_tenth["uss"]}, result.in_the_end)
        result.failures += [f"at rest, {grown}" for grown in growth(*result.rests)]
    _end(soak, place, processes, result)


def _end(soak: Soak, place: Place, processes: dict[str, tuple[Any, list[int]]], result: SoakResult) -> None:
    """Wait for all processes, and note how they ended. Where one hangs its threads are shown."""
    until = time.monotonic() + soak.hang
    for name, (process, _) in processes.items():
        process.join(max(until - time.monotonic(), 0) if not result.failures else 5)
        if process.is_alive():
            os.kill(process.pid, signal.SIGALRM)  # faulthandler shows its threads
            process.join(5)
            process.kill()
            process.join()
            result.failures.append(f"{name} did not end:\n{_told(place, name)}")
        elif process.exitcode:
            how = f"signal {-process.exitcode}" if process.exitcode < 0 else "an error"
            result.failures.append(f"{name} ended by {how}:\n{_told(place, name)}")


def _told(place: Place, name: str) -> str:
    path = place.folder / f"{name}.txt"
    return path.read_text()[-6000:] if path.exists() else ""


def _child(run: Run, place: Place, numbers: list[int], name: str) -> None:
    os.environ["XDG_STATE_HOME"] = str(place.folder / "state")
    signal.alarm(0)
    _grow_interned_strings()
    with (place.folder / f"{name}.txt").open("w") as told:
        faulthandler.register(signal.SIGALRM, file=told)
        try:
            run(place, numbers)
        except BaseException:
            traceback.print_exc(file=told)
            told.flush()
            place.table().stop()
            raise SystemExit(1) from None
        finally:
            faulthandler.unregister(signal.SIGALRM)


def _grow_interned_strings() -> None:
    """Have the interpreter's table of interned strings grow now, and not between the two times that are compared.

    When as many strings have come and gone as it has room for, CPython makes a table for three times those that are
    there: once, by 1 or 2 MB in each process. Names of files are such strings, as pathlib interns them.
    """
    for number in range(200_000):
        sys.intern(f"interned {number}")


def _finally(place: Place, result: SoakResult) -> None:
    """What must be there when all processes have ended."""
    table, ids = place.table(), np.arange(place.sizes.ids)
    try:
        assert np.array_equal(table.begun, table.acked), "a process has left without an acknowledgement"
        with ws.RecordStore.open(place.store, "a") as store:
            judge_all(store.gather(slice(None)), table.acked, table.begun)
            report = store.verify(progress=False)
            assert not report.problems, report
            store.push((place.remote / "store").as_uri(), progress=False)
        with ws.RecordStore.clone((place.remote / "store").as_uri(), place.folder / "last", progress=False) as store:
            judge_all(store.gather(slice(None)), table.acked, table.begun)
        sizes = sum(status.st_size for path, status in entries_below(place.caches) if not Path(path).is_dir())
        assert sizes <= CACHE_SIZE, f"the cache takes {sizes:,} bytes, of {CACHE_SIZE:,}"
        with place.cache() as cache:
            found, missing = cache.get_batch(ids)
            judge_cached(ids, found, missing)
            assert len(missing) < len(ids)
            assert cache.stats().damaged == 0
    except Exception:
        result.failures.append(traceback.format_exc()[-3000:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--watched", type=Path, default=Path("build/soak.jsonl"), help="what was watched")
    options = parser.parse_args()
    result = campaign(Soak(options.operations, options.seed), options.watched)
    print(f"{result.operations:,} operations in {result.seconds:,.0f} s, {len(result.failures)} failures")
    for had in (result.at_a_tenth, result.in_the_end, *result.rests):
        print({what: round(value) for what, value in had.items()})
    for failure in result.failures:
        print(failure)
    sys.exit(1 if result.failures else 0)


if __name__ == "__main__":
    main()
