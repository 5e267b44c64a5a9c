"""Flattens a sample's value for a store, and restores it bit for bit, with its types and its order in memory.

A value is flattened into a spec, which is JSON and mostly the same for all samples, and leaves: arrays, bytes and
str. Nothing is pickled. A value that cannot be restored exactly is refused.

Mutable parts (arrays, tensors, lists, dicts, bytearrays, dataclass instances) are numbered in the order they are met.
A part that occurs twice is restored as one object. Arrays that overlap are restored as views of one buffer, so that
writing to one changes the others as before.
"""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.records.format.array_interop import is_tensor, to_numpy, to_torch
from warmstore.records.format.fields import dtype_name, numpy_dtype
from warmstore.tree.containers import opened, under
from warmstore.tree.shared_buffers import Member, share
from warmstore.tree.type_names import find_type, type_name

TreeSpec = list[Any]
"""A JSON list whose first item is the kind of node: the form in which tiers store the structure of samples."""

_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_TEXTS = {bytes: "bytes", bytearray: "bytearray", memoryview: "memoryview", str: "str"}
_FIXED = ("number", "scalar", "str", "bytes", "memoryview")
_LEAVES = ("array", "tensor", "numbers", "bytearray", *_FIXED)  # those not in _FIXED are mutable
_BYTES = ("B", "b", "c")  # formats of memoryviews
_KEYS = (str, int, bool, type(None))
_MARKED, _NOT_MARKED = np.array(True), np.array(False)  # the first leaf of a spec with marks


@dataclass(frozen=True)
class Marked:
    """A cached value with parts that were in outside memory.

    parts: these parts as restored, in the sample's own memory.
    """

    value: Any
    parts: list[Any]


def flatten(value: Any, *, copy: bool = True, outside: Sequence[Any] = ()) -> tuple[TreeSpec, list[Any]]:
    """The spec of a sample's value, and its leaves: arrays, in C order, bytes and str.

    Args:
        copy: the leaves share no memory with the value.
        outside: mutable parts of the value in outside memory, which the spec marks.

    Raises:
        UnsupportedType: a part cannot be restored exactly; the message names its path.
    """
    flat = _Flat()
    spec = _flatten(value, "", flat)
    leaves = share(flat.arrays, flat.leaves)
    if copy:
        leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    marks = sorted(flat.numbers[id(part)] for part in outside if id(part) in flat.numbers)
    return (["outside", marks, [spec]], [_MARKED, *leaves]) if marks else (spec, leaves)


def unmarked(spec: TreeSpec, leaves: list[Any]) -> tuple[TreeSpec, list[Any]]:
    """A flattened value without its marks."""
    return (spec[-1][0], leaves[1:]) if spec[0] == "outside" else (spec, leaves)


def marked_alike(like: TreeSpec, spec: TreeSpec, leaves: list[Any]) -> tuple[TreeSpec, list[Any]]:
    """A flattened value in the marked spec `like`, if the specs differ in marks only; else as it is."""
    if like[0] == "outside" and spec == like[-1][0]:
        return like, [_NOT_MARKED, *leaves]
    return spec, leaves


def unflatten(spec: TreeSpec, leaf: Callable[[], Any]) -> Any:
    """The inverse of `flatten`; a `Marked` if the spec marks parts and the first leaf is true.

    Args:
        leaf: returns the next leaf, in its own memory.
    """
    state = _Unflattener(leaf)
    if spec[0] != "outside":
        return state.join(spec)
    is_marked = leaf()
    value = state.join(spec[-1][0])
    return value if not is_marked else Marked(value, [state.parts[number] for number in spec[1]])


def leaves_of(spec: TreeSpec) -> list[TreeSpec]:
    """The nodes of a spec that stand for leaves, in their order."""
    if spec[0] in _LEAVES:
        return [spec]
    if spec[0] in ("none", "integer"):
        return []
    below = [node for child in spec[-1] for node in leaves_of(child)]
    return [spec, *below] if spec[0] == "outside" else below


def dtype_of(node: TreeSpec) -> np.dtype[Any] | None:
    """The dtype of an array leaf; None for bytes and str."""
    if node[0] == "outside":
        return _MARKED.dtype
    return numpy_dtype(node[1]) if node[0] in ("array", "tensor", "scalar", "number", "numbers") else None


def to_bytes(spec: TreeSpec, leaves: Sequence[Any]) -> bytes:
    """A flattened value as one byte string."""
    parts = [_bytes_of(leaf) for leaf in leaves]
    sizes = [list(leaf.shape) if isinstance(leaf, np.ndarray) else None for leaf in leaves]
    shapes = [len(part) if size is None else size for size, part in zip(sizes, parts, strict=True)]
    header = json.dumps([spec, shapes]).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def from_bytes(data: bytes | memoryview) -> Any:
    """The value that `to_bytes` encoded."""
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


