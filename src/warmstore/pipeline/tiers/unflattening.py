"""Restores a sample's value from its spec and leaves; the inverse of `flatten`."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from warmstore.errors import UnsupportedType
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.tiers.sample_spec import (
    FIXED,
    INFERENCE,
    LEAVES,
    TreeSpec,
    dtype_of,
    in_order,
    leaves_of,
    nodes_of,
    ordered,
)
from warmstore.records.format.array_interop import to_torch
from warmstore.records.format.fields import numpy_dtype
from warmstore.tree.named_parts import blank, give_parts
from warmstore.tree.type_names import find_type


class Undecodable(UnsupportedType):
    """A kept value that this process cannot restore: a class is missing, or an encoder is, or has changed."""


@dataclass(frozen=True)
class Marked:
    """A cached value with parts that were in outside memory.

    parts: these parts as restored, in the sample's own memory.
    """

    value: Any
    parts: list[Any]


def unflatten(spec: TreeSpec, leaf: Callable[[], Any]) -> Any:
    """The inverse of `flatten`; a `Marked` if the spec marks parts and the first leaf is true.

    Args:
        leaf: returns the next leaf, in its own memory.

    Raises:
        Undecodable: this process has not the class or the encoder of a part.
    """
    state = Unflattener(leaf)
    if spec[0] != "outside":
        return state.join(spec)
    is_marked = leaf()
    value = state.join(spec[-1][0])
    return value if not is_marked else Marked(value, [state.parts[number] for number in spec[1]])


def from_bytes(data: bytes | memoryview) -> Any:
    """The value that `to_bytes` encoded.

    Raises:
        Undecodable: see `unflatten`.
    """
    data = memoryview(data)
    at = 8 + int.from_bytes(data[:8], "little")
    spec, shapes = json.loads(bytes(data[8:at]))
    leaves: list[Any] = []
    for node, shape in zip(leaves_of(spec), shapes, strict=True):
        dtype = dtype_of(node)
        if dtype is None:
            size = shape
            leaves.append(str(data[at : at + size], "utf-8") if node[0] == "str" else bytes(data[at : at + size]))
        else:
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            leaf = np.empty(shape, dtype)
            leaf.reshape(-1).view(np.uint8)[:] = np.frombuffer(data[at : at + size], np.uint8)
            leaves.append(leaf)
        at += size
    return unflatten(spec, iter(leaves).__next__)


def undecodable(spec: TreeSpec) -> str:
    """Why this process cannot restore the values of a spec that encoders made; "" if it can."""
    for node in nodes_of(spec):
        if node[0] == "encoded" and (reason := _objection(node)):
            return reason
    return ""


def _objection(node: TreeSpec) -> str:
    """Why this process cannot decode a node; "" if it can."""
    name = ".".join(node[1])
    encoder = REGISTRY.named(*node[1])
    if encoder is None:
        return f"no encoder of {name} is registered"
    try:
        return "" if encoder.digest == node[2] else f"the encoder of {name} has changed"
    except UnsupportedType as error:
        return str(error)


class Unflattener:
    """The state of `unflatten`. parts: mutable ones, by number."""

    def __init__(self, leaf: Callable[[], Any]) -> None:
        self.parts: list[Any] = []
        self._leaf = leaf
        self._buffers: list[Any] = []
        self._elements: dict[int, Any] = {}  # arrays of the objects of overlapping arrays

    def join(self, spec: TreeSpec) -> Any:
        """The value of a node."""
        kind = spec[0]
        if kind in FIXED:
            return _finished(spec, self._leaf())
        if kind in LEAVES:
            return self._part(_finished(spec, self._leaf()))
        if kind == "dict":
            made = self._part(OrderedDict() if spec[1] else {})
            made.update(zip(spec[2], map(self.join, spec[3]), strict=True))
            return made
        if kind == "list":
            made = self._part([])
            made.extend(map(self.join, spec[1]))
            return made
        return self._join_other(spec)

    def _join_other(self, spec: TreeSpec) -> Any:
        kind, *rest = spec
        if kind == "none":
            return None
        if kind == "integer":
            return int(rest[0], 0)
        if kind == "same":
            return self.parts[rest[0]]
        if kind == "tuple":
            return tuple(map(self.join, rest[0]))
        if kind == "view":
            self._buffers += [self._leaf() for _ in rest[-1]]
            return self._part(_view(spec, self._buffers))
        if kind == "objects":
            return self._join_objects(spec)
        if kind == "encoded":
            return self._decode(spec)
        cls = find_type(*rest[0])
        if cls is None:
            raise Undecodable(f"a cached value is a {'.'.join(rest[0])}, which is not found; import its module")
        if issubclass(cls, tuple):
            return tuple.__new__(cls, map(self.join, rest[-1]))
        made = self._part(blank(cls))
        give_parts(made, rest[1], map(self.join, rest[-1]))
        return made

    def _join_objects(self, spec: TreeSpec) -> Any:
        _, shape, order, place, frozen, children = spec
        if place is None:
            filled = np.empty(shape, object)
        else:
            group, slots, strides, offset = place
            if group not in self._elements:
                self._elements[group] = np.empty(slots, object)
            filled = as_strided(self._elements[group][offset:], shape, strides)
        made = self._part(in_order(filled, order))
        for at, child in zip(np.ndindex(*filled.shape), children, strict=True):
            filled[at] = self.join(child)
        return _frozen(made, frozen)

    def _decode(self, spec: TreeSpec) -> Any:
        if reason := _objection(spec):
            raise Undecodable(f"a cached value cannot be restored: {reason}")
        number = len(self.parts)
        self._part(None)  # numbered before its own parts
        parts = self.join(spec[3][0])
        encoder = REGISTRY.named(*spec[1])
        assert encoder is not None
        try:
            made = self.parts[number] = encoder.decode(parts)
        except Exception as error:  # functions of the user raise anything
            raise Undecodable(f"the encoder of {encoder.name} cannot decode what it encoded: {error!r}") from error
        return made

    def _part(self, made: Any) -> Any:
        self.parts.append(made)
        return made


def _view(node: TreeSpec, buffers: list[Any]) -> Any:
    _, kind, dtype, shape, strides, offset, frozen, buffer, _ = node
    array: Any = np.ndarray(
        shape, np.dtype(dtype) if kind == "packed" else numpy_dtype(dtype), buffers[buffer], offset, strides
    )
    return _tensor(array, frozen) if kind == "tensor" else _frozen(array, frozen)


def _tensor(array: Any, flag: Any) -> Any:
    if flag != INFERENCE:
        return to_torch(array)
    import torch

    with torch.inference_mode():
        return to_torch(array)


def _frozen(array: Any, frozen: bool) -> Any:
    if frozen:
        array.flags.writeable = False
    return array


def _finished(node: TreeSpec, leaf: Any) -> Any:
    kind = node[0]
    if kind == "array":
        return _frozen(ordered(leaf, node), node[4])
    if kind == "tensor":
        return _tensor(ordered(leaf, node), node[4])
    if kind == "packed":
        return _frozen(ordered(np.ndarray(leaf.shape[:-1], np.dtype(node[1]), leaf), node), node[4])
    if kind == "number":
        return leaf.item()
    if kind == "numbers":
        return leaf.tolist()
    if kind == "scalar":
        return leaf[()]
    if kind == "bytearray":
        return bytearray(leaf)
    if kind == "surrogates":
        return leaf.decode("utf-8", "surrogatepass")
    return memoryview(leaf).cast(node[1]) if kind == "memoryview" else leaf
