"""What does it cost to know which samples come next, beside slicing a permutation that lies in RAM?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Role, Row, named, side_by_side
from warmstore.loading.batch_sizes import BatchSize, RowBudget, TokenBudget
from warmstore.loading.samplers.batched_indices import batched_indices
from warmstore.loading.samplers.bucketed import Bucketed
from warmstore.loading.samplers.replacement import Uniform, Weighted
from warmstore.loading.samplers.shuffle import Shuffle

BATCH = 256
TOGETHER = 128  # batches a call: what generates ahead pays for all of them in one
BUDGET = 16_384  # tokens of a batch
GRAIN_ROUNDS = 4  # what Grain's own shuffle uses


def run(settings: Settings) -> Report:
    samples = settings.pick(400_000, 70_000)
    many = settings.pick(1_000_000_000, 1_000_000)
    held = settings.pick(10_000_000, 100_000)
    drawn = settings.pick(10_000_000, 100_000)
    walked, first = _epoch(samples), _first_batch(many, held, settings.pick(15, 2))
    uniform, weighted = _uniform(drawn, settings.pick(15, 2)), _weighted(settings.pick(1_000_000, 10_000))
    lengths = np.random.default_rng(0).integers(20, 2001, settings.pick(1_000_000, 20_000))
    cut, bucketed = _cut(lengths, settings.pick(5, 2)), _bucketed(lengths, settings.pick(5, 2))
    found = (walked, first, uniform, weighted, cut, bucketed)
    return Report(
        "samplers",
        "Which samples come next: permutations, and draws with replacement.",
        (
            timings(f"{TOGETHER} batches of {BATCH} of a shuffled epoch of {samples:,}", walked),
            timings(f"the first {BATCH} places of a new epoch of {many:,}", first),
            timings(f"{drawn:,} draws of {samples:,} samples with replacement", uniform, unit="ms"),
            timings(f"{TOGETHER * BATCH:,} draws of {settings.pick(1_000_000, 10_000):,} weighted samples", weighted),
            timings(f"{len(lengths):,} lengths cut into batches of {BUDGET:,} tokens", cut, unit="ms"),
            timings(f"an epoch of {len(lengths):,} samples in groups of like lengths", bucketed, unit="ms"),
        ),
        (
            Bar.at_most(f"µs for each {BATCH} of a shuffled epoch", _scaled(walked, "warmstore", 1e6 / TOGETHER), 10),
            Bar.at_most(f"ms for the first {BATCH} places of {many:,}", _scaled(first, "warmstore", 1e3), 5),
            Bar.at_least("million draws with replacement a second", _rate(uniform, drawn / 1e6), 100),
            Bar.at_most("ns a sample to cut padded batches", _scaled(cut, "warmstore", 1e9 / len(lengths)), 400),
            Bar.at_most("ns a sample to cut packed rows", _scaled(cut, ROWS, 1e9 / len(lengths)), 1500),
            Bar.at_most("ns a sample of a bucketed epoch", _scaled(bucketed, "warmstore", 1e9 / len(lengths)), 400),
        ),
        (
            f"Arrays cost 8 bytes a sample; numpy's and torch's first batches are of {held:,} samples, not {many:,}. "
            "warmstore's and Grain's orders are computed place by place and hold nothing.",
            "The arrays' own shuffles are not in the first table: each epoch begins with one, as in the second.",
        ),
        tuple(trouble for rows in found for trouble in broken_rows(rows)),
    )


def _epoch(samples: int) -> list[Row]:
    """All batches of an epoch, in turn."""
    whole = samples // (BATCH * TOGETHER)

    @contextmanager
    def ahead() -> Iterator[Call]:
        spans = ((place, place + BATCH) for place in range(0, samples - BATCH + 1, BATCH))
        batches = batched_indices(Shuffle(), spans, samples, 0)
        yield lambda firsts: [next(batches) for _ in firsts]

    def one_by_one(first: int) -> np.ndarray:
        return Shuffle().indices(first, first + BATCH, samples, 0)

    def contestant(name: str, batch: Callable[[Any], Callable[[int], Any]], role: Role, note: str = "") -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            ready = batch(samples)
            yield lambda firsts: [ready(first) for first in firsts]

        return Contestant(name, setup, role, note)

    def right(firsts: range, result: list[Any]) -> bool:
        return all(_distinct(part, samples) for part in result) and len(result) == TOGETHER

    return side_by_side(
        [
            contestant("numpy array in RAM", _numpy_sliced, "limit", "sliced"),
            Contestant("warmstore", ahead, "warmstore", "Shuffle, walked"),
            contestant("warmstore, batches alone", lambda _: one_by_one, "warmstore", "Shuffle.indices, any place"),
            contestant("torch.randperm", _torch_sliced, "peer", "sliced"),
            contestant("Grain index_shuffle", _grain, "peer", "a call for each place"),
        ],
        [range(turn * BATCH * TOGETHER, (turn + 1) * BATCH * TOGETHER, BATCH) for turn in range(whole)],
        right,
    )


def _first_batch(many: int, held: int, epochs: int) -> list[Row]:
    return side_by_side(
        [
            _plain(f"{BATCH} shuffled numbers", lambda epoch: np.random.default_rng(epoch).permutation(BATCH), "limit"),
            _plain("warmstore", lambda epoch: Shuffle().indices(0, BATCH, many, epoch), "warmstore"),
            _plain("numpy permutation", lambda epoch: np.random.default_rng(epoch).permutation(held)[:BATCH]),
            _plain("torch.randperm", lambda epoch: torch.randperm(held)[:BATCH]),
            _from_grain(many),
        ],
        range(epochs),
        lambda epoch, result: _distinct(result, many),
    )


def _uniform(count: int, turns: int) -> list[Row]:
    samples = 400_000
    order = Uniform(samples=count)
    philox = np.random.Generator(np.random.Philox())
    fast = np.random.Generator(np.random.SFC64())
    return side_by_side(
        [
            _plain("np.arange", lambda epoch: np.arange(count), "limit"),
            _plain("warmstore", lambda epoch: order.indices(0, count, samples, epoch), "warmstore"),
            _plain("numpy SFC64", lambda epoch: fast.integers(0, samples, count)),
            _plain("numpy Philox", lambda epoch: philox.integers(0, samples, count)),
            _plain("torch.randint", lambda epoch: torch.randint(samples, (count,))),
        ],
        range(turns),
        lambda epoch, result: len(result) == count and int(result.min()) >= 0,
    )


def _weighted(samples: int) -> list[Row]:
    count = BATCH * TOGETHER
    weights = np.random.default_rng(0).random(samples)
    shares, tensor = weights / weights.sum(), torch.from_numpy(weights)
    sums = np.cumsum(weights)
    order = Weighted(weights, samples=count)
    generator = np.random.default_rng(1)
    return side_by_side(
        [
            _plain("searchsorted", lambda epoch: sums.searchsorted(generator.random(count) * sums[-1]), "limit"),
            _plain("warmstore", lambda epoch: order.indices(0, count, samples, epoch), "warmstore"),
            _plain("numpy choice", lambda epoch: generator.choice(samples, count, p=shares)),
            _plain("torch.multinomial", lambda epoch: torch.multinomial(tensor, count, replacement=True)),
        ],
        range(20),
        lambda epoch, result: len(result) == count and int(result.max()) < samples,
    )


ROWS = "warmstore, 8 rows of 2,048"


def _cut(lengths: np.ndarray, turns: int) -> list[Row]:
    rules: dict[str, BatchSize] = {
        "warmstore": TokenBudget(BUDGET, lengths),
        "warmstore, not padded": TokenBudget(BUDGET, lengths, padded=False),
        ROWS: RowBudget(8, 2048, lengths),
    }
    return side_by_side(
        [
            _plain("np.cumsum", lambda turn: np.cumsum(lengths), "limit"),
            *(
                _plain(name, lambda turn, rule=rule: rule.cut(lengths, True), "warmstore")
                for name, rule in rules.items()
            ),
            _plain("a Python loop, padded", lambda turn: _cut_in_python(lengths)),
        ],
        range(turns),
        lambda turn, ends: int(ends[-1]) in (len(lengths), int(lengths.sum())),
    )


def _cut_in_python(lengths: np.ndarray) -> list[int]:
    ends, longest, count = [], 0, 0
    for at, length in enumerate(lengths.tolist()):
        longest, count = max(longest, length), count + 1
        if longest * count > BUDGET:
            ends.append(at)
            longest, count = length, 1
    return [*ends, len(lengths)]


def _bucketed(lengths: np.ndarray, turns: int) -> list[Row]:
    n, size = len(lengths), BATCH
    order, grouped = Shuffle(), Bucketed(lengths, size)

    def held(epoch: int) -> np.ndarray:
        """As Hugging Face's group_by_length does it, with NumPy."""
        shuffled = np.random.default_rng(epoch).permutation(n)
        pools = [shuffled[start : start + 50 * size] for start in range(0, n, 50 * size)]
        return np.concatenate([pool[np.argsort(lengths[pool], kind="stable")] for pool in pools])

    return side_by_side(
        [
            _plain("Shuffle", lambda epoch: order.indices(0, n, n, epoch), "limit", "no groups"),
            _plain("warmstore", lambda epoch: grouped.indices(0, n, n, epoch), "warmstore"),
            _plain("numpy, held", held),
        ],
        range(turns),
        lambda epoch, result: len(np.unique(result)) == n,
    )


