"""`out_dims`: the dimension of the samples in each output array, as a pytree prefix like that of torch.vmap.

An int applies to all arrays below it. None marks a part that is the same for all samples and in every batch. If the
caller gives no `out_dims`, samples are in dimension 0.
"""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from warmstore.errors import SchemaMismatch


class Unset(enum.Enum):
    """The type of `UNSET`: the caller gave no `out_dims`."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET


def check_out_dims(out_dims: Any) -> None:
    """Raise ValueError where `out_dims` is no pytree of ints and None."""
    if out_dims is None or type(out_dims) is int:
        return
    if isinstance(out_dims, Mapping):
        children = list(out_dims.values())
    elif isinstance(out_dims, Sequence) and not isinstance(out_dims, str | bytes):
        children = list(out_dims)
    else:
        raise ValueError(
            f"out_dims holds {out_dims!r}; give the dimension of the samples as an int for each output array, None for "
            "a part that is the same in every batch, in tuples, lists and dicts as the module's output has them"
        )
    for child in children:
        check_out_dims(child)


def spread(dims: Any, keys: Sequence[Any], name: str, *, positional: bool) -> list[Any]:
    """The part of `out_dims` for each child of a container.

    Args:
        keys: of the children, in order.
        name: of the container, for messages.
        positional: whether `dims` may be a sequence with an entry for each child.

    Raises:
        SchemaMismatch: `dims` has another structure than the output.
    """
    if dims is UNSET or dims is None or isinstance(dims, int):
        return [dims] * len(keys)
    if isinstance(dims, Mapping):
        unknown = [key for key in dims if key not in keys]
        if unknown:
            raise SchemaMismatch(f"out_dims has the key {unknown[0]!r} for {name}, which has {list(keys)}")
        return [dims.get(key, 0) for key in keys]
    if not positional:
        raise SchemaMismatch(f"out_dims has {dims!r} for {name}, which is a dict: give an int or a dict with its keys")
    if len(dims) != len(keys):
        raise SchemaMismatch(f"out_dims has {len(dims)} entries ({dims!r}) for {name}, which has {len(keys)}")
    return list(dims)


def dimension(dims: Any, ndim: int, name: str) -> int:
    """The dimension of an array's samples, counted from 0.

    Raises:
        SchemaMismatch: the array has no such dimension, or `out_dims` holds a container for it.
    """
    if dims is UNSET:
        return 0
    if not isinstance(dims, int):
        raise SchemaMismatch(f"out_dims has {dims!r} for {name}, which is one array: give an int")
    if not -ndim <= dims < ndim:
        raise SchemaMismatch(f"out_dims says dimension {dims} of {name}, which has {ndim} dimensions")
    return dims % ndim
