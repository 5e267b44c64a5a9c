"""Hosts that fill one cache at a remote and are killed at any moment: nothing of what they kept is lost or wrong."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.upkeep import verify

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


@pytest.mark.parametrize("seed", range(2))
def test_hosts_that_are_killed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    chance = random.Random(seed)

    def start(host: int, *, last: bool) -> Any:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / f"host{host}"), str(tmp_path / "remote"), str(host)]
        return subprocess.Popen([*command, str(int(last))], stderr=subprocess.PIPE, text=True)

    for _ in range(3):
        running = [start(host, last=False) for host in range(3)]
        for process in sorted(running, key=lambda _: chance.random()):
            time.sleep(chance.random())
            process.send_signal(signal.SIGKILL)
            process.communicate()
    for process in [start(host, last=True) for host in range(3)]:
        errors = process.communicate()[1]
        assert process.returncode == 0, errors
    assert verify(Remote(tmp_path / "remote" / "net"), deep=True).ok
    with ws.FeatureCache(tmp_path / "reader", "net") as cache:
        assert cache.pull(tmp_path / "remote").damaged == 0
        ids = [1000 * host + number for host in range(3) for number in range(200)]
        values, missing = cache.get_batch(ids)
        assert not len(missing)
        assert (values == np.array(ids, np.float32)[:, None]).all()
