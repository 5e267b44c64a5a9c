"""What every format offers: which fields it has, and its records in order, a batch of a few megabytes at a time.

A format is a module with `open_source(request, files)`. It reads lazily: a source larger than memory must convert.
"""

import importlib
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

from warmstore.errors import BadSource, NotInstalled, SchemaMismatch, WarmstoreError
from warmstore.records.format.fields import Field, Fields, check_fields

BATCH_BYTES = 16 << 20
"""About how much of a source is read at once."""

BROKEN = (
    *(pa.ArrowException, zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zstandard.ZstdError),
    *(EOFError, zlib.error),
)
"""What the libraries that read files raise where one is broken, besides OSError."""

BATCH_ROWS = 1 << 16
"""At most so many records are read at once: tiny ones cost more as Python objects than as bytes."""


@dataclass(frozen=True)
class SourceBatch:
    """The next records of a source.

    columns: per field what `RecordStore.extend` takes, or `Rows` that are encoded already.
    done: bytes of the source that have been read so far, for sources that count in bytes.
    """

    columns: dict[str, Any]
    done: int | None = None


@dataclass(frozen=True)
class RecordSource:
    """Something that can be converted.

    fields: of the store to be made.
    read: `read(start)` yields the records from number `start` on, in order; a source that is not `skippable` is
        always read from 0.
    rows: how many records there are, where that is known.
    size: bytes to be read, for sources that do not know their rows.
    metadata: what the store shall remember of the source.
    """

    fields: Fields
    read: Callable[[int], Iterator[SourceBatch]]
    rows: int | None = None
    size: int | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    skippable: bool = True


@dataclass(frozen=True)
class Request:
    """What a caller of `convert` asked for, checked.

    source: the object to convert, where there are no `paths`. fields: None for all, names, or names with their fields.
    root: the folder below which names of folders may be Hive partitions.
    """

    source: Any
    paths: tuple[Path, ...] | None = None
    fields: Fields | tuple[str, ...] | None = None
    decode: bool | Callable[[bytes], dict[str, Any]] | None = None
    size: tuple[int, int] | None = None
    batched: bool = False
    root: Path | None = None

    def choose(self, names: Sequence[str], infer: Callable[[str], Field], *, open_ended: bool = False) -> Fields:
        """The fields to convert, out of a source's `names`; `infer` is asked only where the caller did not say.

        Args:
            open_ended: further names may follow, so that a caller may say which fields they are.

        Raises:
            SchemaMismatch: the caller named one that the source does not have.
        """
        wanted = names if self.fields is None else list(self.fields)
        for name in wanted:
            if name not in names and not (open_ended and isinstance(self.fields, dict)):
                raise SchemaMismatch(f"the source has no field {name!r}; it has {list(names)}")
        told = self.fields if isinstance(self.fields, dict) else {}
        return check_fields({name: told[name] if name in told else infer(name) for name in wanted})

    @property
    def name(self) -> str:
        """What to call a source that has a single field without a name of its own."""
        if self.fields is None:
            return "data"
        if len(self.fields) != 1:
            raise SchemaMismatch(f"the source has one field, so fields= must name one; got {list(self.fields)}")
        return next(iter(self.fields))


def fields_asked(fields: Any) -> Fields | tuple[str, ...] | None:
    """The `fields` argument of `convert` and `export`, checked.

    Raises:
        SchemaMismatch: neither a dict of fields nor a sequence of names.
    """
    if fields is None:
        return None
    if isinstance(fields, Mapping):
        return check_fields(dict(fields))
    if isinstance(fields, str) or not all(isinstance(name, str) for name in fields) or not len(fields):
        raise SchemaMismatch(f"fields must be a list of names or a dict of fields, not {fields!r:.100}")
    return tuple(dict.fromkeys(fields))


def needed(module: str, package: str, extra: str) -> Any:
    """An optional module.

    Raises:
        NotInstalled: it is not there; the message says how to get it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"this format needs {package}: pip install warmstore[{extra}] ({error})") from None


@contextmanager
def reading(path: Any) -> Iterator[None]:
    """What libraries raise over a broken file, as `BadSource` with the file's name. Around reading only, not yields to
    code that may fail for other reasons.

    Raises:
        BadSource: the file is broken.
    """
    try:
        yield
    except WarmstoreError:
        raise
    except (*BROKEN, OSError, UnicodeDecodeError) as error:
        raise BadSource(f"{path} cannot be read: {error}") from error


def equal_lengths(what: Any, lengths: Mapping[str, int]) -> int:
    """The one length that all have.

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
    """How many records of about `width` bytes make a batch."""
    return int(min(max(BATCH_BYTES // max(width, 1), 1), BATCH_ROWS))


def total_bytes(files: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in files)
