"""Lightning: data modules with loaders of ours and of torch, a sanity check, checkpoints, on one rank and on two."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.interop import checks

pytestmark = pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checks.run_loop("lightning", tmp_path_factory.mktemp("lightning"))


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["loader", "stream", "unsized", "dataloader-0", "dataloader-2"])
def test_every_sample_comes_once_an_epoch_also_after_a_resume(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


def test_lightnings_own_sharding_keeps_our_order(runs: Path) -> None:
    checks.check(runs, "sharded-0", 2)
    ours, theirs = (checks.runs_of(runs, way, 2)["whole"] for way in ("dataloader-0", "sharded-0"))
    assert [rank.train for rank in ours] == [rank.train for rank in theirs]


def test_a_loader_that_was_made_before_there_were_ranks_finds_its_own(runs: Path) -> None:
    ranks = [checks.run_of(runs, "forked", 2, "whole", rank) for rank in range(2)]
    for epoch in range(3):
        found = [number for rank in ranks for number in checks.numbers(rank, epoch)]
        assert sorted(found) == list(range(ranks[0].samples))


def test_a_rank_that_was_passed_is_refused_where_lightning_shards(runs: Path) -> None:
    for rank in range(2):
        (message,) = checks.run_of(runs, "refused", 2, "whole", rank).notes
        assert "leave rank= and world_size= out" in message
        assert "use_distributed_sampler=False" in message


def test_workers_that_live_on(runs: Path) -> None:
    checks.check(runs, "persistent-2", 1)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("way", ["end", "end of epoch", "end-0"])
def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(runs: Path, way: str, world: int) -> None:
    checks.check(runs, way, world)


SCRIPT = """
import json

import lightning
import numpy as np
import torch
import warmstore as ws


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(1, 1), []

    def training_step(self, batch, index):
        self.seen += batch["id"][batch["valid"]].tolist()
        return self.layer(batch["x"]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


loader = ws.Loader({"x": np.ones((41, 1), np.float32), "id": np.arange(41)}, 4, "shuffle", to="torch")
options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp", **options)
model = Model()
trainer.fit(model, loader)
with open(f"{trainer.global_rank}.json", "w") as file:
    json.dump(model.seen, file)
"""


@pytest.mark.slow
def test_processes_that_lightning_starts_itself(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "train.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=checks.ENVIRONMENT, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(ranks[0] + ranks[1]) == list(range(41))
