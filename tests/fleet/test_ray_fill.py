"""Caches filled by actors: each sample once, none lost, whoever is killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.fleet.modules import IGNORED, Logged, computed, processes

import warmstore as ws
import warmstore.ray

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'warmstore[ray]'")

ROWS, BLOCK = 3000, 100


def rows(numbers: Any = range(ROWS)) -> Any:
    def columns(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["item"], "x": np.tile(batch["item"][:, None], (1, 4)).astype(np.float32)}

    return ray.data.from_items(list(numbers), override_num_blocks=10).map_batches(columns)


def fill(place: str | Path, folder: Path, dataset: Any = None, seconds: float = 0.0) -> ws.FillResult:
    return ws.ray.fill(
        place,
        Logged(folder, seconds),
        rows() if dataset is None else dataset,
        id="double",
        num_actors=2,
        batch_size=50,
        block_size=BLOCK,
        num_cpus=0.25,  # two fills at once leave CPUs for reading
        module_options=IGNORED,
        lease=10,
    )


def check(place: str | Path, tmp_path: Path, count: int = ROWS) -> None:
    options: dict[str, Any] = {"cache_dir": tmp_path / "reader"} if "://" in str(place) else {}
    with ws.FeatureCache(place, "double", **options) as cache:
        values, missing = cache.get_batch(range(count))
    assert not len(missing)
    assert torch.equal(values, 2.0 * torch.arange(count)[:, None].expand(count, 4))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs"


@pytest.fixture(params=["folder", "URL"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "caches") if request.param == "folder" else f"file://{tmp_path}/team"


@pytest.mark.usefixtures("cluster")
class TestOneMachine:
    def test_each_sample_is_computed_once_and_found_the_next_time(self, place: str, logs: Path, tmp_path: Path) -> None:
        result = fill(place, logs)
        assert (result.computed, result.found) == (ROWS, 0)
        assert computed(logs) == dict.fromkeys(range(ROWS), 1)
        assert len(processes(logs)) <= 2  # on a busy machine one may have done all before the other has started
        check(place, tmp_path)
        result = fill(place, logs, rows(range(ROWS + 500)))
        assert (result.computed, result.found) == (500, ROWS)
        check(place, tmp_path, ROWS + 500)

    def test_an_actor_that_is_killed_loses_nothing(self, place: str, logs: Path, tmp_path: Path) -> None:
        killed: list[int] = []

        def kill() -> None:
            while not killed:
                time.sleep(0.02)
                busy = {pid: count for pid, count in processes(logs).items() if count > 5 * BLOCK}
                for pid in list(busy)[:1]:
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

        killer = threading.Thread(target=kill)
        killer.start()
        result = fill(place, logs, seconds=0.02)
        killer.join()
        assert result.computed + result.found == ROWS
        check(place, tmp_path)
        again = [value for value, count in computed(logs).items() if count > 1]
        assert len(again) <= BLOCK
        assert set(computed(logs)) == set(range(ROWS))

    def test_two_fills_at_once_share_the_work(self, place: str, logs: Path, tmp_path: Path) -> None:
        results: list[ws.FillResult] = []
        orders = [np.random.default_rng(seed).permutation(1000).tolist() for seed in range(2)]
        threads = [
            threading.Thread(target=lambda order=order: results.append(fill(place, logs, rows(order), seconds=0.02)))
            for order in orders
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [result.computed + result.found for result in results] == [1000, 1000]
        assert sum(result.computed for result in results) == 1000
        assert computed(logs) == dict.fromkeys(range(1000), 1)
        check(place, tmp_path, 1000)

    def test_errors_of_the_module_end_the_fill(self, logs: Path, tmp_path: Path) -> None:
        dataset = rows(range(300)).map_batches(lambda batch: {"id": batch["id"], "x": batch["x"][:, 0]})
        with pytest.raises(Exception, match="dimension"):
            fill(tmp_path / "caches", logs, dataset)


_DRIVER = """
import sys, ray
from pathlib import Path
from tests.fleet.test_ray_fill import fill
environment = {"env_vars": {"PYTHONPATH": sys.argv[3]}}
ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=128 << 20, runtime_env=environment)
print(fill(sys.argv[1], Path(sys.argv[2]), seconds=0.02), flush=True)
"""


def test_a_job_that_is_killed_goes_on(place: str, logs: Path, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", _DRIVER, place, str(logs), root]
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(command, env=environment, start_new_session=True) as job:
        while sum(processes(logs).values()) < 8 * BLOCK:
            time.sleep(0.05)
            assert job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
    for pid in processes(logs):
        while Path(f"/proc/{pid}").exists():  # actors end when they miss their cluster
            time.sleep(0.1)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "FillResult" in done.stdout
    check(place, tmp_path)
    assert sum(count - 1 for count in computed(logs).values()) <= 2 * BLOCK


_NODES = """
import os, signal, sys, threading, time, ray
from pathlib import Path
from ray.cluster_utils import Cluster
from tests.fleet.modules import processes
from tests.fleet.test_ray_fill import BLOCK, fill

