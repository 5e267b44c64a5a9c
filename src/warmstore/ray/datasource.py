"""Reading a store with Ray Data: a task per range of chunks, which reads the selected fields alone."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from warmstore.errors import PositionError
from warmstore.ray.arrow_blocks import block_of
from warmstore.records.format.fields import check_known
from warmstore.remote.location import from_anywhere
from warmstore.replicate.record_store import RecordStore

_BLOCK_BYTES = 64 << 20
_SAMPLED = 16
"""Records that are read to estimate the size of all."""


def read(
    store: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    tasks: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = "20GB",
    remote_options: Mapping[str, Any] | None = None,
    anonymous: bool = False,
) -> "ray.data.Dataset":
    """The records of a store as a dataset, which is read when it is consumed.

    Fields have the Arrow types of `RecordStore.to_arrow`, which Ray hands out as NumPy arrays; ragged arrays of one
    dimension are lists. `Dataset.select_columns` is pushed down: other fields are not read.

    Args:
        store: the folder of a store, which all nodes see at this path; or a URL.
        fields: the fields to read; all by default.
        tasks: the number of read tasks; None for Ray's choice. A task reads one chunk, or a part of one.
        cache_dir: see `RecordStore.open`.
        cache_size: see `RecordStore.open`.
        remote_options: see `RecordStore.open`.
        anonymous: see `RecordStore.open`.

    Raises:
        NotAStore: there is no store. KeyError: an unknown field. TypeError: `fields` is one name.
    """
    options = {"cache_dir": cache_dir, "cache_size": cache_size, "remote_options": remote_options}
    source = StoreDatasource(store, fields=fields, anonymous=anonymous, **options)  # type: ignore[arg-type]
    return ray.data.read_datasource(source, override_num_blocks=tasks)


@dataclass(frozen=True)
class _Opener:
    """How a task opens the store; the state that was planned is checked, so that no position is another record."""

    path: str
    options: Mapping[str, Any] = field(repr=False)
    state: tuple[str, int, int] | None = None

    def open(self) -> RecordStore:
        store = RecordStore.open(self.path, **self.options)
        state = store._manifest.id, store._manifest.generation, store._snapshot.deletes
        if self.state not in (None, state):
            store.close()
            raise PositionError(
                f"{self.path} was rebalanced, or records were deleted, after its reading was planned: read it again"
            )
        return store


class StoreDatasource(Datasource):
    """The records of a store, for `ray.data.read_datasource`. The arguments are those of `read`."""

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        fields: Sequence[str] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = "20GB",
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"remote_options": remote_options, "anonymous": anonymous}
        if cache_dir is not None:
            options["cache_dir"] = from_anywhere(cache_dir)
        opener = _Opener(from_anywhere(store), {**options, "cache_size": cache_size})
        with opener.open() as opened:
            state = opened._manifest.id, opened._manifest.generation, opened._snapshot.deletes
            if fields is not None:
                check_known(opened.path, fields, opened.fields)
            names = list(opened.fields if fields is None else fields)
            sample = opened.to_arrow(range(min(_SAMPLED, opened._snapshot.length)), fields=names)
            self._rows = opened._snapshot.length
        self._opener = replace(opener, state=state)
        self._names = names
        self._widths = {name: sample[name].nbytes / max(len(sample), 1) for name in names}
        self._projection_map: dict[str, str] | None = None

    def get_name(self) -> str:
        """The name of the operator in Ray's plans."""
        return "Warmstore"

    def supports_projection_pushdown(self) -> bool:
        """Selected columns are the only fields that are read."""
        return True

    @property
    def _chosen(self) -> list[str]:
        chosen = self._get_data_columns()
        return self._names if chosen is None else [name for name in self._names if name in chosen]

    def estimate_inmemory_data_size(self) -> int:
        """Bytes of the selected fields, by the first records."""
        return int(self._rows * sum(self._widths[name] for name in self._chosen))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """About `parallelism` tasks, each of a range of positions within few chunks."""
        width = sum(self._widths[name] for name in self._chosen)
        with self._opener.open() as store:
            ranges = store.chunk_ranges(max(parallelism, 1))
        parts = [range(part.start, min(part.stop, self._rows)) for part in ranges]  # without what was appended since
        return [self._task(part, width, per_task_row_limit) for part in parts if part]

    def _task(self, part: range, width: float, limit: int | None) -> ReadTask:
        opener, names = self._opener, self._chosen
        step = max(1, int(_BLOCK_BYTES / max(width, 1)))
        metadata = BlockMetadata(len(part), int(len(part) * width), None, None)
        return ReadTask(lambda: _blocks(opener, names, part, step), metadata, per_task_row_limit=limit)


def _blocks(opener: _Opener, names: list[str], part: range, step: int) -> Iterator[pa.Table]:
    with opener.open() as store:
        fields = {name: store.fields[name] for name in names}
        for first in range(part.start, part.stop, step):
            positions = range(first, min(first + step, part.stop))
            if names:
                yield block_of(store.to_arrow(positions, fields=names), fields)
            else:  # a count alone
                yield pa.table({"": pa.nulls(len(positions))}).select([])
