"""ArrayRecord files: records are bytes, which `decode` may turn into dicts of values."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from warmstore.converting.record_columns import check_names, columns_of_records, fields_of_records
from warmstore.converting.record_source import BATCH_BYTES, RecordSource, Request, SourceBatch
from warmstore.errors import BadSource
from warmstore.extras import imported
from warmstore.records.format.fields import Fields

_GROUP = 64
"""Records of the first batch, before their size is known."""


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    counts = []
    group: list[bytes] = []
    for path in files:
        with closing(open_reader(path)) as reader:
            counts.append(reader.num_records())
            if not group and counts[-1]:
                group = reader.read(0, min(_GROUP, counts[-1]))
    if not group:
        raise BadSource(f"{', '.join(map(str, files))}: no records")
    decode = request.decode if callable(request.decode) else None
    field = request.name if decode is None else ""

    def record(data: bytes) -> dict[str, Any]:
        values = {field: data} if decode is None else decode(data)
        if not isinstance(values, dict):
            raise BadSource(
                f"decode must return a dict of field names to values; it returned a {type(values).__name__}"
            )
        return values

    first = [record(data) for data in group]
    fields = fields_of_records(request, first)

    def checked(where: str, data: bytes) -> dict[str, Any]:
        values = record(data)
        if request.fields is None:
            check_names(where, values.keys(), fields, len(first))
        return values

    def read(start: int) -> Iterator[SourceBatch]:
        for path, count in zip(files, counts, strict=True):
            if start < count:
                with closing(open_reader(path)) as reader:
                    yield from _batches(path, reader, start, checked, fields)
            start = max(start - count, 0)

    return RecordSource(fields, read, sum(counts))


def open_reader(path: Path) -> Any:
    """An open ArrayRecordReader.

    Raises:
        NotInstalled: the package array_record is needed. BadSource: the file cannot be read.
    """
    reader_of = imported("array_record.python.array_record_module", "this format").ArrayRecordReader
    with _named(path):
        reader = reader_of(str(path), options="readahead_buffer_size:0,max_parallelism:0")
        if not reader.ok():
            reader.close()  # raises the error
            raise ValueError("it is damaged")
    return reader


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Turn the library's errors into `BadSource` with the file's name."""
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise BadSource(f"{path} cannot be read as an ArrayRecord file: {error}") from None


def _batches(path: Path, reader: Any, first: int, record: Any, fields: Fields) -> Iterator[SourceBatch]:
    at_once = _GROUP
    count = reader.num_records()
    while first < count:
        last = min(first + at_once, count)
        with _named(path):
            group = reader.read(first, last)
        if len(group) < last - first:
            raise BadSource(f"{path}: record {first + len(group)} of {count} cannot be read: the file is damaged")
        records = [record(f"{path}: record {number:,}", data) for number, data in enumerate(group, first)]
        yield columns_of_records(records, fields)
        average = max(sum(map(len, group)) // len(group), 64)
        at_once = max(1, min(BATCH_BYTES // average, 4 * at_once, 1 << 14))
        first = last
