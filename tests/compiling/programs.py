"""Programs that compile something small, each run in a process of its own, and what they report of it."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import warm
from tests.slow import is_fresh

START = """
import json, os, sys
import warmstore as ws
cache = ws.compile_cache.init(**json.loads(os.environ["INIT"]))
"""

HEADERS = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
"""Is 0 here unless told: two of them take longer than the few kernels of these programs."""

VECTORS = "TORCHINDUCTOR_VEC_ISA_OK"
"""Is 1 without `--fresh`: torch compiles six programs to find out what the processor has, once in each store."""

SETTINGS = (HEADERS, VECTORS, "TORCHINDUCTOR_COMPILE_THREADS")
"""What torch reads as it is imported."""

COMPILER = (*warm.COMMON, "torch._dynamo", "torch._inductor.compile_fx", "warmstore.compiling.compile_cache")
"""What the warm interpreter of these programs has imported."""

SINE = """
import torch
x = torch.arange(2000.0)
y = torch.compile(lambda x: torch.sin(x) * 2 + 1)(x)
values, right = y, torch.sin(x) * 2 + 1
"""

SQUARES = """
import jax, jax.numpy as jnp
x = jnp.arange(100.0)
values, right = jax.jit(lambda x: jnp.cumsum(x * x) + 1)(x), jnp.cumsum(x * x) + 1
"""

END = """
import numpy as np
report = {
    "right": bool(np.allclose(np.asarray(values), np.asarray(right), atol=1e-5)),
    "active": cache.active,
    "reason": cache.reason,
    "lookups": [vars(one) for one in cache.session.lookups] if cache.active else [],
    "live": str(cache.session.live.path) if cache.active else None,
}
if "torch" in sys.modules:
    from torch._dynamo.utils import counters
    report["inductor"] = dict(counters["inductor"])
cache.close()
report["kept"] = cache.session.kept if cache.active else 0
print(json.dumps(report))
"""


@dataclass(frozen=True)
class Report:
    """What a program said at its end."""

    right: bool
    active: bool
    reason: str
    lookups: list[dict[str, Any]]
    live: str | None
    kept: int
    inductor: dict[str, int] = field(default_factory=dict)
    stderr: str = ""

    @property
    def hits(self) -> list[str]:
        """The keys that were found."""
        return [one["key"] for one in self.lookups if one["hit"]]

    @property
    def misses(self) -> list[str]:
        """The keys that were not."""
        return [one["key"] for one in self.lookups if not one["hit"]]


def launch(
    code: str,
    folder: Path,
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    start: str = START,
    end: str = END,
    fresh: bool = False,
    **init: Any,
) -> "subprocess.Popen[str]":
    """A process that runs `code` with a compile cache in a folder. `fresh`: an interpreter of its own."""
    settings = {"local_dir": str(folder), "job": "test", **init}
    return (subprocess.Popen if fresh else popen)(
        [sys.executable, "-c", start + textwrap.dedent(code) + end],
        env=sparing({**os.environ, "INIT": json.dumps(settings), **(env or {})}),
        cwd=cwd or folder.parent,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def sparing(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment that spares compilers what the tests are not about, unless it says otherwise."""
    spared = {HEADERS: "0"} if is_fresh() else {HEADERS: "0", VECTORS: "1"}
    return {**spared, **environment}


def popen(command: list[str], *, env: Mapping[str, str] | None = None, **options: Any) -> "subprocess.Popen[Any]":
    """Start a program in a fork of an interpreter that has imported the compilers, or a real one with `--fresh`."""
    return warm.popen(command, preload=COMPILER, settings=SETTINGS, env=sparing(env or os.environ), **options)


def run_to_end(
    command: list[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> "subprocess.CompletedProcess[Any]":
    """`popen`, to its end, with what it printed."""
    options |= {"env": sparing(env or os.environ), "capture_output": True, "text": True}
    return warm.run(command, preload=COMPILER, settings=SETTINGS, **options)


def finish(process: "subprocess.Popen[str]") -> Report:
    """Wait for it and take its report."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return Report(**json.loads(out.splitlines()[-1]), stderr=err)


def run(code: str, folder: Path, **options: Any) -> Report:
    """`launch` and `finish`."""
    return finish(launch(code, folder, **options))


def with_torch_in(folder: Path) -> str:
    """START for a process that has torch from this folder, which is made: a real folder torch, its files are links."""
    import torch

    installed = Path(torch.__file__).parent.parent
    folder.mkdir()
    for path in installed.iterdir():
        if path.name != "torch":
            (folder / path.name).symlink_to(path)
    shutil.copytree(installed / "torch", folder / "torch", symlinks=True, copy_function=os.link)
    return (
        f"""
import sys
sys.path.insert(0, {str(folder)!r})
import torch
assert torch.__file__.startswith({str(folder)!r})
"""
        + START
    )
