"""Hugging Face data sets as sources.

Columns that need no decoding are read as Arrow arrays and converted here. The arrays of `datasets` strip trailing zeros
of bytes, and have text as NumPy strings.
"""

from typing import Any, final

import numpy as np

from warmstore.loading.collate import stack
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.source import Source
from warmstore.loading.values.arrow_values import values_of
from warmstore.loading.values.ownership import copied, owned_alone
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy

_ARRAYS = ("numpy", "torch")
_TABLES = ("arrow", "pandas", "polars")


@final
class HuggingFaceSource(Source):
    """A `datasets.Dataset`, with its columns as NumPy arrays.

    As in its formats "numpy" and "torch", integers are int64, floats float32, lists of one length one array, and None
    among floats is NaN; None among integers is masked. Text and bytes are Python objects. Images are decoded. A data
    set with another format, with options of a format or with a transform returns the values of that format.

    Args:
        dataset: the data set.
        copy: copy objects that a transform of the data set keeps.
    """

    def __init__(self, dataset: Any, *, copy: bool = True) -> None:
        self._fingerprint = getattr(dataset, "_fingerprint", None)
        self._copy = copy
        kind = dataset.format["type"]
        self._length = len(dataset)
        self._formatted = None
        if dataset.format["format_kwargs"] or (kind is not None and kind not in _ARRAYS + _TABLES):
            self._formatted = dataset
            return
        selected = None if dataset.format["output_all_columns"] else dataset.format["columns"]
        self._names = list(selected or dataset.column_names)
        self._plain = [name for name in self._names if not _is_decoded(dataset.features[name])]
        self._rest = [name for name in self._names if name not in self._plain]
        self._arrow = dataset.with_format("arrow", columns=self._plain)
        self._decoded = dataset.with_format(kind if kind in _ARRAYS else "numpy", columns=self._rest)

    @property
    def identity(self) -> Any:
        """The fingerprint of the data set."""
        return None if self._fingerprint is None else {"kind": "hugging_face", "fingerprint": self._fingerprint}

    def __len__(self) -> int:
        return self._length

    def read(self, positions: Int64) -> Any:
        at = positions.tolist()
        if self._formatted is not None:
            return _as_formatted(self._formatted[at], self._copy)
        batch: dict[str, Any] = {}
        if self._plain:
            table = self._arrow[at]
            batch = {name: _as_numpy_format(values_of(table.column(name))) for name in self._plain}
        if self._rest:
            batch.update(_as_formatted(self._decoded[at], self._copy))
        return {name: batch[name] for name in self._names}


def _is_decoded(feature: Any) -> bool:
    """Whether `datasets` decodes the values: images, sounds, and lists and dicts of them."""
    if isinstance(feature, dict):
        return any(map(_is_decoded, feature.values()))
    if isinstance(feature, list | tuple):
        return any(map(_is_decoded, feature))
    inner = getattr(feature, "feature", None)
    return hasattr(feature, "decode_example") or (inner is not None and _is_decoded(inner))


def _as_numpy_format(values: Any) -> Any:
    """Values of Arrow columns in the dtypes of the format "numpy", with lists of one length stacked."""
    if isinstance(values, dict):
        return {name: _as_numpy_format(part) for name, part in values.items()}
    if isinstance(values, list):
        parts = [_as_numpy_format(value) if isinstance(value, list | np.ndarray) else value for value in values]
        # An empty list, of text or of lists, says nothing of its rows.
        is_stacked = all(isinstance(value, np.ndarray) or (isinstance(value, list) and value) for value in values)
        return stack(parts) if parts and is_stacked else parts
    if isinstance(values, np.ndarray):
        if values.dtype.kind == "f":
            values = values.astype(np.float32, copy=False)
            return values.filled(np.nan) if isinstance(values, np.ma.MaskedArray) else values
        if values.dtype.kind in "iu":
            return values.astype(np.int64, copy=False)
    return values


def _as_formatted(batch: Any, copy: bool) -> Any:
    """The values of a format or a transform of the data set, as a batch."""
    if not isinstance(batch, dict):
        return copied(batch) if copy else batch
    return {name: _column(batch, name, copy) for name in list(batch)}


def _column(batch: dict[str, Any], name: str, copy: bool) -> Any:
    values = batch.pop(name)
    if is_tensor(values) or is_jax_array(values):
        values = to_numpy(values)
        return values.copy() if copy else values
    if isinstance(values, list):
        values = stack(values) if values else values
    values = _listed(values)
    if not copy:
        return values
    holder = [values]
    del values
    return owned_alone(holder)


def _listed(values: Any) -> Any:
    """Text, and arrays of several shapes, as lists."""
    if isinstance(values, dict):
        return {name: _listed(part) for name, part in values.items()}
    if isinstance(values, np.ndarray) and values.dtype.kind in "OUS":
        return values.tolist()
    return values
