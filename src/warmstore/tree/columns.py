"""Batches as columns: dicts and tuples whose leaves have one value per sample, such as [n, *shape] arrays and lists."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def rebuilt(like: tuple[Any, ...], parts: Iterable[Any]) -> tuple[Any, ...]:
    """A tuple of parts, or a named tuple of the type of `like` if that is one."""
    return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)


def map_columns(function: Callable[[Any], Any], batch: Any) -> Any:
    """A batch with `function` applied to every column."""
    if isinstance(batch, dict):
        return {name: map_columns(function, part) for name, part in batch.items()}
    if isinstance(batch, tuple):
        return rebuilt(batch, [map_columns(function, part) for part in batch])
    return function(batch)


def stack(samples: Sequence[Any], column: Callable[[list[Any]], Any]) -> Any:
    """Samples as one batch. Mappings and tuples are stacked by their parts.

    Args:
        samples: at least one.
        column: makes a column from the leaves of all samples at one place, or from parts of different types.
    """
    first = samples[0]
    if isinstance(first, Mapping) and all(isinstance(sample, Mapping) for sample in samples):
        return {name: stack([sample[name] for sample in samples], column) for name in first}
    if isinstance(first, tuple) and all(isinstance(sample, tuple) for sample in samples):
        return rebuilt(first, [stack(part, column) for part in zip(*samples, strict=True)])
    return column(list(samples))
