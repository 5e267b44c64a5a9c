"""A treemap: rectangles whose areas are sizes, as square as possible (Bruls, Huizing and van Wijk, 2000)."""

from collections.abc import Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle, in the units of the whole."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], whole: Box) -> list[Box]:
    """A rectangle for each size, which are above zero and fall."""
    boxes: list[Box] = []
    left, rest = whole, list(sizes)
    scale = whole.width * whole.height / sum(sizes) if sizes else 0.0
    while rest:
        side = min(left.width, left.height)
        taken = 1
        while taken < len(rest) and _worst(rest[: taken + 1], side, scale) <= _worst(rest[:taken], side, scale):
            taken += 1
        row, rest = rest[:taken], rest[taken:]
        boxes += _row(row, left, scale)
        depth = sum(row) * scale / side if side else 0.0
        if left.width >= left.height:
            left = Box(left.x + depth, left.y, max(left.width - depth, 0.0), left.height)
        else:
            left = Box(left.x, left.y + depth, left.width, max(left.height - depth, 0.0))
    return boxes


def _worst(row: Sequence[float], side: float, scale: float) -> float:
    """The largest aspect ratio in a row along a side."""
    area = sum(row) * scale
    if not area or not side:
        return float("inf")
    return max(side**2 * row[0] * scale / area**2, area**2 / (side**2 * row[-1] * scale))


def _row(row: Sequence[float], left: Box, scale: float) -> list[Box]:
    """A row along the shorter side of the space that is left."""
    side = min(left.width, left.height)
    depth = sum(row) * scale / side if side else 0.0
    boxes, at = [], 0.0
    for size in row:
        length = size * scale / depth if depth else 0.0
        if left.width >= left.height:
            boxes.append(Box(left.x, left.y + at, depth, length))
        else:
            boxes.append(Box(left.x + at, left.y, length, depth))
        at += length
    return boxes
