"""What the tests of Grain run: a MapDataset over our samples, its state in the middle of an epoch, and a resume."""

import json
from typing import Any

import grain
from tests.interop import ranks
from tests.interop.ranks import Run

import warmstore as ws

WAYS = {"dataset": (1,), "store": (1,)}


def train(run: Run) -> None:
    """One run: as torchdata has it, a step is only noted."""
    batches = iter(make(run))
    path = run.saved.with_suffix(".json")
    first = 0
    if run.phase == "resumed":
        told = json.loads(path.read_text())
        first = told["step"]
        batches.set_state(told["state"])
    for step in range(first, ranks.EPOCHS * run.steps):
        run.step(step // run.steps, next(batches))
        if run.finished:
            path.write_text(json.dumps({"step": step + 1, "state": batches.get_state()}))
            run.checkpoint = len(run.train)
        if step % run.steps == run.steps - 1:
            for index, batch in enumerate(grain.MapDataset.source(ws.Dataset(ranks.source(ranks.VALIDATION))).batch(4)):
                run.validated(batch, begins=index == 0)
    run.weights = [1.0]


def make(run: Run) -> Any:
    """Shuffled anew in every epoch; an epoch's last batch is what is left."""
    source: Any = ws.Dataset(ranks.source(run.samples))
    if run.way == "store":
        source = make_store(run)
    one = grain.MapDataset.source(source).seed(0).shuffle().batch(run.batch)
    return one.repeat(ranks.EPOCHS).to_iter_dataset()


def make_store(run: Run) -> Any:
    """The same samples as records."""
    path = run.folder / f"store-{run.phase}"
    fields = {"x": ws.Array("float32", (3,)), "number": ws.Array("int64")}
    with ws.RecordStore.create(path, fields) as store:
        store.extend(ranks.source(run.samples))
    return ws.RecordStore.open(path)
