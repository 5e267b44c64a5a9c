"""The table: which edit is tried in which place, by which system, and when.

A few edits, one of each sort, are tried everywhere. The others are dealt out over the places, so that every edit
meets every system and every place meets edits of every sort.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace

from tests.identity import places
from tests.identity.cases import Case
from tests.identity.edits import arrays, callables, classes, containers, modules, plain, programs, tensors
from tests.identity.edits.edit import Edit
from tests.identity.places import PLACES, Place
from tests.identity.programs import RUN_STEPS, filled_in, program_of, program_of_text, uncounted

GROUPS = {
    "plain": plain.EDITS,
    "containers": containers.EDITS,
    "classes": classes.EDITS,
    "callables": callables.EDITS,
    "arrays": arrays.EDITS,
    "tensors": tensors.EDITS,
    "modules": modules.EDITS,
}
SYSTEMS = ("step", "module", "compiled", "function")
EVERYWHERE = {
    "int", "list element", "dict value", "argparse.Namespace", "attribute of an object", "method", "enum method",
    "helper", "lambda", "array content", "tensor dtype", "weight",
}  # fmt: skip
_COMPILED = [
    ("plain", "int", places.ATTRIBUTE),
    ("plain", "float", places.GLOBAL),
    ("callables", "helper", places.ATTRIBUTE),
    ("classes", "method", places.OTHER_MODULE),
    ("tensors", "tensor content", places.ATTRIBUTE),
    ("tensors", "tensor dtype", places.ATTRIBUTE),
]
_PATCHES = {"patched function beneath a library's", "patched method of a library's class"}
_WITHOUT_TRACE = {"weight written past autograd", "weight written by NumPy", "parameter"}
"""Edits of living programs that are found in turn, and at once only where the program is wrapped again."""
_IN_TURN = {
    "exception", "bytearray", "array.array", "decimal context as a value", "random.Random", "annotation that is read",
    "annotation of a class that is read", "docstring that is read", "requires_grad", "torch generator",
    "event that is asked", "name of the step", "annotations of the step", "docstring of the step",
}  # fmt: skip
"""Those that modules, which look at less where they compute nothing, find in turn."""
EACH = {"step": 2, "module": 1, "compiled": 1, "function": 1}  # places that any other edit is tried in


def cases() -> Iterator[Case]:
    """All of the table, but for edits of what is not installed."""
    yield from _of_programs()
    yield from _of_values()
    yield from _compiled_for_real()


def _of_programs() -> Iterator[Case]:
    for edit in programs.EDITS:
        for system in edit.systems:
            first, neutral, second = (
                program_of_text(edit, system, neutral=neutral, edited=edited)
                for neutral, edited in ((False, False), (True, False), (False, True))
            )
            case = Case(
                edit.name,
                "programs",
                "program",
                system,
                "next process",
                first,
                neutral,
                second,
                refusable=edit.refusable,
            )
            yield case
            if edit.change:
                again = system in ("step", "compiled") or bool(edit.site) or edit.name in _PATCHES
                again |= system == "module" and edit.name in _IN_TURN
                same = replace(case, neutral=first, second=first, change=edit.change, again=again)
                yield replace(same, when="same process")
                if system == "step":
                    yield replace(same, when="before first use")


def _compiled_for_real() -> Iterator[Case]:
    """A few edits that go through a real compiler."""
    for group, name, place in _COMPILED:
        edit = next(edit for edit in GROUPS[group] if edit.name == name)
        case = _case(edit, group, place, "compiled", "next process")
        first, neutral, second = map(uncounted, (case.first, case.neutral, case.second))
        yield replace(case, system="compiler", first=first, neutral=neutral, second=second, slow=True)


def _of_values() -> Iterator[Case]:
    number = 0
    for group, edits in GROUPS.items():
        for edit in edits:
            number += 1
            if not all(importlib.util.find_spec(name) for name in edit.needs):
                continue
            for shift, system in enumerate(SYSTEMS):
                for place in _places(edit, number + 9 * shift, 1 if edit.slow else EACH[system]):
                    yield _case(edit, group, place, system, "next process")
                for when in ("same process", "before first use"):
                    for place in _changing(edit, number + 5 * shift, when, system):
                        yield _case(edit, group, place, system, when)


def _places(edit: Edit, number: int, count: int) -> list[Place]:
    if edit.name in EVERYWHERE:
        return list(PLACES)
    return [PLACES[(number * 5 + 11 * k) % len(PLACES)] for k in range(count)]


def _changing(edit: Edit, number: int, when: str, system: str) -> list[Place]:
    """Places where an edit can be made in a living program."""
    if edit.slow or (when == "before first use" and system == "compiled"):
        return []
    able = [place for place in PLACES if _change(edit, place, system)]
    if edit.name in EVERYWHERE:
        return able[::2] if when == "same process" else able[::4]
    return [able[number % len(able)]] if able and (when == "same process" or number % 3 == 0) else []


def _change(edit: Edit, place: Place, system: str) -> str:
    """Code that makes an edit in a living program, or ""."""
    own = system not in RUN_STEPS and place.model is not None
    held, put = (place.held_model, place.put_model) if own else (place.held, place.put)
    found = f"from {place.elsewhere} import *\nimport {place.elsewhere}\n" if place.elsewhere else ""
    if edit.change and held:
        return f"{found}v = {held}\n{edit.change}"
    if put and edit.new is not None and edit.setup_new is None:
        needs = "import torch\n" if "torch." in edit.new and "torch." not in (edit.old or "") else ""
        return needs + found + filled_in(put, "1", edit, edited=True)
    return ""


def _case(edit: Edit, group: str, place: Place, system: str, when: str) -> Case:
    first = program_of(edit, place, system)
    if when == "next process":
        neutral = program_of(edit, place, system, neutral=True)
        second = program_of(edit, place, system, edited=True)
    else:
        neutral = second = first
    return Case(
        edit.name,
        group,
        place.name,
        system,
        when,
        first,
        neutral,
        second,
        "" if when == "next process" else _change(edit, place, system),
        again=edit.name in _WITHOUT_TRACE or (system == "module" and (group == "arrays" or edit.name in _IN_TURN)),
        refusable=edit.refusable,
        layout=edit.layout,
        slow=edit.slow,
        needs=edit.needs,
    )
