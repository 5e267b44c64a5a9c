"""F9: under torchrun every rank writes, or only those that may; nothing is computed twice once it was flushed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import warmstore as ws
from warmstore.features.writer_ranks import WriterRanks

SCRIPT = """
import json, os, sys
import torch
import torch.distributed as dist
import warmstore as ws

torch.set_num_threads(1)

class Double(torch.nn.Module):
    rows = 0
    def forward(self, x):
        Double.rows += len(x)
        return {"y": x * 2}

def features(**options):
    return ws.CachedModule(Double(), ws.FeatureCache(sys.argv[1] + "/cache", "id", flush_every=8, **options))

def epoch(module, seed):
    order = torch.randperm(80, generator=torch.Generator().manual_seed(seed))
    for ids in order[dist.get_rank() :: dist.get_world_size()].split(5):
        x = ids[:, None] * torch.ones(2)
        assert torch.equal(module(x, cache_ids=ids)["y"], x * 2)
    module.cache.flush()
    dist.barrier()

ranks = json.loads(sys.argv[2])
module = features(writer_ranks=ranks)
dist.init_process_group("gloo")  # after the cache was opened: the rank is asked for when it counts
rank, counts = dist.get_rank(), []
mine = 80 // dist.get_world_size()
writes = ranks is None or rank in ranks
for seed in range(3):
    before = Double.rows
    epoch(module, seed)
    counts.append(Double.rows - before)
assert module.cache.writes == writes
if ranks is None:
    assert counts == [mine, 0, 0], counts
else:
    assert counts[0] == mine and counts[1] + counts[2] > 0 or writes, counts
for turn in range(dist.get_world_size() if ranks else 0):
    if turn in ranks and turn == rank:  # those that write now fill what is missing
        ids = torch.arange(80)
        module(ids[:, None] * torch.ones(2), cache_ids=ids)
        module.cache.flush()
    dist.barrier()
before = Double.rows
values, missing = module.cache.get_batch(range(80))
assert missing.tolist() == [] and torch.equal(values["y"][:, 0], torch.arange(80.0) * 2)
dist.barrier()
dist.destroy_process_group()
module.cache.close()
"""


WORLD = 4


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "writers"), [(None, WORLD), ([0], 1)])
def test_under_torchrun(tmp_path: Path, ranks: list[int] | None, writers: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD)]
    done = subprocess.run(
        [*command, tmp_path / "script.py", tmp_path, str(ranks).replace("None", "null")],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path)), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Each writer has a chunk of its own, and every sample was written once.
    assert len(list((tmp_path / "cache").rglob("*.arrow"))) == writers
    with ws.RecordStore.open(tmp_path / "cache" / "id") as store:
        assert len(store) == 80


def test_rank_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank, writes in ((None, True), ("0", True), ("", True), ("1", False), ("2", True)):
        if rank is None:
            monkeypatch.delenv("RANK", raising=False)
        else:
            monkeypatch.setenv("RANK", rank)
        assert WriterRanks([0, 2]).include_this() == writes
        assert WriterRanks(None).include_this()


class TestRankThatDoesNotWrite:
    @pytest.fixture
    def module(self, cached, monkeypatch):
        monkeypatch.setenv("RANK", "1")
        return cached(writer_ranks=[0])

    def test_computes_and_leaves_nothing(self, module, tmp_path):
        for _ in range(2):
            assert module(torch.ones(2), cache_ids=[1, 2]).tolist() == [2, 2]
        module.cache.put_batch([3], torch.ones(1))  # the same script runs on every rank: no error
        assert module.cache.get_batch([3])[1].tolist() == [0]
        module.cache.flush()
        module.cache.close()
        assert module.rows == [2, 2]
        assert not list(tmp_path.iterdir())

    def test_reads_what_writers_flushed(self, module, cached, monkeypatch):
        monkeypatch.setenv("RANK", "0")
        writer = cached(writer_ranks=[0])
        writer(torch.ones(2), cache_ids=[1, 2])
        writer.cache.flush()
        monkeypatch.setenv("RANK", "1")
        assert module(torch.ones(3), cache_ids=[1, 2, 3]).tolist() == [2, 2, 2]
        assert module.rows == [1]
        module.cache.close()
        assert len(list(module.cache.path.rglob("*.arrow"))) == 1
        assert not (module.cache.path / "cost.json").exists()
        monkeypatch.setenv("RANK", "0")
        writer.cache.close()

    def test_does_not_tie_a_cache_filled_by_hand(self, module, cached, monkeypatch, tmp_path):
        monkeypatch.setenv("RANK", "0")
        with ws.FeatureCache(tmp_path, "id") as cache:
            cache.put_batch([1], torch.ones(1) * 2)
        monkeypatch.setenv("RANK", "1")
        assert module(torch.ones(1), cache_ids=[1]).tolist() == [2]
        with ws.RecordStore.open(tmp_path / "id") as store:
            assert store.metadata["fingerprint"] is None


@pytest.mark.parametrize("ranks", [[], 0, "0", [-1], [True], [0.0], ["0"]])
def test_ranks_that_cannot_be(tmp_path, ranks):
    with pytest.raises(ValueError, match="writer_ranks"):
        ws.FeatureCache(tmp_path, "id", writer_ranks=ranks)


def test_folder_that_only_writers_can_write(run_script, seen_by_all):
    run_script(
        """
        import os
        import torch
        import warmstore as ws

        folder = "FOLDER/cache"
        with ws.FeatureCache(folder, "id", writer_ranks=[0]) as cache:
            cache.put_batch([1], torch.ones(1))
        os.environ["RANK"] = "1"
        if os.fork() == 0:
            os.setuid(65534)
            cache = ws.FeatureCache(folder, "id", writer_ranks=[0])
            assert cache.get_batch([1])[0].tolist() == [1]
            cache.close()
            os._exit(0)
        assert os.wait()[1] == 0
        """.replace("FOLDER", str(seen_by_all))
    )
