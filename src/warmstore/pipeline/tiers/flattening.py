"""Flattens a sample's value for a store, from which `unflatten` restores it bit for bit, also its order in memory.

A value is flattened into a spec, which is JSON and mostly the same for all samples, and leaves: arrays, bytes and
str. Nothing is pickled. A value that cannot be restored exactly is refused. What an encoder encodes is restored and
compared at once.

Mutable parts (arrays, tensors, lists, dicts, bytearrays, dataclass instances, encoded objects) are numbered in the
order they are met. A part that occurs twice is restored as one object. Arrays that overlap are restored as views of one
buffer, so that writing to one changes the others as before.
"""

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.identity.object_state import slots_of
from warmstore.pipeline.encoders.encoder import Encoder
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.tiers.encoded_parts import EncodedPart, check_encoded
from warmstore.pipeline.tiers.sample_spec import INFERENCE, MARKED, NUMBERS, Taken, TreeSpec, nodes_of
from warmstore.records.format.array_interop import axis_order, is_tensor, to_numpy
from warmstore.records.format.fields import dtype_name, numpy_dtype
from warmstore.tree.containers import opened, under
from warmstore.tree.named_parts import names_of_parts
from warmstore.tree.shared_buffers import Member, share
from warmstore.tree.spec import is_unicode
from warmstore.tree.type_names import find_type, type_name

_TEXTS = {bytes: "bytes", bytearray: "bytearray", memoryview: "memoryview", str: "str"}
_PACKED = (np.str_, np.bytes_, np.void)
_BYTES = ("B", "b", "c")  # formats of memoryviews
_DECIMAL = 2000  # bits of integers that are written in decimal digits, of which Python takes 640 at least
_KEYS = (str, int, bool, type(None))
_CONTAINERS = frozenset({list, tuple, dict, OrderedDict})
_NOT_ENCODED = frozenset({np.ndarray, bytearray, memoryview, *_CONTAINERS})


def flatten(value: Any, *, copy: bool = True, outside: Sequence[Any] = ()) -> Taken:
    """The spec of a sample's value, and its leaves: arrays, in C order, bytes and str.

    Args:
        copy: the leaves share no memory with the value.
        outside: mutable parts of the value in outside memory, which the spec marks.

    Raises:
        UnsupportedType: a part cannot be restored exactly; the message names its path.
    """
    flat = _Flat()
    try:
        spec = _flatten(value, "", flat)
    except RecursionError:
        raise UnsupportedType("the value is nested too deep; return a flat one") from None
    for part in flat.encoded:
        flat.arrays += part.hidden_memory(flat.numbers, len(flat.leaves))
    leaves = share(flat.arrays, flat.leaves)
    if flat.encoded:
        check_encoded(spec, leaves, flat.encoded, flat.numbers)
    if copy:
        leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]
    marks = sorted(flat.numbers[id(part)] for part in outside if id(part) in flat.numbers)
    return (["outside", marks, [spec]], [MARKED, *leaves]) if marks else (spec, leaves)


def to_bytes(spec: TreeSpec, leaves: Sequence[Any]) -> bytes:
    """A flattened value as one byte string."""
    parts = [_bytes_of(leaf) for leaf in leaves]
    sizes = [list(leaf.shape) if isinstance(leaf, np.ndarray) else None for leaf in leaves]
    shapes = [len(part) if size is None else size for size, part in zip(sizes, parts, strict=True)]
    header = json.dumps([spec, shapes]).encode()
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


@dataclass
class _Flat:
    """The state of `flatten`.

    leaves: so far. numbers: of mutable parts, by id. arrays: so far. entered: ids of the parts around the current one.
    encoded: so far.
    """

    leaves: list[Any] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)
    arrays: list[Member] = field(default_factory=list)
    entered: set[int] = field(default_factory=set)
    encoded: list[EncodedPart] = field(default_factory=list)


def _flatten(value: Any, path: str, flat: _Flat) -> TreeSpec:
    kind: Any = type(value)
    if kind in (str, bytes):
        if kind is str and not is_unicode(value):
            flat.leaves.append(value.encode("utf-8", "surrogatepass"))
            return ["surrogates"]
        flat.leaves.append(value)
        return [_TEXTS[kind]]
    if kind in NUMBERS and not (kind is int and not -(2**63) <= value < 2**63):
        flat.leaves.append(np.array(value, NUMBERS[kind]))
        return ["number", NUMBERS[kind]]
    if kind is int:
        return ["integer", str(value) if value.bit_length() <= _DECIMAL else hex(value)]
    if value is None:
        return ["none"]
    if isinstance(value, np.generic) and kind is value.dtype.type and not isinstance(value, np.character):
        flat.leaves.append(np.array(value, _checked_dtype(np.asarray(value).dtype, path)))
        return ["scalar", dtype_name(value.dtype)]
    if kind is memoryview:
        return _flatten_view(value, path, flat)
    encoder = None if kind in _NOT_ENCODED else REGISTRY.of(kind)
    if encoder is not None:
        return _flatten_mutable(value, path, flat, encoder)
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


