"""Infers the dimension of the samples in an output, from one batch and if necessary from another of a different size.

Samples are assumed to be in dimension 0, and a list of n items for n samples is read as `flatten` reads it. A batch may
fit other readings, too: a dimension of size 1 in a batch of one, or two dimensions of the size of the batch. The
module's output for another number of samples decides: a dimension that changes with this number is that of the samples.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from warmstore.errors import AmbiguousBatch
from warmstore.features.outputs.leaves import is_array, is_dense
from warmstore.features.outputs.output_structure import ROOT, arrays_in
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.records.index.sample_keys import Keys
from warmstore.tree.containers import leaves, opened, under

if TYPE_CHECKING:
    from torch import nn

_PER_SAMPLE, _STRUCTURE = "per_sample", "structure"
_UNTIL_THEN = "Until then such batches are computed and not stored"

Run = Callable[[int], Any]


def is_guess(output: Any, count: int, lists: str) -> bool:
    """Whether another reading of an output fits its batch as well as the assumed one.

    In a batch of one, each of several parts may be the same for all samples: size 1 is common. A single part must be
    per sample, and only its second dimension may be that of the samples instead, as in time-major layouts.

    Args:
        count: samples of the batch.
        lists: the meaning of lists of `count` items, as in `FeatureCache`.
    """
    doubts = list(_doubts(output, count, lists))
    if count > 1 and len(doubts) == 1 and is_array(output):
        return len(_shape(output)) > 2 and output.shape[1] == count
    return any(doubts) or (count == 1 and len(doubts) > 1)


def _second_size(count: int) -> int:
    """A small number of samples that differs from `count`, which is 2 or more. 1 often runs other kernels."""
    return 1 if count == 2 else 2


def _refutation(output: Any, count: int, other: Any, other_count: int, lists: str) -> str:
    """The first part of an output that refutes the assumed reading, in words; "" if no part does.

    Args:
        other: the output for `other_count` samples.
    """
    return next(_refutations(output, count, other, other_count, lists, ""), "")


def _fitting_dims(output: Any, count: int, other: Any, other_count: int) -> Any:
    """The `out_dims` that fit two batches of different sizes."""
    if is_array(output):
        sizes = list(enumerate(zip(output.shape, other.shape, strict=False)))
        return next((at for at, size in sizes if size == (count, other_count)), None)
    children = [
        (key, _fitting_dims(child, count, other_child, other_count))
        for (key, child), (_, other_child) in zip(_items(output), _items(other), strict=False)
    ]
    if isinstance(output, list):
        return [dims for _, dims in children]
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(dims for _, dims in children)
    return dict(children) if children else None


def own_part(output: Any, module: nn.Module) -> str:
    """The path of an array in an output that shares memory with a tensor of the module; "" without one.

    Such an array is the same for all samples, whatever its shape.
    """
    own = {_storage(tensor) for tensor in (*module.parameters(), *module.buffers())} - {0}
    return next((path for path, array in _named_arrays(output) if _storage(array) in own), "")


class Dimensions:
    """What the outputs of one module have shown about the dimensions of their samples."""

    def __init__(self) -> None:
        self._refuted = ""  # why samples are not in dimension 0, once that is known
        self._misfit = False  # whether an output had no samples in dimension 0, which may be an error of the caller

    def doubt(self, module: nn.Module, output: Any, count: int, lists: str, run: Run) -> str:
        """Why the output of `count` samples cannot be stored yet; "" if it can. Called while nothing is stored.

        Args:
            lists: the meaning of lists of `count` items, as in `FeatureCache`.
            run: returns the module's output for a given number of the samples.
        """
        own = own_part(output, module)
        if own:
            return (
                f"{own} is a parameter or a buffer of the module, so it is the same for all samples. Pass None for it "
                f"in CachedModule(out_dims=). {_UNTIL_THEN}"
            )
        if None in list(_doubts(output, count, lists)):
            self._misfit = True  # another batch may fit by accident
            return ""  # storing this one raises
        if not self._misfit and not is_guess(output, count, lists):
            return self._refuted
        if self._refuted or (count == 1 and not self._misfit):
            return self._refuted  # batches of one are served one by one until other batches have shown more
        if count == 1:
            return (
                "an output for another number of samples does not have the samples in dimension 0, and an output for "
                f"1 sample does not show their dimension. Pass it in CachedModule(out_dims=). {_UNTIL_THEN}"
            )
        other_count = _second_size(count)
        try:
            other = run(other_count)
        except Exception as error:  # the module may raise anything if it cannot compute such a batch
            return (
                f"an output for {_samples(count)} does not show the dimensions of its samples, and the module cannot "
                f"compute a batch of {other_count} to show them ({type(error).__name__}: {error}). Pass the dimensions "
                f"in CachedModule(out_dims=). {_UNTIL_THEN}"
            )
        wrong = _refutation(output, count, other, other_count, lists)
        self._misfit = False
        if wrong:
            fitting = _fitting_dims(output, count, other, other_count)
            self._refuted = (
                f"{wrong}: its samples are not in dimension 0. Pass their dimensions in CachedModule(out_dims=); "
                f"out_dims={fitting!r} fits these two batches. {_UNTIL_THEN}"
            )
        return self._refuted

    def check_again(self, output: Any, count: int, lists: str, run: Run, path: Path) -> None:
        """Raise AmbiguousBatch if a part of an output that was the same in two batches is not per sample.

        Args:
            path: the folder of the cache.
        """
        other_count = _second_size(count)
        try:
            other = run(other_count)
        except Exception:  # the module cannot compute a batch that would show it
            return
        wrong = _refutation(output, count, other, other_count, lists)
        if wrong:
            fitting = _fitting_dims(output, count, other, other_count)
            raise AmbiguousBatch(
                f"{wrong}: it is not per sample. Pass the dimensions of samples in CachedModule(out_dims=); "
                f"out_dims={fitting!r} fits these two batches. The cache {path} was filled with this part as one value "
                "per sample: use another cache id"
            )


class Repeats:
    """Compares the first two batches, if they have the same size and different samples, to decide on a second check.

    A part that is the same in both, bit for bit, may be a constant that has as many rows as the batch by accident. A
    single matrix [n, n] in both may have its samples in either dimension. A batch of another size shows which.
    """

    def __init__(self) -> None:
        self._first: tuple[set[bytes], dict[str, str]] | None = None
        self._over = False

    def show(self, output: Any, keys: Keys) -> bool:
        """Compare the output of some samples. True, once at most, if the module should run on fewer of them."""
        if self._over or len(keys) < 2:
            return False
        samples, arrays = set(keys.packed), dict(_named_arrays(output))
        if self._first is None:
            self._first = samples, _digests(arrays)
            return False
        first, before = self._first
        if not samples.isdisjoint(first):
            return False
        self._over = True
        if len(samples) != len(first):
            return False
        if len(arrays) == 1:
            return any(len(samples) in _shape(array)[1:] for array in arrays.values())
        return any(before.get(path) == digest for path, digest in _digests(arrays).items())


def _doubts(value: Any, count: int, lists: str) -> Iterator[bool | None]:
    """For each part, whether another reading fits it as well as the assumed one; None if the assumed one does not."""
    if is_array(value):
        shape = _shape(value)
        yield count in shape[1:] if shape[:1] == (count,) else None
        return
    if isinstance(value, list) and len(value) == count and lists != _STRUCTURE:
        arrays = list(arrays_in(value))
        if lists == _PER_SAMPLE:
            yield False
        elif arrays:
            yield count == 1 or any(count in _shape(array) for array in arrays)
        return
    if type(value) is tuple and len(value) == count and any(map(is_array, value)):
        yield True  # a tuple is not read as one item per sample
    for _, child in _items(value):
        yield from _doubts(child, count, lists)


def _refutations(output: Any, count: int, other: Any, other_count: int, lists: str, path: str) -> Iterator[str]:
    name = path or ROOT
    if is_array(output) != is_array(other) or type(output) is not type(other):
        yield f"{name} is a {type(output).__name__} for {count} samples and a {type(other).__name__} for {other_count}"
        return
    if is_array(output):
        first, second = _shape(output), _shape(other)
        sizes = list(zip(first, second, strict=False))
        moving = [at for at, size in enumerate(sizes) if size == (count, other_count)]
        if moving != [0] or len(first) != len(second):
            yield f"{name} has shape {first} for {_samples(count)} and {second} for {_samples(other_count)}"
        return
    children, others = _items(output), _items(other)
    per_sample = isinstance(output, list) and len(children) == count and lists == _PER_SAMPLE
    if per_sample or len(children) != len(others):
        may_be = isinstance(output, list) and lists != _STRUCTURE
        if not may_be or (len(children), len(others)) != (count, other_count):
            parts = f"{len(children)} parts for {_samples(count)} and {len(others)} for {_samples(other_count)}"
            yield f"{name} has {parts}"
        return
    for (key, child), (_, other_child) in zip(children, others, strict=True):
        yield from _refutations(child, count, other_child, other_count, lists, under(path, key))


def _items(value: Any) -> list[tuple[Any, Any]]:
    container = opened(value)
    return [] if container is None else list(container.items())


def _named_arrays(value: Any) -> Iterator[tuple[str, Any]]:
    return ((path or ROOT, leaf) for path, leaf in leaves(value) if is_array(leaf))


def _digests(arrays: dict[str, Any]) -> dict[str, str]:
    return {path: _digest(array) for path, array in arrays.items()} if len(arrays) > 1 else {}


def _digest(array: Any) -> str:
    if is_tensor(array) and not is_dense(array):
        return uuid.uuid4().hex  # such a tensor cannot be stored
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(to_numpy(array)).tobytes())


def _storage(array: Any) -> int:
    return array.untyped_storage().data_ptr() if is_tensor(array) and is_dense(array) else 0


def _shape(array: Any) -> tuple[int, ...]:
    # Nested tensors have no shape; storing them raises.
    return () if getattr(array, "is_nested", False) else tuple(array.shape)


def _samples(count: int) -> str:
    return "1 sample" if count == 1 else f"{count} samples"
