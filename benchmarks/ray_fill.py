"""How much faster do two actors of a Ray cluster fill a cache than one, and is any sample computed twice or lost?

A transformer of MiniLM's shape computes texts of 32 tokens, one thread for each actor. A rate counts from the end of
the first batch of the slowest actor to start, to the last batch: Ray takes seconds to start actors, which import torch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks.minilm_shape import MiniLM
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

TOKENS, BATCH, BLOCK = 32, 32, 128
ROOT = str(Path(__file__).parents[1])


def run(settings: Settings) -> Report:
    import ray

    from warmstore.ray import fill

    texts = settings.pick(20_000, 2_000)
    environment = {"PYTHONPATH": ROOT, "OMP_NUM_THREADS": "1", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env={"env_vars": environment})
    rows, rates, broken = [], {}, []
    for name, actors, kill in (("1 actor", 1, False), ("2 actors", 2, False), ("2 actors, 1 killed", 2, True)):
        logs = settings.folder / name.replace(" ", "-")
        logs.mkdir()
        killer = threading.Thread(target=_kill_one, args=(logs, texts // 4), daemon=True)
        if kill:
            killer.start()
        began = time.perf_counter()
        result = fill(
            logs / "cache",
            MiniLM(logs),
            _samples(ray, texts),
            id="minilm",
            num_actors=actors,
            num_cpus=0.5,
            batch_size=BATCH,
            block_size=BLOCK,
            module_options={"ignore": ["module.log"]},
        )
        seconds = time.perf_counter() - began
        counts, rates[name] = _computed(logs)
        twice = sum(count - 1 for count in counts.values())
        lost = _missing(logs, texts)
        rows.append((name, round(rates[name], 1), round(seconds, 1), result.computed, twice, lost))
        if lost or len(counts) != texts or twice > (BLOCK if kill else 0):
            broken.append(f"{name}: {lost} samples lost, {twice} computed twice")
    ray.shutdown()
    bars = (
        Bar.at_least("rate of two actors, in times that of one", rates["2 actors"] / rates["1 actor"], 1.7),
        Bar.at_most("samples computed twice by two actors", float(rows[1][4]), 0.0),
        Bar.at_most("samples lost with a killed actor", float(rows[2][5]), 0.0),
    )
    columns = ("", "texts/s", "seconds in all", "computed", "twice", "lost")
    title = f"{texts:,} texts of {TOKENS} tokens, batches of {BATCH}, blocks of {BLOCK}"
    return Report("ray_fill", __doc__ or "", (Table(title, columns, tuple(rows)),), bars, broken=tuple(broken))


def _samples(ray: Any, texts: int) -> Any:
    """The first token of a text is its number, in a vocabulary of 30,522."""

    def tokens(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "tokens": (batch["id"][:, None] + np.arange(TOKENS)) % 30_000}

    return ray.data.range(texts, override_num_blocks=20).map_batches(tokens)


def _computed(logs: Path) -> tuple[Counter[int], float]:
    """How often each text was computed, and the rate in texts a second after all processes had begun."""
    lines = [line.split() for path in logs.glob("*.log") for line in path.read_text().splitlines()]
    counts = Counter(int(number) for line in lines for number in line[3:])
    firsts = [float(path.read_text().split()[1]) for path in logs.glob("*.log")]
    start, end = max(firsts), max(float(line[1]) for line in lines)
    late = sum(int(line[2]) for line in lines if float(line[0]) >= start)
    return counts, late / max(end - start, 1e-9)


def _missing(logs: Path, texts: int) -> int:
    with ws.FeatureCache(logs / "cache", "minilm", read_only=True) as cache:
        return len(cache.get_batch(np.arange(texts))[1])


def _kill_one(logs: Path, least: int) -> None:
    """Kill the first process that has computed a part of `least` texts."""
    while True:
        time.sleep(0.1)
        for path in logs.glob("*.log"):
            if sum(int(line.split()[2]) for line in path.read_text().splitlines()) > least // 2:
                os.kill(int(path.stem), signal.SIGKILL)
                return