def ordered(array: Any, node: TreeSpec) -> Any:
    """Restore the order of axes of an array leaf [..., *axes]. Leading axes stay."""
    order = node[3]
    if order is None:
        return array
    lead = array.ndim - len(order)
    return array.transpose(*range(lead), *(lead + int(at) for at in np.argsort(order)))


@dataclass
class _Flat:
    """The state of `flatten`.

    leaves: so far. numbers: of mutable parts, by id. arrays: so far. entered: ids of the parts around the current one.
    """

    leaves: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    arrays: list[Member] = field(default_factory=list)
    entered: set[int] = field(default_factory=set)


def _flatten(value: Any, path: str, flat: _Flat) -> TreeSpec:
    kind: Any = type(value)
    if kind in (str, bytes):
        if kind is str:
            _check_unicode(value, path)
        flat.leaves.append(value)
        return [_TEXTS[kind]]
    if kind in _NUMBERS and not (kind is int and not -(2**63) <= value < 2**63):
        flat.leaves.append(np.array(value, _NUMBERS[kind]))
        return ["number", _NUMBERS[kind]]
    if kind is int:
        return ["integer", str(value)]
    if value is None:
        return ["none"]
    if isinstance(value, np.generic):
        flat.leaves.append(np.array(value, _checked_dtype(np.asarray(value).dtype, path)))
        return ["scalar", dtype_name(value.dtype)]
    if kind is memoryview:
        return _flatten_view(value, path, flat)
    return _flatten_container(value, path, flat) if isinstance(value, tuple) else _flatten_mutable(value, path, flat)


def _flatten_view(value: memoryview, path: str, flat: _Flat) -> TreeSpec:
    if not value.readonly or value.format not in _BYTES or value.ndim != 1:
        raise UnsupportedType(
            f"{_at(path)} is a memoryview that is writable or not of single bytes; return bytes(value)"
        )
    node = ["memoryview", value.format]
    _append_bytes(value, node, path, flat)
    return node


def _append_bytes(value: bytearray | memoryview, node: TreeSpec, path: str, flat: _Flat) -> None:
    flat.arrays.append(Member(node, len(flat.leaves), np.asarray(value), _at(path)))
    flat.leaves.append(bytes(value))


def _flatten_mutable(value: Any, path: str, flat: _Flat) -> TreeSpec:
    at = id(value)
    if at in flat.entered:
        raise UnsupportedType(f"{_at(path)} is a part of itself")
    if at in flat.numbers:
        return ["same", flat.numbers[at], []]
    flat.numbers[at] = len(flat.numbers)
    kind = type(value)
    if kind in (np.ndarray, np.memmap):
        return _flatten_array("array", value, path, flat)
    if is_tensor(value):
        return _flatten_tensor(value, path, flat)
    if kind is bytearray:
        node = ["bytearray"]
        _append_bytes(value, node, path, flat)
        return node
    flat.entered.add(at)
    spec = _flatten_container(value, path, flat)
    flat.entered.discard(at)
    return spec


def _flatten_container(value: Any, path: str, flat: _Flat) -> TreeSpec:
    kind, container = type(value), opened(value)
    if kind is list:
        dtype = _dtype_of_list(value)
        if dtype is not None:
            flat.leaves.append(np.array(value, dtype))
            return ["numbers", dtype]
    elif kind in (dict, OrderedDict):
        for key in value:
            if type(key) not in _KEYS:
                raise UnsupportedType(f"{_at(path)} has the key {key!r:.80}; keys must be str, int, bool or None")
    elif kind is not tuple and not _is_found_again(value):
        container = None
    if container is None:
        raise UnsupportedType(
            f"{_at(path)} is a {'.'.join(type_name(kind))}; arrays, tensors, bytes, str, numbers, None, and dicts, "
            "lists, tuples, namedtuples and dataclasses of these, defined at the top of a module, can be kept. Return "
            "one of them (of an image, np.asarray(image))"
        )
    children = [_flatten(child, under(path, key), flat) for key, child in container.items()]
    if container.kind == "dict":
        return ["dict", kind is OrderedDict, container.keys, children]
    if container.kind in ("list", "tuple"):
        return [container.kind, children]
    return ["named", type_name(kind), list(container.keys), children]


def _is_found_again(value: Any) -> bool:
    """Whether a value is a plain namedtuple or dataclass whose class is found by its name."""
    is_named = bool(names_of_parts(value)) and not isinstance(value, list)
    return is_named and find_type(*type_name(type(value))) is type(value)


def names_of_parts(value: Any) -> list[str]:
    """Names of a namedtuple's or dataclass's parts; [] if it has other attributes."""
    if isinstance(value, tuple):
        return list(getattr(value, "_fields", ()))
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    names = [field.name for field in dataclasses.fields(value)]
    return names if list(vars(value)) == names else []


