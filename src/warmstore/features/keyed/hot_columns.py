"""Columns of the hot tier: the rows of one leaf, in RAM, on a device, or as objects if lengths vary. Reads copy."""

from typing import Any

import numpy as np
import torch

from warmstore.features.keyed.row_values import Values, Varying
from warmstore.features.outputs.output_schema import OutputSchema
from warmstore.records.format.array_interop import on_device
from warmstore.records.format.fields import Array, Ragged
from warmstore.storage.array_types import Int64
from warmstore.storage.memory.buffer_pool import LARGE, take

_WORDS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.int8}
_OBJECT = 64  # bytes of a `bytes` object and its allocation, without its content


class InMemory:
    """A leaf of one shape, in RAM."""

    held = 0

    def __init__(self, width: int) -> None:
        self._width = width
        self._unit = next(unit for unit in (8, 4, 2, 1) if width % unit == 0)

    def expected(self, sample: Values) -> int:
        """Bytes of one slot, estimated from a sample of rows if the sizes of rows vary."""
        return self._width

    def make(self, places: int) -> None:
        """Allocate the slots."""
        # NumPy requests huge pages, in which random access is faster than in the pages of a file.
        self._array = np.empty((places, self._width // self._unit), f"i{self._unit}")
        self._tensor = torch.from_numpy(self._array)
        self.nbytes = self._array.nbytes

    def sizes(self, values: Values) -> Int64:
        """Bytes of each row outside its slot, int64 [n]."""
        return np.zeros(len(values), np.int64)

    def gather(self, at: Int64) -> Values:
        """A copy of the rows in some slots."""
        size, out = len(at) * self._width, None
        if size >= LARGE:
            out = torch.from_numpy(take(size).view(self._array.dtype).reshape(len(at), -1))
        rows = torch.index_select(self._tensor, 0, torch.from_numpy(at), out=out)
        return rows.numpy().view(np.uint8).reshape(len(at), self._width)

    def put(self, at: Int64, values: Values) -> None:
        """Store rows in some slots."""
        self._array[at] = np.ascontiguousarray(values).view(self._array.dtype)

    def overlaid(self, out: Values, at: Int64, values: Values) -> Values:
        """Rows that `gather` returned, with other values at some positions."""
        out[at] = values
        return out

    def forget(self, at: Int64) -> None:
        """Free the bytes outside some slots."""


class OnDevice(InMemory):
    """A leaf of one shape, on a device. Its values are tensors of integers: the words of each row."""

    def __init__(self, width: int, device: torch.device) -> None:
        super().__init__(width)
        self._device = device
        self._stream: Any = None

    def make(self, places: int) -> None:
        self._tensor = torch.empty((places, self._width // self._unit), dtype=_WORDS[self._unit], device=self._device)
        self.nbytes = self._tensor.nbytes

    def gather(self, at: Int64) -> Values:
        self._in_order()
        return torch.index_select(self._tensor, 0, on_device(torch.from_numpy(at), self._device))

    def put(self, at: Int64, values: Values) -> None:
        self._in_order()
        self._tensor.index_copy_(0, on_device(torch.from_numpy(at), self._device), self._words(values))

    def overlaid(self, out: Values, at: Int64, values: Values) -> Values:
        return out.index_copy_(0, on_device(torch.from_numpy(at), self._device), self._words(values))

    def _words(self, values: Values) -> torch.Tensor:
        words: torch.Tensor = on_device(
            torch.from_numpy(np.ascontiguousarray(values).view(f"i{self._unit}")), self._device
        )
        return words

    def _in_order(self) -> None:
        # The work of one stream runs in order; another thread may use another stream.
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device)
            if self._stream not in (None, stream):
                torch.cuda.synchronize(self._device)
            self._stream = stream


class ObjectColumn(InMemory):
    """A leaf whose rows vary in length, in RAM, as one object per row."""

    def __init__(self, ndim: int) -> None:
        self._ndim = ndim

    def expected(self, sample: Values) -> int:
        return 8 + 8 * self._ndim + int(np.ceil(self.sizes(sample).mean()))

    def make(self, places: int) -> None:
        self._rows: list[bytes | None] = [None] * places
        self._shapes = np.zeros((places, self._ndim), np.int64)
        self.nbytes = 8 * places + self._shapes.nbytes
        self.held = 0

    def sizes(self, values: Values) -> Int64:
        return np.array([len(view) + _OBJECT for view in values.views], np.int64)

    def gather(self, at: Int64) -> Values:
        rows = self._rows
        return Varying([rows[place] for place in at.tolist()], self._shapes[at] if self._ndim else None)

    def put(self, at: Int64, values: Values) -> None:
        self.forget(at)
        if self._ndim:
            self._shapes[at] = values.shapes
        for place, view in zip(at.tolist(), values.views, strict=True):
            row = bytes(view)
            self.held += len(row) + _OBJECT  # before the row is kept: an interrupt leaves none that is not counted
            self._rows[place] = row

    def overlaid(self, out: Values, at: Int64, values: Values) -> Values:
        for place, view in zip(at.tolist(), values.views, strict=True):
            out.views[place] = view
        if self._ndim:
            out.shapes[at] = values.shapes
        return out

    def forget(self, at: Int64) -> None:
        for place in at.tolist():
            row = self._rows[place]
            if row is not None:
                self._rows[place] = None
                self.held -= len(row) + _OBJECT


def columns_of(schema: OutputSchema, device: torch.device) -> list[InMemory]:
    """A column for each leaf. Tensors of one shape are on the device; all other leaves are in RAM."""
    columns: list[InMemory] = []
    for path, field in schema.fields.items():
        node, per_sample = schema.nodes[path]
        if not isinstance(field, Array):
            columns.append(ObjectColumn(field.ndim if isinstance(field, Ragged) else 0))
        elif device.type == "cpu" or node != "tensor" or per_sample or not field.width:
            columns.append(InMemory(field.width))
        else:
            columns.append(OnDevice(field.width, device))
    return columns
