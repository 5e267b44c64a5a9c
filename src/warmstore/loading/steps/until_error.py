"""until_error: the items of an iterator before its error, so that those that are read ahead are used first."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def until_error(items: Iterable[T], errors: list[Exception]) -> Iterator[T]:
    """Yield the items. An error ends them, and is appended to `errors`: the caller raises it."""
    try:
        yield from items
    except Exception as error:
        errors.append(error)
