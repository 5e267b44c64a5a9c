"""Objects of a user's program that a command names as MODULE:NAME."""

import importlib
import sys
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def named_object(name: str, kind: type[T]) -> T:
    """The object of a kind at MODULE:NAME, or what a function there returns. Modules of this folder are found too.

    Raises:
        ValueError: the module or the name does not exist, or it is of another kind.
    """
    module, _, attribute = name.partition(":")
    if not module or not attribute or module.startswith(".") or "/" in module:
        raise ValueError(
            f"{name!r} must be MODULE:NAME, such as train:{kind.__name__.lower()}, with the module as it is imported"
        )
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"there is no module {error.name!r}; run this where it can be imported") from None
    if not hasattr(found, attribute):
        raise ValueError(f"the module {module!r} has no {attribute!r}")
    value = getattr(found, attribute)
    value = value if isinstance(value, kind) or not callable(value) else value()
    if not isinstance(value, kind):
        raise ValueError(
            f"{name} is a {type(value).__name__}; it must be a {kind.__name__}, or a function that returns one"
        )
    return value
