"""Several cold processes at once: one compiles, the others wait and load."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.compiling.programs import SINE, finish, launch

from warmstore.compiling.artifacts import ArtifactStore

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


def test_of_two_cold_processes_one_compiles(filled: Path) -> None:
    with ArtifactStore(filled) as store:
        for kind in ("aot_autograd", "fx_graph", "cpp.so"):  # what is left are answers about the machine
            assert store.clear(kind=kind)
    reports = [finish(one) for one in [launch(SINE, filled) for _ in range(2)]]
    assert all(report.right for report in reports)
    assert sorted(report.inductor.get("fxgraph_cache_miss", 0) for report in reports) == [0, 1]
    assert sum(any(key.endswith(".main.so") for key in report.misses) for report in reports) == 1


@pytest.mark.slow
def test_ranks_of_torchrun_compile_each_graph_once(tmp_path: Path) -> None:
    script, said = tmp_path / "rank.py", tmp_path / "said"
    script.write_text(textwrap.dedent(RANK))
    said.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    done = subprocess.run(
        [*command, str(script), str(tmp_path / "store"), str(said)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((said / str(rank)).read_text()) for rank in range(4)]
    graphs = ranks[0]["hits"] + ranks[0]["misses"]
    assert graphs >= 2
    assert sum(rank["misses"] for rank in ranks) == graphs
    assert sum(rank["waited"] > 0.01 for rank in ranks) >= 2
    assert len({round(rank["grad"], 4) for rank in ranks}) == 1
