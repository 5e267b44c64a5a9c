"""Writing a store with Ray Data: each write task stages a part, and the driver commits all parts at once."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import Block
from ray.data.datasource import Datasink, WriteResult

from warmstore.ray.arrow_blocks import rows_of
from warmstore.records.format.fields import Fields
from warmstore.remote.location import from_anywhere
from warmstore.replicate.staged_part import PartWriter, StagedPart
from warmstore.replicate.staged_write import StagedWrite
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.address_space import SLOT

Written = tuple[int, StagedPart] | None
"""What a task returns: its number, and its part; None if it had no records."""


def write(
    dataset: "ray.data.Dataset",
    target: str | os.PathLike[str],
    *,
    append: bool = False,
    fields: Fields | None = None,
    metadata: dict[str, Any] | None = None,
    part_size: int | str = "128MB",
    chunk_size: int | str = SLOT,
    work_dir: str | os.PathLike[str] | None = None,
    remote_options: Mapping[str, Any] | None = None,
    anonymous: bool = False,
) -> None:
    """Write a dataset as a store, in its order. The store appears complete, or not at all.

    Write tasks that are killed or retried leave nothing.

    Args:
        target: a folder, on a file system of all nodes; or a URL.
        append: add the records to the store that exists at the target.
        fields: of the records. None to infer them from the columns; needed if a column's shapes vary between blocks.
        part_size: bytes of blocks that one task writes, at least.
        metadata: see `StagedWrite`.
        chunk_size: see `StagedWrite`.
        work_dir: see `StagedWrite`.
        remote_options: see `StagedWrite`.
        anonymous: see `StagedWrite`.

    Raises:
        StoreExists: the target exists, and `append` is false. NotAStore: it does not, and `append` is true.
        SchemaMismatch: blocks have different columns or types.
    """
    sink = StoreDatasink(
        target,
        append=append,
        fields=fields,
        metadata=metadata,
        part_size=part_size,
        chunk_size=chunk_size,
        work_dir=work_dir,
        remote_options=remote_options,
        anonymous=anonymous,
    )
    options = dataset.context.execution_options
    before, options.preserve_order = options.preserve_order, True
    try:
        dataset.write_datasink(sink)
    finally:
        options.preserve_order = before


class StoreDatasink(Datasink[Written]):
    """A store, for `Dataset.write_datasink`. The arguments are those of `write`.

    Records are in the order of the write tasks. This is the order of the dataset if its `execution_options` have
    `preserve_order=True`, which `write` sets.
    """

    def __init__(
        self,
        target: str | os.PathLike[str],
        *,
        part_size: int | str = "128MB",
        fields: Fields | None = None,
        **options: Any,
    ) -> None:
        self._target = from_anywhere(target)
        self._options = {**options, "fields": fields}
        self._fields = fields
        self._part_size = parse_size(part_size)
        self._write: StagedWrite | None = None

    def get_name(self) -> str:
        """The name of the operator in Ray's plans."""
        return "Warmstore"

    @property
    def min_bytes_per_write(self) -> int:
        """Blocks are given to one task up to this size."""
        return self._part_size

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Check the target, and make room for the parts. Runs on the driver."""
        self._write = StagedWrite(self._target, **self._options)

    def write(self, blocks: Iterable[Block], ctx: Any) -> Written:
        """Write one part. Runs in a task, which may be killed or run again."""
        assert self._write is not None
        part: PartWriter | None = None
        try:
            for block in blocks:
                for fields, rows in rows_of(block, self._fields if part is None else part.fields):
                    part = part or self._write.part(fields)
                    part.extend_rows(rows)
            return None if part is None else (ctx.task_idx, part.finish())
        except BaseException:
            if part is not None:
                part.discard()
            raise

    def on_write_complete(self, write_result: "WriteResult[Written]") -> None:
        """Commit the parts of all tasks at once. Runs on the driver."""
        if self._write is None:  # Ray begins no write of a dataset without blocks
            self.on_write_start()
        assert self._write is not None
        written = sorted((one for one in write_result.write_returns if one is not None), key=lambda one: one[0])
        self._write.commit([part for _, part in written])

    def on_write_failed(self, error: Exception) -> None:
        """Remove all parts. Runs on the driver."""
        if self._write is not None:
            self._write.abort()
