"""What the tests of ignite run: an engine, a checkpoint by its handler in the middle of an epoch, and a resume."""

import warnings
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from tests.interop import ranks
from tests.interop.ranks import Run

WAYS = {"loader": (1, 2), "dataloader-0": (1, 2), "dataloader-2": (1, 2), "persistent-2": (1,), "end": (1, 2)}


def train(run: Run) -> None:
    """One rank of one run."""
    warnings.simplefilter("error")
    model = ranks.make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    if run.way in ("loader", "end"):
        loader = place = ranks.make_loader(run)
        validation = ranks.make_validation(run)
    else:
        loader, place = ranks.make_dataloader(run)
        validation = ranks.make_validation_dataloader(run)

    def step(engine: Engine, batch: Any) -> None:
        run.step(engine.state.epoch - 1, batch)
        optimizer.zero_grad()
        model(batch["x"]).square().mean().backward()
        optimizer.step()

    trainer = Engine(step)
    evaluator = Engine(lambda engine, batch: run.validated(batch, begins=engine.state.iteration == 1))
    whole = {"trainer": trainer, "model": model, "optimizer": optimizer, "loader": place}
    folder = run.saved.with_name(f"{run.saved.name}-{run.rank}")
    folder.mkdir(exist_ok=True)

    @trainer.on(Events.ITERATION_COMPLETED)
    def save(_: Engine) -> None:
        if run.finished:
            torch.save({name: part.state_dict() for name, part in whole.items()}, folder / "middle.pt")
            run.checkpoint = len(run.train)

    @trainer.on(Events.EPOCH_COMPLETED)
    def validate(_: Engine) -> None:
        evaluator.run(validation, max_epochs=1)

    if run.phase == "resumed":
        Checkpoint.load_objects(whole, torch.load(folder / "middle.pt", weights_only=False))
    trainer.run(loader, max_epochs=ranks.EPOCHS)
    run.weights = model.weight.flatten().tolist()
