"""What Dynamo puts into a program's globals under names that it makes up of addresses, as another process finds it."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from warmstore.compiling.keys.object_texts import object_text
from warmstore.errors import Incompatible
from warmstore.identity.origin import is_found

Reference = tuple[str, str, str]
"""Kind, name, and what tells that thing from others of its name: "module", "class" or "named tuple"."""
_NAMED_TUPLE = "namedtuple_"


def reference_of(value: Any) -> Reference | None:
    """How another process finds a module, a class, or the globals of a named tuple's constructor; None for others."""
    if isinstance(value, ModuleType):
        return ("module", value.__name__, "") if sys.modules.get(value.__name__) is value else None
    if isinstance(value, type):
        text = object_text(value) if is_found(value) else None
        return None if text is None else ("class", f"{value.__module__}:{value.__qualname__}", text)
    if type(value) is dict and value == _constructing(name := str(value.get("__name__"))):
        return ("named tuple", name, "") if name.startswith(_NAMED_TUPLE) else None
    return None


def referenced(reference: Reference) -> Any:
    """The thing that a reference leads to here.

    Raises:
        Incompatible: it is gone, or another one.
    """
    kind, name, text = reference
    if kind == "named tuple":
        return _constructing(name)
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Incompatible(f"{name} is gone: {error}") from error
    if text and object_text(found) != text:
        raise Incompatible(f"{name} is another one")
    return found


def put(references: dict[str, Reference], space: dict[str, Any]) -> None:
    """Put what references lead to into some globals, by their names there.

    Raises:
        Incompatible: one leads to another thing here, or its name does.
    """
    for name, reference in references.items():
        if name not in space:
            space[name] = referenced(reference)
        elif reference_of(space[name]) != reference:
            raise Incompatible(f"{name} is the name of something else here")


def _constructing(name: str) -> dict[str, Any]:
    """What `collections.namedtuple` runs the constructor in that it makes."""
    return {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": name}
