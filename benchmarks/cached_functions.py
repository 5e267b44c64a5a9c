"""What does a hit of `ws.cached` cost beside joblib.Memory and diskcache, for small and large arguments and results?"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Row, busy_processes, named, over, side_by_side

SMALL, LARGE = 512, 1 << 18  # float32: 2 KiB and 1 MB
LOOP = 32
LIMIT, OURS, JOBLIB, DISKCACHE = "a dict in RAM, results copied", "warmstore", "joblib.Memory", "diskcache memoize"


def small_of_int(number: int) -> np.ndarray:
    return np.full(SMALL, number, np.float32)


def large_of_int(number: int) -> np.ndarray:
    return np.full(LARGE, number, np.float32)


def small_of_array(array: np.ndarray) -> np.ndarray:
    return array + 1


def large_of_array(array: np.ndarray) -> np.ndarray:
    return array + 2


CASES = {
    "an int gives 2 KiB": (small_of_int, 0),
    "2 KiB give 2 KiB": (small_of_array, SMALL),
    "an int gives 1 MB": (large_of_int, 0),
    "1 MB gives 1 MB": (large_of_array, LARGE),
}


def run(settings: Settings) -> Report:
    calls, times = settings.pick(64, 8), settings.pick(8, 1)
    rng = np.random.default_rng(0)
    asked = {
        name: [rng.random(width, np.float32) if width else number for number in range(calls)]
        for name, (_, width) in CASES.items()
    }

    def race(name: str, folder: str, then: Callable[[Any], Any] | None = None, rounds: int = times) -> list[Row]:
        function, _ = CASES[name]
        into = settings.folder / folder / function.__name__
        return raced(into, function, asked[name], rounds, then)

    quiet = {name: race(name, "quiet") for name in CASES}
    read = {name: race(name, "read", np.sum) for name in CASES if "gives 1 MB" in name}
    with busy_processes(2):
        # A call that waits for its processor waits milliseconds: many calls make a mean.
        busy = {name: race(name, "busy", rounds=times if "1 MB" in name else settings.pick(200, 1)) for name in CASES}
    everything = [*quiet.values(), *read.values(), *busy.values()]
    return Report(
        "cached_functions",
        f"Hits of a cached function that {calls} arguments have filled, in the process that filled it.",
        (
            *(timings(name, rows) for name, rows in quiet.items()),
            *(timings(f"{name}, and the sum of the result", rows) for name, rows in read.items()),
            *(timings(f"{name}, beside 2 busy processes", rows) for name, rows in busy.items()),
        ),
        tuple(
            Bar.at_least(f"{name}{when}: {peer} over warmstore, {figure}", _times(rows, peer, figure), least)
            for when, found, figure in (("", quiet, "median"), (", busy", busy, "mean"))
            for name, rows in found.items()
            for peer, least in ((JOBLIB, 5.0), (DISKCACHE, 2.0))
        ),
        (
            "Every call was made twice before it is timed: the first computes, the second reads.",
            "warmstore's results of 1 MB are copy-on-write pages of the file; the tables with a sum read all of them.",
            "joblib.Memory checks the source of the function in each call, and pickles what it keeps; diskcache "
            "compares no code. The limit hashes the argument where it is an array.",
        ),
        tuple(trouble for rows in everything for trouble in broken_rows(rows)),
    )


def raced(
    folder: Path,
    function: Callable[[Any], np.ndarray],
    arguments: Sequence[Any],
    times: int,
    then: Callable[[Any], Any] | None = None,
) -> list[Row]:
    """Hits of one function, each of some arguments `times` times.

    Args:
        then: what is done with a result, in the time of the call.
    """
    folder.mkdir(parents=True)

    def contestant(name: str, make: Callable[[], Any], role: Any = "peer") -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            with make() as call:
                for _ in range(2):
                    for argument in arguments:
                        call(argument)
                yield call if then is None else lambda argument: then(call(argument))

        return Contestant(name, setup, role)

    @contextmanager
    def in_memory() -> Iterator[Call]:
        kept: dict[Any, np.ndarray] = {}

        def call(argument: Any) -> np.ndarray:
            key = argument if isinstance(argument, int) else xxhash.xxh3_128_digest(argument)
            if key not in kept:
                kept[key] = function(argument)
            return kept[key].copy()

        yield call

    @contextmanager
    def warmstore() -> Iterator[Call]:
        import warmstore as ws

        cached = ws.cached(folder / "warmstore")(function)
        yield cached
        stats = cached.cache.stats()
        assert stats.misses == len(arguments), stats
        cached.cache.close()

    @contextmanager
    def joblib() -> Iterator[Call]:
        from joblib import Memory

        yield Memory(folder / "joblib", verbose=0).cache(function)

    @contextmanager
    def diskcache() -> Iterator[Call]:
        from diskcache import Cache

        with Cache(str(folder / "diskcache"), size_limit=1 << 36) as cache:
            yield cache.memoize()(function)

    def right(argument: Any, result: Any) -> bool:
        expected = function(argument)
        return bool(np.array_equal(result, expected if then is None else then(expected)))

    return side_by_side(
        [
            contestant(LIMIT, in_memory, "limit"),
            contestant(OURS, warmstore, "warmstore"),
            contestant(JOBLIB, joblib),
            contestant(DISKCACHE, diskcache),
        ],
        [*arguments] * times,
        right,
        reads=True,
        loop=min(LOOP, len(arguments)),
    )


def _times(rows: Sequence[Row], peer: str, figure: Any) -> float | None:
    return over(named(rows, peer), named(rows, OURS), figure)
