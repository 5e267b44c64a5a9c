"""How soon is there what another machine compiled, and what does a remote cost that is slow, dead or hanging?

The remote is a local S3 server behind a proxy that answers each request 50 ms late. Each start is a fresh process of
`benchmarks.compiling`; fetches are of single artifacts, one after the other.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.remote.proxy import Proxy
from tests.remote.servers import S3, s3_variables

from benchmarks.compiling import start
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

ROUND_TRIP = 0.05  # seconds
URL = "s3://bucket/cache"


def run(settings: Settings) -> Report:
    from warmstore.remote.signing import SigningKey

    folder, times = settings.folder, settings.pick(3, 1)
    model = "small" if settings.quick else "transformer"
    with S3(folder / "s3") as server, Proxy(server.url) as slow, _mute() as hanging, _closed() as dead:
        slow.latency = ROUND_TRIP
        told = {**s3_variables(slow.url), "WARMSTORE_SIGNING_KEY": SigningKey.new().line}
        os.environ.update(told)
        fetched, missed = _fetches(folder, settings.pick(300, 20))
        remote = {**told, "WARMSTORE_REMOTE_URL": URL}
        starts: dict[str, list[dict[str, Any]]] = {
            "cold, publishing": [start(model, folder / "first", "init", env=remote)],
            "local warm": [start(model, folder / "first", "init") for _ in range(times)],
            "empty machine, warm remote": [
                start(model, folder / f"empty{number}", "init", env=remote) for number in range(times)
            ],
        }
        for what, url in {"hanging": hanging, "dead": dead}.items():
            copies = [_without_jobs(folder / "first", folder / f"{what}{number}") for number in range(times)]
            starts[f"{what} remote"] = [
                start(model, copy, "init", env={**told, "WARMSTORE_REMOTE_URL": url}) for copy in copies
            ]
    seconds = {what: median(one["seconds"] for one in runs) for what, runs in starts.items()}
    whole = {what: median(one["seconds"] + one["close"] for one in runs) for what, runs in starts.items()}
    bars = (
        Bar.at_most("an artifact looked up and fetched at 50 ms, p99, ms", _p99(fetched), 500),
        Bar.at_most("something that is nowhere looked up at 50 ms, p99, ms", _p99(missed), 500),
        Bar.at_most(
            f"{model}: seconds on an empty machine, warm remote at 50 ms", seconds["empty machine, warm remote"], 5
        ),
        Bar.at_most(
            f"{model}: seconds more than with all of it here",
            seconds["empty machine, warm remote"] - seconds["local warm"],
            0.3,
        ),
        *(
            Bar.at_most(f"seconds more with a {what} remote", whole[f"{what} remote"] - whole["local warm"], 2.5)
            for what in ("hanging", "dead")
        ),
    )
    rows = tuple(
        (f"{model}: {what}", seconds[what], max(one["seconds"] for one in runs), whole[what],
         runs[-1]["graphs found"], runs[-1]["graphs missed"])
        for what, runs in starts.items()
    )  # fmt: skip
    waits = tuple(
        (what, float(np.median(found)), _p99(found), float(np.max(found)))
        for what, found in {"fetched": fetched, "nowhere": missed}.items()
    )
    return Report(
        "remote",
        "What another machine compiled, from an S3 server 50 ms away; and remotes that do not answer.",
        (
            Table("", ("", "seconds", "worst", "and end", "graphs found", "missed"), rows),
            Table("One artifact", ("", "median ms", "p99 ms", "worst ms"), waits),
        ),
        bars,
        (
            f"Medians of {times} processes; seconds are from before `init` to after the first step, imports apart; "
            "the end is what closing the cache adds. The proxy delays requests, not the making of connections.",
            "With a hanging or dead remote the program is here and its job's name is not, so that `init` asks for it.",
        ),
        broken=tuple(f"{what}: wrong values" for what, runs in starts.items() for one in runs if not one["right"]),
    )


def _fetches(folder: Path, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds of fetching artifacts of 4 KB to 1 MB one by one, and of looking up what is nowhere."""
    from warmstore.compiling.probes import probe
    from warmstore.compiling.remote.remote_settings import RemoteSettings, open_tier
    from warmstore.compiling.store.artifact_store import ArtifactStore

    environment = probe()
    settings = RemoteSettings.of("s3://bucket/fetches", None, 2.0)
    with closing(ArtifactStore(folder / "filling")) as store:
        tier = open_tier(settings, store, environment, "other")
        assert tier is not None
        tier.start()
        for number in range(count):
            content = os.urandom(4096 << (number % 9))
            tier.offer(store.put(f"k/{number}", "cpp.source", content, environment=environment))
        tier.budget.allow(600)
        tier.close()
    with closing(ArtifactStore(folder / "fetching")) as store:
        tier = open_tier(settings, store, environment, "fetching")
        assert tier is not None
        tier.start()
        fetched = [_milliseconds(tier, f"k/{number}", True) for number in range(count)]
        missed = [_milliseconds(tier, f"nowhere/{number}", False) for number in range(count)]
        tier.close()
    return fetched, missed


def _milliseconds(tier: Any, path: str, there: bool) -> float:
    began = time.perf_counter()
    if tier.fetch(path) is not there:
        raise RuntimeError(f"{path} should{'' if there else ' not'} be there")
    return (time.perf_counter() - began) * 1e3


def _p99(found: list[float]) -> float:
    return float(np.percentile(found, 99))


def _without_jobs(store: Path, copy: Path) -> Path:
    """A copy of a store that has everything and knows of no job."""
    shutil.copytree(store, copy)
    with closing(sqlite3.connect(copy / "index.sqlite")) as db, db:
        db.execute("DELETE FROM jobs")
    return copy


@contextmanager
def _mute() -> Iterator[str]:
    """The URL of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/cache"


@contextmanager
def _closed() -> Iterator[str]:
    """The URL of a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}/cache"
