"""ArrayRecord files: records are byte strings, which `decode` may turn into dicts of values."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from warmstore.errors import BadSource
from warmstore.records.convert.inference import field_of
from warmstore.records.convert.iterable import columns_of_records
from warmstore.records.convert.source import BATCH_BYTES, Batch, Request, Source, needed
from warmstore.records.fields import Fields

_MODULE = "array_record.python.array_record_module"
_GROUP = 64
"""Records read at once until their size is known."""


def open_source(request: Request, files: Sequence[Path]) -> Source:
    reader_of = needed(_MODULE, "array_record", "convert").ArrayRecordReader
    counts = []
    first = None
    for path in files:
        with _opened(reader_of, path) as reader:
            counts.append(reader.num_records())
            if first is None and counts[-1]:
                first = reader.read([0])[0]
    if first is None:
        raise BadSource(f"{', '.join(map(str, files))}: no records")
    decode = request.decode if callable(request.decode) else None
    field = request.name if decode is None else ""

    def record(data: bytes) -> dict[str, Any]:
        return {field: data} if decode is None else decode(data)

    sample = record(first)
    if not isinstance(sample, dict):
        raise BadSource(f"decode must return a dict of field names to values; it returned a {type(sample).__name__}")
    fields = request.choose(list(sample), lambda name: field_of(name, sample[name]))

    def read(start: int) -> Iterator[Batch]:
        before = 0
        for path, count in zip(files, counts, strict=True):
            if before + count > start:
                with _opened(reader_of, path) as reader:
                    yield from _batches(path, reader, max(start - before, 0), record, fields)
            before += count

    return Source(fields, read, sum(counts))


@contextmanager
def _opened(reader_of: Any, path: Path) -> Iterator[Any]:
    with _named(path):
        reader = reader_of(str(path), options="readahead_buffer_size:0,max_parallelism:0")
        if not reader.ok():
            reader.close()  # raises what was wrong
            raise ValueError("it is damaged")
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """What the library says of a file, with the file's name."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise BadSource(f"{path} cannot be read as an ArrayRecord file: {error}") from None


def _batches(path: Path, reader: Any, first: int, record: Any, fields: Fields) -> Iterator[Batch]:
    at_once = _GROUP
    count = reader.num_records()
    while first < count:
        last = min(first + at_once, count)
        with _named(path):
            group = reader.read(first, last)
        if len(group) < last - first:
            raise BadSource(f"{path}: record {first + len(group)} of {count} cannot be read: the file is damaged")
        yield columns_of_records([record(data) for data in group], fields)
        average = max(sum(map(len, group)) // len(group), 64)
        at_once = max(1, min(BATCH_BYTES // average, 4 * at_once, 1 << 14))
        first = last
