"""`source_of`: the `Source` for any value that a loader accepts as samples."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from warmstore.errors import BadSource, NoSource
from warmstore.loading.collate import Collation
from warmstore.loading.mixture import Mixture
from warmstore.loading.source import Source
from warmstore.loading.sources import array_record
from warmstore.loading.sources.array_record import ArrayRecordSource, is_array_record
from warmstore.loading.sources.arrays import ArraySource, NpySource, TensorSource
from warmstore.loading.sources.combined.aligned import AlignedSource
from warmstore.loading.sources.combined.joined import ConcatSource
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.combined.subset import Selection, SubsetSource, positions_of
from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.sources.refusals import refusal_of, unknown_file
from warmstore.loading.sources.sequence import SequenceSource
from warmstore.loading.sources.store import FieldSource, StoreSource
from warmstore.loading.values.value_types import (
    MANY,
    has_rows,
    is_aligned,
    is_column,
    is_frame,
    is_hugging_face,
    is_of,
    is_stream,
    is_subset,
    is_torch_set,
)
from warmstore.records.field_views import FieldsView, FieldView
from warmstore.records.format.array_interop import is_jax_array, is_tensor
from warmstore.records.format.fields import check_known
from warmstore.records.format.manifest import NAME
from warmstore.records.framework_arrays import Formatted
from warmstore.remote.location import is_remote
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.user_paths import user_path
from warmstore.tree.columns import rebuilt


def source_of(
    value: Any, fields: Sequence[str] | None = None, collation: Collation | None = None, *, copy: bool = True
) -> Source:
    """The source for a `source` argument.

    Args:
        value: see `Loader`.
        fields: the fields to read of record stores, frames and tables.
        collation: tells which fields are faster to read packed.
        copy: batches own writable memory. False returns views where that costs less: the objects of lists, and
            read-only views of files.

    Raises:
        BadSource: no source, or sources of different lengths.
        KeyError: no such field.
        ValueError: fields, for a source that has none to choose.
        NoSource: a file does not exist.
        UnknownFormat: a file of an unknown format.
        Closed: the store is closed.
    """
    if isinstance(fields, str):
        raise TypeError(f"fields must be a list of names; got {fields!r:.80}")
    fields = None if fields is None else list(fields)  # a pandas Index has no truth value, a generator one pass
    resolver = _Resolver(fields, copy)
    if is_stream(value):
        source: Source = IterableSource(value, copy=copy)
    else:
        source = resolver.source(value, collation or Collation({}))
    if fields is not None and not resolver.reads_fields:
        raise ValueError(
            f"fields={fields!r:.80} chooses among those of record stores, data frames and Arrow tables, and a "
            f"{type(value).__name__} has none of these: choose in the source itself"
        )
    return source


def source_with_positions(
    value: Any, fields: Sequence[str] | None = None, collation: Collation | None = None, *, copy: bool = True
) -> Source:
    """The source for a `source` argument of what reads by position; see `source_of`.

    Raises:
        BadSource: an iterable, too.
    """
    source = source_of(value, fields, collation, copy=copy)
    if isinstance(source, IterableSource):
        raise BadSource(
            f"a {type(value).__name__} is an iterable and has no positions; convert it to a list or a store"
        )
    return source


class _Resolver:
    """Resolves nested values with the same options. reads_fields: whether one of them has fields to choose."""

    def __init__(self, fields: Sequence[str] | None, copy: bool) -> None:
        self._given = fields
        self._copy = copy
        self.reads_fields = False

    def _fields(self) -> Sequence[str] | None:
        """The fields of a source that has some to choose; None for all."""
        self.reads_fields = True
        return self._given

    def source(self, value: Any, collation: Collation) -> Source:
        if is_subset(value):
            selection: Selection = value.selection
            plain = self._given is None and self._copy and collation == Collation({})
            inner = selection.source if plain else self.source(selection.of, collation)
            return SubsetSource(inner, selection.positions)
        if isinstance(value, Source):
            return value
        if hasattr(type(value), "_as_source"):
            return value._as_source()  # type: ignore[no-any-return]
        for resolve in (self._of_sources, self._of_memory):
            source = resolve(value, collation)
            if source is not None:  # a source may be empty, and so false
                return source
        return self._of_sets(value, collation)

    def _of_sources(self, value: Any, collation: Collation) -> Source | None:
        """The source for a container of sources."""
        if is_of(value, *MANY):
            raise refusal_of(value)
        if isinstance(value, Mapping):
            _no_mixes(value.values())
            return AlignedSource({name: self.source(part, collation.under(name)) for name, part in value.items()})
        if is_aligned(value):
            parts = [self.source(part, collation.under(str(at))) for at, part in enumerate(value)]
            return AlignedSource(rebuilt(value, parts))
        if isinstance(value, Mixture):
            _no_mixes(value.sources)
            return MixtureSource(value, [self.source(part, collation) for part in value.sources])
        return None

    def _of_memory(self, value: Any, collation: Collation) -> Source | None:
        """The source for an array, store or table."""
        if isinstance(value, Formatted):
            value = value.store  # the loader's `to` decides the format
        if isinstance(value, RecordStore):
            return StoreSource(value, self._fields(), collation, copy=self._copy)
        if isinstance(value, FieldsView):
            chosen = self._fields()
            names = value.names if chosen is None else chosen
            check_known(f"the view of {value.store.path}", names, value.names)
            return StoreSource(value.store, names, collation, copy=self._copy)
        if isinstance(value, FieldView):
            return FieldSource(value, collation, copy=self._copy)
        if isinstance(value, np.ndarray):
            return ArraySource(value, copy=self._copy)
        if is_tensor(value):
            if value.device.type != "cpu":
                raise BadSource(f"a tensor on {value.device} cannot be read from here; pass tensor.cpu()")
            return TensorSource(value)
        if is_jax_array(value):
            return ArraySource(_on_host(value))
        if is_frame(value) or is_column(value):
            from warmstore.loading.sources import table  # it takes time to import

            return table.table_source(value, self._fields()) if is_frame(value) else table.column_source(value)
        return None

    def _of_sets(self, value: Any, collation: Collation) -> Source:
        """The source for a file, list or data set."""
        if isinstance(value, str | os.PathLike):
            return self._of_file(value, collation)
        if isinstance(value, list | tuple) and value and all(isinstance(path, str | os.PathLike) for path in value):
            paths = [user_path(path) for path in value]
            if is_array_record(paths[0]):
                return ArrayRecordSource(paths)
        if is_hugging_face(value):
            from warmstore.loading.sources.hugging_face import HuggingFaceSource

            return HuggingFaceSource(value, copy=self._copy)
        if is_torch_set(value, "TensorDataset"):
            return AlignedSource(tuple(self.source(tensor, Collation({})) for tensor in value.tensors))
        if is_torch_set(value, "Subset") and isinstance(value.indices, Sequence | np.ndarray):
            inner = self.source(value.dataset, collation)
            return SubsetSource(inner, positions_of(value.indices, len(inner)))
        if is_torch_set(value, "ConcatDataset"):
            return ConcatSource([self.source(part, collation) for part in value.datasets])
        if has_rows(value) and not is_of(value, ("warmstore", "FeatureCache")):
            return SequenceSource(value, copy=self._copy)
        raise refusal_of(value)

    def _of_file(self, value: str | os.PathLike[str], collation: Collation) -> Source:
        path = user_path(value)
        if is_remote(value) or (path / NAME).exists():
            return StoreSource(RecordStore.open(value), self._fields(), collation, copy=self._copy)
        if not path.exists():
            raise NoSource(". ".join(filter(None, [f"{path} does not exist", array_record.advice(path)])))
        if path.suffix == ".npy":
            return NpySource(path)
        if is_array_record(path):
            return ArrayRecordSource([path])
        raise unknown_file(path)


def _no_mixes(values: Iterable[Any]) -> None:
    if any(isinstance(value, Mixture) for value in values):
        raise BadSource(
            "a Mixture has an order of its own, so it must be the whole source: mix sources of dicts instead"
        )


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    """A JAX array on the CPU as NumPy sees it."""
    platforms = {device.platform for device in array.devices()}
    if platforms != {"cpu"}:
        raise BadSource(f"a JAX array on {', '.join(platforms)} cannot be read from here; pass np.asarray(array)")
    try:
        return np.asarray(array)
    except (TypeError, RuntimeError) as error:  # random keys, deleted arrays, arrays on other hosts
        raise BadSource(f"a JAX array that cannot be read: {error}") from None
