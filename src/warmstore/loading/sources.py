"""What a user may hand in as samples, found out once and made to fit the contract of `source.Source`."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource, NoSource, UnknownFormat
from warmstore.loading.array_record import ArrayRecordSource
from warmstore.loading.collate import LIST, Collation, stack
from warmstore.loading.draws import Int64
from warmstore.loading.mixed import Mixed
from warmstore.loading.mixing_source import MixedSource
from warmstore.loading.source import Source
from warmstore.records.arrays import is_tensor, to_numpy
from warmstore.records.fields import Array, Bytes, Field, Ragged
from warmstore.records.formats import Formatted
from warmstore.records.manifest import NAME
from warmstore.records.samples import Samples
from warmstore.records.store import RecordStore
from warmstore.records.view import FieldView


def source_of(value: Any, fields: Sequence[str] | None = None, collation: Collation | None = None) -> Source:
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
    if isinstance(value, Mixed):
        _no_mixes(value.sources)
        return MixedSource(value, [source_of(one, fields, collation) for one in value.sources])
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


@final
class AlignedSource(Source):
    """Several sources of one length, read at the same positions, as a dict."""

    def __init__(self, sources: dict[str, Source]) -> None:
        if not sources:
            raise BadSource("an empty dict of sources; name at least one")
        (first, one), *others = sources.items()
        for name, other in others:
            if len(other) != len(one):
                raise BadSource(
                    f"sources differ in length: {first!r} has {len(one):,} samples, {name!r} has {len(other):,}"
                )
        self._sources = sources
        self.identity = {name: source.identity for name, source in sources.items()}
        widths = [source.sample_bytes for source in sources.values()]
        self.sample_bytes = None if None in widths else sum(widths)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(next(iter(self._sources.values())))

    def read(self, positions: Int64) -> dict[str, Any]:
        return {name: source.read(positions) for name, source in self._sources.items()}

    def read_in(self, epoch: int, positions: Int64) -> dict[str, Any]:
        return {name: source.read_in(epoch, positions) for name, source in self._sources.items()}


@final
class StoreSource(Source):
    """The records of a store, as a dict of their fields."""

    def __init__(self, store: RecordStore, fields: Sequence[str] | None, collation: Collation) -> None:
        known = store.fields
        names = list(known if fields is None else fields)
        for name in names:
            if name not in known:
                raise KeyError(f"{store.path} has no field {name!r}; it has {list(known)}")
        self._store = store
        self._names = names
        self._packed = [name for name in names if _wants_packed(known[name], collation.under(name))]
        self._listed = [name for name in names if name not in self._packed]
        self.identity = store.manifest.id
        self.sample_bytes = _bytes_of([known[name] for name in names])

    def __len__(self) -> int:
        return len(self._store)

    def read(self, positions: Int64) -> dict[str, Any]:
        if not self._packed:
            return self._store.gather(positions, self._names)
        found = self._store.gather(positions, self._packed, packed=True)
        if self._listed:
            found.update(self._store.gather(positions, self._listed))
        return {name: found[name] for name in self._names}


@final
class FieldSource(Source):
    """One field of a store."""

    def __init__(self, view: FieldView, collation: Collation) -> None:
        self._store = view.store
        self._names = [view.name]
        self._packed = _wants_packed(view.field, collation)
        self.identity = view.store.manifest.id
        self.sample_bytes = _bytes_of([view.field])

    def __len__(self) -> int:
        return len(self._store)

    def read(self, positions: Int64) -> Any:
        return self._store.gather(positions, self._names, packed=self._packed)[self._names[0]]


class ArraySource(Source):
    """The rows of an array in memory, or mapped."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        if not array.ndim:
            raise BadSource(f"an array without dimensions has no samples: {array!r:.80}")
        self._array = array
        self.sample_bytes = array.itemsize * int(np.prod(array.shape[1:]))

    def __len__(self) -> int:
        return len(self._array)

    def read(self, positions: Int64) -> np.ndarray[Any, Any]:
        return self._array.take(positions, axis=0)


@final
class TensorSource(Source):
    """The rows of a tensor on the CPU.

    It is seen as an array anew by every read: when a tensor is sent to another process, torch moves its memory, and
    arrays over the old one are left dangling.
    """

    def __init__(self, tensor: Any) -> None:
        if not tensor.ndim:
            raise BadSource(f"a tensor without dimensions has no samples: {tensor!r:.80}")
        self._tensor = tensor.detach()
        self.sample_bytes = tensor.element_size() * (tensor[:1].numel())

    def __len__(self) -> int:
        return len(self._tensor)

    def read(self, positions: Int64) -> np.ndarray[Any, Any]:
        return to_numpy(self._tensor).take(positions, axis=0)


@final
class NpySource(ArraySource):
    """The rows of a .npy file, memory-mapped. Pickled as its path."""

    def __init__(self, path: Path) -> None:
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise BadSource(f"{path} cannot be read as a .npy file: {error}") from None
        super().__init__(np.asarray(array))
        self.path = path

    def __identity__(self) -> Any:
        return self.path.absolute()

    def __reduce__(self) -> Any:
        return NpySource, (self.path.absolute(),)


@final
class SequenceSource(Source):
    """Anything with a length and samples by position."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._many = getattr(samples, "__getitems__", None)

    def __len__(self) -> int:
        return len(self._samples)

    def read(self, positions: Int64) -> Any:
        if self._many is None:
            return stack([self._samples[at] for at in positions.tolist()])
        found = self._many(positions.tolist())
        if isinstance(found, Samples):
            return found.batch
        return stack(found) if isinstance(found, list | tuple) else found


@final
class HuggingFaceSource(Source):
    """A `datasets.Dataset`, its columns as NumPy arrays unless it has a format of its own."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset if dataset.format["type"] else dataset.with_format("numpy")

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, positions: Int64) -> dict[str, Any]:
        batch = self._dataset[positions.tolist()]
        return {name: _column(values) for name, values in batch.items()}


def is_array_record(path: Path) -> bool:
    """Whether a file is called as ArrayRecord files are."""
    return path.suffix in (".array_record", ".arrayrecord", ".array-record")


def _no_mixes(values: Iterable[Any]) -> None:
    if any(isinstance(value, Mixed) for value in values):
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


def _wants_packed(field: Field, collation: Collation) -> bool:
    """Whether a field is put together after it was read, and so better read as one array."""
    if isinstance(field, Array) or collation.rest == LIST:
        return False
    return collation.asked or isinstance(field, Ragged | Bytes)


def _bytes_of(fields: Sequence[Field]) -> int | None:
    widths = [field.width if isinstance(field, Array) and field.codec == "raw" else None for field in fields]
    return None if None in widths else sum(widths)  # type: ignore[arg-type]


def _column(values: Any) -> Any:
    array = to_numpy(values) if is_tensor(values) else values
    # Text, and arrays of several shapes.
    return list(array) if isinstance(array, np.ndarray) and array.dtype.kind in "OUS" else array
