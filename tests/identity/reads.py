"""What a run of a callable really reads of its program: attributes, globals, closures, defaults, and code that runs.

Bytecode is traced for globals, closures and chains of attributes; classes of the program, torch's modules and the
modules of the program are made to say which attributes are asked for, whoever asks. Special methods that Python looks
up on types do not ask; their code is seen when it runs.
"""

import contextlib
import dis
import functools
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.identity.leaves import Leaf, Place, Reached
from tests.identity.worlds import is_program, is_program_code
from torch import nn

_MISSING = object()
_STARTS = {"LOAD_FAST", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW"}
_NO_PUSH = {"CACHE", "EXTENDED_ARG", "RESUME", "PRECALL"}


@dataclass
class Reads:
    """What one run read.

    whole: objects of which all attributes were read at once. functions: paths of functions that ran. strangers: code of
    the program that ran and that nothing known has.
    """

    places: set[Place] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    strangers: set[str] = field(default_factory=set)

    def has(self, leaf: Leaf) -> bool:
        """Whether the nearest thing with a name around a value was read; what a partial was given always is."""
        return leaf.place.kind == "argument" or leaf.place in self.places or leaf.place.holder in self.whole


@contextlib.contextmanager
def reads_of(reached: Reached) -> Iterator[Reads]:
    """Inside, notes what is read. `reached` is what the callable had in reach before."""
    tracer = _Tracer(reached)
    with _asking(reached, tracer.note):
        before = sys.gettrace()
        sys.settrace(tracer.trace)
        try:
            yield tracer.reads
        finally:
            sys.settrace(before)


class _Tracer:
    def __init__(self, reached: Reached) -> None:
        self.reads = Reads()
        self._by_code: dict[types.CodeType, list[tuple[str, types.FunctionType]]] = {}
        self._nested: set[types.CodeType] = set()
        self._notes = False
        for path, function in reached.functions.items():
            self._by_code.setdefault(function.__code__, []).append((path, function))
            self._nested.update(_codes_in(function.__code__))

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        name = frame.f_globals.get("__name__")
        if not is_program_code(frame.f_code) and not (isinstance(name, str) and name.startswith("corpus.")):
            return None
        if event == "call":
            self._called(frame)
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self._executes(frame)
        return self.trace

    def _called(self, frame: types.FrameType) -> None:
        code = frame.f_code
        for path, function in self._functions(frame):
            self.reads.functions.add(path)
            names = code.co_varnames[: code.co_argcount]
            defaults = dict(zip(reversed(names), reversed(function.__defaults__ or ()), strict=False))
            for name, value in {**defaults, **(function.__kwdefaults__ or {})}.items():
                if frame.f_locals.get(name, _MISSING) is value:
                    self.reads.places.add(Place("default", id(function), name))
        if code not in self._by_code and code not in self._nested:
            self.reads.strangers.add(f"{frame.f_globals.get('__name__')}.{code.co_qualname}")

    def _functions(self, frame: types.FrameType) -> Iterator[tuple[str, types.FunctionType]]:
        """The functions that a frame may be a call of: those with its code, and its closure."""
        for path, function in self._by_code.get(frame.f_code, ()):
            cells = zip(frame.f_code.co_freevars, function.__closure__ or (), strict=True)
            if all(_content(cell) is frame.f_locals.get(name, _MISSING) for name, cell in cells):
                yield path, function

    def _executes(self, frame: types.FrameType) -> None:
        step = _steps(frame.f_code).get(frame.f_lasti)
        if step is None:
            return
        operation, name, chain = step
        if operation == "global":
            if name in frame.f_globals:
                self.reads.places.add(Place("global", id(frame.f_globals), name))
        elif operation == "cell":
            for _, function in self._functions(frame):
                if name in frame.f_code.co_freevars:
                    cell = (function.__closure__ or ())[frame.f_code.co_freevars.index(name)]
                    self.reads.places.add(Place("cell", id(cell), name))
        elif chain:
            value = frame.f_locals.get(chain[0], frame.f_globals.get(chain[0], _MISSING))
            for inner in chain[1:]:
                value = _plain_attribute(value, inner)
            if value is not _MISSING:
                self.note(value, name)

    def note(self, value: Any, name: str) -> None:
        """An attribute is asked for. What is asked for meanwhile is asked by the tracer."""
        if not self._notes:
            self._notes = True
            try:
                self._note(value, name)
            finally:
                self._notes = False

    def _note(self, value: Any, name: str) -> None:
        if name == "__dict__":
            if not isinstance(value, nn.Module):  # torch looks up parameters in it, by name
                self.reads.whole.add(id(vars(value)) if isinstance(value, types.ModuleType) else id(value))
        elif isinstance(value, types.ModuleType):
            self.reads.places.add(Place("global", id(vars(value)), name))
        elif isinstance(value, type):
            self._note_in_class(value, value, name)
            self._note_in_class(type(value), value, name)
        else:
            held = _dict_of(value)
            if name in held:
                self.reads.places.add(Place("attribute", id(value), name))
                if not _is_data_descriptor(type(value), name):
                    return
            for kept in ("_parameters", "_buffers", "_modules"):
                if isinstance(value, nn.Module) and name in held.get(kept, ()):
                    self.reads.places.add(Place("attribute", id(value), kept))
            self._note_in_class(type(value), value, name)

    def _note_in_class(self, cls: type, value: Any, name: str) -> None:
        for base in cls.__mro__:
            if name in vars(base):
                slot = isinstance(vars(base)[name], types.MemberDescriptorType)
                self.reads.places.add(Place("attribute", id(value if slot else base), name))
                return


@functools.cache
def _steps(code: types.CodeType) -> dict[int, tuple[str, str, tuple[str, ...]]]:
    """What an instruction reads, by offset: ("global", name), ("cell", name), or ("attribute", name) of a chain."""
    found: dict[int, tuple[str, str, tuple[str, ...]]] = {}
    chain: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation in _NO_PUSH:
            continue
        if operation in ("LOAD_ATTR", "LOAD_METHOD"):
            found[instruction.offset] = "attribute", name, chain
            chain = (*chain, name) if chain else ()
            continue
        if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
            found[instruction.offset] = "global", name, ()
        elif operation in ("LOAD_DEREF", "LOAD_CLOSURE", "LOAD_CLASSDEREF"):
            found[instruction.offset] = "cell", name, ()
        chain = (name,) if operation in _STARTS and isinstance(name, str) else ()
    return found


@contextlib.contextmanager
def _asking(reached: Reached, note: Callable[[Any, str], None]) -> Iterator[None]:
    """Inside, classes and modules of the program say which attributes are asked for."""
    modules = [module for module in list(sys.modules.values()) if isinstance(module, types.ModuleType)]
    programs = [module for module in modules if is_program(module)]
    classes = [nn.Module]
    for module in programs:
        classes += [one for one in vars(module).values() if isinstance(one, type) and is_program(one)]
    patched = []
    for cls in classes:
        if not any(base in patched for base in cls.__mro__) and "__getattribute__" not in vars(cls):
            type.__setattr__(cls, "__getattribute__", _asked(cls.__getattribute__, note))
            patched.append(cls)
    for module in programs:
        module.__class__ = type(
            "Asked", (types.ModuleType,), {"__getattribute__": _asked(object.__getattribute__, note)}
        )
    try:
        yield
    finally:
        for module in programs:
            module.__class__ = types.ModuleType
        for cls in patched:
            type.__delattr__(cls, "__getattribute__")


def _asked(original: Callable[[Any, str], Any], note: Callable[[Any, str], None]) -> Callable[[Any, str], Any]:
    def get(self: Any, name: str) -> Any:
        note(self, name)
        return original(self, name)

    return get


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _plain_attribute(value: Any, name: str) -> Any:
    """An attribute that can be had without running code of the program, or `_MISSING`."""
    if value is _MISSING:
        return _MISSING
    if isinstance(value, type):
        places = [vars(base) for base in value.__mro__]
    elif isinstance(value, types.ModuleType):
        places = [types.ModuleType.__getattribute__(value, "__dict__")]
    else:
        places = [_dict_of(value), *(vars(base) for base in type(value).__mro__)]
    for place in places:
        if name in place:
            found = place[name]
            return _MISSING if hasattr(type(found), "__get__") else found
    return _MISSING


def _is_data_descriptor(cls: type, name: str) -> bool:
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return hasattr(type(found), "__set__")


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _codes_in(constant)
