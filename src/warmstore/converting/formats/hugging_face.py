"""Hugging Face data sets: a `datasets.Dataset`, or a folder that `save_to_disk` wrote.

The store's metadata has the names of classes under "classes", by column. Images and sounds become the bytes of their
files. Shuffles and selections of the data set are applied.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from warmstore.converting.arrow_columns import batch_of, pieces
from warmstore.converting.arrow_types import field_of_column
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, rows_at_once
from warmstore.errors import BadSource, UnknownFormat
from warmstore.extras import imported
from warmstore.records.format.fields import Array, Field

_REOPEN = 128 << 20
"""Bytes after which a folder is reopened: pages that were read stay mapped until then."""


def list_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `save_to_disk` wrote."""
    if (folder / "dataset_dict.json").exists():
        splits = sorted(path.name for path in folder.iterdir() if path.is_dir())
        raise UnknownFormat(f"{folder} holds several data sets: {', '.join(splits)}. Convert one, {folder / splits[0]}")
    return sorted(folder.glob("*.arrow"))


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    datasets = imported("datasets", "this format")
    folder = request.paths[0] if request.paths else None
    if request.paths and len(request.paths) > 1:
        raise BadSource("several data sets; join them with datasets.concatenate_datasets and convert the result")

    def loaded() -> Any:
        return datasets.load_from_disk(str(folder)) if folder is not None else request.source

    columns = _formatted_columns(loaded())
    dataset = loaded().with_format("arrow")
    features = dataset.features
    count = len(dataset)
    if not count:
        raise BadSource("the data set holds no records")
    schema = dataset[:1].schema
    fields = request.choose(columns, lambda name: _field(schema.field(name)))
    width = dataset.data.nbytes / max(dataset.data.num_rows, 1)

    def read(start: int) -> Iterator[SourceBatch]:
        source, mapped = loaded().with_format("arrow"), 0
        step = rows_at_once(width)
        for first in range(start, count, step):
            table = source[first : min(first + step, count)].combine_chunks()
            for batch in table.to_batches():
                for piece in pieces(batch):
                    yield batch_of(fields, piece)
            mapped += table.nbytes
            if folder is not None and mapped > _REOPEN:
                source, mapped = loaded().with_format("arrow"), 0

    classes = {name: features[name].names for name in fields if hasattr(features.get(name), "names")}
    return RecordSource(fields, read, count, metadata={"classes": classes} if classes else {})


def _formatted_columns(dataset: Any) -> list[str]:
    """The columns of a data set's format, in the order of the data set.

    Raises:
        BadSource: the format computes or casts values, which a conversion would not do.
    """
    shown = dataset.format
    if shown["type"] == "custom":
        raise BadSource(
            "the data set has a transform (set_transform or with_transform), which a conversion does not run. Convert "
            "source.map(...), source.with_format(None) without the transform, or iter(source) with its results"
        )
    if options := {key: value for key, value in shown["format_kwargs"].items() if key != "writeable"}:
        raise BadSource(
            f"the format {shown['type']!r} of the data set has the options {options}, which a conversion does not "
            "apply. Convert source.with_format(None), or cast its columns with source.cast(...)"
        )
    if shown["output_all_columns"]:
        return list(dataset.column_names)
    return [name for name in dataset.column_names if name in shown["columns"]]


def _field(column: pa.Field) -> Field:
    # Array2D and the like are stored as nested lists. Their type has the shape, unless the first size varies.
    shape = getattr(column.type, "shape", None)
    dtype = getattr(column.type, "value_type", None)
    if isinstance(dtype, str) and shape and None not in shape:
        return Array(dtype, tuple(shape))
    return field_of_column(column)
