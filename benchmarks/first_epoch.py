"""What does it cost to fill the cache while the first epoch runs?

A frozen module that multiplies matrices on all cores, the hardest neighbour for a thread that writes, runs over new
samples: whole epochs with and without a cache take turns. An epoch with one opens the cache, keeps every output, and
ends when all are on the disk. Beside it stands the least that can be done: a thread that writes the bytes, and no more.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import nn

import warmstore as ws
from benchmarks.backbones import frozen
from benchmarks.keepers import BATCH, FLUSH, WIDTH
from benchmarks.report import Bar, Report, Table, broken_rows
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Row, WrongValuesError, over, side_by_side

SPEEDS = ((5e-3, 200, 1.08), (50e-3, 40, 1.02))  # seconds a batch, batches an epoch, bar


class Multiply(nn.Module):
    """Multiplies by one matrix, again and again."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(WIDTH, WIDTH)).Q, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = x @ self.weight
        return x


def run(settings: Settings) -> Report:
    torch.manual_seed(0)
    settings.break_in_disk(settings.pick(2 << 30, 1 << 20))
    x = torch.randn(BATCH, WIDTH)
    rows, bars, broken = [], [], []
    for wanted, batches, bound in SPEEDS:
        module = frozen(Multiply(times_for(wanted, x)))
        count = settings.pick(batches, 4)
        epochs = compare(settings, module, x, count)
        plain, _, cached = epochs
        cost = over(cached, plain)
        for row in epochs:
            milliseconds = None if row.median is None else row.median / count * 1e3
            rows.append(
                (f"{wanted * 1e3:.0f} ms, {row.name}", milliseconds, row.ratio, paired(plain, row), row.trouble)
            )
        bars.append(
            Bar.at_most(f"an epoch that fills the cache over one without, at {wanted * 1e3:.0f} ms", cost, bound)
        )
        broken += broken_rows(epochs)
    return Report(
        "first_epoch",
        f"Epochs of batches of {BATCH} x {WIDTH * 4} bytes, with and without a cache, in turn.",
        (
            Table(
                "All cores multiply matrices",
                ("", "median ms a batch", "over without", "median of pairs", "note"),
                tuple(rows),
            ),
        ),
        tuple(bars),
        (f"torch runs on {torch.get_num_threads()} threads. Opening and closing the cache are part of the epoch.",),
        tuple(broken),
    )


def times_for(seconds: float, x: torch.Tensor) -> int:
    """How many multiplications take so long here."""
    module = Multiply(50)
    spent = []
    for _ in range(20):
        began = time.perf_counter()
        module(x)
        spent.append(time.perf_counter() - began)
    return max(round(seconds / (min(spent) / 50)), 1)


def compare(settings: Settings, module: nn.Module, x: torch.Tensor, batches: int) -> list[Row]:
    folder = settings.folder / "cache"

    @contextmanager
    def plain() -> Iterator[Call]:
        def epoch(number: int) -> torch.Tensor:
            with torch.no_grad():
                for _ in range(batches):
                    output = module(x)
            return output

        yield epoch

    @contextmanager
    def written() -> Iterator[Call]:
        def epoch(number: int) -> torch.Tensor:
            with (
                open(settings.folder / "bare", "wb", buffering=0) as file,
                ThreadPoolExecutor(1) as thread,
                torch.no_grad(),
            ):
                outputs, done = [], []
                for _ in range(batches):
                    output = module(x)
                    outputs.append(output)
                    if len(outputs) == FLUSH // BATCH:
                        done.append(thread.submit(write, file, outputs))
                        outputs = []
                done.append(thread.submit(write, file, outputs))
            for one in done:
                one.result()
            return output

        yield epoch

    @contextmanager
    def cached() -> Iterator[Call]:
        def epoch(number: int) -> torch.Tensor:
            with closing(ws.FeatureCache(folder, "outputs")) as cache:
                features = ws.CachedModule(module, cache)
                for batch in range(batches):
                    output = features(x, cache_ids=torch.arange(batch * BATCH, (batch + 1) * BATCH))
            return output

        yield epoch
        check(folder, batches, module(x))

    return side_by_side(
        [
            Contestant("without a cache", plain, "limit"),
            Contestant("a thread writes the bytes", written),
            Contestant(
                "filling the cache", cached, "warmstore", prepare=lambda ask: shutil.rmtree(folder, ignore_errors=True)
            ),
        ],
        range(settings.pick(15, 2)),
        lambda ask, result: torch.equal(result, module(x)),
    )


def write(file: BinaryIO, outputs: list[torch.Tensor]) -> None:
    for output in outputs:
        file.write(output.numpy())
    os.fdatasync(file.fileno())


def check(folder: Path, batches: int, expected: torch.Tensor) -> None:
    """See that the last epoch's cache holds everything."""
    with closing(ws.FeatureCache(folder, "outputs", read_only=True)) as cache:
        values, missing = cache.get_batch(range(batches * BATCH))
        if len(missing) or not torch.equal(values, expected.repeat(batches, 1)):
            raise WrongValuesError("in the cache")


def paired(plain: Row, row: Row) -> float | None:
    """The median of the ratios of epochs that followed each other."""
    if row.trouble:
        return None
    return float(np.median(np.divide(row.seconds, plain.seconds)))
