"""The schema of a cache: the structure of an output and the field of each leaf. The first commit fixes both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.features.outputs.leaves import Leaf, ragged_of
from warmstore.features.outputs.output_structure import check_dims, paths_of, sample_of, unflatten
from warmstore.features.outputs.pickled_leaves import unpickled
from warmstore.records.format.array_interop import is_tensor, on_device, to_torch
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import Array, Bytes, Field, Fields, Json, Ragged, numpy_dtype
from warmstore.records.format.value_encoding import encode
from warmstore.storage.cached_property import cached_property
from warmstore.tree.spec import TreeSpec

if TYPE_CHECKING:
    import torch

KEY = "key"
"""The field with each row's 128-bit key. The fields of leaves have a prefix, so that none has this name."""

_PREFIX = "leaf/"


def are_fields_of_cache(fields: Fields) -> bool:
    """Whether fields are those that `OutputSchema.store_fields` returns for some schema."""
    columns = {name: field for name, field in fields.items() if not name.startswith(_PREFIX)}
    return columns == {KEY: Array("uint64", (2,))}


@dataclass(frozen=True)
class OutputSchema:
    """The schema of outputs. structure: the structure of a whole output. fields: the field of each leaf, by path."""

    structure: TreeSpec
    fields: dict[str, Field]

    @cached_property
    def nodes(self) -> dict[str, tuple[str, bool]]:
        """See `paths_of`."""
        return paths_of(self.structure)

    @cached_property
    def is_one_array(self) -> bool:
        """Whether a whole output is one array or tensor whose samples come first."""
        return self.structure["node"] in ("tensor", "ndarray") and not self.structure.get("dim")

    def store_fields(self) -> Fields:
        """The fields of the cache's store."""
        return {KEY: Array("uint64", (2,)), **{self.field_name(path): field for path, field in self.fields.items()}}

    @classmethod
    def of_store(cls, structure: TreeSpec, fields: Fields) -> OutputSchema:
        """The inverse of `store_fields`."""
        leaves = {unquote(name.removeprefix(_PREFIX)): field for name, field in fields.items() if name != KEY}
        return cls(structure, leaves)

    @classmethod
    def of_leaves(cls, structure: TreeSpec, leaves: Sequence[Leaf], variable: bool, codec: str = "raw") -> OutputSchema:
        """The schema of a first batch. With `variable`, every stacked leaf may vary in shape."""
        fields = {leaf.path: replace(leaf.field(), codec=codec) for leaf in leaves}
        return cls(structure, {path: _varying(field) if variable else field for path, field in fields.items()})

    def widened(self, leaves: Sequence[Leaf]) -> OutputSchema:
        """This schema, with leaves of varying shape if the shapes of a batch differ from it.

        Raises:
            SchemaMismatch: a dtype or number of dimensions differs.
        """
        fields = {}
        for leaf in leaves:
            field = self.fields[leaf.path]
            other = replace(leaf.field(), codec=field.codec)
            if field != other and isinstance(field, Array) and field.shape and _varying(field) == _varying(other):
                field = _varying(field)
            fields[leaf.path] = field
            _check(leaf, field)
        return OutputSchema(self.structure, fields)

    def check(self, leaves: Sequence[Leaf]) -> None:
        """Raise SchemaMismatch, which names the leaf, if a batch does not fit."""
        for leaf in leaves:
            _check(leaf, self.fields[leaf.path])

    def check_dims(self, out_dims: Any) -> None:
        """Raise SchemaMismatch, which names the leaf, if `out_dims` has another dimension of the samples."""
        ndims = {
            path: field.ndim if isinstance(field, Ragged) else len(field.shape)
            for path, field in self.fields.items()
            if isinstance(field, Array | Ragged)
        }
        check_dims(self.structure, out_dims, lambda path: ndims[path] + 1)

    def check_growth(self, leaves: Sequence[Leaf], count: int) -> None:
        """Raise SchemaMismatch if a dimension other than that of the samples has grown from 1 to `count`.

        Args:
            leaves: leaves of a batch of `count` samples. This schema is that of a batch of one.
        """
        for leaf in leaves:
            field = self.fields[leaf.path]
            if leaf.stacked and isinstance(field, Array):
                shape = tuple(leaf.values.shape)
                if (1, count) in zip(field.shape, shape[1:], strict=False):
                    raise SchemaMismatch(
                        f"leaf {leaf.path!r} has shape {shape} for {count} samples and {(1, *field.shape)} for one, "
                        "which does not show the dimension of its samples. Pass it in CachedModule(out_dims=) and use "
                        "another cache id, or remove the leaf from the cached module's output"
                    )

    def encode(self, leaves: Sequence[Leaf]) -> dict[str, EncodedRows]:
        """Leaves as rows of the store's fields. The leaves must not be written to afterwards."""
        return {
            self.field_name(leaf.path): encode(leaf.path, self.fields[leaf.path], leaf.values, own=leaf.stacked)
            for leaf in leaves
        }

    def field_name(self, path: str) -> str:
        """The store's name of a leaf's field."""
        # Keys of an output may have "::"; names of fields may not.
        return _PREFIX + path.replace("%", "%25").replace(":", "%3A")

    def assemble(
        self,
        values: dict[str, Any],
        pad_value: float | None,
        device: torch.device | None,
        *,
        allow_pickle: bool = False,
    ) -> Any:
        """Assemble a batch from the values of each leaf: [n, *shape] arrays, or lists of arrays, JSON or bytes.

        Raises:
            UnsupportedType: a leaf is pickled and `allow_pickle` is False.
        """
        nodes = self.nodes
        if self.is_one_array and not isinstance(values["output"], list):  # the common case, without unflattening
            return _finish(values["output"], self.structure["node"], device)

        def leaf(path: str) -> Any:
            column, (node, per_sample) = values[path], nodes[path]
            if node == "values":
                return column
            if node == "pickled":
                return unpickled(path, column, allow_pickle=allow_pickle)
            if per_sample:
                return [_finish(np.asarray(value), node, device) for value in column]
            if isinstance(column, list):
                column = _stack(path, column, pad_value, self.fields[path])
            return _finish(column, node, device)

        return unflatten(self.structure, leaf, device)

    def sample(self, values: dict[str, Any], device: torch.device | None, *, allow_pickle: bool = False) -> Any:
        """The output of one sample, without the dimension of samples, from values as for `assemble` with n = 1.

        Raises:
            UnsupportedType: a leaf is pickled and `allow_pickle` is False.
        """

        def leaf(path: str) -> Any:
            column, (node, _) = values[path], self.nodes[path]
            if node == "pickled":
                return unpickled(path, column, allow_pickle=allow_pickle)[0]
            return column[0] if node == "values" else _finish(_first(column), node, device)

        return sample_of(self.structure, leaf, device)


