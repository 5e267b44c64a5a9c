"""The names of classes in a store, and finding classes by name without importing anything."""

import sys
from typing import Any


def type_name(cls: type) -> list[str]:
    """Module and qualified name of a class."""
    # In a spawned process the main module is called `__mp_main__`, and is found under both names.
    return ["__main__" if cls.__module__ == "__mp_main__" else cls.__module__, cls.__qualname__]


def find_type(module: str, name: str) -> Any:
    """The class of that name; None if the program has not imported it."""
    # A store must not decide what is imported, so only imported modules are searched.
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
