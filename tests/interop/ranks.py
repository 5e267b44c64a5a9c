"""Training runs for the tests of trainers: a rank of a run is a process forked from one that has imported the trainer.

`python -m tests.interop.ranks LOOP FOLDER` takes `tests/interop/loops/LOOP.py`, which has `WAYS`, the ways to give a
trainer data, and `train(run)`. Each way runs in each world three times: whole; stopped soon after a checkpoint in the
middle of an epoch; and from that checkpoint to the end, in new processes. Ways of `ONCE` run once. What every rank has
seen is written to the folder.
"""

import importlib
import json
import multiprocessing
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._dynamo
import torch.distributed.tensor  # with the one above: imported by an optimizer, which would take a second of each rank
from tests.ports import free_port
from torch.utils.data import DataLoader

import warmstore as ws

EPOCHS = 3
SAMPLES = {1: 33, 2: 41}  # neither fills its last step
BATCH = {1: 8, 2: 4}
VALIDATION = 13
PHASES = ("whole", "stopped", "resumed")
EXTRA_STEPS = 2  # of the epoch in which the checkpoint is written


class Stopped(Exception):
    """The end of a run that is to be resumed."""


@dataclass
class Run:
    """One rank of a training run, and what it has seen.

    train: [epoch, numbers of the samples, how many rows were repeated] of each step. validations: numbers of each pass.
    checkpoint: steps of `train` that the checkpoint knows of.
    """

    way: str
    world: int
    rank: int
    phase: str
    folder: Path
    train: list[tuple[int, list[int], int]] = field(default_factory=list)
    validations: list[list[int]] = field(default_factory=list)
    checkpoint: int = -1
    weights: list[float] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many samples there are to train on."""
        return SAMPLES[self.world]

    @property
    def batch(self) -> int:
        """Samples in a batch of one rank."""
        return BATCH[self.world]

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return -(-self.samples // (self.batch * self.world))

    @property
    def middle(self) -> int:
        """Steps after which the checkpoint is written."""
        return self.steps + self.extra

    @property
    def extra(self) -> int:
        """Steps of the second epoch that the checkpoint knows of: none where it is written at the end of the first."""
        return 0 if self.way.startswith("end") else EXTRA_STEPS

    @property
    def workers(self) -> int:
        """Workers of torch's DataLoader."""
        return int(self.way.partition("-")[2] or 0)

    @property
    def saved(self) -> Path:
        """Where the checkpoint is, of all worlds and ways another."""
        return self.folder / f"{self.way}-{self.world}"

    def left(self, epoch: int) -> int:
        """Samples that are left of an epoch: what follows them in a step of all ranks is repeated."""
        begun = self.extra * self.batch * self.world if self.phase == "resumed" and epoch == 1 else 0
        return self.samples - begun - sum(len(numbers) for at, numbers, _ in self.train if at == epoch)

    def step(self, epoch: int, batch: dict[str, Any]) -> None:
        """Note a training step. Raises Stopped after the first step that the checkpoint does not know of."""
        numbers = torch.as_tensor(batch["number"])
        valid = torch.as_tensor(batch.get("valid", torch.ones(len(numbers), dtype=torch.bool)))
        assert batch["x"][:, 0].tolist() == (numbers / 64).tolist()
        self.train.append((epoch, numbers[valid].tolist(), int((~valid).sum())))
        if self.phase == "stopped" and len(self.train) > self.middle:
            raise Stopped

    def validated(self, batch: dict[str, Any], begins: bool) -> None:
        """Note a batch of a validation pass."""
        if begins:
            self.validations.append([])
        numbers = torch.as_tensor(batch["number"])
        valid = torch.as_tensor(batch.get("valid", torch.ones(len(numbers), dtype=torch.bool)))
        self.validations[-1] += numbers[valid].tolist()

    @property
    def finished(self) -> bool:
        """Whether this is the moment to write the checkpoint: for loops that ask."""
        return self.phase == "stopped" and len(self.train) == self.middle

    def write(self) -> None:
        """Write what was seen."""
        told = {name: value for name, value in asdict(self).items() if name != "folder"}
        self.path(self.folder, self.way, self.world, self.phase, self.rank).write_text(json.dumps(told))

    @staticmethod
    def path(folder: Path, way: str, world: int, phase: str, rank: int) -> Path:
        """Where `write` writes."""
        return folder / f"{way}.{world}.{phase}.{rank}.json"


