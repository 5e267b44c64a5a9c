"""Sizes of calls: the shapes of the tensors among the arguments, in which of them calls differ, and as texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Sizes = tuple[tuple[int | None, ...], ...]
"""The shape of every tensor among the arguments; None for a size that may be another."""


def tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors among the arguments of a call."""
    import torch

    return [one for one in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]


def shapes(args: Sequence[Any], kwargs: dict[str, Any]) -> Sizes:
    """Their shapes."""
    return tuple(tuple(map(int, one.shape)) for one in tensors(args, kwargs))


def cover(general: Sizes, sizes: Sizes) -> bool:
    """Whether what was compiled for the first may do for the second."""
    return len(general) == len(sizes) and all(
        len(ours) == len(theirs) and all(a is None or a == b for a, b in zip(ours, theirs, strict=True))
        for ours, theirs in zip(general, sizes, strict=True)
    )


def generalised(sizes: Sizes, others: Iterable[Sizes], dynamic: bool | None = None) -> Sizes:
    """The sizes to compile for: None for those in which other calls differed, as `torch.compile` does it too.

    Sizes 0 and 1 are kept: torch compiles for them alone. `dynamic` is that of `torch.compile`: all of them, or none.
    """
    if dynamic is not None:
        return tuple((None,) * len(shape) if dynamic else shape for shape in sizes)
    found = [list(shape) for shape in sizes]
    for other in others:
        if [len(shape) for shape in other] != [len(shape) for shape in sizes]:
            continue
        for shape, ours, theirs in zip(found, sizes, other, strict=True):
            for at, (our, their) in enumerate(zip(ours, theirs, strict=True)):
                if our != their and our not in (0, 1) and their not in (0, 1):
                    shape[at] = None
    return tuple(map(tuple, found))


def sizes_text(sizes: Sizes) -> str:
    """Sizes as part of an artifact's key, such as 64x_x3,64; nothing where they are too many."""
    said = ",".join("x".join("_" if size is None else str(size) for size in shape) for shape in sizes)
    return said if len(said) < 200 else ""


def sizes_of_text(said: str) -> Sizes:
    """The opposite of `sizes_text`; nothing for what is none."""
    if not re.fullmatch(r"[0-9x_,]+", said):
        return ()
    return tuple(
        tuple(None if size == "_" else int(size) for size in shape.split("x") if size) for shape in said.split(",")
    )


@contextmanager
def dynamic(args: Sequence[Any], kwargs: dict[str, Any], sizes: Sizes) -> Iterator[None]:
    """While this lasts, sizes that are None are marked as dynamic."""
    from torch._dynamo import maybe_mark_dynamic

    marked = [(tensor, shape) for tensor, shape in zip(tensors(args, kwargs), sizes, strict=False) if None in shape]
    before = [
        {name: set(value) if isinstance(value, set) else value for name, value in vars(tensor).items()}
        for tensor, _ in marked
    ]
    try:
        for tensor, shape in marked:
            maybe_mark_dynamic(tensor, [at for at, size in enumerate(shape) if size is None])
        yield
    finally:  # guards see marks, and the program's tensors have none
        for (tensor, _), held in zip(marked, before, strict=True):
            vars(tensor).clear()
            vars(tensor).update(held)
