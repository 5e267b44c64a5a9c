"""What a user may hand in as samples, found out once and made to fit the contract of `source.Source`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import BadSource, NoSource, UnknownFormat
from warmstore.loading.collate import Collation
from warmstore.loading.mixture import Mixture
from warmstore.loading.sources.aligned import AlignedSource
from warmstore.loading.sources.array_record import ArrayRecordSource
from warmstore.loading.sources.arrays import ArraySource, NpySource, TensorSource
from warmstore.loading.sources.hugging_face import HuggingFaceSource
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.sequence import SequenceSource
from warmstore.loading.sources.source import Source
from warmstore.loading.sources.store import FieldSource, StoreSource
from warmstore.records.arrays import is_tensor
from warmstore.records.formats import Formatted
from warmstore.records.manifest import NAME
from warmstore.records.store import RecordStore
from warmstore.records.view import FieldView


def source_of(
    value: Any, fields: Sequence[str] | None = None, collation: Collation | None = None, *, copy: bool = True
) -> Source:
    """The source that a user means.

    Args:
        value: see `Loader`.
        fields: of record stores, which to read.
        collation: which fields had better be read packed.

    Raises:
        BadSource: nothing samples can be read from, or several of different lengths.
        NoSource: a file that is not there.
        UnknownFormat: a file of no known kind.
    """
    collation = collation or Collation({})
    if isinstance(value, Source):
        return value
    if hasattr(value, "as_source"):
        return value.as_source()  # type: ignore[no-any-return]
    if isinstance(value, Mapping):
        _no_mixes(value.values())
        return AlignedSource({name: source_of(one, fields, collation.under(name)) for name, one in value.items()})
    if isinstance(value, Mixture):
        _no_mixes(value.sources)
        return MixtureSource(value, [source_of(one, fields, collation) for one in value.sources])
    if isinstance(value, Formatted):
        value = value.store  # a loader has a format of its own
    if isinstance(value, RecordStore):
        return StoreSource(value, fields, collation)
    if isinstance(value, FieldView):
        return FieldSource(value, collation)
    if isinstance(value, np.ndarray):
        return ArraySource(value)
    if is_tensor(value):
        if value.device.type != "cpu":
            raise BadSource(f"a tensor on {value.device} cannot be read from here; hand in tensor.cpu()")
        return TensorSource(value)
    if isinstance(value, str | os.PathLike):
        return _file(Path(value), fields, collation)
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, str | os.PathLike) for one in value) and is_array_record(Path(value[0])):
            return ArrayRecordSource([Path(one) for one in value])
        return SequenceSource(value)
    if type(value).__module__ == "datasets.arrow_dataset":
        return HuggingFaceSource(value)
    if hasattr(value, "__len__") and (hasattr(value, "__getitems__") or hasattr(value, "__getitem__")):
        return SequenceSource(value)
    raise BadSource(
        f"a {type(value).__name__} is no source of samples: it needs __len__, and __getitems__ or __getitem__. "
        "(The rows of a FeatureCache are a store: RecordStore.open(cache.path))"
    )


def is_array_record(path: Path) -> bool:
    """Whether a file is called as ArrayRecord files are."""
    return path.suffix in (".array_record", ".arrayrecord", ".array-record")


def _no_mixes(values: Iterable[Any]) -> None:
    if any(isinstance(value, Mixture) for value in values):
        raise BadSource("a mix has an order of its own, so it must be the whole source: mix dicts, not in dicts")


def _file(path: Path, fields: Sequence[str] | None, collation: Collation) -> Source:
    if (path / NAME).exists():
        return StoreSource(RecordStore.open(path), fields, collation)
    if not path.exists():
        raise NoSource(f"{path} is not there")
    if path.suffix == ".npy":
        return NpySource(path)
    if is_array_record(path):
        return ArrayRecordSource([path])
    raise UnknownFormat(f"{path} is no store, .npy or .array_record file; ws.convert makes a store of other formats")
