"""How long until the first step of a program that was compiled before, and does it help where it must?

Each figure is of fresh processes: from before `init` to after the first call (and its backward), imports apart; the
whole process stands beside it. The peer is torch alone with a warm cache folder of its own. Run as a module
(`python -m benchmarks.compiling PROGRAM FOLDER HOW PROFILE`) this file is such a process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

ROOT = Path(__file__).parent.parent


def run(settings: Settings) -> Report:
    folder, times = settings.folder, settings.pick(3, 1)
    model = "transformer" if not settings.quick else "small"
    table = _Table(times)
    alone = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "alone"), "TMPDIR": str(_made(folder / "tmp"))}
    table.add(model, "torch alone, cold", [start(model, folder, "alone", env=alone)])
    table.add(model, "torch alone, warm", [start(model, folder, "alone", env=alone) for _ in range(times)])
    store = folder / "store"
    for program in [model] if settings.quick else ["transformer", "convolutions", "jax function"]:
        table.add(program, "cold", [start(program, store, "init")])
        table.add(program, "warm", [start(program, store, "init") for _ in range(times)])
    start(model, store, "compile")
    table.add(model, "warm, ws.compile", [start(model, store, "compile") for _ in range(times)])
    moved = _moved(store, folder)
    table.add(model, "warm, bundle imported elsewhere", [moved(model) for _ in range(times)])
    other = [start(model, store, "init", env={"ATEN_CPU_CAPABILITY": "avx2"})]
    table.add(model, "first start under avx2", other)
    table.add(model, "cold, portable", [start(model, store, "init", "portable")])
    portable = [start(model, store, "init", "portable", env={"ATEN_CPU_CAPABILITY": "avx2"}) for _ in range(times)]
    table.add(model, "warm, portable, under avx2", portable)
    two = _two_at_once(model, folder / "two")
    cold, warm = table.seconds(model, "cold"), table.seconds(model, "warm")
    cpu = table.of(model, "cold")[0]["cpu"]
    bars = (
        Bar.at_least(f"{model}: times faster, warm than cold", cold / warm, 25),
        Bar.at_most(f"{model}: seconds, warm", warm, 1.0),
        Bar.at_most(f"{model}: seconds, warm, ws.compile", table.seconds(model, "warm, ws.compile"), 0.5),
        Bar.at_most(
            "imported bundle elsewhere: times the local warm start",
            table.seconds(model, "warm, bundle imported elsewhere") / warm,
            1.2,
        ),
        Bar.at_most("graphs found that another instruction set compiled", other[0]["graphs found"], 0),
        Bar.at_most("graphs missed by portable code under avx2", max(one["graphs missed"] for one in portable), 0),
        Bar.at_most("milliseconds of init, median", median(one["init"] for one in table.all("init")) * 1e3, 50),
        Bar.at_most("two cold processes at once: times the processor's seconds of one", two["cpu"] / cpu, 1.15),
    )
    wrong = [
        f"{program}, {what}: wrong values"
        for (program, what), runs in table.runs.items()
        for one in runs
        if not one["right"]
    ]
    return Report(
        "compiling",
        "Compiled programs start in fresh processes: a transformer of six blocks and convolutions, forward and "
        "backward, and a JAX function.",
        (table.table(),),
        bars,
        (
            f"Medians of {times} warm processes; cold ones run once. Seconds are from before `init` to after the first "
            "step, imports of frameworks apart; the process is everything, from its start to its end.",
            f"Two cold processes at once took {two['cpu']:.0f} seconds of the processors, one {cpu:.0f}.",
            "Elsewhere: another HOME, user, working directory, temporary folder, place of the source, an empty store.",
        ),
        broken=tuple(wrong),
    )


class _Table:
    """Runs by program and way."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.runs: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def add(self, program: str, what: str, runs: list[dict[str, Any]]) -> None:
        self.runs[program, what] = runs

    def of(self, program: str, what: str) -> list[dict[str, Any]]:
        return self.runs[program, what]

    def all(self, figure: str) -> list[dict[str, Any]]:
        return [one for runs in self.runs.values() for one in runs if one.get(figure)]

    def seconds(self, program: str, what: str) -> float:
        return median(one["seconds"] for one in self.of(program, what))

    def table(self) -> Table:
        columns = ("", "seconds", "worst", "process, s", "processors, s", "graphs found", "missed")
        rows = [
            (
                f"{program}: {what}",
                self.seconds(program, what),
                max(one["seconds"] for one in runs),
                median(one["process"] for one in runs),
                median(one["cpu"] for one in runs),
                runs[-1]["graphs found"],
                runs[-1]["graphs missed"],
            )
            for (program, what), runs in self.runs.items()
        ]
        return Table("", columns, tuple(rows))


