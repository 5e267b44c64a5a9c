"""Hosts that fill one cache at a remote and are killed at any moment: nothing of what they kept is lost or wrong."""

import contextlib
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tests import warm
from tests.remote.proxy import FAULTS, Proxy
from tests.remote.servers import BUCKET, S3, s3_variables
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import Damaged, NotAStore, RemoteUnavailable
from warmstore.features.remote_merging import merge_parts
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import gc, repair, verify

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")

PROGRAM = """if True:
    import sys
    import numpy as np
    import warmstore as ws
    folder, remote, host, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    with ws.FeatureCache(folder, "net") as cache:
        for first in range(0, 200, 10):
            ids = [1000 * host + number for number in range(first, first + 10)]
            missing = cache.get_batch(ids)[1]
            if len(missing):
                new = [ids[index] for index in missing]
                cache.put_batch(new, np.array(new, np.float32)[:, None] * np.ones(50, np.float32))
                cache.flush()
            if not last or first == 190:
                cache.sync(remote) if first % 50 == 0 else cache.push(remote)
"""


HOSTS = 8
IDS = [1000 * host + number for host in range(HOSTS) for number in range(200)]


def start(host: int, folder: Path, remote: Path | str, *, last: bool) -> "subprocess.Popen[str]":
    """A host that fills its part of the cache; its last run ends only when all is pushed."""
    command = [sys.executable, "-c", PROGRAM, str(folder / f"host{host}"), str(remote), str(host), str(int(last))]
    return warm.popen(command, stderr=subprocess.PIPE, text=True)


def run_and_kill(hosts: int, folder: Path, remote: Path | str, chance: random.Random) -> None:
    running = [start(host, folder, remote, last=False) for host in range(hosts)]
    for process in sorted(running, key=lambda _: chance.random()):
        time.sleep(chance.random())
        process.send_signal(signal.SIGKILL)
        process.communicate()


def run_to_the_end(hosts: int, folder: Path, remote: Path | str) -> None:
    for process in [start(host, folder, remote, last=True) for host in range(hosts)]:
        errors = process.communicate()[1]
        assert process.returncode == 0, errors


def read(folder: Path, remote: Path | str, ids: list[int]) -> int:
    """Pull into a folder, and check what is there of some ids; how many are."""
    with ws.FeatureCache(folder, "net") as cache:
        with contextlib.suppress(RemoteUnavailable, NotAStore):
            cache.pull(remote)
        values, missing = cache.get_batch(ids)
        there = np.delete(np.array(ids, np.float32), missing)
        assert (values == there[:, None]).all()
        return len(there)


@pytest.mark.parametrize("seed", thinned(2, range(2)))
def test_hosts_that_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chance = random.Random(seed)
    for _ in range(either(1, 3)):
        run_and_kill(3, tmp_path, tmp_path / "remote", chance)
    run_to_the_end(3, tmp_path, tmp_path / "remote")
    assert verify(Remote(tmp_path / "remote" / "net"), deep=True).ok
    ids = IDS[: 3 * 200]
    assert read(tmp_path / "reader", tmp_path / "remote", ids) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_hosts_that_are_killed_behind_a_failing_network(
    seed: int, s3_server: S3, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others read, verify, collect garbage and merge all parts into one meanwhile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, value in s3_variables(s3_proxy.url).items():
        monkeypatch.setenv(name, value)
    chance, remote = random.Random(seed), f"s3://{BUCKET}/part-kills/{seed}"
    found, ended = 0, threading.Event()

    def others() -> None:
        nonlocal found
        cache = Remote(f"{remote}/net")
        while not ended.is_set():
            found = max(found, read(tmp_path / "reader", remote, IDS))
            with contextlib.suppress(RemoteUnavailable, NotAStore, Damaged):
                verify(cache)
                gc(cache, keep=24 * 3600.0)
                merge_parts(cache)

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(others)
        try:
            for _ in range(3):
                s3_proxy.reset({at: chance.choice(FAULTS) for at in range(100_000) if chance.random() < 0.03})
                run_and_kill(HOSTS, tmp_path, remote, chance)
            s3_proxy.reset()
            run_to_the_end(HOSTS, tmp_path, remote)
        finally:
            ended.set()
        beside.result()
    assert found
    repair(Remote(f"{remote}/net"), deep=True)
    run_to_the_end(HOSTS, tmp_path, remote)  # the owner of what was damaged sends it again
    assert verify(Remote(f"{remote}/net"), deep=True).ok
    assert read(tmp_path / "last reader", remote, IDS) == len(IDS)
