"""A sample's value as parts that a store can keep, and back: equal bit for bit, also in types and order in memory.

A value is taken apart into a structure, which is JSON and mostly the same for all samples, and leaves: arrays, bytes
and texts. Nothing is pickled. What cannot come back as it was is refused.

Mutable parts (arrays, tensors, lists, dicts, bytearrays, dataclass instances) are numbered in the order they are met.
A part that occurs twice is one part when it comes back, and arrays that overlap come back as views of one buffer, so
that writing into one changes the others as it did before.
"""

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.pipeline.sharing import Member, share
from warmstore.records.arrays import is_tensor, to_numpy, to_torch
from warmstore.records.fields import dtype_name, numpy_dtype
from warmstore.type_names import find_type, type_name

Structure = list[Any]
"""A JSON list whose first item is the kind of node."""

_NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
_TEXTS = {bytes: "bytes", bytearray: "bytearray", memoryview: "memoryview", str: "str"}
_FIXED = ("number", "scalar", "str", "bytes", "memoryview")
_LEAVES = ("array", "tensor", "numbers", "bytearray", *_FIXED)  # the others can be changed
_BYTES = ("B", "b", "c")  # formats of memoryviews
_KEYS = (str, int, bool, type(None))
_MARKED, _NOT_MARKED = np.array(True), np.array(False)  # the first leaf of a structure with marks


@dataclass(frozen=True)
class Marked:
    """A kept value of which some parts lay in memory from outside the sample.

    parts: those parts, as they came back: in memory of the sample's own.
    """

    value: Any
    parts: list[Any]


def take_apart(value: Any, *, copy: bool = True, outside: Sequence[Any] = ()) -> tuple[Structure, list[Any]]:
    """The structure of a sample's value, and its leaves: arrays, in C order, bytes and str.

    Args:
        copy: the leaves share no memory with the value.
        outside: mutable parts of the value that lie in memory from outside the sample; the structure says so.

    Raises:
        UnsupportedType: a part that would not come back as it is, by its place.
    """
    apart = _Apart()
    structure = _split(value, "", apart)
    leaves = share(apart.arrays, apart.leaves)
    if copy:
        leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    marks = sorted(apart.numbers[id(part)] for part in outside if id(part) in apart.numbers)
    return (["outside", marks, [structure]], [_MARKED, *leaves]) if marks else (structure, leaves)


def unmarked(structure: Structure, leaves: list[Any]) -> tuple[Structure, list[Any]]:
    """A value that was taken apart, without marks."""
    return (structure[-1][0], leaves[1:]) if structure[0] == "outside" else (structure, leaves)


def marked_alike(like: Structure, structure: Structure, leaves: list[Any]) -> tuple[Structure, list[Any]]:
    """A value without marks in the structure of one that has some, if it is the same but for these."""
    if like[0] == "outside" and structure == like[-1][0]:
        return like, [_NOT_MARKED, *leaves]
    return structure, leaves


def put_together(structure: Structure, leaf: Callable[[], Any]) -> Any:
    """The inverse of `take_apart`; a `Marked` where the structure marks parts, and the first leaf says that it holds.

    Args:
        leaf: gives one leaf after the other, each in memory of its own.
    """
    whole = _Whole(leaf)
    if structure[0] != "outside":
        return whole.join(structure)
    is_marked = leaf()
    value = whole.join(structure[-1][0])
    return value if not is_marked else Marked(value, [whole.parts[number] for number in structure[1]])


def leaves_of(structure: Structure) -> list[Structure]:
    """The nodes of a structure that stand for leaves, in their order."""
    return list(_leaf_nodes(structure))


def dtype_of(node: Structure) -> np.dtype[Any] | None:
    """The dtype of a leaf that is an array; None of bytes and str."""
    if node[0] == "outside":
        return _MARKED.dtype
    return numpy_dtype(node[1]) if node[0] in ("array", "tensor", "scalar", "number", "numbers") else None


def to_bytes(structure: Structure, leaves: Sequence[Any]) -> bytes:
    """A value that was taken apart, as one byte string."""
    parts = [_bytes_of(leaf) for leaf in leaves]
    sizes = [list(leaf.shape) if isinstance(leaf, np.ndarray) else None for leaf in leaves]
    shapes = [len(part) if size is None else size for size, part in zip(sizes, parts, strict=True)]
    header = json.dumps([structure, shapes]).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def from_bytes(data: bytes | memoryview) -> Any:
    """The value of `to_bytes`."""
    data = memoryview(data)
    at = 8 + int.from_bytes(data[:8], "little")
    structure, shapes = json.loads(bytes(data[8:at]))
    leaves: list[Any] = []
    for node, shape in zip(leaves_of(structure), shapes, strict=True):
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
    return put_together(structure, iter(leaves).__next__)


