"""The systems under test that torch is needed for: a cached module, and a compiled call, by its key or for real."""

import gc
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tests.identity.systems import SAMPLES, calls, encoded

import warmstore as ws
from warmstore.identity import identify
from warmstore.pipeline.native_threads import native_threads


class ModuleSystem:
    """A `CachedModule` around the program's model. Each use is a call with the same batch and ids."""

    name: ClassVar[str] = "module"

    def __init__(self, program: Any, cache: Path) -> None:
        self._program = program
        self._cache = ws.FeatureCache(cache, "features", versions="new", async_write=False)
        self._module = ws.CachedModule(program.model, self._cache, batch_args=(0,))

    def open(self) -> None:
        """The module is wrapped already."""

    def use(self) -> Any:
        before, misses = calls[0], self._cache.stats().misses
        values = self._module(_batch(), **_arguments(self._program), cache_ids=np.arange(SAMPLES))
        self._cache.flush()
        misses = self._cache.stats().misses - misses
        if calls[0] == before:  # a model without code of its own to count
            calls[0] += misses
        elif not misses:
            raise AssertionError("the module ran, and the cache counts no miss")
        return encoded(values)

    def plain(self) -> Any:
        return uncached(self._program)

    @staticmethod
    def fill(program: Any, cache: Path) -> None:
        """Fill the cache ahead, without the wrapper that is used later."""
        with ws.FeatureCache(cache, "features", versions="new", async_write=False) as features:
            batch = {"x": _batch(), "cache_ids": np.arange(SAMPLES)}
            features.fill(program.model, [batch], call=lambda one: ((one["x"],), {"cache_ids": one["cache_ids"]}))


class CompiledSystem:
    """A compiled call, by its key alone: equal keys stand for an answer from the cache."""

    name: ClassVar[str] = "compiled"

    def __init__(self, program: Any, cache: Path) -> None:
        self._program = program

    def open(self) -> None:
        """There is nothing to open."""

    def use(self) -> Any:
        return key_of_compiled_call(self._program.model, _batch(), _arguments(self._program))

    def plain(self) -> Any:
        return uncached(self._program)


def uncached(program: Any) -> Any:
    """What the program's model gives."""
    with torch.no_grad():
        return encoded(program.model(_batch(), **_arguments(program)))


def key_of_compiled_call(model: torch.nn.Module, x: torch.Tensor, arguments: Mapping[str, Any]) -> str:
    """What tells one compiled call from another, before anything is traced.

    Raises:
        NoFingerprint: the call is left to torch.
    """
    called = identify(model, name="model", tensors="layout").require()
    return called.digest + identify(dict(arguments), name="arguments", tensors="layout").require().digest


class CompilerSystem:
    """A model that is really compiled: slow. What was not found in the cache counts as a call."""

    name: ClassVar[str] = "compiler"

    def __init__(self, program: Any, cache: Path) -> None:
        self._program = program
        ws.compile_cache.init(local_dir=cache)

    def open(self) -> None:
        """There is nothing to open."""

    def use(self) -> Any:
        before = len(ws.compile_cache.lookups())
        with torch.no_grad():
            values = encoded(ws.compile(self._program.model)(_batch(), **_arguments(self._program)))
        calls[0] += sum(not one.hit for one in ws.compile_cache.lookups()[before:])
        return values

    def plain(self) -> Any:
        return uncached(self._program)


SYSTEMS: dict[str, Callable[[Any, Path], Any]] = {
    one.name: one for one in (ModuleSystem, CompiledSystem, CompilerSystem)
}


def warm() -> None:
    """Load in this process what every child needs, so that its fork has it."""
    torch.set_num_threads(1)  # threads do not survive a fork
    key_of_compiled_call(torch.nn.Identity(), _batch(), {})
    for name in ("numpy.ctypeslib", "warmstore.features.cache", "warmstore.features.module"):
        importlib.import_module(name)
    with native_threads(1):
        pass
    gc.collect()
    gc.freeze()


def _batch() -> torch.Tensor:
    return torch.arange(3.0 * SAMPLES).reshape(SAMPLES, 3)


def _arguments(program: Any) -> dict[str, Any]:
    return dict(getattr(program, "arguments", {}))