def start(
    program: str, store: Path, how: str, profile: str = "fast", *, env: dict[str, str] | None = None, cwd: Path = ROOT
) -> dict[str, Any]:
    """Run a program in a fresh process; what it says, and what the process took."""
    return _finish(_launch(program, store, how, profile, env or {}, cwd))


def _launch(
    program: str, store: Path, how: str, profile: str, env: dict[str, str], cwd: Path
) -> tuple[subprocess.Popen[str], float]:
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")]), **env}
    command = [sys.executable, "-m", "benchmarks.compiling", program, str(store), how, profile]
    began = time.perf_counter()
    return subprocess.Popen(command, env=variables, cwd=cwd, text=True, stdout=subprocess.PIPE), began


def _finish(running: tuple[subprocess.Popen[str], float]) -> dict[str, Any]:
    process, began = running
    out, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"{process.args} failed")
    said: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**said, "process": time.perf_counter() - began}


def _moved(store: Path, folder: Path) -> Callable[[str], dict[str, Any]]:
    """Export a bundle, import it into an empty store, and start from there with everything else moved too."""
    from warmstore.compiling.artifacts import ArtifactStore
    from warmstore.compiling.bundles import export, import_

    there = _made(folder / "another place")
    with closing(ArtifactStore(store)) as full, closing(ArtifactStore(there / "store")) as empty:
        export(full, folder / "bundle.tar.zst")
        import_(empty, folder / "bundle.tar.zst")
    shutil.copytree(
        ROOT / "benchmarks", there / "checkout" / "benchmarks", ignore=shutil.ignore_patterns("results", "__pycache__")
    )
    env = {
        "HOME": str(_made(there / "home")),
        "TMPDIR": str(_made(there / "tmp")),
        "USER": "another",
        "LOGNAME": "another",
    }
    return lambda program: start(program, there / "store", "init", env=env, cwd=there / "checkout")


def _two_at_once(program: str, store: Path) -> dict[str, float]:
    running = [_launch(program, store, "init", "fast", {}, ROOT) for _ in range(2)]
    return {"cpu": sum(_finish(one)["cpu"] for one in running)}


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


# What runs in a fresh process


def main(program: str, store: str, how: str, profile: str) -> None:
    said = in_jax(store, profile) if program == "jax function" else in_torch(program, store, how, profile)
    times = os.times()
    print(json.dumps({**said, "cpu": times.user + times.system + times.children_user + times.children_system}))


def in_torch(program: str, store: str, how: str, profile: str) -> dict[str, Any]:
    import torch
    import torch._dynamo.aot_compile
    import torch._functorch._aot_autograd.autograd_cache
    import torch._inductor.compile_fx
    from torch._dynamo.utils import counters

    import warmstore as ws
    from benchmarks import compiled_models

    ws.compile, ws.compile_cache  # noqa: B018
    torch.manual_seed(0)
    model, x = getattr(compiled_models, program)()
    expected = model(x).detach()
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.zero_()  # as before that call: batch norms count
    began = time.perf_counter()
    cache = None if how == "alone" else ws.compile_cache.init(store, profile=profile, job="benchmark")
    init = time.perf_counter() - began
    compiled = ws.compile(model) if how == "compile" else torch.compile(model)
    y = compiled(x)
    y.sum().backward()
    seconds = time.perf_counter() - began
    right = torch.allclose(y, expected, atol=1e-3) and all(p.grad is not None for p in model.parameters())
    found = counters["inductor"]
    began = time.perf_counter()
    if cache is not None:
        cache.close()
    return {
        "seconds": seconds,
        "close": time.perf_counter() - began,
        "init": init if cache is not None else None,
        "right": right,
        "graphs found": found["fxgraph_cache_hit"],
        "graphs missed": found["fxgraph_cache_miss"],
    }


def in_jax(store: str, profile: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    import warmstore as ws

    ws.compile_cache  # noqa: B018

    def step(weights: Any, x: Any) -> Any:
        for _ in range(6):
            x = jax.nn.gelu(x @ weights) + x
        return jnp.sum(x * x)

    weights, x = jnp.eye(64) / 9, jnp.ones((16, 64))
    began = time.perf_counter()
    cache = ws.compile_cache.init(store, profile=profile, job="benchmark jax")
    init = time.perf_counter() - began
    value, gradient = jax.jit(jax.value_and_grad(step))(weights, x)
    gradient.block_until_ready()
    seconds = time.perf_counter() - began
    lookups = ws.compile_cache.lookups()
    with jax.disable_jit():
        right = bool(jnp.allclose(value, step(weights, x), rtol=1e-4))
    cache.close()
    return {
        "seconds": seconds,
        "init": init,
        "right": right,
        "graphs found": sum(one.hit for one in lookups),
        "graphs missed": sum(not one.hit for one in lookups),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
