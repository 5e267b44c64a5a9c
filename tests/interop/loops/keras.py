"""What the tests of Keras on torch run: fit, a checkpoint in the middle of an epoch, and a resume."""

import json
import os
import warnings
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import keras
from tests.interop import ranks
from tests.interop.ranks import Run
from torch.utils.data import DataLoader

import warmstore as ws

WAYS = {"loader": (1,), "dataloader-0": (1,), "dataloader-2": (1,)}


class Model(keras.Sequential):
    """A dense layer that notes what it is trained on."""

    def __init__(self, run: Run, watch: "Watch") -> None:
        start = keras.initializers.Constant(0.5)
        super().__init__([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer=start)])
        self.noted = [run, watch]  # a list: Keras follows what is an attribute by itself

    def train_step(self, data: Any) -> Any:
        run, watch = self.noted
        run.step(watch.epoch, {"x": data[0].cpu(), "number": data[1].cpu()})
        return super().train_step(data)

    def test_step(self, data: Any) -> Any:
        run, watch = self.noted
        run.validated({"number": data[1].cpu()}, begins=watch.validation_begins)
        watch.validation_begins = False
        return super().test_step(data)


class Watch(keras.callbacks.Callback):
    """Name the epochs of what is trained on, and write the checkpoint."""

    def __init__(self, run: Run, place: Any, state: Any) -> None:
        super().__init__()
        self.run, self.place, self.state = run, place, state
        self.epoch = 0
        self.validation_begins = False

    def on_train_begin(self, logs: Any = None) -> None:
        # After Keras has built the model, for which it takes a batch.
        if self.state is not None:
            self.place.load_state_dict(self.state)
            self.state = None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        if self.run.way != "loader":
            self.place.set_epoch(epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.run.finished:
            self.model.save_weights(self.run.saved.with_suffix(".weights.h5"))
            self.run.saved.with_suffix(".json").write_text(json.dumps(self.place.state_dict()))
            self.run.checkpoint = len(self.run.train)

    def on_test_begin(self, logs: Any = None) -> None:
        self.validation_begins = True


def train(run: Run) -> None:
    """One run."""
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*(set_vital|__array__|copy keyword)")
    resumes = run.phase == "resumed"
    state = json.loads(run.saved.with_suffix(".json").read_text()) if resumes else None
    loader, place, validation = make(run)
    watch = Watch(run, place, state if run.way != "loader" else None)
    model = Model(run, watch)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    options = {"validation_data": validation, "callbacks": [watch], "verbose": 0, "shuffle": False}
    epoch = 0
    if resumes:
        model.load_weights(run.saved.with_suffix(".weights.h5"))
        rest = run.steps - ranks.EXTRA_STEPS
        if run.way == "loader":
            place.load_state_dict(state)
        data = stream(place) if run.way == "loader" else loader
        model.fit(data, initial_epoch=1, epochs=2, steps_per_epoch=rest, **options)
        epoch = 2
    steps = run.steps if run.way == "loader" else None
    data = stream(place) if run.way == "loader" else loader
    model.fit(data, initial_epoch=epoch, epochs=ranks.EPOCHS, steps_per_epoch=steps, **options)
    run.weights = model.get_weights()[0].flatten().tolist()


def make(run: Run) -> tuple[Any, Any, Any]:
    """What to train on, what has its state, and what to validate on: batches are tuples, as Keras has them."""
    source, checked = (tuple(ranks.source(count).values()) for count in (run.samples, ranks.VALIDATION))
    dataset, validation = ws.Dataset(source), ws.Dataset(checked)
    options = {"collate_fn": ws.collate, "num_workers": run.workers}
    unseen = DataLoader(validation, batch_sampler=ws.BatchSampler(validation, run.batch), **options)
    if run.way == "loader":
        loader = ws.Loader(source, run.batch, ws.Shuffle(seed=5), to="torch")
        return loader, loader, unseen
    sampler = ws.BatchSampler(dataset, run.batch, ws.Shuffle(seed=5))
    return DataLoader(dataset, batch_sampler=sampler, **options), sampler, unseen


def stream(loader: ws.Loader) -> Any:
    """A generator, which Keras takes, over all epochs."""
    return (batch for batch in loader.stream())
