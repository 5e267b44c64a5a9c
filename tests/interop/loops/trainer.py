"""What the tests of transformers run: a Trainer with our loaders, with a checkpoint in the middle of an epoch."""

import logging
import warnings
from typing import Any

import torch
import transformers
from tests.interop import ranks
from tests.interop.ranks import Run

import warmstore as ws

WAYS = {"loader": (1, 2), "dataloader-0": (1, 2), "dataloader-2": (1,), "text": (1, 2), "end": (1, 2)}
SHORT = {"loader": (1, 2), "dataloader-0": (2,), "text": (1,), "end": (1,)}
ONCE = {"refused": 2}


class Model(torch.nn.Module):
    """A linear layer that takes what batches have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = ranks.make_model()

    def forward(self, x: Any, **_: Any) -> dict[str, Any]:
        logits = self.layer(x)
        return {"loss": logits.square().mean(), "logits": logits}


class Trainer(transformers.Trainer):
    """A Trainer that notes what it is trained on."""

    def __init__(self, run: Run, **options: Any) -> None:
        super().__init__(**options)
        self.run = run
        self.sampler: Any = None

    def get_train_dataloader(self) -> Any:
        if self.run.way in ("loader", "end"):
            return ranks.make_loader(self.run)
        if self.run.way == "text":
            return text_loader(self.run, self.run.samples, ws.Shuffle(seed=5))
        told = {"rank": self.run.rank, "world_size": self.run.world} if self.run.way == "refused" else {}
        loader, self.sampler = ranks.make_dataloader(self.run, **told)
        return self.accelerator.prepare(loader)

    def get_eval_dataloader(self, _: Any = None) -> Any:
        if self.run.way in ("loader", "end"):
            return ranks.make_validation(self.run)
        if self.run.way == "text":
            return text_loader(self.run, ranks.VALIDATION)
        return self.accelerator.prepare(ranks.make_validation_dataloader(self.run))

    def training_step(self, model: Any, inputs: Any, *rest: Any) -> Any:
        told = inputs
        if self.sampler is not None and self.run.world > 1:
            left = self.run.left(self.epoch)
            told = {name: self.accelerator.gather(inputs[name])[:left] for name in ("x", "number")}
        self.run.step(self.epoch, told)
        return super().training_step(model, inputs, *rest)

    def prediction_step(self, model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
        told = inputs
        if self.sampler is not None and self.run.world > 1:
            told = {"number": self.accelerator.gather_for_metrics(inputs["number"])}
        self.run.validated(told, begins=False)
        return super().prediction_step(model, inputs, *rest, **options)

    def evaluate(self, *arguments: Any, **options: Any) -> Any:
        self.run.validations.append([])
        return super().evaluate(*arguments, **options)

    @property
    def epoch(self) -> int:
        return int(self.state.epoch or 0)


class Saved(transformers.TrainerCallback):
    """Note when the checkpoint is written."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def on_save(self, *_: Any, **__: Any) -> None:
        self.run.checkpoint = len(self.run.train)


def text_loader(run: Run, samples: int, sampler: Any = None) -> ws.Loader:
    """A Hugging Face Dataset with a column of texts, which a transform turns into numbers."""
    import datasets

    columns = ranks.source(samples)
    texts = [f"sample {number}" for number in columns["number"]]
    dataset = datasets.Dataset.from_dict({"x": columns["x"], "number": columns["number"], "text": texts})
    return ws.Loader(dataset, run.batch, sampler, transform=tokens, to="torch")


def tokens(batch: dict[str, Any]) -> dict[str, Any]:
    """Texts as numbers of their words, which must be those of the sample."""
    import numpy as np

    words = np.array([int(text.split()[1]) for text in batch.pop("text")])
    assert words.tolist() == list(batch["number"])
    return {**batch, "x": np.asarray(batch["x"], np.float32), "words": words}


def train(run: Run) -> None:
    """One rank of one run."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    arguments = transformers.TrainingArguments(
        str(run.saved),
        num_train_epochs=ranks.EPOCHS,
        per_device_train_batch_size=run.batch,
        per_device_eval_batch_size=run.batch,
        learning_rate=0.1,
        eval_strategy="epoch",
        save_strategy="steps" if run.phase == "stopped" else "no",
        save_steps=run.middle,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        ddp_backend="gloo" if run.world > 1 else None,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        ddp_timeout=300,
    )
    model = Model()
    trainer = Trainer(run, model=model, args=arguments, callbacks=[Saved(run)], eval_dataset=[0])
    path = str(run.saved / f"checkpoint-{run.middle}") if run.phase == "resumed" else None
    try:
        trainer.train(resume_from_checkpoint=path)
    except ws.BadRank as error:
        run.notes.append(str(error))
    run.weights = model.layer.weight.flatten().tolist()
