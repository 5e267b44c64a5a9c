"""Several cold processes at once: one compiles, the others wait and load."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.compiling.programs import SINE, finish, launch, run

from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact_store import ArtifactStore

RANK = """
import json, os, sys
import torch
import torch.distributed as dist
import warmstore as ws

cache = ws.compile_cache.init(sys.argv[1], job="ranks")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
parallel = torch.nn.parallel.DistributedDataParallel(torch.compile(model))
for _ in range(2):
    parallel(torch.ones(4, 8)).sum().backward()
from torch._dynamo.utils import counters
said = {"hits": counters["inductor"]["fxgraph_cache_hit"], "misses": counters["inductor"]["fxgraph_cache_miss"],
        "waited": sum(one.waited for one in cache.session.lookups), "grad": float(model[0].weight.grad.sum())}
open(os.path.join(sys.argv[2], str(dist.get_rank())), "w").write(json.dumps(said))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_of_two_cold_processes_one_compiles(filled: Path) -> None:
    with ArtifactStore(filled) as store:
        for kind in ("aot_autograd", "fx_graph", "cpp.so"):  # what is left are answers about the machine
            assert store.clear(kind=kind)
    reports = [finish(one) for one in [launch(SINE, filled) for _ in range(2)]]
    assert all(report.right for report in reports)
    assert sorted(report.inductor.get("fxgraph_cache_miss", 0) for report in reports) == [0, 1]
    assert sum(any(key.endswith(".main.so") for key in report.misses) for report in reports) == 1


def ranks_of(script: str, folder: Path, number: int) -> list[dict[str, Any]]:
    """What the ranks of a script say, started by torchrun with the store and the folder to say it in."""
    path, said = folder / "rank.py", folder / "said"
    path.write_text(textwrap.dedent(script))
    said.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(number)]
    done = subprocess.run(
        [*command, str(path), str(folder / "store"), str(said)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((said / str(rank)).read_text()) for rank in range(number)]


@pytest.mark.slow
def test_ranks_of_torchrun_compile_each_graph_once(tmp_path: Path) -> None:
    ranks = ranks_of(RANK, tmp_path, 4)
    graphs = ranks[0]["hits"] + ranks[0]["misses"]
    assert graphs >= 2
    assert sum(rank["misses"] for rank in ranks) == graphs
    assert sum(rank["waited"] > 0.01 for rank in ranks) >= 2
    assert len({round(rank["grad"], 4) for rank in ranks}) == 1


PACKAGED = """
import json, os, sys
import torch
import torch.distributed as dist
import warmstore as ws

cache = ws.compile_cache.init(sys.argv[1], job="ranks")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU())
fast, x = ws.compile(model), torch.ones(4, 8)

@ws.compile
def ranked(x):
    return torch.cos(x) * (dist.get_rank() + 2) * dist.get_world_size()

loss = fast(x).sum()
dist.all_reduce(loss.detach())
loss.backward()
grad = model[0].weight.grad.clone()
model[0].weight.grad = None
model(x).sum().backward()
right = torch.allclose(grad, model[0].weight.grad, atol=1e-5)
right = right and torch.allclose(ranked(x), torch.cos(x) * (dist.get_rank() + 2) * 2, atol=1e-5)
kinds = ("package/", "inductor/aotautograd/")
found = {kind: [one.hit for one in cache.session.lookups if one.key.startswith(kind)] for kind in kinds}
said = {"right": bool(right), "packages": found[kinds[0]], "graphs": found[kinds[1]],
        "left": [one.why for one in cache.session.lookups if one.left]}
open(os.path.join(sys.argv[2], str(dist.get_rank())), "w").write(json.dumps(said))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_ranks_that_start_cold_are_each_right_and_compile_what_they_share_once(tmp_path: Path) -> None:
    """Dynamo takes the rank for a constant: no rank may be given what another one has traced."""
    cold, warm = (ranks_of(PACKAGED, tmp_path, 2) for _ in range(2))
    assert all(rank["right"] and not rank["left"] for rank in cold + warm)
    assert [rank["packages"] for rank in cold + warm] == [[False] * 2] * 2 + [[True] * 2] * 2
    graphs = [rank["graphs"] for rank in cold]
    assert sorted(first for first, _ in graphs) == [False, True]  # one compiled, the other waited and found it
    assert [second for _, second in graphs] == [False, False]  # with each rank in it
    assert [rank["graphs"] for rank in warm] == [[], []]


BUNDLED = """
import torch, torch._functorch.config
torch._functorch.config.bundled_autograd_cache = True
x = torch.ones(64, requires_grad=True)
loss = torch.compile(lambda x: (x.sin() * 2).sum())(x)
assert not cache.session._flights._held, "while the program's own code runs"
loss.backward()
values, right = x.grad, torch.cos(x.detach()) * 2
"""


@pytest.mark.slow
def test_no_flight_is_held_until_the_backward_pass(tmp_path: Path) -> None:
    assert run(BUNDLED, tmp_path / "store").right
    again = run(BUNDLED, tmp_path / "store")
    assert (again.right, again.misses) == (True, [])


def test_an_interrupt_as_a_flight_begins_leaves_it_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock = fcntl.flock

    def interrupted(file: int, operation: int) -> None:
        flock(file, operation)
        if operation != fcntl.LOCK_UN:
            signal.raise_signal(signal.SIGINT)

    mine, others = SingleFlight(tmp_path / "flights"), SingleFlight(tmp_path / "flights")
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.begin("key")
    assert others.begin("key")
    assert not mine.begin("key")
    others.close()
