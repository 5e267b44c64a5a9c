"""Containers of nested samples, one level at a time: dicts, lists, tuples, namedtuples and dataclasses.

Every other value is a leaf. A leaf has a path: the keys that lead to it, joined by slashes, such as "hidden/0".
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple


class Container(NamedTuple):
    """The content of a container.

    kind: "dict", "list", "tuple", "namedtuple" or "dataclass". keys: the keys of a dict, the names of fields, or
    positions. children: the values, in the order of the keys.
    """

    kind: str
    keys: Sequence[Any]
    children: Sequence[Any]

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Keys and children."""
        return zip(self.keys, self.children, strict=True)


def opened(value: Any) -> Container | None:
    """The content of a container; None for a leaf. A subclass counts as its base class.

    A dict that is also a dataclass, such as a `ModelOutput` of transformers, counts as a dataclass.
    """
    if isinstance(value, dict) and (type(value) is dict or not dataclasses.is_dataclass(value)):
        return Container("dict", list(value), list(value.values()))
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return Container("namedtuple", value._fields, value)
    if isinstance(value, list | tuple):
        return Container("list" if isinstance(value, list) else "tuple", range(len(value)), value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return Container("dataclass", names, [getattr(value, name) for name in names])
    return None


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested value with their paths, in order. The path of a value that is a leaf itself is ""."""
    container = opened(value)
    if container is None:
        yield path, value
        return
    for key, child in container.items():
        yield from leaves(child, under(path, key))


def under(path: str, key: Any) -> str:
    """The path of a child."""
    return f"{path}/{key}" if path else str(key)
