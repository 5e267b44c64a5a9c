"""Batches as columns: dicts and tuples whose leaves have one value per sample, such as [n, *shape] arrays and lists."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from warmstore.errors import SchemaMismatch


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

    Raises:
        SchemaMismatch: mappings with different keys, or tuples of different lengths.
    """
    first = samples[0]
    if isinstance(first, Mapping) and all(isinstance(sample, Mapping) for sample in samples):
        _check_keys(first, samples)
        return {name: stack([sample[name] for sample in samples], column) for name in first}
    if isinstance(first, tuple) and all(_is_like(sample, first) for sample in samples):
        lengths = {len(sample) for sample in samples}
        if len(lengths) > 1:
            raise SchemaMismatch(
                f"the samples of a batch are tuples of different lengths, {sorted(lengths)}: give all of them the same "
                "parts, with None for an absent one, or lists where the number varies"
            )
        return rebuilt(first, [stack(part, column) for part in zip(*samples, strict=True)])
    return column(list(samples))


def _check_keys(first: Mapping[Any, Any], samples: Sequence[Mapping[Any, Any]]) -> None:
    for sample in samples:
        if sample.keys() != first.keys():
            names = ", ".join(sorted(map(repr, sample.keys() ^ first.keys())))
            raise SchemaMismatch(
                f"some samples of a batch have {names} and others do not: give all of them the same keys, with None "
                "for an absent value"
            )


def _is_like(sample: Any, first: tuple[Any, ...]) -> bool:
    """Whether a sample is a tuple with the same names of parts, or without names as `first`."""
    return isinstance(sample, tuple) and getattr(sample, "_fields", None) == getattr(first, "_fields", None)
