"""What the tests of torchdata run: StatefulDataLoader over our batch sampler, with its state amid an epoch."""

import json
from typing import Any

import torch
from tests.interop import ranks
from tests.interop.ranks import Run
from torchdata.stateful_dataloader import StatefulDataLoader

WAYS = {"dataloader-0": (1, 2), "dataloader-2": (1, 2), "end-0": (1,), "end-2": (1,)}


def train(run: Run) -> None:
    """One rank of one run: a loop as people write it."""
    model = ranks.make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader, _ = ranks.make_dataloader(run, StatefulDataLoader)
    validation = ranks.make_validation_dataloader(run)
    path = run.saved.with_name(f"{run.saved.name}-{run.rank}.pt")
    begins = 0
    if run.phase == "resumed":
        state = torch.load(path, weights_only=False)
        begins = state["epoch"] + (run.extra == 0)
        loader.load_state_dict(json.loads(json.dumps(state["loader"])) if run.workers == 0 else state["loader"])
        model.load_state_dict(state["model"])
    for epoch in range(begins, ranks.EPOCHS):
        for batch in loader:
            _learn(run, epoch, batch, model, optimizer)
            if run.finished:
                torch.save({"epoch": epoch, "loader": loader.state_dict(), "model": model.state_dict()}, path)
                run.checkpoint = len(run.train)
        for index, batch in enumerate(validation):
            run.validated(batch, begins=index == 0)
    run.weights = model.weight.flatten().tolist()


def _learn(run: Run, epoch: int, batch: Any, model: Any, optimizer: Any) -> None:
    run.step(epoch, batch)
    optimizer.zero_grad()
    model(batch["x"]).square().mean().backward()
    optimizer.step()
