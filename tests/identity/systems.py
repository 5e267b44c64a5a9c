"""The systems under test, as a child process runs them on a program: a pipeline, a cached function or module, a
compiled call.

A program is a folder with a module `program`. It defines `step` and `arguments` for a pipeline, `model` and `arguments`
for a module. Whether a sample is computed or found is told by the number of times the program's own code runs: it
raises the audit event `CALLED`, which a hook counts. So a system cannot hide a call, and a program that is counted has
no state for it.
"""

import dataclasses
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.errors import NoFingerprint, NotStateless, WarmstoreError

CALLED = "warmstore.tests.identity.called"
REFUSALS: tuple[type[WarmstoreError], ...] = (NoFingerprint, NotStateless)
SAMPLES = 6

calls = [0]
"""How often code of the program was run in this process."""


def count_calls() -> None:
    """Begin to count `CALLED`, for the rest of the process."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == CALLED:
            calls[0] += 1

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
        self._loader = self._pipe.loader(plan, batch_size=SAMPLES, workers=0, sampler=ws.Sequential())

    def use(self) -> Any:
        if self._loader is None:
            self.open()
        loader, self._loader = self._loader, None
        with loader:
            return encoded(list(loader))

    def plain(self) -> Any:
        with self._pipe.loader(None, batch_size=SAMPLES, workers=0, sampler=ws.Sequential()) as loader:
            return encoded(list(loader))


class FunctionSystem:
    """A cached function that calls the program's step. Each use is a call with equal arguments."""

    name: ClassVar[str] = "function"

    def __init__(self, program: Any, cache: Path) -> None:
        def call(x: Any, **arguments: Any) -> Any:
            sys.audit(CALLED)
            return program.step(x, **arguments)

        self._program = program
        self._cached = ws.cached(cache)(call)

    def open(self) -> None:
        """The function is wrapped already."""

    def use(self) -> Any:
        return self._result(self._cached)

    def plain(self) -> Any:
        return self._result(self._cached.__wrapped__)

    def _result(self, function: Callable[..., Any]) -> Any:
        return encoded(function(np.arange(3.0), **getattr(self._program, "arguments", {})))


def system_of(name: str) -> Callable[[Any, Path], Any]:
    """The class of a system. Those of torch are loaded when they are asked for: the others do without."""
    if name in _WITHOUT_TORCH:
        return _WITHOUT_TORCH[name]
    from tests.identity import torch_systems

    return torch_systems.SYSTEMS[name]


_WITHOUT_TORCH: dict[str, Callable[[Any, Path], Any]] = {one.name: one for one in (PipelineSystem, FunctionSystem)}


def run(system: Any, action: str, said: list[str]) -> Use:
    """Use a system, or its program without a cache.

    Args:
        action: "use" or "plain".
        said: lines that were logged so far; those are taken out.
    """
    before, refused, values = calls[0], "", None
    try:
        values = getattr(system, action)()
    except REFUSALS as error:
        refused = str(error)
    lines, said[:] = tuple(said), []
    return Use(values, calls[0] - before, refused, lines)


def encoded(value: Any) -> Any:
    """A value as plain tuples, equal where types, dtypes, shapes and bits are."""
    if hasattr(value, "detach"):
        return "tensor", str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        return type(value).__name__, str(array.dtype), array.shape, array.tobytes()
    if isinstance(value, dict):
        return type(value).__name__, tuple((key, encoded(part)) for key, part in value.items())
    if isinstance(value, list | tuple):
        return type(value).__name__, tuple(map(encoded, value))
    return type(value).__name__, repr(value)


def trace() -> str:
    """The error that is being handled."""
    with redirect_stdout(sys.stderr):
        return traceback.format_exc()