def _plain(name: str, call: Call, role: Role = "peer", note: str = "") -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        yield call

    return Contestant(name, setup, role, note)


def _from_grain(samples: int) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        batch = _grain(samples)
        yield lambda epoch: batch(0)

    return Contestant("Grain index_shuffle", setup, note="a call for each place")


def _numpy_sliced(samples: int) -> Callable[[int], Any]:
    order = np.random.default_rng(0).permutation(samples)
    return lambda first: order[first : first + BATCH].copy()


def _torch_sliced(samples: int) -> Callable[[int], Any]:
    order = torch.randperm(samples)
    return lambda first: order[first : first + BATCH].clone()


def _grain(samples: int) -> Callable[[int], Any]:
    from grain._src.python.experimental.index_shuffle.python import index_shuffle_module

    shuffle = index_shuffle_module.index_shuffle
    return lambda first: [
        shuffle(place, max_index=samples - 1, seed=0, rounds=GRAIN_ROUNDS) for place in range(first, first + BATCH)
    ]


def _distinct(batch: Any, samples: int) -> bool:
    found = np.unique(np.asarray(batch))
    return len(found) == BATCH and int(found[0]) >= 0 and int(found[-1]) < samples


def _scaled(rows: list[Row], name: str, scale: float) -> float | None:
    median = named(rows, name).median
    return median * scale if median else None


def _rate(rows: list[Row], millions: float) -> float | None:
    median = named(rows, "warmstore").median
    return millions / median if median else None
