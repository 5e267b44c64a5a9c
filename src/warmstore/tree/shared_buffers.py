"""Arrays of one value that overlap in memory: they are stored as one buffer and views of it.

Arrays whose bounds do not overlap are separate. Arrays whose bounds overlap, such as the left and the right half of an
image, may have no common element. Then each is stored alone: the structure has no positions, and fits more samples.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType

_PAIRS = 16  # the most arrays with overlapping bounds that are compared in pairs; more of them count as overlapping
_WORK: Any = 1000  # candidates that NumPy tries to find a common element
_ALIGNMENT = 16
_SLOT = np.dtype(object).itemsize
_SPREAD = 4  # the most bytes of a buffer for each byte of the arrays in it
_SMALL = 1 << 16  # bytes of a buffer that may have any spread


@dataclass(frozen=True)
class Member:
    """An array, tensor, bytearray or memoryview in a value, or memory of another object in it.

    node: its node in the structure, which `share` changes. at: the index of its leaf, or of the next one if it has
    none. array: its memory. path: its path in the value, for messages.
    """

    node: list[Any]
    at: int
    array: np.ndarray[Any, Any]
    path: str

    @property
    def is_array(self) -> bool:
        """Whether it is an array or tensor, which can be a view of a buffer."""
        return self.node[0] in ("array", "tensor", "packed", "objects")

    @property
    def has_objects(self) -> bool:
        """Whether it is an array of Python objects, whose elements are nodes of their own."""
        return bool(self.node[0] == "objects")


def share(members: Sequence[Member], leaves: list[Any]) -> list[Any]:
    """The leaves of a value, with one buffer for each group of arrays that overlap. Changes the nodes of these arrays.

    Raises:
        UnsupportedType: arrays overlap a bytearray, or a buffer would be much larger than the arrays in it.
    """
    groups = _groups(members)
    if not groups:
        return leaves
    shared: list[list[Any]] = [[leaf] for leaf in leaves]
    for number, group in enumerate(group for group in groups if group[0].has_objects):
        _place_objects(group, number)
    for number, group in enumerate(group for group in groups if not group[0].has_objects):
        for member, leaf in zip(group, _views(group, number), strict=True):
            shared[member.at] = leaf
    return list(itertools.chain.from_iterable(shared))


def _place_objects(group: list[Member], number: int) -> None:
    """Make the arrays of a group views of one array of objects, which has no leaf."""
    low, slots = _extent(group)
    if low % _SLOT or any(stride % _SLOT for member in group for stride in member.array.strides):
        raise UnsupportedType(f"{_named(group)} are fields of an array of structures; return copies")
    for member in group:
        array, order = member.array, member.node[2]
        strides = array.strides if order is None else array.transpose(order).strides
        member.node[3] = [number, slots // _SLOT, list(strides), (_address(array) - low) // _SLOT]


def _extent(group: list[Member]) -> tuple[int, int]:
    """The address of the memory that the arrays of a group span, and its bytes; both aligned.

    Raises:
        UnsupportedType: it is much larger than the arrays.
    """
    low = min(bounds(member.array)[0] for member in group) // _ALIGNMENT * _ALIGNMENT
    size = -(-(max(bounds(member.array)[1] for member in group) - low) // _ALIGNMENT) * _ALIGNMENT
    if size > _SMALL and size > _SPREAD * sum(member.array.nbytes for member in group):
        raise UnsupportedType(f"{_named(group)} overlap in memory, spread over {size:,} bytes; return copies")
    return low, size


def _views(group: list[Member], number: int) -> list[list[Any]]:
    """Make the members of a group views of a buffer. The buffer is the leaf of the first member; others have none."""
    low, size = _extent(group)
    buffer = np.zeros(size, np.uint8)
    for member in group:
        array, (kind, dtype, _, _, frozen) = member.array, member.node
        offset = _address(array) - low
        np.ndarray(array.shape, array.dtype, buffer, offset, array.strides)[...] = array
        place = [list(array.shape), list(array.strides), offset]
        inner = [["array", "uint8", 1, None, False]] if member is group[0] else []
        member.node[:] = ["view", kind, dtype, *place, frozen, number, inner]
    return [[buffer], *([] for _ in group[1:])]


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Whether two elements of an array may share memory, as in a broadcast array."""
    extent = array.itemsize
    for stride, count in sorted((abs(stride), count) for stride, count in zip(array.strides, array.shape, strict=True)):
        if count > 1:
            if stride < extent:
                return array.size > 0
            extent += stride * (count - 1)
    return False


def _groups(members: Sequence[Member]) -> list[list[Member]]:
    """Arrays that overlap with others or with themselves, in the order of the value."""
    # Arrays that own their memory do not overlap.
    is_contiguous = len(members) == 1 and members[0].array.flags.c_contiguous
    if is_contiguous or all(member.array.base is None for member in members):
        return []
    found = []
    for cluster in _clusters([member for member in members if member.array.size]):
        for group in _connected(cluster):
            arrays = [member for member in group if member.is_array]
            if len(arrays) < len(group) > 1 and any(map(_is_writable, group)):
                raise UnsupportedType(f"{_named(group)} share memory; return copies")
            if len(arrays) > 1 or (arrays and _overlaps_itself(arrays[0].array)):
                found.append(sorted(arrays, key=lambda member: member.at))
    return sorted(found, key=lambda group: group[0].at)


def _is_writable(member: Member) -> bool:
    if member.node[0] == "memory":
        return bool(member.node[1] and member.array.flags.writeable)
    return not member.node[4] if member.is_array else member.node[0] == "bytearray"


def _named(group: Sequence[Member]) -> str:
    return " and ".join(member.path for member in group[:3]) + (" and others" if len(group) > 3 else "")


def _clusters(members: Sequence[Member]) -> list[list[Member]]:
    """Members whose bounds overlap, directly or through other members."""
    found = [(bounds(member.array), number) for number, member in enumerate(members)]
    clusters: list[list[Member]] = []
    end = -1
    for (low, high), number in sorted(found):
        if low >= end:
            clusters.append([])
        clusters[-1].append(members[number])
        end = max(end, high)
    return clusters


def _connected(cluster: list[Member]) -> list[list[Member]]:
    """The parts of a cluster that have no common elements."""
    if not 1 < len(cluster) <= _PAIRS:
        return [cluster]
    groups = list(range(len(cluster)))  # the group of each member
    for first, second in itertools.combinations(range(len(cluster)), 2):
        if groups[first] != groups[second] and _overlap(cluster[first].array, cluster[second].array):
            groups = [groups[first] if group == groups[second] else group for group in groups]
    return [
        [member for member, group in zip(cluster, groups, strict=True) if group == wanted]
        for wanted in sorted(set(groups))
    ]


def _overlap(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(first, second, max_work=_WORK)
    except np.exceptions.TooHardError:
        return True


def bounds(array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """The addresses of an array's first byte, and of the one after its last."""
    low = _address(array)
    high = low + array.itemsize
    for count, stride in zip(array.shape, array.strides, strict=True):
        if stride < 0:
            low += stride * (count - 1)
        else:
            high += stride * (count - 1)
    return low, high


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])
