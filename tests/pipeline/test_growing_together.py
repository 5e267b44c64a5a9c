"""Two processes grow one folder at once, each with a data set of its own that gets longer, under one budget."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.pipeline.making import watched
from tests.slow import thinned

from warmstore.storage.disk_usage import folder_bytes

PROGRAM = """
import json
import sys
from pathlib import Path

import numpy as np
from tests.pipeline.making import expected, plan_of, same

import warmstore as ws

calls = [0]


def decode(index):
    calls[0] += 1
    return np.random.default_rng(index).integers(0, 256, 20_000, np.uint8)


folder, disk, *lists = sys.argv[1:]
computed = []
for number, part in enumerate(lists):
    first, last = map(int, part.split("-"))
    pipe = ws.Pipeline(list(range(first, last))).step(decode)
    plan = plan_of(pipe, [(1, "disk", "raw")], [len(pipe)], folder=Path(folder), disk=int(disk))
    with pipe.loader(plan, 8, workers=0, seed=number) as loader:
        for epoch in range(2):
            before = calls[0]
            got = list(loader)
            computed.append(calls[0] - before)
            wanted = list(expected(pipe, 8, number, epoch))
            assert len(got) == len(wanted)
            assert all(map(same, got, wanted)), "other samples than without a cache"
            calls[0] = before + computed[-1]  # a program must not change the memory of a step
    print("grown", flush=True)
    sys.stdin.readline()
print(json.dumps(computed))
"""
LISTS = ["0-120", "0-160", "0-200"], ["100-220", "100-260", "100-300"]


def started(folder: Path, disk: int, *lists: str) -> subprocess.Popen[str]:
    return warm.popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(disk), *lists],
        cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def together(folder: Path, disk: int) -> tuple[list[list[int]], int]:
    """What two processes computed in each epoch, and the most bytes that the folder had. Their lists grow in step."""
    children = [started(folder, disk, *lists) for lists in LISTS]
    try:
        with watched(folder) as most:
            for _ in LISTS[0]:
                for child in children:
                    assert child.stdout is not None
                    assert child.stdout.readline() == "grown\n", child.communicate()[1]
                for child in children:
                    assert child.stdin is not None
                    child.stdin.write("\n")
                    child.stdin.flush()
            said = [child.communicate(timeout=300) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0, 0], said
    return [json.loads(out) for out, _ in said], most()


def test_nothing_is_lost(tmp_path: Path) -> None:
    disk = 32 << 20
    computed, most = together(tmp_path, disk)
    assert most <= disk
    for epochs in computed:
        # The second list has 40 samples more than the first, which the other process may add first. Samples that both
        # lists have may be computed by both at once.
        assert epochs[0] <= 120 + 8
        assert epochs[2] <= 40
        assert epochs[4] <= 40
        assert epochs[1::2] == [0, 0, 0]
    child = started(tmp_path, disk, "0-300")
    said: Any = child.communicate("\n", timeout=300)
    assert child.returncode == 0, said
    assert json.loads(said[0].splitlines()[-1]) == [0, 0]


@pytest.mark.parametrize("share", thinned(2, [0.3, 0.7]))
def test_a_budget_that_cannot_hold_all(tmp_path: Path, share: float) -> None:
    disk = int(300 * 20_000 * share)
    computed, most = together(tmp_path, disk)
    assert 0.8 * disk < most <= disk
    for epochs in computed:
        assert sum(epochs[1::2]) < 120 + 160 + 200  # something was cached
    (version,) = (tmp_path / "warmstore-samples").glob("1-raw-*/about.json")
    assert folder_bytes(version.parents[1]) <= disk
