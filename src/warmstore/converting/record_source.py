"""RecordSource: the fields of a source, and its records in order, in batches of a few megabytes.

A format is a module with `open_source(request, files)`. It reads lazily, so that sources larger than memory convert.
"""

import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from warmstore.errors import BadSource, SchemaMismatch, WarmstoreError
from warmstore.records.format.fields import Field, Fields, check_fields

BATCH_BYTES = 16 << 20
"""About how many bytes of a source make a batch."""

BROKEN = (
    *(pa.ArrowException, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zstandard.ZstdError),
    *(EOFError, zlib.error),
)
"""Errors that libraries raise for damaged files, besides OSError."""

BATCH_ROWS = 1 << 16
"""The most records of a batch: small values take more memory as Python objects than as bytes."""


@dataclass(frozen=True)
class SourceBatch:
    """The next records of a source.

    columns: per field what `RecordStore.extend` takes, or `EncodedRows`.
    done: bytes of the source read so far, for sources that count in bytes.
    """

    columns: dict[str, Any]
    done: int | None = None


@dataclass(frozen=True)
class RecordSource:
    """Records that can be converted.

    fields: the fields of the store.
    read: `read(start)` yields the records from number `start` on, in order.
    rows: the number of records, where known.
    size: bytes of the source, where the number of records is unknown.
    metadata: metadata for the store.
    skippable: whether reading can start in the middle; otherwise `read` starts at 0 whatever `start` is.
    """

    fields: Fields
    read: Callable[[int], Iterator[SourceBatch]]
    rows: int | None = None
    size: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    skippable: bool = True


@dataclass(frozen=True)
class Request:
    """The checked arguments of `convert`.

    source: the object to convert, where there are no `paths`. fields: None for all, names, or names with their fields.
    root: the folder below which folder names may be Hive partitions.
    """

    source: Any
    paths: tuple[Path, ...] | None = None
    fields: Fields | tuple[str, ...] | None = None
    decode: bool | Callable[[bytes], dict[str, Any]] | None = None
    size: tuple[int, int] | None = None
    batched: bool = False
    root: Path | None = None

    def choose(self, names: Sequence[str], infer: Callable[[str], Field], *, open_ended: bool = False) -> Fields:
        """The fields to convert, out of a source's `names`. `infer` is called for fields that the caller did not pass.

        Args:
            open_ended: later records may have more names, which the caller may pass with their fields.

        Raises:
            SchemaMismatch: the caller named a field that the source does not have; or no field may have a name of the
                source.
        """
        wanted = names if self.fields is None else list(self.fields)
        for name in wanted:
            if name not in names and not (open_ended and isinstance(self.fields, dict)):
                raise SchemaMismatch(f"the source has no field {name!r}; it has {list(names)}")
        passed = self.fields if isinstance(self.fields, dict) else {}
        fields = {name: passed[name] if name in passed else infer(name) for name in wanted}
        try:
            return check_fields(fields)
        except SchemaMismatch as error:
            if self.fields is not None:
                raise
            raise SchemaMismatch(f"{error}. Choose the others with fields=[...]") from None

    @property
    def name(self) -> str:
        """The name of the only field of a source that gives it none."""
        if self.fields is None:
            return "data"
        if len(self.fields) != 1:
            raise SchemaMismatch(f"the source has one field, so fields= must name one; got {list(self.fields)}")
        return next(iter(self.fields))


def fields_argument(fields: Any) -> Fields | tuple[str, ...] | None:
    """The `fields` argument of `convert` and `export`, checked.

    Raises:
        SchemaMismatch: neither a dict of fields nor a sequence of names.
    """
    if fields is None:
        return None
    if isinstance(fields, Mapping):
        return check_fields(dict(fields))
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields) or not len(fields):
        raise SchemaMismatch(f"fields must be a list of names or a dict of fields; got {fields!r:.100}")
    return tuple(dict.fromkeys(fields))


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """Turn the errors that libraries raise for damaged files into `BadSource` with the file's name."""
    try:
        yield
    except WarmstoreError:
        raise
    except (*BROKEN, OSError, UnicodeDecodeError) as error:
        raise BadSource(f"{path} cannot be read: {error}") from error


def equal_lengths(what: Any, lengths: Mapping[str, int]) -> int:
    """The common length of fields.

    Raises:
        BadSource: lengths differ, or all are 0.
    """
    if len(set(lengths.values())) > 1:
        raise BadSource(
            f"{what}: every field needs the same number of records; got {dict(lengths)}. Choose with fields=[...]"
        )
    count = next(iter(lengths.values()), 0)
    if not count:
        raise BadSource(f"{what} holds no records")
    return count


def rows_at_once(width: float) -> int:
    """The records of a batch, where a record takes about `width` bytes."""
    return int(min(max(BATCH_BYTES // max(width, 1), 1), BATCH_ROWS))


def total_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)