def _first(column: Any) -> Any:
    return np.asarray(column[0]) if isinstance(column, list) else column[0, ...]


def _finish(array: Any, node: str, device: torch.device | None) -> Any:
    if is_tensor(array):  # from a hot tier
        return array.cpu() if device is None else on_device(array, device)
    if node == "ndarray":
        return array
    tensor = to_torch(array)
    return tensor if device is None else on_device(tensor, device)


def _stack(
    path: str, arrays: list[np.ndarray[Any, Any]], pad_value: float | None, field: Field
) -> np.ndarray[Any, Any]:
    shapes = {array.shape for array in arrays}
    if len(shapes) == 1:
        return np.stack(arrays)
    assert isinstance(field, Ragged)
    if not arrays:
        return np.zeros((0,) * (field.ndim + 1), numpy_dtype(field.dtype))
    if pad_value is None:
        examples = ", ".join(map(str, sorted(shapes)[:3]))
        raise SchemaMismatch(
            f"leaf {path!r} has samples of different shapes in one batch ({examples}), which do not stack. Pass "
            "pad_value=0.0 to FeatureCache to pad them to the largest, or return a list with one tensor per sample "
            "from the module"
        )
    largest = np.max(list(shapes), axis=0)
    stacked = np.full((len(arrays), *largest), pad_value, numpy_dtype(field.dtype))
    for row, array in zip(stacked, arrays, strict=True):
        row[tuple(slice(size) for size in array.shape)] = array
    return stacked


def _varying(field: Field) -> Field:
    return replace(ragged_of(field.dtype, len(field.shape)), codec=field.codec) if isinstance(field, Array) else field


def _check(leaf: Leaf, field: Field) -> None:
    if (
        isinstance(field, Array)
        and leaf.stacked
        and (leaf.dtype, tuple(leaf.values.shape[1:])) == (field.dtype, field.shape)
    ):
        return  # the common case, without a new field
    given = replace(leaf.field(), codec=field.codec)
    if isinstance(field, Json) or isinstance(given, Json):
        fits = type(given) is type(field)
    else:
        fits = (given if isinstance(field, Array) else _varying(given)) == field
    if not fits:
        raise SchemaMismatch(
            f"leaf {leaf.path!r} holds {_described(field)}; this batch has {_described(given)}. The first batches "
            "fixed that: pass variable=True to FeatureCache if shapes vary, or use another cache id"
        )


def _described(field: Field) -> str:
    if isinstance(field, Array):
        return f"{field.dtype} of shape {field.shape} per sample"
    if isinstance(field, Ragged):
        return f"{field.dtype} of {field.ndim} dimensions and any shape"
    return "pickled objects" if isinstance(field, Bytes) else "JSON values"