def _flatten_array(kind: str, array: Any, path: str, flat: _Flat) -> TreeSpec:
    array = np.asarray(array)
    dtype = _checked_dtype(array.dtype, path)
    order, leaf = None, array
    if not array.flags.c_contiguous:
        # Axes by descending stride: their order in memory. Later steps may sum in that order.
        axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        order = None if axes == list(range(array.ndim)) else axes
        leaf = array.transpose(axes)
    node = [kind, dtype_name(dtype), array.ndim, order, not array.flags.writeable]
    flat.arrays.append(Member(node, len(flat.leaves), array, _at(path)))
    flat.leaves.append(np.asarray(leaf, dtype, order="C"))
    return node


def _flatten_tensor(tensor: Any, path: str, flat: _Flat) -> TreeSpec:
    import torch

    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.requires_grad:
        raise UnsupportedType(
            f"{_at(path)} is a {type(tensor).__name__} on {tensor.device}, requires_grad={tensor.requires_grad}; plain "
            "tensors on the CPU without gradients can be kept: return tensor.detach().cpu()"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedType(f"{_at(path)} is a lazily conjugated or negated tensor; return tensor.resolve_conj()")
    if tensor.is_quantized or tensor.layout != torch.strided:
        raise UnsupportedType(f"{_at(path)} is a {tensor.layout} {tensor.dtype} tensor; only dense ones can be kept")
    return _flatten_array("tensor", to_numpy(tensor), path, flat)


def _dtype_of_list(value: list[Any]) -> str | None:
    """The dtype of a list of numbers of one type; None for other lists."""
    if not value or type(value[0]) not in (int, float, bool):
        return None
    kind = type(value[0])
    if any(type(item) is not kind for item in value):
        return None
    if kind is int and not all(-(2**63) <= item < 2**63 for item in value):
        return None
    return _NUMBERS[kind]


class _Unflattener:
    """The state of `unflatten`. parts: mutable ones, by number."""

    def __init__(self, leaf: Callable[[], Any]) -> None:
        self.parts: list[Any] = []
        self._leaf = leaf
        self._buffers: list[Any] = []

    def join(self, spec: TreeSpec) -> Any:
        kind = spec[0]
        if kind in _FIXED:
            return _finished(spec, self._leaf())
        if kind in _LEAVES:
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
            return int(rest[0])
        if kind == "same":
            return self.parts[rest[0]]
        if kind == "tuple":
            return tuple(map(self.join, rest[0]))
        if kind == "view":
            self._buffers += [self._leaf() for _ in rest[-1]]
            return self._part(_view(spec, self._buffers))
        cls = find_type(*rest[0])
        if cls is None:
            raise UnsupportedType(f"a cached value is a {'.'.join(rest[0])}, which is not found; import its module")
        if issubclass(cls, tuple):
            return cls(*map(self.join, rest[-1]))
        made = self._part(object.__new__(cls))  # its constructor does not run
        vars(made).update(zip(rest[1], map(self.join, rest[-1]), strict=True))
        return made

    def _part(self, made: Any) -> Any:
        self.parts.append(made)
        return made


def _view(node: TreeSpec, buffers: list[Any]) -> Any:
    _, kind, dtype, shape, strides, offset, frozen, buffer, _ = node
    array: Any = np.ndarray(shape, numpy_dtype(dtype), buffers[buffer], offset, strides)
    return to_torch(array) if kind == "tensor" else _frozen(array, frozen)


def _frozen(array: Any, frozen: bool) -> Any:
    if frozen:
        array.flags.writeable = False
    return array


def _finished(node: TreeSpec, leaf: Any) -> Any:
    kind = node[0]
    if kind == "array":
        return _frozen(ordered(leaf, node), node[4])
    if kind == "tensor":
        return to_torch(ordered(leaf, node))
    if kind == "number":
        return leaf.item()
    if kind == "numbers":
        return leaf.tolist()
    if kind == "scalar":
        return leaf[()]
    if kind == "bytearray":
        return bytearray(leaf)
    return memoryview(leaf).cast(node[1]) if kind == "memoryview" else leaf


def _bytes_of(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.reshape(-1).view(np.uint8).data
    return leaf.encode() if isinstance(leaf, str) else leaf


def _checked_dtype(dtype: np.dtype[Any], path: str) -> np.dtype[Any]:
    if not dtype.isnative:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype.str}; only native byte order can be kept")
    try:
        return numpy_dtype(dtype_name(dtype))
    except UnsupportedType:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype}; numbers, bools and times can be kept") from None


def _check_unicode(text: str, path: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnsupportedType(f"{_at(path)} is not valid Unicode: {error}") from None


def _at(path: str) -> str:
    return path or "the value"
