"""Steps with constants in all places where programs have them, to be edited, and what goes wrong as steps run."""

import contextlib
import signal
import sys
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tests.pipeline.functions import Opaque, change, make, unwrap
from tests.pipeline.making import same
from tests.state_machines import KeptWarnings

import warmstore as ws
from warmstore.storage.files import Files

SOURCES = ("ints", "dicts", "array", "files", "object", "parts", "store")
KNOBS = ("code", "global", "closure", "default", "attribute", "setting", "argument", "file")
KINDS = (
    "array",
    "array",
    "varying",
    "dict",
    "tuple",
    "bytes",
    "mixed",
    "turned",
    "number",
    "text",
    "crops",
    "boxed",
    "refused",
)
ERRORS = ("raise", "skip", "substitute")
TOO_LARGE = 20
"""Numbers above are broken files while `Trap.is_broken`."""

Constants = dict[str, int]


class Trap:
    """What goes wrong at the n-th call of a step, change of a file, or line of the library; no part of any identity."""

    def __init__(self) -> None:
        self.is_broken = False
        self.disarm()

    def __identity__(self) -> str:
        return "trap"

    def disarm(self) -> None:
        self.where, self.left, self.how = "", 0, ""

    @contextlib.contextmanager
    def armed(self, where: str, count: int, how: str) -> Iterator[None]:
        tracer = sys.gettrace()
        self.where, self.left, self.how = where, count, how
        if where == "line":
            self.left = 50 * count
            sys.settrace(self._traced)
        try:
            yield
        finally:
            sys.settrace(tracer)
            self.disarm()

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """Let nothing go wrong for a moment."""
        where, self.where = self.where, ""
        try:
            yield
        finally:
            self.where = where

    def _traced(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if "/warmstore/pipeline/" not in frame.f_code.co_filename and "/loading/" not in frame.f_code.co_filename:
            return None
        if event == "line":
            self.hit("line")
        return self._traced

    def hit(self, where: str) -> None:
        if where != self.where:
            return
        self.left -= 1
        if self.left < 0:
            how = self.how
            self.disarm()
            if how == "error":
                raise OSError(5, "the disk refuses")
            signal.raise_signal(signal.SIGKILL if how == "kill" else signal.SIGINT)


TRAP = Trap()

CHANGING = ("create", "write", "allocate", "truncate", "rename", "remove", "make_folder")


def spring(name: str) -> Callable[..., Any]:
    """An operation on files that runs into traps."""
    real = getattr(Files, name)

    def sprung(self: Files, *arguments: Any, **options: Any) -> Any:
        TRAP.hit("file")
        return real(self, *arguments, **options)

    return sprung


LOG = KeptWarnings()


class BrokenSample(Exception):
    """A sample that cannot be decoded now."""


class Setting:
    """A constant in an attribute."""

    def __init__(self, by: int) -> None:
        self.by = by


class Attribute:
    """A step with a constant in an attribute."""

    def __init__(self, inner: Callable[[Any, int], Any], by: int) -> None:
        self.inner, self.by = inner, by

    def __call__(self, value: Any) -> Any:
        return self.inner(value, self.by)


class Boxed(Opaque):
    """What tiers keep by an encoder of the program."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boxed) and same(other.value, self.value)

    __hash__ = None


def encode_boxed(variant: int) -> None:
    """Register an encoder that no other variant can take for its own."""

    def encode(box: Boxed) -> Any:
        return {"value": box.value, "variant": variant}

    def decode(parts: Any) -> Boxed:
        return Boxed(parts["value"] if parts["variant"] == variant else None)

    ws.register_encoder(Boxed, encode, decode)


def made(number: int, by: int, kind: str) -> Any:
    """The value of a number after the first step."""
    index = number * 9 + by  # odd, so that not all samples of a kind that varies have the same length
    return Boxed(make(index, "array")) if kind == "boxed" else make(index, kind)


def number_of(raw: Any) -> int:
    if isinstance(raw, Path):
        return int(raw.read_text())
    return int(raw["number"]) if isinstance(raw, dict) else int(np.ravel(raw)[0])


def decoded(raw: Any, by: int, kind: str) -> Any:
    """A value that follows from the number of a raw sample and the constant of the step."""
    TRAP.hit("step")
    number = number_of(raw)
    if number > TOO_LARGE and TRAP.is_broken:
        raise BrokenSample(f"{number} is broken")
    return made(number, by, kind)


def substitute(error: Exception, raw: Any) -> Any:
    """What stands for a sample that cannot be decoded."""
    return np.zeros(2)


def shifted(value: Any, by: int) -> Any:
    TRAP.hit("step")
    return change(value, by) if isinstance(value, np.ndarray) else (value, by)


def kept(value: Any, by: int) -> bool:
    """Whether a filter keeps a value."""
    return zlib.crc32(repr(unwrap(value)).encode()) % 4 != by


def doubled(columns: Any) -> Any:
    """A batched step."""
    return columns * 2


def with_knob(how: str, inner: Callable[..., Any], by: int, file: Path) -> tuple[Any, dict[str, Any], Any]:
    """A step's function that has a constant in some place, its arguments, and what sets the constant, or None."""
    if how == "code":
        scope: dict[str, Any] = {"inner": inner}

        def code(by: int) -> Any:
            return eval(f"lambda value: inner(value, {by})", scope).__code__

        function = types.FunctionType(code(by), scope, "edited")
        return function, {}, lambda by: setattr(function, "__code__", code(by))
    if how == "global":
        scope = {"inner": inner, "BY": by}
        return eval("lambda value: inner(value, BY)", scope), {}, lambda by: scope.update(BY=by)
    if how == "closure":

        def set_by(other: int) -> None:
            nonlocal by
            by = other

        return lambda value: inner(value, by), {}, set_by
    if how == "default":

        def with_default(value: Any, by: int = by) -> Any:
            return inner(value, by)

        return with_default, {}, lambda by: setattr(with_default, "__defaults__", (by,))
    if how == "attribute":
        step = Attribute(inner, by)
        return step, {}, lambda by: setattr(step, "by", by)
    if how == "setting":
        setting = Setting(by)
        return lambda value: inner(value, setting.by), {}, lambda by: setattr(setting, "by", by)
    if how == "argument":
        return lambda value, by: inner(value, by), {"by": by}, None
    return lambda value: inner(value, int(file.read_text())), {}, None


def replace_text(path: Path, number: int) -> None:
    """Write a file anew, under another name at first."""
    path.with_suffix(".new").write_text(str(number))
    path.with_suffix(".new").replace(path)


@dataclass(frozen=True)
class PipelinePlot:
    """What does not change in an example. knobs: where the steps have their constants, by name."""

    source: str
    kind: str
    knobs: dict[str, str]
    on_error: str
    has_filter: bool
    writes: bool
    is_random: bool
    is_batched: bool

    @property
    def cacheable(self) -> int:
        """Steps before the first random one."""
        return 2 + self.writes
