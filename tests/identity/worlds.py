"""The programs of `corpus/`: imported as often as needed, changed or not, and what their callables give.

Each program has `entries()`, its callables by name, and `examples()`, arguments for them ("*" for those not named).
A `World` is a folder with a copy of the corpus; each import from it makes new modules, under the same names.
"""

import ast
import contextlib
import dataclasses
import enum
import functools
import importlib
import os
import re
import shutil
import signal
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash

PACKAGE = "corpus"
FOLDER = Path(__file__).parent / PACKAGE
MODULES = tuple(sorted(path.stem for path in FOLDER.glob("*.py")))
PROGRAMS = tuple(name for name in MODULES if name != "settings")
CPU_SECONDS = 2.0  # of one run; the longest of the corpus takes 0.04

_ADDRESS = re.compile(r"0x[0-9a-f]+")


class TimedOut(BaseException):
    """A run that does not end. Not an `Exception`, so that the program does not catch it."""


def module_name(name: str) -> str:
    return f"{PACKAGE}.{name}"


def is_program(thing: Any) -> bool:
    """Whether a module, function or class is one of the corpus."""
    name = thing.__name__ if isinstance(thing, types.ModuleType) else getattr(thing, "__module__", None)
    return isinstance(name, str) and name.startswith(f"{PACKAGE}.")


def is_program_code(code: types.CodeType) -> bool:
    """Whether code is that of a module of the corpus."""
    path = Path(code.co_filename)
    return path.parent.name == PACKAGE and path.stem in MODULES


@functools.cache
def source(name: str) -> str:
    """The source of a module, as it is written."""
    return (FOLDER / f"{name}.py").read_text()


@functools.cache
def canonical(name: str) -> str:
    """The source of a module as `ast.unparse` writes it: lines of a changed tree are lines of this one."""
    return ast.unparse(ast.parse(source(name))) + "\n"


@functools.cache
def requirements(name: str) -> tuple[str, ...]:
    """The module and those of the corpus that it imports, its own first."""
    found = [name]
    for node in ast.walk(ast.parse(source(name))):
        if isinstance(node, ast.ImportFrom) and node.level:
            names = [node.module] if node.module else [alias.name for alias in node.names]
            found += [inner for one in names for inner in requirements(one)]
    return tuple(dict.fromkeys(found))


