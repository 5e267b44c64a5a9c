"""The schema of cached samples: a record has one field per leaf of the sample's value.

Samples with another structure or shape than the rest are stored as one byte string each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.pipeline.tiers.sample_spec import TreeSpec, dtype_of, is_same, leaves_of, nodes_of, ordered
from warmstore.pipeline.tiers.unflattening import from_bytes, undecodable, unflatten
from warmstore.records.format.fields import (
    Array,
    Bytes,
    Field,
    Fields,
    Ragged,
    Text,
    arrow_schema,
    dtype_name,
    fields_from_json,
    fields_to_json,
)
from warmstore.storage.cached_property import cached_property

SAMPLE = "sample"
"""The field that identifies a record: the key of its sample, a hash of everything that the sample is made from."""

SAMPLE_FIELD = Array("uint64", (2,))

_STACKED = frozenset(
    {"array", "tensor", "scalar", "number", "numbers", "str", "bytes", "outside", "dict", "tuple"}
)  # nodes that `stack` makes columns of
_MOST_TEXTS = 16  # str and bytes leaves with a field each; more of them are read faster as one byte string


@dataclass(frozen=True)
class SampleSchema:
    """Records with a field per leaf; without a structure, records with one byte string.

    structure: of every value. fields: of the leaves, or of the byte string.
    """

    structure: TreeSpec | None
    fields: tuple[Field, ...]

    @classmethod
    def of(cls, examples: Sequence[tuple[TreeSpec, list[Any]]], codec: str) -> "SampleSchema | None":
        """The schema of samples like the examples; None if their structures differ, or have many texts."""
        if not examples or not all(is_same(structure, examples[0][0]) for structure, _ in examples):
            return None
        nodes = leaves_of(examples[0][0])
        if not nodes or sum(dtype_of(node) is None for node in nodes) > _MOST_TEXTS:
            return None
        columns = zip(*(leaves for _, leaves in examples), strict=True)
        return cls(
            examples[0][0], tuple(_field(node, column, codec) for node, column in zip(nodes, columns, strict=True))
        )

    @classmethod
    def of_bytes(cls, codec: str) -> "SampleSchema":
        """The schema of samples of any structure."""
        return cls(None, (Bytes(codec),))

    @cached_property
    def store_fields(self) -> Fields:
        """The fields of the record store."""
        return {SAMPLE: SAMPLE_FIELD, **dict(zip(self.names, self.fields, strict=True))}

    @cached_property
    def head_bytes(self) -> int:
        """Bytes of the header of each chunk."""
        return int(arrow_schema(self.store_fields).serialize().size)

    @cached_property
    def names(self) -> list[str]:
        """The names of the fields with values."""
        return [f"value{number}" if number else "value" for number in range(len(self.fields))]

    @cached_property
    def width(self) -> int:
        """Bytes of a record's arrays of fixed shape."""
        return sum(field.width for field in self.fields if isinstance(field, Array))

    @property
    def objection(self) -> str:
        """Why this process cannot restore the samples; "" if it can, or if their structures differ."""
        return "" if self.structure is None else undecodable(self.structure)

    def is_same(self, other: "SampleSchema | None") -> bool:
        """Whether records of another schema are those of this one."""
        if other is None or self.structure is None or other.structure is None:
            return self == other
        return self.fields == other.fields and is_same(self.structure, other.structure)

    def fits(self, structure: TreeSpec, leaves: Sequence[Any]) -> bool:
        """Whether a flattened value can be a record of these fields."""
        if self.structure is None:
            return True
        return is_same(structure, self.structure) and all(
            not isinstance(field, Array) or leaf.shape == field.shape
            for field, leaf in zip(self.fields, leaves, strict=True)
        )

    def decode(self, columns: dict[str, Any]) -> list[Any]:
        """The values of some records, each in its own memory; a `Marked` if the structure marks parts.

        Args:
            columns: from a gather of `names`.
        """
        if self.structure is None:
            return [from_bytes(data) for data in columns["value"]]
        leaves = [_leaves(columns[name]) for name in self.names]
        structure = self.structure
        if structure[0] == "array" and not structure[4]:
            return [ordered(leaf, structure) for leaf in leaves[0]]
        return [unflatten(structure, iter(each).__next__) for each in zip(*leaves, strict=True)]

    @cached_property
    def _can_be_stacked(self) -> bool:
        """Whether every leaf becomes a column. Otherwise the columns of a part could be taken for those of another."""
        kinds = set() if self.structure is None else {node[0] for node in nodes_of(self.structure)}
        return kinds <= _STACKED and not any(isinstance(field, Ragged) for field in self.fields)

    def stacked(self, columns: dict[str, Any]) -> Any:
        """Stack the values of some records like `stack`, but without unflattening; None if that is not possible."""
        if self.structure is None or not self._can_be_stacked:
            return None
        return _stacked(self.structure, iter([columns[name] for name in self.names]))

    def to_json(self) -> dict[str, Any]:
        """The schema as JSON."""
        return {"structure": self.structure, "fields": fields_to_json(dict(zip(self.names, self.fields, strict=True)))}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "SampleSchema":
        """The inverse of `to_json`."""
        return cls(content["structure"], tuple(fields_from_json(content["fields"]).values()))


def _field(node: TreeSpec, column: Sequence[Any], codec: str) -> Field:
    dtype = dtype_of(node)
    if dtype is None:
        return Text(codec) if node[0] == "str" else Bytes(codec)
    name = dtype_name(dtype)
    # A codec costs more than it saves on fewer bytes.
    codec = codec if column[0].nbytes >= 64 else "raw"
    if all(leaf.shape == column[0].shape for leaf in column):
        return Array(name, column[0].shape, codec)
    return Ragged(name, column[0].ndim, codec)


def _leaves(column: Any) -> list[Any]:
    if isinstance(column, np.ndarray):
        return [column[at, ...] for at in range(len(column))]
    # Views of the mapped file are read-only.
    return [
        value if isinstance(value, str) else bytes(value) if isinstance(value, memoryview) else np.array(value)
        for value in column
    ]


def _stacked(structure: TreeSpec, columns: Any) -> Any:
    kind = structure[0]
    if kind in ("array", "tensor"):
        return np.ascontiguousarray(ordered(next(columns), structure))
    if kind in ("scalar", "number", "numbers"):
        column = next(columns)
        return column if column.dtype.num < 256 else None  # scalars of ml_dtypes are a list for `stack`
    if kind == "str":
        return list(next(columns))
    if kind == "bytes":
        return list(map(bytes, next(columns)))  # which are read as views
    if kind == "outside":
        next(columns)
        return _stacked(structure[-1][0], columns)
    parts = [_stacked(child, columns) for child in structure[-1]]
    if any(part is None for part in parts):
        return None
    return tuple(parts) if kind == "tuple" else dict(zip(structure[2], parts, strict=True))
