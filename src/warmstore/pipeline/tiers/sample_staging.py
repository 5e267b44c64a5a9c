"""A buffer for samples to be written. Arrays of fixed shape are copied once, into the columns that are written."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64, UInt64
from warmstore.pipeline.tiers.flattening import to_bytes
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SAMPLE_FIELD, SampleSchema
from warmstore.pipeline.tiers.sample_spec import TreeSpec
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Array
from warmstore.records.format.value_encoding import encode
from warmstore.storage.array_types import Bools
from warmstore.storage.memory.buffer_pool import take


class Staging:
    """Up to `most` samples of one schema. nbytes: of the samples in the buffer."""

    def __init__(self, schema: SampleSchema, most: int) -> None:
        self._schema = schema
        self._most = most
        self._indices = np.empty(most, np.int64)
        self._keys = np.empty((most, 2), np.uint64)
        self.clear()

    def __len__(self) -> int:
        return self._count

    @property
    def is_full(self) -> bool:
        """Whether the buffer must be emptied before the next sample."""
        return len(self) == self._most

    @property
    def indices(self) -> Int64:
        """Indices of the samples, int64 [n]."""
        return self._indices[: self._count].copy()

    @property
    def keys(self) -> UInt64:
        """Keys of the samples, uint64 [n, 2]."""
        return self._keys[: self._count].copy()

    def clear(self) -> None:
        """Remove all samples."""
        self.nbytes = 0
        self._count = 0
        self._last = 0  # bytes of the sample that was added last
        self._columns: list[Any] = []

    def add(self, index: int, key: tuple[int, int], structure: TreeSpec, leaves: Sequence[Any]) -> None:
        """Copy a sample that fits the schema.

        Args:
            key: the two halves of its key.
            structure, leaves: its value, flattened.
        """
        at = len(self)
        self._columns = columns = self._columns or self._new_columns()
        if self._schema.structure is None:
            leaves = [to_bytes(structure, leaves)]
        for column, leaf in zip(columns, leaves, strict=True):
            if isinstance(column, np.ndarray):
                column[at] = leaf
            else:  # overwrites leftovers of an interrupted call
                column[at:] = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf]
        self._last = 64 + sum(leaf.nbytes if isinstance(leaf, np.ndarray) else len(leaf) for leaf in leaves)
        self.nbytes += self._last
        self._indices[at], self._keys[at] = index, key
        self._count = at + 1

    def drop(self, index: int) -> None:
        """Remove the sample that was added last, if it is this one."""
        if self._count and self._indices[self._count - 1] == index:
            self._count -= 1
            self.nbytes -= self._last

    def take(self, wanted: Bools | None = None) -> dict[str, EncodedRows]:
        """Empty the buffer; return its samples as uncompressed rows of every field.

        Args:
            wanted: bool [n], which samples to return, at least one; None: all.
        """
        at = np.arange(len(self)) if wanted is None else np.flatnonzero(wanted)
        block = {SAMPLE: encode(SAMPLE, SAMPLE_FIELD, self.keys[at])}
        for name, field, column in zip(self._schema.names, self._schema.fields, self._columns, strict=True):
            if isinstance(field, Array):
                data = column[: len(self)] if len(at) == len(self) else column[at]
                block[name] = EncodedRows(len(at), data.reshape(len(at), math.prod(field.shape)).view(np.uint8))
            else:
                block[name] = encode(name, field, [column[row] for row in at.tolist()])
        self.clear()
        return block

    def _new_columns(self) -> list[Any]:
        columns: list[Any] = []
        for field in self._schema.fields:
            if isinstance(field, Array):
                # Reused memory: page faults in new memory cost more than the copy.
                data = take(self._most * field.width)
                columns.append(data.view(field.numpy).reshape(self._most, *field.shape))
            else:
                columns.append([])
        return columns


def block_of(schema: SampleSchema, values: Sequence[tuple[TreeSpec, Sequence[Any]]]) -> dict[str, EncodedRows]:
    """Uncompressed rows of every field, from at least one flattened value that fits."""
    staging = Staging(schema, len(values))
    for index, (structure, leaves) in enumerate(values):
        staging.add(index, (index, 0), structure, leaves)
    return staging.take()
