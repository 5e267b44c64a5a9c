"""What does the compile cache's store cost: looking up one artifact of thousands, putting one, opening it?

Run as a module (`python -m benchmarks.artifacts FOLDER`) this file is a fresh process that finds out its environment,
opens the store and looks one artifact up, as every start of a training run does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Bar, Report, Table, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, side_by_side
from warmstore.compiling import probes
from warmstore.compiling.probes import probe
from warmstore.compiling.store.artifact_store import ArtifactStore

LEAST, MOST = 1_000, 300_000  # bytes in an artifact, evenly spread over the magnitudes
LIMIT = "20GB"
KIND = "cpp.so"


def run(settings: Settings) -> Report:
    count, asks = settings.pick(10_000, 200), settings.pick(1_000, 20)
    settings.break_in_disk(settings.pick(1_000_000_000, 1 << 22))
    folder, full = settings.folder / "store", settings.folder / "full"
    sizes = _sizes(count)
    filled = _fill(folder, sizes, LIMIT)
    room = int(sum(sizes) * 0.8)
    _fill(full, sizes, room)
    numbers = np.random.default_rng(1).integers(0, count, asks).tolist()
    found = side_by_side(
        [_limit(folder), _store(folder, count, read=False), _store(folder, count), _diskcache(settings, sizes)],
        numbers,
        lambda ask, result: result is None or result == _content(ask, sizes[ask]),
        reads=True,
    )
    put = side_by_side(
        [
            _plain(settings.folder / "plain"),
            _putting("warmstore", folder, LIMIT),
            _putting("warmstore, full: others go", full, room),
            _putting_elsewhere(settings, sizes),
        ],
        list(range(settings.pick(400, 5))),
        lambda ask, result: True,
    )
    starts = [in_fresh_process(__name__, str(folder)) for _ in range(settings.pick(9, 1))]
    start = {name: [one[name] for one in starts] for name in starts[0]}
    looked_up = next(row for row in found if row.name == "warmstore, found and read")
    return Report(
        "artifacts",
        f"A store of {count:,} artifacts of {LEAST:,} to {MOST:,} bytes: looked up, put, opened.",
        (
            timings("One artifact by its key, environment checked, bytes verified", found),
            timings("One new artifact of 30 kB", put, unit="ms"),
            Table(
                "A fresh process, imports apart",
                ("", "median ms", "worst ms"),
                tuple((name, float(np.median(seconds)) * 1e3, max(seconds) * 1e3) for name, seconds in start.items()),
            ),
        ),
        (
            Bar.at_most("seconds to look one artifact up and read it, p99", looked_up.p99, 0.010),
            Bar.at_most("seconds to find out the environment, median", float(np.median(start["environment"])), 0.020),
            Bar.at_most("seconds to open the store, median", float(np.median(start["open"])), 0.020),
        ),
        (
            f"The store was filled in {filled:.1f} s, one put after the other.",
            "The limit reads a file of the same bytes whose name is known, and does not verify it.",
            "DiskCache neither verifies what it reads nor knows of environments; its limit is checked now and then.",
        ),
        (*broken_rows(found), *broken_rows(put)),
    )


def _sizes(count: int) -> list[int]:
    drawn = np.exp(np.random.default_rng(0).uniform(np.log(LEAST), np.log(MOST), count))
    return drawn.astype(int).tolist()


def _content(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def _key(number: int) -> str:
    return f"inductor/{number % 97:02x}/{number:08d}"


def _fill(folder: Path, sizes: list[int], limit: int | str) -> float:
    environment = probe()
    began = time.perf_counter()
    with ArtifactStore(folder, limit) as store:
        for number, size in enumerate(sizes):
            store.put(_key(number), KIND, _content(number, size), environment=environment, job="job")
    return time.perf_counter() - began


def _limit(folder: Path) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        with ArtifactStore(folder, LIMIT) as store:
            paths = {one.key: store.folder / "blobs" / one.digest[:2] / one.digest[2:] for one in store.all()}
        for path in paths.values():
            path.read_bytes()
        yield lambda number: paths[_key(number)].read_bytes()

    return Contestant("read of a file", setup, "limit")


def _store(folder: Path, count: int, *, read: bool = True) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        environment = probe()
        with ArtifactStore(folder, LIMIT) as store:

            def look_up(number: int) -> bytes | None:
                found = store.find(_key(number), KIND, environment)
                assert found is not None
                return store.read(found) if read else None

            for number in range(count):
                look_up(number)
            yield look_up

    return Contestant("warmstore, found and read" if read else "warmstore, found", setup, "warmstore")


def _diskcache(settings: Settings, sizes: list[int]) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        import diskcache

        with diskcache.Cache(str(settings.folder / "diskcache"), size_limit=20 * 10**9) as cache:
            for number, size in enumerate(sizes):
                cache[_key(number)] = _content(number, size)
            for number in range(len(sizes)):
                cache[_key(number)]
            yield lambda number: cache[_key(number)]

    return Contestant("DiskCache", setup)


def _plain(folder: Path) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        folder.mkdir()
        yield lambda number: (folder / f"{number}").write_bytes(_content(number, 30_000))

    return Contestant("write of a file", setup, "limit")


def _putting(name: str, folder: Path, limit: int | str) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        environment = probe()
        with ArtifactStore(folder, limit) as store:
            yield lambda number: store.put(
                f"new {number}", KIND, _content(-1 - number & 0xFFFF, 30_000), environment=environment, job="job"
            )

    return Contestant(name, setup, "warmstore")


def _putting_elsewhere(settings: Settings, sizes: list[int]) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        import diskcache

        with diskcache.Cache(str(settings.folder / "diskcache"), size_limit=20 * 10**9) as cache:

            def put(number: int) -> None:
                cache[f"new {number}"] = _content(-1 - number & 0xFFFF, 30_000)

            yield put

    return Contestant("DiskCache", setup)


def main(folder: str) -> None:
    """Prints seconds by what they were spent on."""
    began = time.perf_counter()
    environment = probes.probe()
    known = time.perf_counter()
    store = ArtifactStore(folder, LIMIT)
    opened = time.perf_counter()
    found = store.find(_key(7), KIND, environment)
    assert found is not None
    store.read(found)
    read = time.perf_counter()
    print(json.dumps({"environment": known - began, "open": opened - known, "first artifact": read - opened}))
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