class World:
    """A folder with the corpus, from which programs are imported again and again."""

    def __init__(self, folder: Path, read: Callable[[str], str] = canonical) -> None:
        self.folder = folder / PACKAGE
        self.folder.mkdir(parents=True)
        for path in FOLDER.iterdir():
            if path.is_file() and path.suffix != ".py":
                shutil.copy(path, self.folder)
        self._codes: dict[str, types.CodeType] = {}
        self._read = read
        self._time = 10**18
        for name in MODULES:
            self.write(name, read(name))

    def write(self, name: str, text: str) -> None:
        """Give a module another source. Each version of a file has a time of its own."""
        path = self.folder / f"{name}.py"
        new = path.with_suffix(".new")
        new.write_text(text)
        self._time += 10**9
        os.utime(new, ns=(self._time, self._time))
        new.replace(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `is` with a literal, say
            self._codes[name] = compile(text, str(path), "exec", dont_inherit=True)

    @contextlib.contextmanager
    def changed(self, name: str, text: str) -> Iterator[None]:
        """Inside, a module has another source."""
        before = self._codes[name]
        self.write(name, text)
        try:
            yield
        finally:
            self.write(name, self._read(name))
            self._codes[name] = before

    @contextlib.contextmanager
    def imported(self, name: str) -> Iterator[types.ModuleType]:
        """A program, imported anew with all that it imports; gone from `sys.modules` afterwards."""
        _forget()
        finder = _Finder(self.folder, self._codes)
        sys.meta_path.insert(0, finder)
        try:
            with quiet(), time_limit():
                torch.manual_seed(0)
                module = importlib.import_module(module_name(name))
            yield module
        finally:
            sys.meta_path.remove(finder)
            _forget()

    @contextlib.contextmanager
    def entries(self, name: str) -> Iterator[dict[str, Callable[..., Any]]]:
        """The callables of a program, imported anew."""
        with self.imported(name) as module:
            with quiet(), time_limit():
                torch.manual_seed(0)
                made = module.entries()
            yield made


class _Finder:
    """Imports modules of the corpus from code that is compiled already."""

    def __init__(self, folder: Path, codes: Mapping[str, types.CodeType]) -> None:
        self.folder = folder
        self.codes = codes

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name == PACKAGE:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self.folder)]
            return spec
        package, _, stem = name.partition(".")
        if package != PACKAGE or stem not in self.codes:
            return None
        return spec_from_file_location(name, self.folder / f"{stem}.py", loader=self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        exec(self.codes[module.__name__.partition(".")[2]], module.__dict__)


def _forget() -> None:
    for name in [name for name in sys.modules if name == PACKAGE or name.startswith(f"{PACKAGE}.")]:
        del sys.modules[name]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Changed programs divide by zero and compare what cannot be equal: nobody needs to hear of it."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def time_limit(seconds: float = CPU_SECONDS) -> Iterator[None]:
    """Raise `TimedOut` after so much processor time, and again if the program swallows it."""

    def stop(number: int, frame: Any) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Examples:
    """New arguments for each run of the callables of a program."""

    def __init__(self, world: World, name: str) -> None:
        with world.imported(name) as module:
            self._make = module.examples

    def __call__(self, entry: str) -> tuple[Any, ...]:
        made = self._make()
        arguments: tuple[Any, ...] = made[entry] if entry in made else made["*"]
        return arguments


def run(entry: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """What a callable gives, as a text: an exception is an answer too. Raises `TimedOut` where there is none."""
    with quiet(), time_limit(), torch.no_grad():
        torch.manual_seed(0)
        try:
            return observed(entry(*arguments))
        except KeyboardInterrupt:
            raise
        except TimedOut:
            raise
        except BaseException as error:
            return f"{type(error).__name__}: {_ADDRESS.sub('0x', str(error))}"


def observed(value: Any, depth: int = 0) -> str:
    """A text that is equal for equal values, in every process."""
    if depth > 20:
        return "..."
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        return f"{kind}({value.dtype}, {tuple(value.shape)}, {_hash(flat.view(torch.uint8).numpy())})"
    if isinstance(value, np.ndarray):
        values = repr(value.tolist()) if value.dtype.hasobject else _hash(np.ascontiguousarray(value))
        return f"{kind}({value.dtype}, {value.shape}, {values}{_inside(getattr(value, '__dict__', {}), depth)})"
    if isinstance(value, enum.Enum):
        return f"{kind}.{value.name}"
    if isinstance(value, Mapping):
        items = [f"{observed(key, depth + 1)}: {observed(item, depth + 1)}" for key, item in value.items()]
        return f"{kind}{{{', '.join(items)}}}"
    if isinstance(value, (set, frozenset)):
        return f"{kind}{{{', '.join(sorted(observed(item, depth + 1) for item in value))}}}"
    if isinstance(value, (list, tuple, types.GeneratorType, range, map, zip, filter)):
        return f"{kind}({', '.join(observed(item, depth + 1) for item in value)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{kind}({_inside({one.name: getattr(value, one.name) for one in dataclasses.fields(value)}, depth)})"
    if is_program(type(value)):
        return f"{kind}({_inside(vars(value), depth)})"
    return f"{kind}({_ADDRESS.sub('0x', repr(value))})"


def _inside(attributes: Mapping[str, Any], depth: int) -> str:
    return ", ".join(f"{name}={observed(value, depth + 1)}" for name, value in sorted(attributes.items()))


def _hash(array: np.ndarray[Any, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(array.tobytes())