options = {"object_store_memory": 128 << 20}
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, **options})
node = cluster.add_node(num_cpus=2, **options)
ray.init(address=cluster.address, logging_level="ERROR", runtime_env={"env_vars": {"PYTHONPATH": sys.argv[3]}})
logs = Path(sys.argv[2])

def kill():
    while sum(processes(logs).values()) < 6 * BLOCK:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    print("removed", flush=True)

threading.Thread(target=kill, daemon=True).start()
print(fill(sys.argv[1], logs, seconds=0.05), flush=True)
os._exit(0)  # Cluster fails at the exit, with a node that is gone
"""


def test_a_node_that_dies_loses_nothing(logs: Path, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    place = f"file://{tmp_path}/team"
    command = [sys.executable, "-c", _NODES, place, str(logs), root]
    environment = {**os.environ, "PYTHONPATH": root}
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as job:
        try:
            out, errors = job.communicate(timeout=300)
        finally:
            os.killpg(job.pid, signal.SIGKILL)  # the nodes
    assert "removed" in out, errors[-3000:]
    assert "FillResult(batches=30" in out, errors[-3000:]
    check(place, tmp_path)
    assert len(processes(logs)) >= 2
    assert sum(count - 1 for count in computed(logs).values()) <= 2 * BLOCK


_TRAINING = """
import sys
import torch
import torch.distributed as dist
import warmstore as ws
from tests.fleet.modules import IGNORED, Logged

url, logs, kept = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
module = ws.CachedModule(Logged(logs, 0.01), ws.FeatureCache(url, "double", cache_dir=kept, flush_every=100), **IGNORED)
for epoch in range(3):
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(epoch))
    for ids in order[rank::world].split(50):
        x = ids[:, None].float().expand(len(ids), 4)
        assert torch.equal(module(x, cache_ids=ids), 2 * x)
    dist.barrier()
module.cache.close()
dist.destroy_process_group()
"""


@pytest.mark.usefixtures("cluster")
def test_a_training_of_several_ranks_beside_it(logs: Path, tmp_path: Path) -> None:
    """Both fill one cache; values are right, none is lost, and what one has flushed the other need not compute."""
    place, root = f"file://{tmp_path}/team", str(Path(__file__).parents[2])
    (tmp_path / "train.py").write_text(_TRAINING)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, str(tmp_path / "train.py"), place, str(logs), str(tmp_path / "kept")]
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment) as training:
        while not computed(logs):
            time.sleep(0.05)
            assert training.poll() is None
        order = np.random.default_rng(1).permutation(1000).tolist()
        result = fill(place, logs, rows(order), seconds=0.02)
        assert training.wait() == 0
    assert result.computed + result.found == 1000
    check(place, tmp_path, 1000)
    counts = computed(logs)
    assert set(counts) == set(range(1000))
    assert max(counts.values()) <= 2  # neither asks the other before it computes
    subprocess.run(command, env=environment, check=True)  # another machine's copy of the program finds everything
    assert computed(logs) == counts


def test_each_cache_has_leases_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.ray.lease_server import LeaseServer

    monkeypatch.setattr(LeaseServer, "_connect", lambda self: None)
    caches = [("/a b", "c"), ("/a", "b c"), ("/a", "b"), ("/a", "c")]
    assert len({LeaseServer(*cache, 1.0)._name for cache in caches}) == len(caches)
