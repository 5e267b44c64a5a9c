"""The systems under test, as a child process runs them on a program: a pipeline, a cached module, a compiled call.

A program is a folder with a module `program`. It defines `step` and `arguments` for a pipeline, `model` and `arguments`
for a module. Whether a sample is computed or found is told by the number of times the program's own code runs: it
raises the audit event `CALLED`, which a hook counts. So a system cannot hide a call, and a program that is counted has
no state for it.
"""

import dataclasses
import gc
import importlib
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.errors import NoFingerprint, NoKey, WarmstoreError
from warmstore.identity import identify
from warmstore.pipeline.native_threads import native_threads

CALLED = "warmstore.tests.identity.called"
REFUSALS: tuple[type[WarmstoreError], ...] = (NoFingerprint, NoKey)
SAMPLES = 6

_calls = [0]


def count_calls() -> None:
    """Begin to count `CALLED`, for the rest of the process."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == CALLED:
            _calls[0] += 1

    sys.addaudithook(hook)


def called(sample: Any) -> Any:
    """The first step of every pipeline: whoever computes a sample comes by."""
    sys.audit(CALLED)
    return sample


@dataclasses.dataclass(frozen=True)
class Use:
    """What one use gave. values: the outputs, as `encoded`; of a compiled call its key. calls: how often code ran.

    refused: why the system does not answer for this program, or "". said: lines that were logged meanwhile.
    """

    values: Any
    calls: int
    refused: str = ""
    said: tuple[str, ...] = ()


class PipelineSystem:
    """A pipeline whose step is kept on the disk. Each use is an epoch of a loader of its own."""

    name: ClassVar[str] = "step"

    def __init__(self, program: Any, cache: Path) -> None:
        source = getattr(program, "source", None)
        if source is None:
            source = np.arange(3.0 * SAMPLES).reshape(SAMPLES, 3)
        pipe = ws.Pipeline(source).step(called)
        self._pipe = pipe.step(program.step, name="step", **getattr(program, "arguments", {}))
        self._cache = cache
        self._loader: Any = None

    def open(self) -> None:
        """Make the loader of the next use."""
        plan = plan_of(self._pipe, [(2, "disk", "raw")], folder=self._cache)
        self._loader = self._pipe.loader(plan, batch_size=SAMPLES, workers=0, order=ws.Sequential())

    def use(self) -> Any:
        if self._loader is None:
            self.open()
        loader, self._loader = self._loader, None
        with loader:
            return encoded(list(loader))

    def plain(self) -> Any:
        with self._pipe.loader(None, batch_size=SAMPLES, workers=0, order=ws.Sequential()) as loader:
            return encoded(list(loader))


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
        before, misses = _calls[0], self._cache.stats().misses
        values = self._module(_batch(), **_arguments(self._program), cache_ids=np.arange(SAMPLES))
        self._cache.flush()
        misses = self._cache.stats().misses - misses
        if _calls[0] == before:  # a model without code of its own to count
            _calls[0] += misses
        elif not misses:
            raise AssertionError("the module ran, and the cache counts no miss")
        return encoded(values)

    def plain(self) -> Any:
        with torch.no_grad():
            return encoded(self._program.model(_batch(), **_arguments(self._program)))

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
        with torch.no_grad():
            return encoded(self._program.model(_batch(), **_arguments(self._program)))


def key_of_compiled_call(model: torch.nn.Module, x: torch.Tensor, arguments: Mapping[str, Any]) -> str:
    """What tells one compiled call from another, before anything is traced.

    Raises:
        NoKey, NoFingerprint: the call is left to torch.
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
        _calls[0] += sum(not one.hit for one in ws.compile_cache.lookups()[before:])
        return values

    def plain(self) -> Any:
        with torch.no_grad():
            return encoded(self._program.model(_batch(), **_arguments(self._program)))


SYSTEMS: dict[str, Callable[[Any, Path], Any]] = {
    one.name: one for one in (PipelineSystem, ModuleSystem, CompiledSystem, CompilerSystem)
}


def run(system: Any, action: str, said: list[str]) -> Use:
    """Use a system, or its program without a cache.

    Args:
        action: "use" or "plain".
        said: lines that were logged so far; those are taken out.
    """
    before, refused, values = _calls[0], "", None
    try:
        values = getattr(system, action)()
    except REFUSALS as error:
        refused = str(error)
    lines, said[:] = tuple(said), []
    return Use(values, _calls[0] - before, refused, lines)


def encoded(value: Any) -> Any:
    """A value as plain tuples, equal where types, dtypes, shapes and bits are."""
    if isinstance(value, torch.Tensor):
        return "tensor", str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return type(value).__name__, str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return type(value).__name__, tuple((key, encoded(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(encoded, value))
    return type(value).__name__, repr(value)


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


def trace() -> str:
    """The error that is being handled."""
    with redirect_stdout(sys.stderr):
        return traceback.format_exc()


def _batch() -> torch.Tensor:
    return torch.arange(3.0 * SAMPLES).reshape(SAMPLES, 3)


def _arguments(program: Any) -> dict[str, Any]:
    return dict(getattr(program, "arguments", {}))
