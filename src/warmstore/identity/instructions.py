"""The instructions of code objects, with the values of their arguments."""

from __future__ import annotations

import dis
import opcode
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, NamedTuple

_NAME = opcode.opname
_CONSTANTS = frozenset(opcode.hasconst)
_NAMES = frozenset(opcode.hasname)
_SKIPPED = frozenset(
    number
    for number, name in enumerate(_NAME)
    if name in ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME", "NOT_TAKEN") or name.startswith("INSTRUMENTED")
)
_PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""Instructions that do the work of two, with the names of the two."""

_SHIFTS = {"LOAD_GLOBAL": 1}
if sys.version_info >= (3, 12):
    _SHIFTS |= {"LOAD_ATTR": 1, "LOAD_SUPER_ATTR": 2}


class Instruction(NamedTuple):
    """One instruction: its name, and the value of its argument."""

    name: str
    value: object


_CONSTANT, _OF_NAME, _PAIR, _LOCAL, _OTHER, _EXTENDED = range(6)


def _kind_of(number: int) -> int | None:
    name = _NAME[number]
    if name == "EXTENDED_ARG":
        return _EXTENDED
    if number in _SKIPPED:
        return None
    if number in _CONSTANTS:
        return _CONSTANT
    if number in _NAMES:
        return _OF_NAME
    if name in _PAIRS:
        return _PAIR
    is_local = "FAST" in name or "DEREF" in name or name in ("LOAD_CLOSURE", "MAKE_CELL")
    return _LOCAL if is_local else _OTHER


_KINDS = [_kind_of(number) for number in range(len(_NAME))]
_SHIFT = [_SHIFTS.get(name, 0) for name in _NAME]


def instructions(code: CodeType) -> Iterator[Instruction]:
    """The instructions of one code object without nested ones, with the values of their arguments."""
    return map(Instruction._make, decoded(code))


def decoded(code: CodeType) -> Iterator[tuple[str, Any]]:
    """The same as bare tuples, in half the time."""
    variables, constants, names = _variables(code), code.co_consts, code.co_names
    raw = code.co_code
    extended = 0
    for number, argument in zip(raw[::2], raw[1::2], strict=True):
        kind = _KINDS[number]
        if kind is None:
            extended = 0
            continue
        argument |= extended
        extended = 0
        if kind == _CONSTANT:
            yield _NAME[number], constants[argument]
        elif kind == _OF_NAME:
            yield _NAME[number], names[argument >> _SHIFT[number]]
        elif kind == _LOCAL:
            yield _NAME[number], variables[argument]
        elif kind == _OTHER:
            yield _NAME[number], argument
        elif kind == _PAIR:
            first, second = _PAIRS[_NAME[number]]
            yield first, variables[argument >> 4]
            yield second, variables[argument & 15]
        else:
            extended = argument << 8


def jump_targets(code: CodeType) -> frozenset[int]:
    """The positions of instructions, as `instructions` gives them, to which code jumps."""
    labels = frozenset(dis.findlabels(code.co_code))  # type: ignore[arg-type]  # it takes bytes
    found, position = set(), 0
    for at, number in enumerate(code.co_code[::2] if labels else b""):
        if 2 * at in labels:
            found.add(position)
        kind = _KINDS[number]
        position += 0 if kind in (None, _EXTENDED) else 2 if kind == _PAIR else 1
    return frozenset(found)


def _variables(code: CodeType) -> tuple[str, ...]:
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return (*code.co_varnames, *cells, *code.co_freevars)
