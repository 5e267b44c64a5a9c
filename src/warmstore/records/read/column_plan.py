"""ColumnPlan: the buffers of a batch that hold a field, the width of its rows, and which rows were checked."""

from dataclasses import dataclass

from warmstore.records.format.fields import CHECKSUM, SHAPE, Array, Field, Ragged, field_has_bytes
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.read.verified_bitmap import VerifiedBitmap


@dataclass(frozen=True)
class ColumnPlan:
    """How one field is read.

    width: bytes per row, None where rows vary in length, as compressed ones do. ndim: of a ragged field, else 0.
    has_bytes: whether the field has a data column; rows of zero bytes have none.
    data, shapes, checksums: the numbers of the field's buffers, -1 without one. checked: the rows that were checked.
    """

    width: int | None
    ndim: int
    has_bytes: bool
    data: int
    shapes: int
    checksums: int
    checked: VerifiedBitmap

    def is_steady(self, snapshot: Snapshot) -> bool:
        """Whether every row of the snapshot was checked and has its value."""
        return self.checked.covers(snapshot) and not snapshot.unreadable and self.data not in snapshot.absent


def plan_of(name: str, field: Field, slots: dict[str, int]) -> ColumnPlan:
    """The plan of a field; `slots` numbers the buffers of a batch by column."""
    has_bytes = field_has_bytes(field)
    width = field.width if isinstance(field, Array) and (field.codec == "raw" or not has_bytes) else None
    ndim = field.ndim if isinstance(field, Ragged) else 0
    return ColumnPlan(
        width,
        ndim,
        has_bytes,
        slots.get(name, -1),
        slots.get(name + SHAPE, -1),
        slots[name + CHECKSUM],
        VerifiedBitmap(),
    )
