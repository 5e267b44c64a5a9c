"""Sizes of calls: the shapes of the tensors among the arguments, their generalisation, and their text form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Sizes = tuple[tuple[int | None, ...], ...]
"""The shape of every tensor among the arguments; None for a dynamic size."""


def tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors among the arguments of a call."""
    import torch

    return [leaf for leaf in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]


def shapes(args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    """The shapes of the tensors among the arguments of a call."""
    return tuple(tuple(map(int, tensor.shape)) for tensor in tensors(args, kwargs))


def cover(general: Sizes, sizes: Sizes) -> bool:
    """Whether code that was compiled for the sizes `general` accepts `sizes`."""
    return len(general) == len(sizes) and all(
        len(pattern) == len(shape) and all(a is None or a == b for a, b in zip(pattern, shape, strict=True))
        for pattern, shape in zip(general, sizes, strict=True)
    )


def generalised(sizes: Sizes, others: Iterable[Sizes], dynamic: bool | None = None) -> Sizes:
    """The sizes to compile for: None for a size that differed in other calls, as in `torch.compile`.

    Sizes 0 and 1 stay, since torch specialises on them. `dynamic` is the option of `torch.compile`: all sizes, or none.
    """
    if dynamic is not None:
        return tuple((None,) * len(shape) if dynamic else shape for shape in sizes)
    found = [list(shape) for shape in sizes]
    for other in others:
        if [len(shape) for shape in other] != [len(shape) for shape in sizes]:
            continue
        for shape, other_shape in zip(found, other, strict=True):
            for dimension, (size, other_size) in enumerate(zip(shape, other_shape, strict=True)):
                if size != other_size and size not in (0, 1) and other_size not in (0, 1):
                    shape[dimension] = None
    return tuple(map(tuple, found))


def sizes_text(sizes: Sizes) -> str:
    """Sizes as part of an artifact's key, such as "64x_x3,64"; "" for a text of 200 characters or more."""
    text = ",".join("x".join("_" if size is None else str(size) for size in shape) for shape in sizes)
    return text if len(text) < 200 else ""


def sizes_of_text(text: str) -> Sizes:
    """The inverse of `sizes_text`; empty for any other text."""
    if not re.fullmatch(r"[0-9x_,]+", text):
        return ()
    return tuple(
        tuple(None if size == "_" else int(size) for size in shape.split("x") if size) for shape in text.split(",")
    )


@contextmanager
def dynamic(args: Sequence[Any], kwargs: dict[str, Any], sizes: Sizes) -> Iterator[None]:
    """Within this context the sizes that are None are marked as dynamic."""
    from torch._dynamo import maybe_mark_dynamic

    marked = [(tensor, shape) for tensor, shape in zip(tensors(args, kwargs), sizes, strict=False) if None in shape]
    before = [
        {name: set(value) if isinstance(value, set) else value for name, value in vars(tensor).items()}
        for tensor, _ in marked
    ]
    try:
        for tensor, shape in marked:
            maybe_mark_dynamic(tensor, [dimension for dimension, size in enumerate(shape) if size is None])
        yield
    finally:  # guards check marks, and the tensors of later calls have none
        for (tensor, _), attributes in zip(marked, before, strict=True):
            vars(tensor).clear()
            vars(tensor).update(attributes)
