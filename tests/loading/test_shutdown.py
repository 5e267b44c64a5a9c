"""However a program ends, nothing of a loader stays behind: no thread, no process, no shared memory."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from tests import warm
from tests.slow import thinned

import warmstore as ws

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "tests.loading.children", *map(str, arguments)]


@pytest.mark.parametrize(("workers", "processes"), thinned(3, [(3, 0), (0, 0), (0, 2)]))
def test_an_interrupt_in_the_middle(store: ws.RecordStore, workers: int, processes: int) -> None:
    with subprocess.Popen(
        command("interrupted", store.path, workers, processes), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        rest = child.stdout.read()
    assert child.returncode == 0
    assert rest.startswith("left [] ")
    assert int(rest.split()[-1]) in (8, 10)  # before or after the next batch


@pytest.mark.parametrize("workers", thinned(2, [3, 0]))
def test_the_end_of_the_program_does_not_hang(store: ws.RecordStore, workers: int) -> None:
    done = warm.run(
        command("abandoned", store.path, workers), capture_output=True, text=True, env=ENVIRONMENT, check=True
    )
    assert (done.stdout, done.stderr) == ("end\n", "")


def test_workers_of_a_killed_program_end_with_batches_that_nobody_reads(store: ws.RecordStore) -> None:
    with warm.popen(command("unread", store.path, 2), stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as child:
        assert child.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in child.stdout.readline().split()]
        assert len(workers) >= 2
        child.kill()
    _, alive = psutil.wait_procs(workers, timeout=60)
    for worker in alive:
        worker.kill()
    assert not alive


@pytest.mark.slow
def test_a_killed_worker_of_torch_is_torchs_error_and_leaves_nothing(store: ws.RecordStore) -> None:
    done = warm.run(command("killed", store.path, 2), capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    said, left = done.stdout.splitlines()
    # Torch's watch says that the worker died; unless its queue notices first.
    assert any(words in said for words in ("exited unexpectedly", "killed by signal", "reset by peer"))
    assert left == "left [] 9"


@pytest.mark.slow
def test_two_ranks_under_torchrun(store: ws.RecordStore, tmp_path: Path) -> None:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    child = ["-m", "tests.loading.children", "rank", str(store.path), str(tmp_path)]
    environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*run, *child], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    one, other = (json.loads((tmp_path / f"{rank}-of-2.json").read_text()) for rank in range(2))
    assert one["state"] == other["state"]
    order = ws.Shuffle(seed=4)
    steps = max(len(one["first"]), len(other["first"]))
    places = [
        at for step in range(steps) for rank in (one, other) for batch in rank["first"][step : step + 1] for at in batch
    ]
    assert places == order.indices(0, 23, 23, 0).tolist()
    assert one["second"] + other["second"] == order.indices(6, 12, 23, 1).tolist()
    alone = ws.Loader(store, 23, order, fields=["number"])
    alone.load_state_dict(one["state"])
    (batch,) = alone
    assert batch["number"].tolist() == order.indices(12, 23, 23, 1).tolist()


def test_one_torch_thread_is_as_good(store: ws.RecordStore) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = np.concatenate([batch["number"] for batch in ws.Loader(store, 4, fields=["number"], workers=2)])
    finally:
        torch.set_num_threads(before)
    assert found.tolist() == list(range(23))
