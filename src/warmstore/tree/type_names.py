"""Classes by name: what a store may keep of them, and how they are found again without importing anything."""

import sys
from typing import Any


def type_name(cls: type) -> list[str]:
    """Module and qualified name of a class."""
    # A spawned process runs the main module under a name of its own, and knows it by both.
    return ["__main__" if cls.__module__ == "__mp_main__" else cls.__module__, cls.__qualname__]


def find_type(module: str, name: str) -> Any:
    """The class of that name, or None where the program has not imported it."""
    # Only what the program has imported itself: a store must not decide what gets imported.
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
