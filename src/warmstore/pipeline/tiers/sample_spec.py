"""The spec of a sample's value: a JSON tree whose nodes are containers and leaves.

A spec is mostly the same for all samples. A leaf is an array, bytes or str; the leaves of a value are in the order of
their nodes.
"""

from typing import Any

import numpy as np

from warmstore.records.format.fields import numpy_dtype

TreeSpec = list[Any]
"""A JSON list whose first item is the kind of node, and whose last one has the nodes below, unless it is a leaf."""

Taken = tuple[TreeSpec, list[Any]]
"""A flattened value: its spec and its leaves."""

NUMBERS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
FIXED = ("number", "scalar", "str", "surrogates", "bytes", "memoryview")
"""Leaves that are not mutable."""

LEAVES = ("array", "tensor", "packed", "numbers", "bytearray", *FIXED)
INFERENCE = "inference"
"""The flag of the node of a tensor that was made in inference mode. That of an array says whether it is read-only."""

MARKED, NOT_MARKED = np.array(True), np.array(False)
"""The first leaf of a spec with marks."""


def is_same(one: TreeSpec, other: TreeSpec) -> bool:
    """Whether two specs are the same; to `==`, the keys 1 and True are one."""
    return one == other and repr(one) == repr(other)


def unmarked(spec: TreeSpec, leaves: list[Any]) -> Taken:
    """A flattened value without its marks."""
    return (spec[-1][0], leaves[1:]) if spec[0] == "outside" else (spec, leaves)


def marked_alike(like: TreeSpec, spec: TreeSpec, leaves: list[Any]) -> Taken:
    """A flattened value in the marked spec `like`, if the specs differ in marks only; else as it is."""
    if like[0] == "outside" and is_same(spec, like[-1][0]):
        return like, [NOT_MARKED, *leaves]
    return spec, leaves


def nodes_of(spec: TreeSpec) -> list[TreeSpec]:
    """All nodes of a spec, in their order."""
    if spec[0] in LEAVES or spec[0] in ("none", "integer"):
        return [spec]
    return [spec, *(node for child in spec[-1] for node in nodes_of(child))]


def leaves_of(spec: TreeSpec) -> list[TreeSpec]:
    """The nodes of a spec that stand for leaves, in their order."""
    return [node for node in nodes_of(spec) if node[0] in LEAVES or node[0] == "outside"]


def dtype_of(node: TreeSpec) -> np.dtype[Any] | None:
    """The dtype of an array leaf; None for bytes and str."""
    if node[0] == "outside":
        return MARKED.dtype
    if node[0] == "packed":
        return np.dtype(np.uint8)  # [..., bytes of an element]
    return numpy_dtype(node[1]) if node[0] in ("array", "tensor", "scalar", "number", "numbers") else None


def ordered(array: Any, node: TreeSpec) -> Any:
    """Restore the order of axes of an array leaf [..., *axes]. Leading axes stay."""
    return in_order(array, node[3])


def in_order(array: Any, order: list[int] | None) -> Any:
    """An array [..., *axes] whose axes were sorted by `order`, with these axes in their first order."""
    if order is None:
        return array
    lead = array.ndim - len(order)
    return array.transpose(*range(lead), *(lead + int(at) for at in np.argsort(order)))
