"""A day of a team: how many starts of their programs find everything compiled?

Twenty developers work in homes and checkouts of their own on five models. A start is their program as it was at their
last start of that model, or with comments or names edited, or with another batch size, or with an edit that changes
what is computed; what was edited stays edited. A start is a hit if Inductor compiled no graph in it.

Each start is a process of its own, forked from one that has imported torch and nothing else of its own: importing takes
longer than all the rest and would be the same in every start. `python -m benchmarks.team_day FOLDER HOW` is that one.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
KINDS = {"unchanged": 0.5, "comments or names edited": 0.2, "another batch size": 0.2, "really edited": 0.1}
SIZES = (8, 16, 24, 32, 48, 64, 96, 128)

# Where the braces are, developers edit.
SOURCE = """
import torch
from torch import nn

{comment}
def mixed(state{parameter}):
    gate{gate} = torch.{gating}(state{parameter}) * {factor}
    return gate{gate} * state{parameter}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.norm, self.out = nn.Linear({width}, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x{argument}):
        {docstring}
        hidden{local} = self.norm(self.into(x{argument}))
        for _ in range({depth}):
            hidden{local} = mixed(hidden{local})
        return self.out(hidden{local})
"""
MODELS = (
    {"width": 8, "gating": "sigmoid", "depth": 1},
    {"width": 12, "gating": "tanh", "depth": 1},
    {"width": 16, "gating": "cos", "depth": 2},
    {"width": 24, "gating": "sin", "depth": 2},
    {"width": 32, "gating": "erf", "depth": 1},
)


@dataclass
class Version:
    """A developer's version of a model."""

    model: int
    batch: int = 32
    edits: dict[str, str] = field(
        default_factory=lambda: (
            {"comment": "", "docstring": "", "factor": "2"}
            | dict.fromkeys(("parameter", "gate", "argument", "local"), "")
        )
    )

    def source(self) -> str:
        return SOURCE.format(**MODELS[self.model], **self.edits)

    def edit(self, kind: str, number: int, chance: random.Random) -> None:
        """`number` makes every edit one that nobody else made."""
        if kind == "another batch size":
            self.batch = chance.choice([size for size in SIZES if size != self.batch])
        elif kind == "really edited":
            self.edits["factor"] = f"1.{number:04}"  # near 1, so that rounding stays small through sines of it
        elif kind == "comments or names edited":
            what = chance.choice(["comment", "docstring", "parameter", "gate", "argument", "local"])
            said = {"comment": f"# note {number}\n\n", "docstring": f'"""Note {number}."""'}
            self.edits[what] = said.get(what, f"_{number}")


@dataclass(frozen=True)
class Start:
    kind: str
    developer: int
    model: int
    batch: int
    source: str


def plan(starts: int, developers: int, seed: int = 0) -> list[Start]:
    """The day's starts, in order."""
    chance = random.Random(seed)
    kinds = [kind for kind, part in KINDS.items() for _ in range(round(part * starts))]
    chance.shuffle(kinds)
    versions: dict[tuple[int, int], Version] = {}
    found = []
    for number, kind in enumerate(kinds):
        who, model = chance.randrange(developers), chance.randrange(len(MODELS))
        version = versions.setdefault((who, model), Version(model))
        version.edit(kind, number + 3, chance)
        found.append(Start(kind, who, model, version.batch, version.source()))
    return found


def day(folder: Path, how: str, starts: int, developers: int) -> list[tuple[Start, dict[str, Any]]]:
    """Run the day; `how` is "compile" (`ws.compile`) or "init" (`torch.compile`). Every developer waits for their own
    last start, and two developers work at a time."""
    planned = plan(starts, developers)
    with ThreadPoolExecutor(2) as pool:
        halves = [[one for one in planned if one.developer % 2 == half] for half in (0, 1)]
        return [one for done in pool.map(lambda half: list(_run(folder, how, half)), halves) for one in done]


def rows(done: list[tuple[Start, dict[str, Any]]]) -> list[tuple[str, int, int, float, float, float]]:
    """By kind: starts, hits, hits of a hundred, median seconds of hits, and of misses."""
    found = []
    for kind in (*KINDS, "all"):
        said = [result for start, result in done if kind in (start.kind, "all")]
        hits = [one["seconds"] for one in said if not one["compiled"]]
        misses = [one["seconds"] for one in said if one["compiled"]]
        middle = [median(some) if some else float("nan") for some in (hits, misses)]
        found.append((kind, len(said), len(hits), 100 * len(hits) / max(len(said), 1), *middle))
    return found


def _run(folder: Path, how: str, starts: list[Start]) -> Iterator[tuple[Start, dict[str, Any]]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "benchmarks.team_day", str(folder), how]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for start in starts:
            process.stdin.write(json.dumps(vars(start)) + "\n")
            process.stdin.flush()
            yield start, json.loads(process.stdout.readline())
        process.stdin.close()


# What runs in processes of their own


def serve(folder: Path, how: str) -> None:
    """Fork a process for every line of stdin."""
    import torch
    import torch._dynamo.aot_compile
    import torch._functorch._aot_autograd.autograd_cache
    import torch._inductor.compile_fx  # noqa: F401

    import warmstore as ws

    ws.compile, ws.compile_cache  # noqa: B018
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            print(json.dumps(start(Start(**json.loads(line)), folder, how)), flush=True)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"a start ended with {status}: {line}")


def start(what: Start, folder: Path, how: str) -> dict[str, Any]:
    """One start of a developer's program: a step forward and backward."""
    import tempfile

    import torch
    from torch._inductor.graph import GraphLowering

    import warmstore as ws

    home = folder / f"home-{what.developer}"
    checkout = home / f"checkout-{what.developer}"
    for made in (checkout, home / "tmp"):
        made.mkdir(parents=True, exist_ok=True)
    (checkout / f"model_{what.model}.py").write_text(what.source)
    os.environ.update(HOME=str(home), TMPDIR=str(home / "tmp"), USER=f"developer{what.developer}")
    tempfile.tempdir = None
    os.chdir(checkout)
    sys.path.insert(0, str(checkout))
    sys.dont_write_bytecode = True
    model = __import__(f"model_{what.model}").Model()
    torch.manual_seed(0)
    x = torch.randn(what.batch, MODELS[what.model]["width"])  # type: ignore[arg-type]
    compiled = []
    lower = GraphLowering.compile_to_module
    GraphLowering.compile_to_module = lambda self: (compiled.append(1), lower(self))[1]  # type: ignore[method-assign]
    began = time.perf_counter()
    cache = ws.compile_cache.init(folder / "store", job=f"model-{what.model}")
    step = ws.compile(model) if how == "compile" else torch.compile(model)
    y = step(x)
    y.sum().backward()
    seconds = time.perf_counter() - began
    expected = model(x)
    right = bool((y - expected).abs().max() <= 1e-4 * expected.abs().max())  # some versions multiply by hundreds
    cache.close()
    return {"seconds": seconds, "compiled": len(compiled), "right": right}


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2])
