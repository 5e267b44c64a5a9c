"""What `compiling` runs in fresh processes: `python -m benchmarks.compiled_starts PROGRAM STORE HOW PROFILE`.

HOW is "alone" (no warmstore), "init" (and the framework's own compile), "compile" (`ws.compile`) or "train", which goes
on training for a while.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from statistics import median
from typing import Any

# What torch imports in the middle of compiling, 0.15 s of it; imports are counted apart.
LATE = (
    "torch.distributed.tensor.experimental._func_map",
    "torch.utils.cpp_extension",
    "torch.export._trace",
    "torch._inductor.compiler_bisector",
    "torch._inductor.codegen.memory_planning",
    "torch._inductor.codegen.pallas",
    "torch._inductor.codegen.halide",
)


def main(program: str, store: str, how: str, profile: str) -> None:
    said = in_jax(store, how, profile) if program == "jax function" else in_torch(program, store, how, profile)
    times = os.times()
    print(json.dumps({**said, "cpu": times.user + times.system + times.children_user + times.children_system}))


def in_torch(program: str, store: str, how: str, profile: str) -> dict[str, Any]:
    import torch
    import torch._dynamo.aot_compile
    import torch._functorch._aot_autograd.autograd_cache
    import torch._inductor.compile_fx
    from torch._dynamo.utils import counters

    load_late()

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
    training = training_with_looks(cache, lambda: compiled(x).sum().backward()) if how == "train" else {}
    began = time.perf_counter()
    if cache is not None:
        cache.close()
    return {
        "seconds": seconds,
        "close": time.perf_counter() - began,
        "init": init if cache is not None else None,
        "right": right,
        **training,
        "graphs found": found["fxgraph_cache_hit"],
        "graphs missed": found["fxgraph_cache_miss"],
    }


def load_late() -> None:
    """Import what torch would import in the middle of compiling."""
    for late in LATE:
        importlib.import_module(late)


def training_with_looks(
    cache: Any, step: Callable[[], object], pairs: int = 15, seconds: float = 0.5
) -> dict[str, float]:
    """How much longer training takes for a look at the live folder by the harvest's thread: every second stretch of
    half a second has one. `share` is what that is of the time from one look to the next."""
    from warmstore.compiling.scratch import harvester

    began = time.perf_counter()
    step()
    count = max(1, int(seconds / (time.perf_counter() - began)))
    took: list[list[float]] = [[], []]
    for number in range(2 * pairs):
        began = time.perf_counter()
        look = threading.Thread(target=cache.session.harvest if number % 2 else bool)
        look.start()
        for _ in range(count):
            step()
        look.join()
        took[number % 2].append(time.perf_counter() - began)
    look_costs = max(median(took[1]) - median(took[0]), 0.0)
    every = harvester._LOOK_AGAIN
    return {"look": look_costs, "step": median(took[0]) / count, "every": every, "share": look_costs / every}


def in_jax(store: str, how: str, profile: str) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp

    if how == "alone":  # at its best: by itself it leaves out what compiles in less than a second
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

    import warmstore as ws

    ws.compile_cache  # noqa: B018

    def step(weights: Any, x: Any) -> Any:
        for _ in range(6):
            x = jax.nn.gelu(x @ weights) + x
        return jnp.sum(x * x)

    weights, x = jnp.eye(64) / 9, jnp.ones((16, 64))
    began = time.perf_counter()
    cache = None if how == "alone" else ws.compile_cache.init(store, profile=profile, job="benchmark jax")
    init = time.perf_counter() - began
    value, gradient = jax.jit(jax.value_and_grad(step))(weights, x)
    gradient.block_until_ready()
    seconds = time.perf_counter() - began
    lookups = ws.compile_cache.lookups() if cache is not None else []
    with jax.disable_jit():
        right = bool(jnp.allclose(value, step(weights, x), rtol=1e-4))
    if cache is not None:
        cache.close()
    return {
        "seconds": seconds,
        "init": init if cache is not None else None,
        "right": right,
        "graphs found": sum(one.hit for one in lookups),
        "graphs missed": sum(not one.hit for one in lookups),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
