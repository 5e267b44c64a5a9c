"""torch's map-style data sets, `torch.utils.data.Dataset` with `__len__` and `__getitem__`: a record an item.

A dict has a field for each key, a named tuple for each name; a tuple or list has the fields "0", "1" and so on. Any
other item is one field, "data" unless fields= names it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from warmstore.converting.objects.iterable import source_of
from warmstore.converting.record_source import RecordSource, Request
from warmstore.errors import BadSource, SchemaMismatch


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    dataset = request.source
    try:
        count = len(dataset)
    except (TypeError, NotImplementedError):
        raise BadSource(
            f"a {type(dataset).__name__} has no length, so its items cannot be read by number; convert an iterable of "
            "records"
        ) from None
    if not count:
        raise BadSource("the data set holds no records")
    kind = type(dataset[0])

    def records() -> Iterator[dict[str, Any]]:
        for number in range(count):
            item = dataset[number]
            if type(item) is not kind:
                raise SchemaMismatch(
                    f"item {number:,} of the data set is a {type(item).__name__}, the first one a {kind.__name__}"
                )
            yield _record(request, item)

    return source_of(request, records, rows=count)


def _record(request: Request, item: Any) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    if isinstance(item, tuple | list):
        names = getattr(item, "_fields", None) or [str(number) for number in range(len(item))]
        return dict(zip(names, item, strict=True))
    return {request.name: item}
