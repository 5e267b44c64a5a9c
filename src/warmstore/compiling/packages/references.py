"""References to objects that Dynamo adds to a program's globals, under names made from addresses in this process."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from warmstore.compiling.keys.object_texts import object_text
from warmstore.errors import Incompatible
from warmstore.identity.origin import is_found

Reference = tuple[str, str, str]
"""Kind ("module", "class" or "named tuple"), name, and for a class its `object_text`."""
_NAMED_TUPLE = "namedtuple_"


def reference_of(value: Any) -> Reference | None:
    """The reference to a module, a class, or the globals of a named tuple's constructor; None for other objects."""
    if isinstance(value, ModuleType):
        return ("module", value.__name__, "") if sys.modules.get(value.__name__) is value else None
    if isinstance(value, type):
        text = object_text(value) if is_found(value) else None
        return None if text is None else ("class", f"{value.__module__}:{value.__qualname__}", text)
    if type(value) is dict and value == _constructor_globals(name := str(value.get("__name__"))):
        return ("named tuple", name, "") if name.startswith(_NAMED_TUPLE) else None
    return None


def referenced(reference: Reference) -> Any:
    """The object of a reference in this process. Raises Incompatible if it is missing or differs."""
    kind, name, text = reference
    if kind == "named tuple":
        return _constructor_globals(name)
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise Incompatible(f"{name} is missing: {error}") from error
    if text and object_text(found) != text:
        raise Incompatible(f"{name} is a different class here")
    return found


def put(references: dict[str, Reference], variables: dict[str, Any]) -> None:
    """Add the objects of references to global variables. Raises Incompatible if a variable has another value."""
    for name, reference in references.items():
        if name not in variables:
            variables[name] = referenced(reference)
        elif reference_of(variables[name]) != reference:
            raise Incompatible(f"the global variable {name} has another value here")


def _constructor_globals(name: str) -> dict[str, Any]:
    """The globals of the constructor that `collections.namedtuple` generates."""
    return {"_tuple_new": tuple.__new__, "__builtins__": {}, "__name__": name}