def ordered(array: Any, node: Structure) -> Any:
    """An array leaf [..., *axes] as its value had its axes: leading ones stay, the others go back in their order."""
    order = node[3]
    if order is None:
        return array
    lead = array.ndim - len(order)
    return array.transpose(*range(lead), *(lead + int(at) for at in np.argsort(order)))


@dataclass
class _Apart:
    """A value that is being taken apart.

    leaves: so far. numbers: of mutable parts, by id. arrays: all of them. entered: ids of the parts around the current
    one.
    """

    leaves: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    arrays: list[Member] = field(default_factory=list)
    entered: set[int] = field(default_factory=set)


def _split(value: Any, path: str, apart: _Apart) -> Structure:
    kind: Any = type(value)
    if kind in (str, bytes):
        if kind is str:
            _check_unicode(value, path)
        apart.leaves.append(value)
        return [_TEXTS[kind]]
    if kind in _NUMBERS and not (kind is int and not -(2**63) <= value < 2**63):
        apart.leaves.append(np.array(value, _NUMBERS[kind]))
        return ["number", _NUMBERS[kind]]
    if kind is int:
        return ["integer", str(value)]
    if value is None:
        return ["none"]
    if isinstance(value, np.generic):
        apart.leaves.append(np.array(value, _checked_dtype(np.asarray(value).dtype, path)))
        return ["scalar", dtype_name(value.dtype)]
    if kind is memoryview:
        return _split_view(value, path, apart)
    if isinstance(value, tuple):
        return _split_tuple(value, path, apart)
    return _split_mutable(value, path, apart)


def _split_view(value: memoryview, path: str, apart: _Apart) -> Structure:
    if not value.readonly or value.format not in _BYTES or value.ndim != 1:
        raise UnsupportedType(
            f"{_at(path)} is a memoryview that can be written or is not one of single bytes; return bytes(value)"
        )
    node = ["memoryview", value.format]
    _append_bytes(value, node, path, apart)
    return node


def _append_bytes(value: bytearray | memoryview, node: Structure, path: str, apart: _Apart) -> None:
    apart.arrays.append(Member(node, len(apart.leaves), np.asarray(value), _at(path)))
    apart.leaves.append(bytes(value))


def _split_tuple(value: tuple[Any, ...], path: str, apart: _Apart) -> Structure:
    if type(value) is tuple:
        return ["tuple", [_split(child, _under(path, at), apart) for at, child in enumerate(value)]]
    return _split_named(value, path, apart)


def _split_mutable(value: Any, path: str, apart: _Apart) -> Structure:
    at = id(value)
    if at in apart.entered:
        raise UnsupportedType(f"{_at(path)} is a part of itself")
    if at in apart.numbers:
        return ["same", apart.numbers[at], []]
    apart.numbers[at] = len(apart.numbers)
    kind = type(value)
    if kind in (np.ndarray, np.memmap):
        return _split_array("array", value, path, apart)
    if is_tensor(value):
        return _split_tensor(value, path, apart)
    if kind is bytearray:
        node = ["bytearray"]
        _append_bytes(value, node, path, apart)
        return node
    apart.entered.add(at)
    structure = _split_container(value, path, apart)
    apart.entered.discard(at)
    return structure


def _split_container(value: Any, path: str, apart: _Apart) -> Structure:
    kind = type(value)
    if kind in (dict, OrderedDict):
        for key in value:
            if type(key) not in _KEYS:
                raise UnsupportedType(f"{_at(path)} has the key {key!r:.80}; keys must be str, int, bool or None")
        children = [_split(child, _under(path, key), apart) for key, child in value.items()]
        return ["dict", kind is OrderedDict, list(value), children]
    if kind is not list:
        return _split_named(value, path, apart)
    dtype = _dtype_of_list(value)
    if dtype is not None:
        apart.leaves.append(np.array(value, dtype))
        return ["numbers", dtype]
    return ["list", [_split(child, _under(path, at), apart) for at, child in enumerate(value)]]


def _split_named(value: Any, path: str, apart: _Apart) -> Structure:
    kind = type(value)
    names = names_of_parts(value)
    if names and find_type(*type_name(kind)) is kind:
        children = [_split(getattr(value, name), _under(path, name), apart) for name in names]
        return ["named", type_name(kind), names, children]
    raise UnsupportedType(
        f"{_at(path)} is a {'.'.join(type_name(kind))}; arrays, tensors, bytes, str, numbers, None, and dicts, lists, "
        "tuples, namedtuples and dataclasses of these, defined at the top of a module, can be kept. Return one of them "
        "(of an image, np.asarray(image))"
    )


