"""Columns in memory: arrays, tensors and lists, and the columns of pyarrow, pandas and polars.

pandas and polars are not imported: a column's library is imported already. Numbers are read in place.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa

from warmstore.converting.arrow_columns import rows_of
from warmstore.converting.arrow_types import field_of_column
from warmstore.converting.field_inference import column_field, native
from warmstore.converting.record_columns import columns_of_records, nbytes_of
from warmstore.errors import BadSource, UnsupportedType
from warmstore.records.format.array_interop import is_tensor
from warmstore.records.format.fields import Field


@dataclass(frozen=True)
class SourceColumn:
    """The values of a field, one per record.

    values: an array or tensor [n, ...], an Arrow array, or a list. none_is_absent: whether None in a list is no value
    also in a Json field, as in data frames.
    """

    name: str
    values: Any
    none_is_absent: bool = False

    @classmethod
    def of(cls, name: str, values: Any) -> Self:
        """The column of an array, a tensor, a list or tuple, or of a column of pyarrow, pandas or polars.

        Raises:
            BadSource: a single value. UnsupportedType: another object.
        """
        kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(values).__mro__}
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return cls(name, _joined(values))
        if "pandas.ExtensionArray" in kinds and hasattr(values, "__arrow_array__"):
            return cls(name, _joined(pa.array(values, from_pandas=True)))
        if "pandas.Index" in kinds:
            return cls.of(name, values.to_series())
        if "pandas.Series" in kinds or "polars.Series" in kinds:
            found = _pandas_values(values) if "pandas.Series" in kinds else _polars_values(values)
            return cls(name, found, isinstance(found, list))
        if not hasattr(values, "__len__") or (hasattr(values, "shape") and not values.shape):
            raise BadSource(f"field {name!r} is a single {type(values).__name__}, not one value per record")
        if not isinstance(values, np.ndarray | list | tuple) and not is_tensor(values) and not hasattr(values, "dtype"):
            raise UnsupportedType(
                f"field {name!r} is a {type(values).__name__}; pass an array, a list, or a column of pyarrow, pandas "
                "or polars"
            )
        return cls(name, values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """The bytes that the values take, about."""
        if isinstance(self.values, list | tuple):
            return sum(map(nbytes_of, self.values))
        return int(self.values.nbytes)

    def field(self) -> Field:
        """The field for the values.

        Raises:
            BadSource: an empty list. UnsupportedType: no field holds them.
        """
        if isinstance(self.values, pa.Array):
            return field_of_column(pa.field(self.name, self.values.type))
        return column_field(self.name, self.values)

    def part(self, first: int, last: int, field: Field) -> Any:
        """The values from `first` to `last` as a column of a `SourceBatch`."""
        values = self.values[first:last]
        if isinstance(values, pa.Array):
            return rows_of(pa.field(self.name, values.type), field, values)
        if self.none_is_absent:
            records = [{} if value is None else {self.name: value} for value in values]
            return columns_of_records(records, {self.name: field}).columns[self.name]
        if isinstance(values, list | tuple) or is_tensor(values):
            return values
        return native(values if isinstance(values, np.ma.MaskedArray) else np.asarray(values), field)


def _joined(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def _polars_values(series: Any) -> Any:
    return series.to_list() if str(series.dtype) == "Object" else _joined(series.to_arrow())


def _pandas_values(series: Any) -> Any:
    dtype = series.dtype
    if getattr(dtype, "tz", None) is not None:  # to_numpy gives Timestamps, which no field holds
        return series.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy()
    if isinstance(dtype, np.dtype) and dtype.kind != "O":
        return series.to_numpy()
    if not isinstance(dtype, np.dtype) and hasattr(series.array, "__arrow_array__"):
        return _joined(pa.array(series.array, from_pandas=True))
    # Among objects NaN, NaT and NA mean absent in pandas; among floats NaN is a number.
    return [None if absent else value for absent, value in zip(series.isna(), series.tolist(), strict=True)]
