"""A function's result as bytes, and back: nested values as pipelines keep them, or pickles where the user allows them.

The bytes are a header, which has the structure and the shapes as JSON, and the leaves. Each starts at a multiple of 64
bytes, so that arrays can be used where they lie.
"""

import functools
import json
import math
import pickle
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.pipeline.tiers.flattening import flatten
from warmstore.pipeline.tiers.sample_spec import TreeSpec, dtype_of, leaves_of, ordered
from warmstore.pipeline.tiers.unflattening import Undecodable, unflatten

_PICKLED = b"\xff" * 8
"""In place of the length of the header that other results start with."""

_ALIGNMENT = 64
_SHORT = 1 << 10  # bytes of headers that are remembered


def encoded(value: Any, *, allow_pickle: bool) -> bytes:
    """The bytes of a result.

    Raises:
        UnsupportedType: a part cannot be restored exactly, and pickles are not allowed.
    """
    try:
        spec, leaves = flatten(value, copy=False)
    except UnsupportedType as error:
        if not allow_pickle:
            raise UnsupportedType(f"{error}; or pass allow_pickle=True to ws.cached") from None
        return _pickled(value)
    parts: list[Any] = []
    shapes: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, np.ndarray):
            part: Any = leaf.reshape(-1).view(np.uint8).data
            shapes.append(list(leaf.shape))
        else:
            part = leaf.encode() if isinstance(leaf, str) else leaf
            shapes.append(len(part))
        parts += [part, bytes(-len(part) % _ALIGNMENT)]
    header = json.dumps([spec, shapes]).encode()
    header += b" " * (-(8 + len(header)) % _ALIGNMENT)
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def _pickled(value: Any) -> bytes:
    try:
        data = pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # objects raise anything
        raise UnsupportedType(f"it cannot be pickled: {error!r}") from error
    return b"".join([_PICKLED, data, bytes(-(8 + len(data)) % _ALIGNMENT)])


def decoded(data: Any, *, allow_pickle: bool) -> Any:
    """The result, in memory of its own.

    Args:
        data: bytes, which are copied; or an array, uint8, which becomes the memory of the result.

    Raises:
        Undecodable: a class is missing, or the result is a pickle and pickles are not allowed.
    """
    memory = data if isinstance(data, np.ndarray) else bytearray(data)
    start = memory[:8]
    if bytes(start) == _PICKLED:
        return _unpickled(memory, allow_pickle)
    at = 8 + int.from_bytes(start, "little")
    header = bytes(memory[8:at])
    spec, parts = _layout(header) if at <= _SHORT else _read_layout(header)
    leaves: list[Any] = []
    for dtype, shape, count, size, is_text in parts:
        if dtype is None:
            part = bytes(memory[at : at + size])
            leaves.append(str(part, "utf-8") if is_text else part)
        else:
            leaf = np.ndarray(shape, dtype, memory, at) if count else np.empty(shape, dtype)
            leaves.append(leaf if leaf.flags.aligned else leaf.copy())
        at += size + -size % _ALIGNMENT
    if spec[0] == "array" and not spec[4]:
        return ordered(leaves[0], spec)
    return unflatten(spec, iter(leaves).__next__)


def _unpickled(data: Any, allow_pickle: bool) -> Any:
    if not allow_pickle:
        raise Undecodable("a kept result is a pickle, and allow_pickle is not set")
    try:
        return pickle.loads(data[8:])
    except Exception as error:
        raise Undecodable(f"a kept result cannot be unpickled: {error!r}") from error


def _read_layout(header: bytes) -> tuple[TreeSpec, list[tuple[Any, Any, int, int, bool]]]:
    """The spec in a header, and for each leaf its dtype, shape, elements, bytes, and whether it is text. The dtype of
    bytes and text is None."""
    spec, shapes = json.loads(header)
    parts: list[tuple[Any, Any, int, int, bool]] = []
    for node, shape in zip(leaves_of(spec), shapes, strict=True):
        dtype = dtype_of(node)
        if dtype is None:
            parts.append((None, None, 0, shape, node[0] == "str"))
        else:
            count = math.prod(shape)
            parts.append((dtype, tuple(shape), count, count * dtype.itemsize, False))
    return spec, parts


_layout = functools.lru_cache(256)(_read_layout)
