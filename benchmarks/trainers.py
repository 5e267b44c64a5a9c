"""What does a trainer wait for its batches: Lightning's `fit` with empty steps, and the start of an epoch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader

import warmstore as ws
from benchmarks.feeders import Rows, RowsAtOnce
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Role, Row, WrongValuesError, named, side_by_side

BATCH = 256
WIDTH = 512
WORKERS = (0, 1, 2, 4)
LIMIT, OURS = "fit over one batch that is ready", "warmstore"


def run(settings: Settings) -> Report:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
    path = settings.folder / "rows.npy"
    count = settings.pick(200_000, 4 * BATCH)
    rows = np.lib.format.open_memmap(path, "w+", np.float32, (count, WIDTH))
    rows[:] = np.arange(count, dtype=np.float32)[:, None]
    rows.flush()
    workers = (0,) if settings.quick else WORKERS  # Lightning ends them after every fit: seconds each
    fitted = _fitted(path, count, settings.pick(9, 2), workers)
    started = _started(path, settings.pick(300, 5))
    ours = named(fitted, OURS).median
    torchs = [median for number in workers if (median := named(fitted, _torch(number)).median)]
    waited = ours / min(torchs) if ours and torchs else None
    first, batch = named(started, OURS).median, named(started, "numpy's take of a batch").median
    return Report(
        "trainers",
        f"One epoch of {count:,} shuffled rows of {WIDTH * 4} bytes in batches of {BATCH}, out of a .npy file in the "
        "page cache.",
        (
            timings("Lightning's Trainer.fit, one epoch of empty steps", fitted, unit="ms", records=count),
            timings("iter() and the first batch of an epoch", started),
        ),
        (
            Bar.at_most("fit over warmstore's Loader over that over torch's DataLoader, at its best", waited, 1.0),
            Bar.at_most(
                "ms that starting an epoch costs beyond the batch",
                (first - batch) * 1e3 if first and batch else None,
                0.5,
            ),
        ),
        (
            "Every contestant was seen to give each row once in an epoch before it was timed. A new Trainer is made "
            "before every fit, untimed.",
            "Lightning ends the workers of torch's DataLoader after every fit. `A read a batch`: __getitems__ by hand.",
        ),
        (*broken_rows(fitted), *broken_rows(started)),
    )


class Ready:
    """One batch that is ready, so many times."""

    def __init__(self, batches: int) -> None:
        self.batch = torch.zeros(BATCH, WIDTH)
        self.batches = batches

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self.batch for _ in range(self.batches))


class Steps(lightning.LightningModule):
    """Empty steps; `seen` gets the rows' numbers where it is not None."""

    def __init__(self, seen: list[Any] | None = None) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.seen = seen

    def training_step(self, batch: Any, index: int) -> None:
        if self.seen is not None:
            self.seen.append(batch[:, 0].clone())

    def configure_optimizers(self) -> None:
        return None


def trainer() -> lightning.Trainer:
    return lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _torch(workers: int) -> str:
    return f"torch DataLoader, {workers} workers"


def _fitted(path: Path, count: int, calls: int, workers: Sequence[int]) -> list[Row]:
    def contestant(name: str, role: Role, make: Any, note: str = "") -> Contestant:
        fresh: list[lightning.Trainer] = []

        @contextmanager
        def setup() -> Iterator[Call]:
            loader = make()
            if role != "limit":
                steps = Steps([])
                trainer().fit(steps, loader)
                if not np.array_equal(np.sort(torch.cat(steps.seen or []).numpy()), np.arange(count)):
                    raise WrongValuesError("in an epoch")

            def call(ask: Any) -> Any:
                fresh[-1].fit(Steps(), loader)
                return fresh[-1].global_step, fresh[-1].num_training_batches

            yield call

        def prepare(ask: Any) -> None:
            fresh[:] = [trainer()]

        return Contestant(name, setup, role, note, prepare)

    def over_torch(kind: Any, workers: int, **options: Any) -> DataLoader[Any]:
        return DataLoader(
            kind(path), BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, **options
        )

    batches = -(-count // BATCH)
    return side_by_side(
        [
            contestant(LIMIT, "limit", lambda: Ready(batches)),
            contestant(OURS, "warmstore", lambda: ws.Loader(path, BATCH, "shuffle", to="torch")),
            contestant(
                "warmstore, 2 threads", "warmstore", lambda: ws.Loader(path, BATCH, "shuffle", to="torch", workers=2)
            ),
            contestant("warmstore in torch's DataLoader", "warmstore", lambda: _ours_in_torch(path)),
            *(contestant(_torch(number), "peer", lambda number=number: over_torch(Rows, number)) for number in workers),
            *(
                contestant(
                    f"{_torch(number)}, a read a batch",
                    "peer",
                    lambda number=number: over_torch(RowsAtOnce, number, collate_fn=_as_is),
                    "by hand",
                )
                for number in workers[:3:2]
            ),
        ],
        range(calls),
        lambda ask, result: result[1] == batches,
    )


def _ours_in_torch(path: Path) -> DataLoader[Any]:
    data = ws.Dataset(path)
    return DataLoader(data, batch_sampler=ws.BatchSampler(data, BATCH, "shuffle"), collate_fn=ws.collate)


def _started(path: Path, calls: int) -> list[Row]:
    def contestant(name: str, role: Role, make: Any) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            start = make()
            yield lambda ask: start()

        return Contestant(name, setup, role)

    def taking() -> Any:
        rows = np.load(path, mmap_mode="r")
        orders = iter([np.random.default_rng(at).integers(0, len(rows), BATCH) for at in range(calls + 10)])
        return lambda: rows.take(next(orders), axis=0)

    def beginning(loader: Any) -> Any:
        return lambda: next(iter(loader))

    return side_by_side(
        [
            contestant("numpy's take of a batch", "limit", taking),
            contestant(OURS, "warmstore", lambda: beginning(ws.Loader(path, BATCH, "shuffle"))),
            contestant("warmstore in torch's DataLoader", "warmstore", lambda: beginning(_ours_in_torch(path))),
            contestant(_torch(0), "peer", lambda: beginning(DataLoader(Rows(path), BATCH, shuffle=True))),
        ],
        range(calls),
        lambda ask, result: result.shape == (BATCH, WIDTH),
    )


def _as_is(batch: Any) -> Any:
    return batch
