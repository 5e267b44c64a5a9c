"""The instructions of code objects, with the values of their arguments."""

from __future__ import annotations

import opcode
import sys
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

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


def instructions(code: CodeType) -> Iterator[Instruction]:
    """The instructions of one code object without nested ones, with the values of their arguments."""
    names = _variables(code)
    raw = code.co_code
    extended = 0
    for at in range(0, len(raw), 2):
        number, argument = raw[at], raw[at + 1] | extended
        name = _NAME[number]
        extended = argument << 8 if name == "EXTENDED_ARG" else 0
        if number in _SKIPPED:
            continue
        if number in _CONSTANTS:
            yield Instruction(name, code.co_consts[argument])
        elif number in _NAMES:
            yield Instruction(name, code.co_names[argument >> _SHIFTS.get(name, 0)])
        elif name in _PAIRS:
            first, second = _PAIRS[name]
            yield Instruction(first, names[argument >> 4])
            yield Instruction(second, names[argument & 15])
        elif "FAST" in name or "DEREF" in name or name in ("LOAD_CLOSURE", "MAKE_CELL"):
            yield Instruction(name, names[argument])
        else:
            yield Instruction(name, argument)


def _variables(code: CodeType) -> tuple[str, ...]:
    cells = tuple(name for name in code.co_cellvars if name not in code.co_varnames)
    return (*code.co_varnames, *cells, *code.co_freevars)