def _flatten_mutable(value: Any, path: str, flat: _Flat, encoder: Encoder | None = None) -> TreeSpec:
    at = id(value)
    if at in flat.entered:
        raise UnsupportedType(f"{_at(path)} is a part of itself")
    if at in flat.numbers:
        return ["same", flat.numbers[at], []]
    flat.numbers[at] = len(flat.numbers)
    kind = type(value)
    is_array = kind is np.ndarray
    if is_array and not value.dtype.hasobject:
        return _flatten_array("array", value, path, flat)
    if encoder is None and is_tensor(value):
        return _flatten_tensor(value, path, flat)
    if kind is bytearray:
        node = ["bytearray"]
        _append_bytes(value, node, path, flat)
        return node
    flat.entered.add(at)
    if encoder is not None:
        spec = _encode(value, path, flat, encoder)
    else:
        spec = _flatten_objects(value, path, flat) if is_array else _flatten_container(value, path, flat)
    flat.entered.discard(at)
    return spec


def _flatten_objects(array: Any, path: str, flat: _Flat) -> TreeSpec:
    """The node of an array of objects: its elements are the nodes below, in their order in memory."""
    if array.dtype != object:
        raise UnsupportedType(
            f"{_at(path)} is an array of {array.dtype}; of arrays with objects, only plain ones are kept"
        )
    order, filled = _order(array)
    node: TreeSpec = ["objects", list(filled.shape), order, None, not array.flags.writeable, []]
    flat.arrays.append(Member(node, len(flat.leaves), array, _at(path)))
    node[-1] = [_flatten(child, under(path, at), flat) for at, child in enumerate(filled.flat)]
    return node


def _encode(value: Any, path: str, flat: _Flat, encoder: Encoder) -> TreeSpec:
    """The node of an object that an encoder encodes: the node below is that of the parts."""
    number, arrays = len(flat.numbers) - 1, len(flat.arrays)
    digest = encoder.digest
    try:
        parts = encoder.encode(value)
    except UnsupportedType as error:
        raise UnsupportedType(f"{_at(path)}: {error}") from None
    except Exception as error:  # functions of the user raise anything
        raise UnsupportedType(f"{_at(path)}: the encoder of {encoder.name} fails: {error!r}") from error
    node: TreeSpec = ["encoded", type_name(encoder.cls), digest, [_flatten(parts, path, flat)]]
    own = {*range(number, len(flat.numbers)), *(each[1] for each in nodes_of(node[3][0]) if each[0] == "same")}
    below = [member.array for member in flat.arrays[arrays:]]
    around = frozenset(flat.numbers[key] for key in flat.entered)
    flat.encoded.append(EncodedPart(value, number, _at(path), encoder, parts, around, frozenset(own), below))
    return node


def _flatten_container(value: Any, path: str, flat: _Flat) -> TreeSpec:
    kind = type(value)
    if kind not in _CONTAINERS and not _is_found_again(value):
        raise UnsupportedType(
            f"{_at(path)} is a {'.'.join(type_name(kind))}; arrays, tensors, bytes, str, numbers, None, PIL images, "
            "Arrow data, and dicts, lists, tuples, namedtuples and dataclasses of these, defined at the top of a "
            f"module, can be kept. Return one of them, or register an encoder: {_remedy(kind)}"
        )
    if kind is list:
        dtype = _dtype_of_list(value)
        if dtype is not None:
            flat.leaves.append(np.array(value, dtype))
            return ["numbers", dtype]
    elif kind in (dict, OrderedDict):
        for key in value:
            if type(key) not in _KEYS or (type(key) is str and not is_unicode(key)):
                raise UnsupportedType(
                    f"{_at(path)} has the key {key!r:.80}; keys must be Unicode text, int, bool or None"
                )
        if kind is OrderedDict and vars(value):
            raise UnsupportedType(
                f"{_at(path)} is an OrderedDict with the attributes {sorted(vars(value))}, which are not kept"
            )
    container = opened(value)
    assert container is not None
    children = [_flatten(child, under(path, key), flat) for key, child in container.items()]
    if container.kind == "dict":
        return ["dict", kind is OrderedDict, container.keys, children]
    if container.kind in ("list", "tuple"):
        return [container.kind, children]
    return ["named", type_name(kind), list(container.keys), children]


