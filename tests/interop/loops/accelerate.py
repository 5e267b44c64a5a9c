"""What the tests of accelerate run: the usual loop, `save_state` in the middle of an epoch, and a resume."""

from datetime import timedelta
from typing import Any

import datasets  # noqa: F401  # accelerate imports it where it prepares a loader
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, InitProcessGroupKwargs, set_seed
from tests.interop import ranks
from tests.interop.ranks import Run

import warmstore as ws

WAYS = {
    "loader": (1, 2),
    "dataloader-0": (1, 2),
    "counted-0": (1, 2),
    "dataloader-2": (1, 2),
    "skip-0": (1, 2),
    "stateful-0": (1, 2),
    "stateful-2": (1, 2),
    "end": (1, 2),
    "stream": (1, 2),
}
SHORT = {"loader": (1, 2), "dataloader-0": (2,), "skip-0": (1,), "stateful-0": (1,), "end": (1,)}
ONCE = {"refused": 2, "prepared": 2}


class Progress:
    """Which epoch and step training is in, as `save_state` writes it."""

    def __init__(self) -> None:
        self.epoch = self.step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = state["epoch"], state["step"]


def train(run: Run) -> None:
    """One rank of one run."""
    {"refused": be_refused, "prepared": prepare}.get(run.way, fit)(run)


def be_refused(run: Run) -> None:
    """A batch sampler that was told its rank, to a trainer that shards."""
    loader, _ = ranks.make_dataloader(run, rank=run.rank, world_size=run.world)
    try:
        list(Accelerator(cpu=True).prepare(loader))
    except ws.BadRank as error:
        run.notes.append(str(error))


def prepare(run: Run) -> None:
    """`prepare` leaves a loader of ours as it is: the ranks are its own."""
    accelerator = Accelerator(cpu=True)
    loader = ranks.make_loader(run)
    run.notes.append(accelerator.prepare(loader) is loader)
    for batch in loader:
        run.step(0, batch)


def fit(run: Run) -> None:
    """Train, with a checkpoint in the middle; or from there."""
    set_seed(0)
    kind = run.way.partition("-")[0]
    accelerator = Accelerator(
        cpu=True,
        dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=kind == "stateful"),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=300))],
    )
    model = ranks.make_model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if kind in ("loader", "end", "stream"):
        loader, validation = ranks.make_loader(run), ranks.make_validation(run)
        accelerator.register_for_checkpointing(loader)
    else:
        loader, sampler = ranks.make_dataloader(run)
        loader, validation = accelerator.prepare(loader, ranks.make_validation_dataloader(run))
        if kind in ("dataloader", "counted"):
            accelerator.register_for_checkpointing(sampler)
    if run.phase == "resumed":
        accelerator.load_state(str(run.saved))
    for epoch in range(progress.epoch, ranks.EPOCHS):
        batches, done = loader, progress.step if epoch == progress.epoch else 0
        if kind not in ("loader", "end", "stream", "counted"):
            loader.set_epoch(epoch)
        if kind == "skip" and done:
            batches = accelerator.skip_first_batches(loader, done)
        for step, batch in enumerate(batches, done + 1):
            note(run, accelerator, epoch, batch)
            loss = model(batch["x"]).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            progress.epoch, progress.step = (epoch, step) if step < len(loader) else (epoch + 1, 0)
            if run.finished:
                accelerator.save_state(str(run.saved))
                run.checkpoint = len(run.train)
        for index, batch in enumerate(validation):
            numbers = (
                accelerator.gather_for_metrics(batch["number"])
                if kind not in ("loader", "end", "stream")
                else batch["number"]
            )
            told = {"number": numbers} if kind not in ("loader", "end", "stream") else batch
            run.validated(told, begins=index == 0)
        if accelerator.num_processes > 1:
            accelerator.wait_for_everyone()
    run.weights = accelerator.unwrap_model(model).weight.flatten().tolist()


def note(run: Run, accelerator: Any, epoch: int, batch: Any) -> None:
    """What this rank has; of loaders that accelerate shards, what all have, without the rows that it repeats."""
    if run.way not in ("loader", "end", "stream") and run.world > 1:
        batch = {name: accelerator.gather(batch[name])[: run.left(epoch)] for name in ("x", "number")}
    run.step(epoch, batch)
