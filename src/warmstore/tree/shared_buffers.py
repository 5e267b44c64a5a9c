"""Arrays of one value that overlap in memory: they are kept as one buffer and the views of it that they are.

Bounds tell most arrays apart. Those whose bounds overlap, such as the left and the right half of an image, may have no
element in common: then each is kept by itself, which needs no positions in the structure and so fits more samples.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType

_PAIRS = 16  # arrays of overlapping bounds that are compared one with another; more of them count as overlapping
_WORK: Any = 1000  # candidates that NumPy tries to find a common element
_ALIGNMENT = 16
_SPREAD = 4  # bytes of a buffer for each byte of the arrays in it, at most
_SMALL = 1 << 16  # bytes of a buffer that is never too large


@dataclass(frozen=True)
class Member:
    """Memory of a value.

    node: of the structure, to be changed. at: of its leaf. array: the memory. path: for messages.
    """

    node: list[Any]
    at: int
    array: np.ndarray[Any, Any]
    path: str

    @property
    def is_array(self) -> bool:
        """Whether it is an array or tensor, and can be a view of a buffer; else it is a bytearray or memoryview."""
        return self.node[0] in ("array", "tensor")


def share(members: Sequence[Member], leaves: list[Any]) -> list[Any]:
    """The leaves of a value, with one buffer for arrays that overlap; their nodes are changed.

    Raises:
        UnsupportedType: arrays overlap a bytearray, or a buffer would be much larger than what is seen of it.
    """
    groups = _groups(members)
    if not groups:
        return leaves
    kept: list[list[Any]] = [[leaf] for leaf in leaves]
    for number, group in enumerate(groups):
        for member, leaf in zip(group, _views(group, number), strict=True):
            kept[member.at] = leaf
    return list(itertools.chain.from_iterable(kept))


def _views(group: list[Member], number: int) -> list[list[Any]]:
    """Make the members of a group views of a buffer. The buffer is the first one's leaf; the others have none."""
    low = min(bounds(member.array)[0] for member in group) // _ALIGNMENT * _ALIGNMENT
    size = -(-(max(bounds(member.array)[1] for member in group) - low) // _ALIGNMENT) * _ALIGNMENT
    if size > _SMALL and size > _SPREAD * sum(member.array.nbytes for member in group):
        raise UnsupportedType(f"{_named(group)} overlap in memory, spread over {size:,} bytes; return copies")
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
    """Whether two elements of an array may lie in the same memory, as in a broadcast one."""
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
    if all(member.array.base is None for member in members):
        return []
    if len(members) == 1 and members[0].array.flags.c_contiguous:
        return []
    found = []
    for cluster in _clusters([member for member in members if member.array.size]):
        for group in _connected(cluster):
            arrays = [member for member in group if member.is_array]
            if len(arrays) < len(group) > 1 and any(_can_change(member) for member in group):
                raise UnsupportedType(f"{_named(group)} lie in the same memory; return copies")
            if len(arrays) > 1 or (arrays and _overlaps_itself(arrays[0].array)):
                found.append(sorted(arrays, key=lambda member: member.at))
    return sorted(found, key=lambda group: group[0].at)


def _can_change(member: Member) -> bool:
    return not member.node[4] if member.is_array else member.node[0] == "bytearray"


def _named(group: Sequence[Member]) -> str:
    return " and ".join(member.path for member in group[:3]) + (" and others" if len(group) > 3 else "")


def _clusters(members: Sequence[Member]) -> list[list[Member]]:
    """Members whose bounds overlap, directly or by way of others."""
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
    """The parts of a cluster between which no element is common."""
    if not 1 < len(cluster) <= _PAIRS:
        return [cluster]
    group = list(range(len(cluster)))
    for one, other in itertools.combinations(range(len(cluster)), 2):
        if group[one] != group[other] and _overlap(cluster[one].array, cluster[other].array):
            group = [group[one] if number == group[other] else number for number in group]
    return [
        [member for member, number in zip(cluster, group, strict=True) if number == wanted]
        for wanted in sorted(set(group))
    ]


def _overlap(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_WORK)
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
