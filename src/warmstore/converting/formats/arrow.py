"""Arrow IPC files and streams, and Feather 2. Files are memory-mapped; pages are released after reading."""

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset

from warmstore.converting.arrow_columns import batch_of, check_schema, fields_of_schema, pieces
from warmstore.converting.hive_partitions import partitions_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, reading, total_bytes
from warmstore.errors import BadSource
from warmstore.records.arrow.arrow_schema import register_tensors

_MAGIC = b"ARROW1"
Pages = mmap.mmap


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    schema: pa.Schema = None
    for path in files:
        with opened(path) as (found, _, _):
            schema = schema or found
            check_schema(schema, found, path)
    partitions = partitions_of(files, request.root, schema.names)
    fields = fields_of_schema(request, schema, partitions.fields)
    own = {name: field for name, field in fields.items() if name not in partitions.fields}
    counted = all(_is_file(path) for path in files)
    rows = sum(_rows(path) for path in files) if counted else None

    def read(start: int) -> Iterator[SourceBatch]:
        done = 0
        for number, path in enumerate(files):
            with reading(path), opened(path) as (_, batches, pages):
                for batch in batches:
                    skip = min(start, batch.num_rows)
                    start -= skip
                    for piece in pieces(batch.slice(skip)):
                        beside = partitions.columns(fields, number, piece.num_rows)
                        yield SourceBatch({**batch_of(own, piece).columns, **beside}, done)
                        drop_pages(pages)
                    drop_pages(pages)
            done += path.stat().st_size

    return RecordSource(fields, read, rows, total_bytes(files))


@contextmanager
def opened(path: Path) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch], Pages]]:
    """The schema of a file or stream, its batches, and the memory map that holds them."""
    with open(path, "rb") as file:
        try:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise BadSource(f"{path} is empty") from None
    buffer = pa.py_buffer(pages)
    register_tensors()
    try:
        if pages[: len(_MAGIC)] == _MAGIC:
            reader = pa.ipc.open_file(buffer)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            reader = pa.ipc.open_stream(buffer)
            batches = iter(reader)
    except pa.ArrowException as error:
        raise BadSource(f"{path} is not an Arrow file or stream: {error}") from None
    yield reader.schema, batches, pages


def drop_pages(pages: Pages) -> None:
    """Release pages of the mapping. Later reads come from the page cache."""
    pages.madvise(mmap.MADV_DONTNEED)


def _rows(path: Path) -> int:
    with reading(path):
        return int(pyarrow.dataset.dataset(str(path), format="ipc").count_rows())


def _is_file(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
