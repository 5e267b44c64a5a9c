"""What does it cost to know that nothing has changed, beside reading or hashing the same once?"""

from __future__ import annotations

import dataclasses
import os
import pickle
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn

import warmstore as ws
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Role, Row, named, side_by_side
from warmstore.identity import identify
from warmstore.identity.samples.sample_identities import identify_samples

FILES = 1_000
HITS = 256


@dataclasses.dataclass
class Item:
    """A sample as data sets hold them."""

    path: str
    label: int
    box: tuple[int, int, float]


@dataclasses.dataclass
class Config:
    """Settings of a step."""

    size: int = 96
    mean: tuple[float, ...] = (0.4, 0.5, 0.6)
    name: str = "train"


TABLE = {name: number for number, name in enumerate("abcdefgh")}


def resize(x: Any, config: Config) -> Any:
    """A step that calls another, with settings, a table and NumPy."""
    return np.resize(scale(x, config.mean), (config.size, config.size)) + TABLE["a"]


def scale(x: Any, mean: tuple[float, ...]) -> Any:
    """A helper of a step."""
    return (np.asarray(x) - mean[0]) / mean[1]


def run(settings: Settings) -> Report:
    items = [Item(f"/nowhere/{at:06d}.jpg", at % 10, (at, at + 1, 0.5)) for at in range(1_000)]
    count = settings.pick(1_000_000, 10_000)
    listed = _samples(items)
    paths = _paths(settings.folder, count, settings.pick(5, 2))
    modules = _modules(settings.pick(12, 2), settings.pick(7, 2))
    steps = _steps(settings.pick(200, 5))
    calls = _calls(settings)
    found = (listed, paths, modules, steps, calls)
    limit, ours = named(paths, "os.stat of each").median, named(paths, "warmstore").median
    hashing, module = named(modules, "xxh3 of its weights").median, named(modules, "warmstore").median
    size = sum(one.nbytes for one in _encoder(settings.pick(12, 2)).parameters())
    return Report(
        "identity",
        "What it costs to know that nothing has changed.",
        (
            timings("1,000 samples that are objects of a data class", listed),
            timings(f"{count:,} paths of files", paths, unit="ms"),
            timings(f"a transformer of {settings.pick(12, 2)} layers, {size / 1e6:,.0f} MB", modules, unit="ms"),
            timings("a step with a helper, settings and a table", steps),
            timings(
                f"a call of CachedModule that finds all {HITS} samples of 2 KiB, by the tensors of its module", calls
            ),
        ),
        (
            Bar.at_most("ms for 1,000 objects of a data class", _scaled(listed, 1e3), 10),
            Bar.at_most("s for a million paths, beyond their stats", _beyond(ours, limit, 1e6 / count), 1),
            Bar.at_most("s for the transformer, beyond hashing its weights", _beyond(module, hashing), 0.5),
            Bar.at_least("GB/s at which its weights are hashed", size / 1e9 / hashing if hashing else None, 2),
            Bar.at_most("call with 318 tensors over one with two", named(calls, "318 tensors").ratio, 1.5),
        ),
        ("The files are 1,000, each under many spellings. What is hashed lies in memory, as weights do.",),
        tuple(trouble for rows in found for trouble in broken_rows(rows)),
    )


def _samples(items: list[Item]) -> list[Row]:
    return side_by_side(
        [
            _plain("pickle and xxh3", lambda _: xxhash.xxh3_128_hexdigest(pickle.dumps(items)), "limit"),
            _plain("warmstore", lambda _: identify_samples(items), "warmstore"),
            _peer("joblib.hash", "joblib", items),
            _peer("dask tokenize", "dask.base", items),
        ],
        range(20),
        lambda _, result: bool(result),
    )


def _paths(folder: Path, count: int, turns: int) -> list[Row]:
    for at in range(FILES):
        (folder / str(at)).touch()
    paths = [f"{folder}/{'./' * (at // FILES % 40)}{'/' * (1 + at // FILES // 40)}{at % FILES}" for at in range(count)]
    return side_by_side(
        [
            _plain("os.stat of each", lambda _: list(map(os.stat, paths)), "limit"),
            _plain("warmstore", lambda _: identify_samples(paths), "warmstore"),
        ],
        range(turns),
        lambda _, result: isinstance(result, list) or len(np.unique(result.each)) == count,
    )


def _modules(layers: int, turns: int) -> list[Row]:
    encoder = _encoder(layers)
    tensors = [*encoder.parameters(), *encoder.buffers()]

    def hashed(_: Any) -> list[str]:
        return [xxhash.xxh3_128_hexdigest(one.detach().numpy().reshape(-1).view(np.uint8)) for one in tensors]

    return side_by_side(
        [
            _plain("xxh3 of its weights", hashed, "limit"),
            _plain("warmstore", lambda _: identify(encoder, name="module").require(), "warmstore"),
            _peer("joblib.hash", "joblib", encoder),
        ],
        range(turns),
        lambda _, result: bool(result),
    )


def _steps(turns: int) -> list[Row]:
    step = partial(resize, config=Config())
    return side_by_side(
        [
            _plain("pickle and xxh3", lambda _: xxhash.xxh3_128_hexdigest(pickle.dumps(step)), "limit", "code unseen"),
            _plain(
                "warmstore", lambda _: identify(step, name="resize"), "warmstore", "with what is put into libraries"
            ),
            _peer("joblib.hash", "joblib", step),
            _peer("dask tokenize", "dask.base", step),
        ],
        range(turns),
        lambda _, result: bool(result),
    )


def _calls(settings: Settings) -> list[Row]:
    """Calls that find everything: what they cost beyond the lookup is knowing that the module is the same."""
    ids, x = np.arange(HITS), torch.rand(HITS, 512)
    with ExitStack() as stack:

        def wrapped(pairs: int) -> Call:
            layers = [nn.Linear(8, 8) for _ in range(pairs - 1)]
            module = nn.Sequential(nn.Linear(512, 512), nn.ModuleList(layers)).requires_grad_(False)
            module.forward = module[0].forward
            cached = ws.CachedModule(module, stack.enter_context(ws.FeatureCache(settings.folder, f"of {pairs}")))
            cached(x, cache_ids=ids)
            cached.cache.flush()
            return lambda _: cached(x, cache_ids=ids)

        cache = stack.enter_context(ws.FeatureCache(settings.folder, "calls"))
        cache.put_batch(ids, x)
        cache.flush()
        return side_by_side(
            [
                _plain("the lookup alone", lambda _: cache.get_batch(ids)),
                _plain("two tensors", wrapped(1), "limit"),
                _plain("318 tensors", wrapped(159), "warmstore"),
            ],
            range(settings.pick(300, 5)),
            lambda _, result: len(result[0] if isinstance(result, tuple) else result) == HITS,
        )


def _encoder(layers: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).requires_grad_(False).eval()


def _plain(name: str, call: Call, role: Role = "peer", note: str = "") -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        yield call

    return Contestant(name, setup, role, note)


def _peer(name: str, module: str, value: Any) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        from importlib import import_module

        found = import_module(module)
        hashed = found.hash if module == "joblib" else found.tokenize
        yield lambda _: hashed(value)

    return Contestant(name, setup)


def _scaled(rows: list[Row], scale: float) -> float | None:
    median = named(rows, "warmstore").median
    return median * scale if median else None


def _beyond(one: float | None, other: float | None, scale: float = 1.0) -> float | None:
    return (one - other) * scale if one and other else None
