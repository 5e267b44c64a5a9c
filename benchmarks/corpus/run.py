"""One program of the corpus in this process: `python -m benchmarks.corpus.run NAME --mode ws --cache FOLDER`.

Prints JSON. `--mode torch` is `torch.compile` with the cache, `eager` neither; WARMSTORE_LOG=debug shows tracebacks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import time
import traceback
from typing import Any

import torch
import torch._dynamo.aot_compile
import torch._functorch._aot_autograd.autograd_cache
import torch._inductor.compile_fx
from torch._dynamo.utils import counters
from torch.utils._pytree import tree_leaves

import warmstore as ws
from benchmarks.compiled_starts import load_late
from benchmarks.corpus import PROGRAMS, Program


class _Start:
    """Compiles as a mode does; its first use starts the clock and the cache."""

    def __init__(self, mode: str, folder: str) -> None:
        self._compile = {"ws": ws.compile, "torch": torch.compile}.get(mode)
        self._folder = folder
        self.began = 0.0
        self.cache: Any = None

    def __call__(self, thing: Any, **options: Any) -> Any:
        if not self.began:
            self.began = time.perf_counter()
            if self._compile is not None:
                self.cache = ws.compile_cache.init(self._folder, job="corpus")
        return thing if self._compile is None else self._compile(thing, **options)


class _Said(logging.Handler):
    """Keeps what warmstore warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def run(program: Program, mode: str, folder: str) -> dict[str, Any]:
    """Make the steps of a program, compare them with eager ones, and tell what happened."""
    said = _Said()
    logging.getLogger("warmstore").addHandler(said)
    start = _Start(mode, folder)
    try:
        results, seconds = _results(program, start)
        error = ""
    except Exception as failed:
        results, seconds, error = [], None, f"{type(failed).__name__}: {failed}"
        traceback.print_exc()
    frames = dict(counters["frames"])
    graphs = {name: counters["inductor"][f"fxgraph_cache_{name}"] for name in ("hit", "miss")}
    packages: list[Any] = []
    if start.cache is not None:
        start.cache.close()
        lookups = start.cache.session.lookups if start.cache.session is not None else []
        packages = [one for one in lookups if one.key.startswith("package/")]
    expected, _ = _results(program, _Start("eager", folder))
    compiled = mode != "eager" and not error
    return {
        "program": program.name,
        "mode": mode,
        "seconds": seconds,
        "error": error,
        "wrong": _difference(program, results, expected) if compiled else "",
        "digest": _digest(results),
        "frames": frames.get("total", 0),
        "graphs": graphs,
        "hits": sum(one.hit for one in packages),
        "misses": sum(not one.hit for one in packages),
        "lookups": [[one.key.rpartition("/")[2], one.hit, one.why] for one in packages],
        "warnings": list(dict.fromkeys(said.texts)),
    }


def _results(program: Program, start: _Start) -> tuple[list[list[torch.Tensor]], float]:
    """The tensors of each step, and the seconds until the end of the first one."""
    torch.manual_seed(0)
    step = program.build(start)
    results: list[list[torch.Tensor]] = []
    seconds = 0.0
    for number in range(program.steps):
        torch.manual_seed(number)
        made = step()
        seconds = seconds or time.perf_counter() - start.began
        results.append([one.detach().clone() for one in tree_leaves(made) if isinstance(one, torch.Tensor)])
    return results, seconds


def _difference(program: Program, results: list[list[torch.Tensor]], expected: list[list[torch.Tensor]]) -> str:
    """Where results are not the eager ones, and by how much."""
    relative, absolute = program.tolerance
    for number, (found, right) in enumerate(zip(results, expected, strict=True)):
        if [(one.shape, one.dtype) for one in found] != [(one.shape, one.dtype) for one in right]:
            return f"step {number}: {len(found)} tensors, others than the {len(right)} of the eager step"
        for at, (one, other) in enumerate(zip(found, right, strict=True)):
            if not program.random and not torch.allclose(one, other, relative, absolute, equal_nan=True):
                return f"step {number}, tensor {at}: {(one - other).abs().max().item():.3g} off"
    return ""


def _digest(results: list[list[torch.Tensor]]) -> str:
    """Of all bits."""
    found = hashlib.sha256()
    for one in tree_leaves(results):
        found.update(torch.view_as_real(one).numpy().tobytes() if one.is_complex() else _bits(one))
    return found.hexdigest()[:16]


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.corpus.run")
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("--mode", choices=("ws", "torch", "eager"), default="ws")
    parser.add_argument("--cache", default="")
    told = parser.parse_args()
    load_late()
    print(json.dumps(run(PROGRAMS[told.name], told.mode, told.cache), indent=1), flush=True)
    os._exit(0)  # what ends late, such as a process group, is no matter of a start


if __name__ == "__main__":
    main()
