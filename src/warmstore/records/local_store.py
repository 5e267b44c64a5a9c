"""LocalStore: typed records in a folder, appended by many processes, edited, and gathered at memory speed.

A store is a folder of Arrow IPC files and one log. Written rows are pending in memory until a flush commits them. A
process sees its own pending rows at once, and the committed rows of others at `refresh`.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self

from warmstore.display.html import html_method
from warmstore.errors import PositionError, ReadOnly, SchemaMismatch
from warmstore.records.field_views import FieldsView, FieldView, first_value, is_names
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import LARGEST_RECORD, Field, Fields, Json, check_fields, check_known
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.format.value_encoding import encode
from warmstore.records.framework_arrays import Formatted
from warmstore.records.maintenance.field_edits import add_field, drop_field, map_field
from warmstore.records.maintenance.filtering import copy_kept
from warmstore.records.maintenance.rewrite import Utilisation, rewrite
from warmstore.records.maintenance.verify import Report, check
from warmstore.records.read.numpy_indexing import is_integer
from warmstore.records.sample_batch import SampleBatch
from warmstore.records.store_html import store_html
from warmstore.records.store_reader import StoreReader
from warmstore.records.store_session import BATCH_BYTES
from warmstore.records.write.store_draft import create_folder, drafted
from warmstore.records.write.write_buffer import block_of, largest_record
from warmstore.records.write.write_options import WriteOptions
from warmstore.remote.location import is_remote
from warmstore.storage.files import Files, is_read_only
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import Reserve
from warmstore.storage.user_paths import user_path


class LocalStore(StoreReader):
    """A store in a folder. `RecordStore` adds remotes."""

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        fields: Fields,
        *,
        metadata: dict[str, Any] | None = None,
        chunk_size: int | str = SLOT,
        writer_threads: int | None = None,
        room: Reserve | None = None,
        files: Files | None = None,
    ) -> Self:
        """Create a store and open it for appending. The folder appears complete or not at all.

        Args:
            path: a folder that does not exist yet or is empty.
            fields: the typed fields of every record, by name.
            metadata: any JSON value, stored with the store.
            chunk_size: bytes after which a chunk is sealed and the next one starts, at most 1 GiB.
            writer_threads: threads that compress what this process writes; None for one per core.
            room: reserves disk space for every write by evicting chunks; see `warmstore.records.write.chunk_eviction`.

        Raises:
            StoreExists: the folder is not empty.
            SchemaMismatch: the fields are not valid.
            UnsupportedType: the metadata is not JSON.
            ReadOnly: the folder cannot be written.
        """
        if is_remote(path):
            raise ReadOnly(f"{path!r} is a remote; create a store in a folder and push it there")
        folder, files = user_path(path).absolute(), files or Files()
        writing = WriteOptions.of(chunk_size, writer_threads, room)
        metadata = dict(metadata or {})
        encode("metadata", Json(), [metadata])
        manifest = Manifest(check_fields(fields), copy.deepcopy(metadata))
        create_folder(folder, manifest, files)
        return cls(folder, manifest, "a", writing, files)

    @classmethod
    def _open_folder(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        writing: WriteOptions | None = None,
        salvage: bool = False,
        files: Files | None = None,
    ) -> Self:
        """`RecordStore.open` for a store in a folder. `writing` is by default what `create` uses by default."""
        if mode not in ("r", "a"):
            raise ValueError(f"mode is {mode!r}; it must be 'r' (read) or 'a' (read and append)")
        files, writing, folder = files or Files(), writing or WriteOptions.of(), user_path(path)
        try:
            return cls(folder, read_manifest(folder, files), mode, writing, files, salvage=salvage)
        except OSError as error:
            if is_read_only(error):
                raise ReadOnly(error.errno, "the store cannot be written; open it with mode='r'", str(path)) from error
            raise

    _repr_html_ = html_method(store_html)

    # Indexing

    def __getitem__(self, index: Any) -> Any:
        """One record for an integer, a field for a str, several for a list of str, else what `gather` returns.

        A field is a `FieldView`, which looks like an array; several are a `FieldsView`, which looks like a store.
        """
        if isinstance(index, str):
            return FieldView(self, index)
        if is_names(index):
            return FieldsView(self, index)
        if is_integer(index):
            return {name: first_value(values) for name, values in self.gather([index]).items()}
        return self.gather(index)

    def __getitems__(self, index: Any) -> SampleBatch:
        """The records at many positions as torch's DataLoader asks for them."""
        return SampleBatch(self.gather(index), len(index), index)

    def __setitem__(self, index: Any, values: Any) -> None:
        """`update`: `store[3] = {"label": 7}` for one record, `store[[3, 4]] = {"label": [7, 8]}` for many.

        Fields left out keep their values.
        """
        if isinstance(index, str) or is_names(index):
            raise PositionError(
                f"records are set by position; to replace all values of a field use map_field({index!r}, ...)"
            )
        if not isinstance(values, dict):
            raise SchemaMismatch(
                f"records are set to a dict of values by field, such as {{{next(iter(self.fields))!r}: ...}}; got "
                f"{type(values).__name__}"
            )
        self.update(index, values)

    def __delitem__(self, index: Any) -> None:
        """`delete`: the last records move into the holes, so the positions of others change."""
        if isinstance(index, str) or is_names(index):
            raise PositionError(f"records are deleted by position; to delete a field use drop_field({index!r})")
        self.delete(index)

    def with_format(self, format: str) -> Formatted:
        """The same records as "torch" tensors, "jax" arrays, or "numpy" again.

        Raises:
            NotInstalled: the library is missing.
        """
        return Formatted(self, format)

    # Writing

    def append(self, record: dict[str, Any]) -> None:
        """Add one record, given as a value per field. It is pending until the next flush."""
        if not isinstance(record, dict):
            raise SchemaMismatch(f"a record is a dict of one value per field, not {type(record).__name__}")
        self.extend({name: [value] for name, value in record.items()})

    def extend(self, columns: dict[str, Any]) -> None:
        """Add a batch of records, given as a dict of field name to n values. Values are copied.

        The rows are pending: readable here at once, by others after `flush`, which also happens by itself once
        64 MiB are pending, and at close.

        Raises:
            SchemaMismatch: fields missing or unknown, unequal lengths, another dtype or shape; nothing is added.
            ReadOnly: the store was opened with mode "r".
            WriteFailed: the automatic flush failed; the rows stay pending.
        """
        fields = self.fields
        block = block_of(fields, columns)  # outside the lock: threads encode side by side
        with self._session.lock:
            if self.fields != fields:  # changed meanwhile
                block = block_of(self.fields, columns)
            self._extend_rows(block)
            if self._session.pending.nbytes >= BATCH_BYTES:
                self.flush()

    def _extend_rows(self, block: dict[str, EncodedRows]) -> None:
        """Add an encoded batch, without flushing. Its arrays must not change afterwards."""
        widest = largest_record(block)
        if widest > LARGEST_RECORD:
            raise SchemaMismatch(
                f"a record of {widest:,} bytes is too large: one holds at most {LARGEST_RECORD:,}. Split it"
            )
        with self._session.lock:  # another thread may be closing the store
            self._check_writable()
            self._session.pending.add(block)

    def _commit_rows(self, block: dict[str, EncodedRows]) -> None:
        """Commit a batch that is encoded and compressed already, before the pending rows.

        Raises:
            WriteFailed: the disk refused the write; nothing is committed, and nothing becomes pending.
        """
        with self._session.lock:
            self._check_writable()
            self._session.commit_rows(block)

    @property
    def _flushes_at_sigterm(self) -> bool:
        return self.mode == "a"

    def flush(self) -> None:
        """Commit all pending rows. They are on the disk and visible to others when this returns.

        Raises:
            WriteFailed: the disk refused the write. Rows not committed stay pending, and the next flush retries.
        """
        with self._session.lock:  # another thread may be closing the store: the handler of SIGTERM flushes in its own
            self._check_writable()
            self._session.flush()

    def seal(self) -> None:
        """Commit all pending rows and write the footer of this writer's chunk, so that any Arrow reader can open it.

        The next rows start a new chunk. `close` does the same.

        Raises:
            WriteFailed: the disk refused the write; the rows stay pending.
        """
        with self._session.lock:
            self._check_writable()
            self._session.settle()

    # Editing

    def update(self, index: Any, values: dict[str, Any]) -> None:
        """Replace values of records. This commits at once, with all pending rows. Positions do not change.

        Args:
            index: one position, or an index for `gather`; of equal positions the last one counts.
            values: for one position a value per field, else n values per field. Omitted fields keep their values.

        Raises:
            PositionError, SchemaMismatch, ReadOnly, WriteFailed: nothing is changed.
        """
        if is_integer(index):
            index, values = [index], {name: [value] for name, value in values.items()}
        with self._session.lock:
            self._check_writable()
            self._session.update(index, values)

    def delete(self, index: Any) -> None:
        """Delete records; the last records move into their positions. This commits at once, with all pending rows.

        Each hole, in rising order, is filled by the last record that remains. The store then has n records fewer.

        Args:
            index: one position, or an index for `gather`. A repeated position is deleted once.

        Raises:
            PositionError, ReadOnly, WriteFailed: nothing is changed.
        """
        if is_integer(index):
            index = [index]
        with self._session.lock:
            self._check_writable()
            self._session.delete(index)

    def rebalance(self, *, progress: bool | None = None) -> Utilisation:
        """Copy the live records into new, dense chunks and remove the old ones. Others may read and append meanwhile.

        Args:
            progress: show a bar; None shows one on a terminal or in a notebook.

        Returns:
            How much of the store was in use before, and its size now.

        Raises:
            Damaged: a record does not match its checksum; the store is unchanged.
        """
        with self._editing():  # no other process changes the fields from here on
            return rewrite(self._session, self.fields, {}, progress=progress)

    def verify(self, *, repair: bool = False, progress: bool | None = None) -> Report:
        """Read every committed byte from the disk and compare it with its hash.

        Args:
            repair: restore files that have an intact copy. If chunks are damaged, rewrite the store with the damaged
                values absent. Positions do not change.

        Returns:
            The damage found, by file, field and position.
        """
        self._check_open()
        with self._editing() if repair else contextlib.nullcontext():
            return check(self._session, repair=repair, progress=progress)

    def add_field(self, name: str, field: Field, values: Any = None, *, progress: bool | None = None) -> Utilisation:
        """Add a field to every record. The store is rewritten, as by `rebalance`.

        Args:
            values: one value per record, or a function that gets batches of records, as `gather` returns them, and
                returns their values; None leaves the field absent.

        Raises:
            SchemaMismatch: the field exists, or values do not fit; the store is unchanged.
            PositionError: the function changed the store; the field is not added.
        """
        with self._session.lock:
            self._check_writable()
            return add_field(self._session, name, field, values, self.gather, progress)

    def drop_field(self, name: str, *, progress: bool | None = None) -> Utilisation:
        """Delete a field and its values. The store is rewritten, as by `rebalance`."""
        with self._session.lock:
            self._check_writable()
            return drop_field(self._session, name, progress)

    def map_field(
        self,
        name: str,
        function: Callable[[dict[str, Any]], Any],
        field: Field | None = None,
        *,
        progress: bool | None = None,
    ) -> Utilisation:
        """Replace a field's values by a function of the records. The store is rewritten, as by `rebalance`.

        Args:
            function: gets batches of n records, as `gather` returns them, and returns n values.
            field: the field's new type; unchanged if None.

        Raises:
            SchemaMismatch: values do not fit; the store is unchanged.
            PositionError: the function changed the store; the field is not changed.
            WriteFailed: the function changed the store through another handle; the field is not changed.
        """
        with self._session.lock:
            self._check_writable()
            return map_field(self._session, name, function, field, self.gather, progress)

    def filter(
        self,
        path: str | os.PathLike[str],
        keep: Any,
        *,
        fields: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Copy some records, in their order, into a new store and return it, open for appending.

        Pending rows are committed first. Values are copied in their stored form. The new store appears at its path when
        it is complete; after an error or a kill nothing is there.

        Args:
            path: a folder that does not exist yet or is empty.
            keep: an index for `gather`, or a function that gets batches of records and returns one bool per record;
                masked is False.
            fields: the fields to copy; all by default.

        Raises:
            StoreExists: the folder is not empty.
            PositionError: other processes or threads changed records, which may have moved.
            Damaged: a record does not match its checksum.
        """
        self._check_open()
        if self.mode == "a":  # stored rows are copied, and another process may have changed the fields
            with self._session.lock:
                self._check_writable()
                if callable(keep) or (isinstance(keep, slice) and keep == slice(None)):
                    self._session.flush()
                else:
                    keep = self._session.flush_at(keep)
        names = list(self.fields) if fields is None else list(fields)
        check_known(self.path, names, self.fields)
        kept_fields = {name: self.fields[name] for name in names}
        files = Files() if self._files.is_remote else self._files
        with (
            drafted(path, files) as draft,
            type(self).create(draft, kept_fields, metadata=self.metadata, files=files) as target,
        ):
            copy_kept(self._session, target._session, keep, self.gather, progress)
        return self._open_folder(path, "a", files=files)

    @contextlib.contextmanager
    def _editing(self) -> Iterator[None]:
        """Hold the edit lock, with nothing pending and the log read to its end. Refreshes afterwards."""
        with self._session.lock:
            self._check_writable()
            with self._session.editing():
                yield

    def annotate(self, name: str, value: Any) -> Any:
        """Set an entry of the store's metadata unless it is set already. Returns its value.

        Raises:
            UnsupportedType: the value is not JSON, or the name is not a str.
        """
        with self._session.lock:
            self._check_writable()
            return self._session.annotate(name, value)
