"""CSV and TSV files through `pyarrow.csv`, with column types that fit all rows of all files.

A first pass reads every cell as text and finds the types that fit all cells of a column: bool, int64, float64, date,
time, else Text. Cells that a number cannot restore make the column Text: `007`, or ints among floats beyond float64's
precision. Empty cells and `NA`, `N/A`, `#N/A`, `NULL` and `null` are absent, but values in a Text column. An empty line
is an empty cell in a file of one column, and is skipped in others.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from warmstore.converting.arrow_columns import batch_of, check_schema, pieces
from warmstore.converting.arrow_types import field_of_column
from warmstore.converting.known_formats import plain_name
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, reading
from warmstore.errors import BadSource, SchemaMismatch
from warmstore.records.arrow.arrow_schema import field_type
from warmstore.records.format.fields import Array, Bytes, Field, Text

_ABSENT = ["", "NA", "N/A", "#N/A", "NULL", "null"]
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_FLOAT = r"^-?(([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[nN]a[nN]|-?inf)$"
_PADDED = r"^-?0[0-9]"
_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}(:[0-9]{2})?$"
_FRACTION = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?$"
_EXACT = 1 << 53
_BLOCK = 1 << 20
"""Bytes that are parsed at once. A cell must fit into two blocks."""
_LARGEST_BLOCK = 1 << 30


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    schema: pa.Schema = None
    columns: dict[str, _Column] = {}
    rows = 0
    blocks: dict[Path, int] = {}

    def look(path: Path, block: int) -> int:
        nonlocal schema, columns
        count = 0
        reader = _opened(path, None, block)
        if schema is None:
            schema = reader.schema
            columns = {name: _Column() for name in schema.names}
        check_schema(schema, reader.schema, path)
        for batch in reader:
            count += batch.num_rows
            for name, column in columns.items():
                column.look(batch.column(name))
        return count

    for path in files:
        with reading(path):
            blocks[path], count = _with_large_blocks(path, look)
            rows += count
    if not rows:
        raise BadSource(f"{', '.join(map(str, files))}: no records")
    fields = request.choose(list(columns), lambda name: field_of_column(pa.field(name, columns[name].type)))
    types = {name: _type_of(name, fields[name], columns[name].type) for name in fields}

    def read(start: int) -> Iterator[SourceBatch]:
        for path in files:
            with reading(path):
                for batch in _opened(path, types, blocks[path]):
                    skip = min(start, batch.num_rows)
                    start -= skip
                    for piece in pieces(batch.slice(skip)):
                        yield batch_of(fields, piece)

    return RecordSource(fields, read, rows)


def _with_large_blocks(path: Path, look: Callable[[Path, int], int]) -> tuple[int, int]:
    """The bytes of a block that every cell of a file fits in, and what `look` returns for it."""
    block = _BLOCK
    while True:
        try:
            return block, look(path, block)
        except pa.ArrowInvalid as error:
            if "straddl" not in str(error) or block >= _LARGEST_BLOCK:
                raise
        block *= 8


def _opened(path: Path, types: dict[str, pa.DataType] | None, block: int) -> pa.RecordBatchReader:
    """A reader of a file's rows: the columns in `types`, or all columns as text. `block`: bytes parsed at once."""
    suffixes = Path(plain_name(path)).suffixes[-2:]
    compression = "gzip" if ".gz" in suffixes else "detect"
    delimiter = "\t" if ".tsv" in suffixes else ","
    parse = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    read = pacsv.ReadOptions(use_threads=False, block_size=block)
    with pacsv.open_csv(pa.input_stream(str(path), compression), read_options=read, parse_options=parse) as reader:
        names = reader.schema.names
    if len(set(names)) < len(names):
        raise BadSource(f"{path}: two columns have one name: {', '.join(names)}")
    parse.ignore_empty_lines = len(names) > 1
    types = dict.fromkeys(names, pa.string()) if types is None else types
    convert = pacsv.ConvertOptions(
        column_types=types, include_columns=list(types), null_values=_ABSENT, strings_can_be_null=False
    )
    stream = pa.input_stream(str(path), compression)
    return pacsv.open_csv(stream, read_options=read, parse_options=parse, convert_options=convert)


def _type_of(name: str, field: Field, inferred: pa.DataType) -> pa.DataType:
    """The Arrow type to read a column as, for its field."""
    if isinstance(field, Text):
        return pa.string()
    if isinstance(field, Bytes):
        return pa.binary()
    if isinstance(field, Array) and not field.shape and field.numpy.kind in "biufmM" and field.numpy.num < 256:
        return inferred if field_of_column(pa.field(name, inferred)) == field else field_type(field)
    raise SchemaMismatch(f"field {name!r} is {field}; a cell of a CSV file is text, bytes, a number, a bool or a time")


def _matches(pattern: str) -> Callable[[pa.Array], bool]:
    return lambda cells: bool(pc.all(pc.match_substring_regex(cells, pattern), min_count=0).as_py())


def _casts(cells: pa.Array, kind: pa.DataType) -> bool:
    try:
        cells.cast(kind)
    except pa.ArrowException:
        return False
    return True


def _is_float(cells: pa.Array) -> bool:
    """Whether cells are floats, and ints among them are exact in float64."""
    if not _matches(_FLOAT)(cells) or pc.any(pc.match_substring_regex(cells, _PADDED)).as_py():
        return False
    infinite = pc.and_(pc.is_inf(cells.cast(pa.float64())), pc.invert(pc.match_substring(cells, "inf")))
    if pc.any(infinite).as_py():
        return False
    whole = cells.filter(pc.match_substring_regex(cells, r"^-?[0-9]+$"))
    if not _casts(whole, pa.int64()):
        return False
    exact = pc.less_equal(pc.abs_checked(pc.max_element_wise(whole.cast(pa.int64()), -_EXACT - 1)), _EXACT)
    return bool(pc.all(exact, min_count=0).as_py())


_KINDS: list[tuple[pa.DataType, Callable[[pa.Array], bool]]] = [
    (pa.bool_(), _matches(r"^(true|True|TRUE|false|False|FALSE)$")),
    (pa.int64(), lambda cells: _matches(_INTEGER)(cells) and _casts(cells, pa.int64())),
    (pa.float64(), _is_float),
    (pa.date32(), lambda cells: _matches(_DATE)(cells) and _casts(cells, pa.date32())),
    (pa.timestamp("s"), lambda cells: _matches(_TIME)(cells) and _casts(cells, pa.timestamp("s"))),
    (pa.timestamp("ns"), lambda cells: _matches(_FRACTION)(cells) and _casts(cells, pa.timestamp("ns"))),
]


class _Column:
    """The types that fit all cells of a column so far, the best one first."""

    def __init__(self) -> None:
        self.kinds = _KINDS
        self.has_values = False

    def look(self, cells: pa.Array) -> None:
        cells = cells.filter(pc.invert(pc.is_in(cells, pa.array(_ABSENT))))
        self.has_values = self.has_values or bool(len(cells))
        if len(cells):
            self.kinds = [(kind, fits) for kind, fits in self.kinds if fits(cells)]

    @property
    def type(self) -> pa.DataType:
        return self.kinds[0][0] if self.has_values and self.kinds else pa.string()
