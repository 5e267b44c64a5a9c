"""What the tests of Lightning run: a module, a data module, a checkpoint in the middle of an epoch, and a resume."""

import logging
import warnings
from datetime import timedelta
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from tests.interop import ranks
from tests.interop.ranks import Run
from torch.utils.data import DataLoader

import warmstore as ws

WAYS = {"loader": (1, 2), "dataloader-0": (1, 2), "dataloader-2": (1, 2), "sharded-0": (2,), "persistent-2": (1,)}
WAYS |= {"end": (1, 2), "end of epoch": (1, 2), "end-0": (1, 2), "stream": (1, 2), "unsized": (1, 2)}
SHORT = {"loader": (1, 2), "dataloader-0": (2,), "sharded-0": (2,), "end": (1,)}
ONCE = {"refused": 2, "forked": 1}
OURS = ("loader", "stream", "unsized", "end", "end of epoch")


class Model(lightning.LightningModule):
    """A linear layer that notes what it is trained on."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.layer = ranks.make_model()

    def training_step(self, batch: Any, _: int) -> Any:
        self.run.step(self.current_epoch, batch)
        return self.layer(batch["x"]).square().mean()

    def validation_step(self, batch: Any, index: int) -> None:
        if not self.trainer.sanity_checking:
            self.run.validated(batch, begins=index == 0)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)

    def on_save_checkpoint(self, _: Any) -> None:
        self.run.checkpoint = len(self.run.train)


class Data(lightning.LightningDataModule):
    """Loaders, made anew by each trainer; the state of a batch sampler goes into the checkpoint from here."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run
        self.sampler: Any = None
        self.state: Any = None

    def train_dataloader(self) -> Any:
        if self.run.way in OURS:
            return ranks.make_loader(self.run)
        loader, self.sampler = ranks.make_dataloader(self.run)
        if self.state is not None:
            self.sampler.load_state_dict(self.state)
        return loader

    def val_dataloader(self) -> Any:
        if self.run.way in OURS:
            return ranks.make_validation(self.run)
        return ranks.make_validation_dataloader(self.run)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.sampler is None else {"sampler": self.sampler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state["sampler"]


class Forked(Model):
    """The module of ranks that Lightning starts by itself, which write what they have seen."""

    def on_train_end(self) -> None:
        self.run.rank, self.run.world = self.global_rank, self.trainer.world_size
        self.run.write()


def train(run: Run) -> None:
    """One rank of one run."""
    {"refused": be_refused, "forked": fork}.get(run.way, fit)(run)


def be_refused(run: Run) -> None:
    """A batch sampler that was told its rank, to a trainer that shards."""
    _, told = ranks.make_dataloader(run, rank=run.rank, world_size=run.world)
    dataset = ws.Dataset(ranks.source(run.samples))
    trainer = make_trainer(run, use_distributed_sampler=True)
    try:
        trainer.fit(Model(run), DataLoader(dataset, batch_sampler=told, collate_fn=ws.collate))
    except ws.BadRank as error:
        run.notes.append(str(error))


def fork(run: Run) -> None:
    """A loader that was made before there were any ranks."""
    run.world = 2
    loader = ranks.make_loader(run)
    trainer = make_trainer(run, strategy="ddp_fork")
    trainer.fit(Forked(run), loader)
    run.world = 1  # this process is none of them


def make_trainer(run: Run, **options: Any) -> lightning.Trainer:
    """A trainer without anything that is not needed."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    ddp = DDPStrategy(process_group_backend="gloo", timeout=timedelta(seconds=300)) if run.world > 1 else "auto"
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given = {"strategy": ddp, "enable_checkpointing": "callbacks" in options, **quiet, **options}
    return lightning.Trainer(max_epochs=ranks.EPOCHS, accelerator="cpu", devices=run.world, **given)


def fit(run: Run) -> None:
    """Train, with a checkpoint in the middle; or from there."""
    when = {"save_on_train_epoch_end": True} if run.way == "end of epoch" else {"every_n_train_steps": run.middle}
    saving = ModelCheckpoint(run.saved, "middle", save_top_k=-1, **when)
    options: dict[str, Any] = {"callbacks": [saving]} if run.phase == "stopped" else {}
    trainer = make_trainer(run, use_distributed_sampler=run.way == "sharded-0", **options)
    if run.way == "loader":
        warnings.filterwarnings("error", message=".*not resumable")
    model = Model(run)
    path = run.saved / "middle.ckpt" if run.phase == "resumed" else None
    trainer.fit(model, datamodule=Data(run), ckpt_path=path, weights_only=False)
    run.weights = model.layer.weight.flatten().tolist()