def names_of_parts(value: Any) -> list[str]:
    """Names of a namedtuple's or dataclass's parts where these are all there is to it."""
    if isinstance(value, tuple):
        return list(getattr(value, "_fields", ()))
    if not dataclasses.is_dataclass(value) or isinstance(value, type) or not hasattr(value, "__dict__"):
        return []
    names = [field.name for field in dataclasses.fields(value)]
    return names if list(vars(value)) == names else []


def _split_array(kind: str, array: Any, path: str, apart: _Apart) -> Structure:
    array = np.asarray(array)
    dtype = _checked_dtype(array.dtype, path)
    order, leaf = None, array
    if not array.flags.c_contiguous:
        # The axes from the one with the longest strides to the one with the shortest: as they lie in memory. What
        # comes after may add up in that order.
        axes = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
        order = None if axes == list(range(array.ndim)) else axes
        leaf = array.transpose(axes)
    node = [kind, dtype_name(dtype), array.ndim, order, not array.flags.writeable]
    apart.arrays.append(Member(node, len(apart.leaves), array, _at(path)))
    apart.leaves.append(np.asarray(leaf, dtype, order="C"))
    return node


def _split_tensor(tensor: Any, path: str, apart: _Apart) -> Structure:
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
    return _split_array("tensor", to_numpy(tensor), path, apart)


def _dtype_of_list(value: list[Any]) -> str | None:
    """The dtype of a list of numbers of one type, of which there may be many; None of other lists."""
    if not value or type(value[0]) not in (int, float, bool):
        return None
    kind = type(value[0])
    if any(type(one) is not kind for one in value):
        return None
    if kind is int and not all(-(2**63) <= one < 2**63 for one in value):
        return None
    return _NUMBERS[kind]


class _Whole:
    """A value that is being put together. parts: mutable ones, by number."""

    def __init__(self, leaf: Callable[[], Any]) -> None:
        self.parts: list[Any] = []
        self._leaf = leaf
        self._buffers: list[Any] = []

    def join(self, structure: Structure) -> Any:
        kind = structure[0]
        if kind in _FIXED:
            return _finished(structure, self._leaf())
        if kind in _LEAVES:
            return self._part(_finished(structure, self._leaf()))
        if kind == "dict":
            made = self._part(OrderedDict() if structure[1] else {})
            made.update(zip(structure[2], map(self.join, structure[3]), strict=True))
            return made
        if kind == "list":
            made = self._part([])
            made.extend(map(self.join, structure[1]))
            return made
        return self._join_other(structure)

    def _join_other(self, structure: Structure) -> Any:
        kind, *rest = structure
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
            return self._part(_view(structure, self._buffers))
        cls = find_type(*rest[0])
        if cls is None:
            raise UnsupportedType(f"a kept value is a {'.'.join(rest[0])}; import that module, so that it can be made")
        if issubclass(cls, tuple):
            return cls(*map(self.join, rest[-1]))
        made = self._part(object.__new__(cls))  # as it was, not as its constructor would make it
        vars(made).update(zip(rest[1], map(self.join, rest[-1]), strict=True))
        return made

    def _part(self, made: Any) -> Any:
        self.parts.append(made)
        return made


def _view(node: Structure, buffers: list[Any]) -> Any:
    _, kind, dtype, shape, strides, offset, frozen, buffer, _ = node
    array: Any = np.ndarray(shape, numpy_dtype(dtype), buffers[buffer], offset, strides)
    return to_torch(array) if kind == "tensor" else _frozen(array, frozen)


def _frozen(array: Any, frozen: bool) -> Any:
    if frozen:
        array.flags.writeable = False
    return array


def _finished(node: Structure, leaf: Any) -> Any:
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


def _leaf_nodes(structure: Structure) -> Iterator[Structure]:
    if structure[0] in _LEAVES:
        yield structure
    elif structure[0] not in ("none", "integer"):
        if structure[0] == "outside":
            yield structure
        for child in structure[-1]:
            yield from _leaf_nodes(child)


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
        raise UnsupportedType(f"{_at(path)} is no valid Unicode: {error}") from None


def _under(path: str, key: Any) -> str:
    return f"{path}/{key}" if path else str(key)


def _at(path: str) -> str:
    return path or "the value"