def source(samples: int) -> dict[str, Any]:
    """Samples that carry their number."""
    numbers = np.arange(samples)
    x = np.stack([numbers / 64, np.sin(numbers), np.ones(samples)], axis=1).astype(np.float32)
    return {"x": x, "number": numbers}


class Stream:
    """Samples one after the other, without positions, in another order each epoch."""

    def __init__(self, samples: int) -> None:
        self.columns = source(samples)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        for at in np.random.default_rng(self.epoch).permutation(len(self.columns["number"])):
            yield {name: column[at] for name, column in self.columns.items()}


class SizedStream(Stream):
    """One that knows its length."""

    def __len__(self) -> int:
        return len(self.columns["number"])


def make_loader(run: Run, **options: Any) -> ws.Loader:
    """The loader to train on."""
    if run.way in ("stream", "unsized"):
        stream = SizedStream if run.way == "stream" else Stream
        return ws.Loader(stream(run.samples), run.batch, to="torch", **options)
    return ws.Loader(source(run.samples), run.batch, ws.Shuffle(seed=5), to="torch", **options)


def make_validation(run: Run) -> ws.Loader:
    """The loader to validate on."""
    return ws.Loader(source(VALIDATION), run.batch, to="torch")


def make_dataloader(run: Run, kind: Any = DataLoader, **options: Any) -> tuple[Any, ws.BatchSampler]:
    """Torch's loader to train on, and its batch sampler."""
    dataset = ws.Dataset(source(run.samples))
    sampler = ws.BatchSampler(dataset, run.batch, ws.Shuffle(seed=5), **options)
    return kind(dataset, batch_sampler=sampler, collate_fn=ws.collate, **worker_options(run)), sampler


def make_validation_dataloader(run: Run) -> Any:
    """Torch's loader to validate on."""
    dataset = ws.Dataset(source(VALIDATION))
    sampler = ws.BatchSampler(dataset, run.batch)
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=ws.collate, **worker_options(run))


def worker_options(run: Run) -> dict[str, Any]:
    """Of torch's DataLoader."""
    return {"num_workers": run.workers, "persistent_workers": run.way.startswith("persistent")}


def make_model() -> torch.nn.Linear:
    """The same model in every process."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight.fill_(0.5)
        model.bias.zero_()
    return model


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun tells a process."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "GROUP_RANK": 0}
    store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    return {name: str(value) for name, value in (names | store).items()}


def _rank(loop: Any, run: Run, variables: dict[str, str]) -> None:
    os.environ.update(variables)
    torch.set_num_threads(1)
    try:
        with suppress(Stopped):
            loop.train(run)
        run.write()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads of a process group may still wait for the other rank


def start(loop: Any, way: str, world: int, phase: str, folder: Path) -> None:
    """One run: all its ranks, to their end.

    Raises:
        SystemExit: a rank has failed.
    """
    port = free_port()
    context = multiprocessing.get_context("fork")
    ranks = []
    for rank in range(world):
        variables = environment(rank, world, port) if world > 1 else {}
        ranks.append(context.Process(target=_rank, args=(loop, Run(way, world, rank, phase, folder), variables)))
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    if any(process.exitcode for process in ranks):
        raise SystemExit(f"{way} on {world} ranks, {phase}: exit codes {[process.exitcode for process in ranks]}")


def main(name: str, folder: str, which: str) -> None:
    """The runs of a loop: "short" is those of its SHORT, where it has one, and "long" all."""
    loop = importlib.import_module(f"tests.interop.loops.{name}")
    ways = getattr(loop, "SHORT", loop.WAYS) if which == "short" else loop.WAYS
    for way, worlds in ways.items():
        for world in worlds:
            for phase in PHASES:
                start(loop, way, world, phase, Path(folder))
    for way, world in getattr(loop, "ONCE", {}).items():
        start(loop, way, world, "whole", Path(folder))


if __name__ == "__main__":
    from tests.interop import ranks  # the module that loops import, not this copy of it

    ranks.main(*sys.argv[1:])
