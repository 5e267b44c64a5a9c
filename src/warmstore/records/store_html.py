"""A store as HTML for notebooks: its fields, and its first records.

At most 5 records and 12 fields are read, and of these no value above 16 MiB.
"""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.display.html import Html, card, faint, heading, note, shortened, table
from warmstore.display.thumbnails import encoded_thumbnail, thumbnail
from warmstore.errors import WarmstoreError
from warmstore.records.format.fields import Array, Bytes, Field, Json, Ragged, field_text
from warmstore.records.store_reader import StoreReader
from warmstore.storage.humanize import format_size

_ROWS = 5
_FIELDS = 12
_LISTED = 50  # fields in the table of fields
_LARGEST = 16 << 20
_IMAGES = 600_000  # characters of all thumbnails together
_PREVIEW = 6  # numbers of an array


def store_html(store: StoreReader, fields: Collection[str] | None = None, title: str = "RecordStore") -> str:
    """The HTML of a store, or of some of its fields."""
    names = list(store.fields) if fields is None else list(fields)
    listed = names[:_LISTED]
    state = "closed" if store.closed else f"{len(store):,} records, {format_size(store.nbytes)}"
    pending = 0 if store.closed else store._session.pending.count
    parts = [table(("field", "type", "codec"), [_field_row(name, store.fields[name]) for name in listed])]
    if len(names) > len(listed):
        parts.append(note(f"and {len(names) - len(listed):,} more fields"))
    if pending:
        parts.append(note(f"{pending:,} of these records are pending: the next flush commits them."))
    if not store.closed and len(store):
        parts.append(_head(store, names[:_FIELDS]))
    return card(title, f"{_shown(store.path)}, {state}, mode {store.mode!r}", *parts)


def _shown(path: Path) -> Path:
    """A path as people wrote it who opened a store below the working directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _field_row(name: str, field: Field) -> tuple[str, str, str]:
    return name, field_text(field), "" if field.codec == "raw" else field.codec


def _head(store: StoreReader, names: list[str]) -> Html:
    count = min(_ROWS, len(store))
    cells = _Cells()
    columns = [_column(store, name, count, cells) for name in names]
    rows = [(faint(at), *values) for at, values in enumerate(zip(*columns, strict=True))]
    shown = "All records" if count == len(store) else f"The first {count} records"
    return Html(heading(shown) + table((">", *names), rows))


def _column(store: StoreReader, name: str, count: int, cells: "_Cells") -> list[Html]:
    """The cells of the first records of a field."""
    field = store.fields[name]
    found = []
    for at, nbytes in enumerate(_stored_bytes(store, name, count)):
        if cells.failed:
            found.append(faint("not read"))
        elif nbytes > _LARGEST:
            found.append(faint(f"{field_text(field)}, {format_size(nbytes)}"))
        else:
            found.append(cells.cell(store, name, field, at))
    return found


def _stored_bytes(store: StoreReader, name: str, count: int) -> list[int]:
    """Bytes of the values of the first records, without reading them. Pending ones count as 0: they are in memory."""
    gatherer = store._gatherer
    snapshot = gatherer.snapshot
    committed = min(count, snapshot.length)
    rows = snapshot.rows_at(np.arange(committed, dtype=np.int64))
    try:
        sizes = gatherer.stored_bytes(name, rows).tolist()
    except OSError:
        sizes = [0] * committed  # reading them says why
    return [*sizes, *[0] * (count - committed)]


class _Cells:
    """Cells of values. failed: a remote did not answer, and is not asked again."""

    def __init__(self) -> None:
        self.failed = False
        self._left = _IMAGES

    def cell(self, store: StoreReader, name: str, field: Field, at: int) -> Html:
        """The cell of one value."""
        try:
            values = store.gather([at], [name])[name]
            value = values[0]
        except WarmstoreError as error:
            self.failed = isinstance(error, ConnectionError) or "Remote" in type(error).__name__
            return faint("not available" if self.failed else "damaged")
        if value is None or (isinstance(values, np.ma.MaskedArray) and np.ma.getmaskarray(values).all()):
            return faint("absent")
        picture = self._picture(field, value)
        return _text(field, value) if picture is None else picture

    def _picture(self, field: Field, value: Any) -> Html | None:
        if self._left <= 0:
            return None
        picture = encoded_thumbnail(value) if isinstance(field, Bytes) else thumbnail(value)
        if picture is None or len(picture) > self._left:
            return None
        self._left -= len(picture)
        return picture


def _text(field: Field, value: Any) -> Html:
    if isinstance(field, Bytes):
        return shortened(f"{format_size(len(value))} {bytes(value[:8]).hex(' ')}{'…' if len(value) > 8 else ''}")
    if isinstance(field, Json):
        return shortened(json.dumps(value, ensure_ascii=False))
    if isinstance(field, Array | Ragged):
        return shortened(_numbers(np.asarray(value), with_shape=isinstance(field, Ragged)), 80)
    return shortened(value)


def _numbers(array: np.ndarray[Any, Any], *, with_shape: bool) -> str:
    """The first and last numbers of an array, and its shape where records have their own."""
    if not array.ndim:
        return str(array[()])
    flat = array.reshape(-1)
    if len(flat) > _PREVIEW:
        half = _PREVIEW // 2
        text = f"{_joined(flat[:half])} … {_joined(flat[-half:])}"
    else:
        text = _joined(flat)
    shape = f"[{', '.join(map(str, array.shape))}] " if with_shape or array.ndim > 1 else ""
    return f"{shape}{text}"


def _joined(numbers: np.ndarray[Any, Any]) -> str:
    is_float = numbers.dtype.kind == "f" or numbers.dtype.name == "bfloat16" or numbers.dtype.name.startswith("float8")
    return " ".join(f"{float(number):.4g}" if is_float else str(number) for number in numbers)