def _is_found_again(value: Any) -> bool:
    """Whether a value is a plain namedtuple or dataclass whose class is found by its name."""
    return has_plain_parts(value) and find_type(*type_name(type(value))) is type(value)


def has_plain_parts(value: Any) -> bool:
    """Whether a value is a namedtuple, or a dataclass whose fields are its attributes, in order, and all of its
    state."""
    names = names_of_parts(value)
    if not names or isinstance(value, dict) or slots_of(type(value)):
        return False
    return isinstance(value, tuple) or list(getattr(value, "__dict__", ())) == names


def _flatten_array(kind: str, array: Any, path: str, flat: _Flat) -> TreeSpec:
    array = np.asarray(array)
    if array.dtype.type in _PACKED or not array.dtype.isnative:
        return _flatten_packed(array, path, flat)
    dtype = _checked_dtype(array.dtype, path)
    order, leaf = _order(array)
    node = [kind, dtype_name(dtype), array.ndim, order, not array.flags.writeable]
    flat.arrays.append(Member(node, len(flat.leaves), array, _at(path)))
    flat.leaves.append(np.asarray(leaf, dtype, order="C"))
    return node


def _flatten_packed(array: Any, path: str, flat: _Flat) -> TreeSpec:
    """The node of an array of a dtype that stores do not have: the leaf has the bytes of each element."""
    dtype = array.dtype
    if np.dtype(dtype.str) != dtype or dtype.metadata is not None or not dtype.itemsize:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype}; numbers, bools, times, text and bytes can be kept")
    order, leaf = _order(array)
    leaf = np.asarray(leaf, order="C")
    node = ["packed", dtype.str, array.ndim, order, not array.flags.writeable]
    flat.arrays.append(Member(node, len(flat.leaves), array, _at(path)))
    flat.leaves.append(np.ndarray((*leaf.shape, dtype.itemsize), np.uint8, leaf))
    return node


def _order(array: Any) -> tuple[list[int] | None, Any]:
    """The axes of an array in their order in memory, None for C order; and the array with its axes in that order."""
    axes = axis_order(array)
    return axes, array if axes is None else array.transpose(axes)


def _flatten_tensor(tensor: Any, path: str, flat: _Flat) -> TreeSpec:
    import torch

    if type(tensor) is not torch.Tensor or tensor.device.type != "cpu" or tensor.requires_grad:
        raise UnsupportedType(
            f"{_at(path)} is a {type(tensor).__name__} on {tensor.device}, requires_grad={tensor.requires_grad}; plain "
            "tensors on the CPU without gradients can be kept: return tensor.detach().cpu()"
        )
    if vars(tensor):
        raise UnsupportedType(f"{_at(path)} is a tensor with the attributes {sorted(vars(tensor))}, which are not kept")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedType(f"{_at(path)} is a lazily conjugated or negated tensor; return tensor.resolve_conj()")
    if tensor.is_quantized or tensor.is_nested or tensor.layout != torch.strided:
        form = "nested" if tensor.is_nested else tensor.layout
        raise UnsupportedType(f"{_at(path)} is a {form} {tensor.dtype} tensor; only dense ones can be kept")
    node = _flatten_array("tensor", to_numpy(tensor), path, flat)
    node[4] = INFERENCE if tensor.is_inference() else node[4]
    return node


def _dtype_of_list(value: list[Any]) -> str | None:
    """The dtype of a list of numbers of one type; None for other lists."""
    if not value or type(value[0]) not in (int, float, bool):
        return None
    kind = type(value[0])
    if any(type(item) is not kind for item in value):
        return None
    if kind is int and not all(-(2**63) <= item < 2**63 for item in value):
        return None
    return NUMBERS[kind]


def _bytes_of(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        return leaf.reshape(-1).view(np.uint8).data
    return leaf.encode() if isinstance(leaf, str) else leaf


def _checked_dtype(dtype: np.dtype[Any], path: str) -> np.dtype[Any]:
    if not dtype.isnative:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype.str}; only native byte order can be kept")
    if dtype.metadata is not None:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype} with metadata, which are not kept")
    try:
        return numpy_dtype(dtype_name(dtype))
    except UnsupportedType:
        raise UnsupportedType(f"{_at(path)} is an array of {dtype}; numbers, bools and times can be kept") from None


def _remedy(kind: type) -> str:
    """How to register an encoder of a type, or what to return in its place."""
    bases = {".".join(type_name(base)) for base in kind.__mro__}
    if "PIL.Image.Image" in bases:
        return "of an image that is tied to its file, return image.copy() or image.convert(...)"
    if kind is np.memmap:
        return "of an array that is tied to its file, return np.array(value), or np.asarray(value) for a view"
    return f"ws.register_encoder({kind.__name__}, encode, decode)"


def _at(path: str) -> str:
    return path or "the value"
