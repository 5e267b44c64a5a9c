"""RecordStore: typed records in a folder, appended by many processes and gathered at memory speed.

A store is a folder of Arrow IPC files and one log. Reading goes through a snapshot of the log; writing stages rows in
memory until a flush commits them. Every process that opened the store sees its own pending rows at once and those of
others at `refresh`.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa

from warmstore.errors import Closed, PositionError, ReadOnly, SchemaMismatch
from warmstore.identity.kinds import Versioned
from warmstore.records.arrow.arrow_table import typed_table
from warmstore.records.field_views import FieldsView, FieldView, is_names
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import (
    LARGEST_RECORD,
    Field,
    Fields,
    Json,
    check_fields,
    check_known,
    field_has_bytes,
)
from warmstore.records.format.manifest import Manifest, read_manifest
from warmstore.records.format.value_encoding import encode
from warmstore.records.framework_arrays import Formatted
from warmstore.records.read.gather import Gatherer
from warmstore.records.read.gather_results import Options, read, read_as_wanted
from warmstore.records.read.numpy_indexing import is_integer
from warmstore.records.read.positions import as_positions, is_positions
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.read.verify import Report, check
from warmstore.records.sample_batch import SampleBatch
from warmstore.records.store_session import BATCH_BYTES, StoreSession
from warmstore.records.write.field_edits import add_field, drop_field, filter_store, map_field
from warmstore.records.write.rewrite import Utilisation, rewrite
from warmstore.records.write.store_draft import create_folder
from warmstore.records.write.write_buffer import block_of, largest_record
from warmstore.records.write.write_options import WriteOptions
from warmstore.remote.location import is_remote
from warmstore.storage.files import Files, is_read_only
from warmstore.storage.lifecycle import Closeable
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import Reserve

if TYPE_CHECKING:
    from warmstore.replicate.pull import PullResult
    from warmstore.replicate.push import PushResult

_log = logging.getLogger("warmstore")


class RecordStore(Closeable):
    """A store of `len(store)` records, positions 0 to N - 1 in the order of commits, this process's pending rows last.

    Safe to use from several threads. Make one with `create` or `open`.
    """

    def __init__(
        self, path: Path, manifest: Manifest, mode: str, writing: WriteOptions, files: Files, *, salvage: bool = False
    ) -> None:
        self.path = path.absolute()
        self.mode = mode
        self.files = files
        self.session = StoreSession(self.path, manifest, writing, files, write=mode == "a", salvage=salvage)
        self.closed = False
        if mode == "a":
            self.register()

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
        """Make a new store and open it for appending. The folder appears whole or not at all.

        Args:
            path: a folder that does not exist yet or is empty.
            fields: the typed fields of every record, by name.
            metadata: anything JSON can say, kept with the store.
            chunk_size: bytes after which a chunk is sealed and the next begun, at most 1 GiB.
            writer_threads: threads that compress what this process writes; None for one per core.
            room: makes room for every write, by evicting chunks (see `warmstore.records.write.chunk_eviction`).

        Raises:
            StoreExists: the folder holds something already.
            SchemaMismatch: fields that cannot be.
            UnsupportedType: metadata that JSON cannot say.
            ReadOnly: the folder cannot be written.
        """
        if is_remote(path):
            raise ReadOnly(f"{path!r} is a remote; create a store in a folder and push it there")
        folder, files = Path(path).absolute(), files or Files()
        writing = WriteOptions.of(chunk_size, writer_threads, room)
        manifest = Manifest(check_fields(fields), dict(metadata or {}))
        encode("metadata", Json(), [manifest.metadata])
        create_folder(folder, manifest, files)
        return cls(folder, manifest, "a", writing, files)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        mode: Literal["r", "a"] = "r",
        *,
        chunk_size: int | str = SLOT,
        writer_threads: int | None = None,
        room: Reserve | None = None,
        salvage: bool = False,
        files: Files | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_size: int | str | None = "20GB",
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> Self:
        """Open a store for reading ("r") or for appending too ("a"); the other options are those of `create`.

        Args:
            path: a folder, or the URL of a store that was pushed, such as "s3://bucket/photos", which is only read.
            salvage: open a store whose order of records is damaged in more than one file: edits up to the first that is
                damaged count, later ones do not. `verify(repair=True)` names them and makes a whole store of it.
            cache_dir: where blocks of a remote's chunks are kept, the user's cache folder by default.
            cache_size: bytes of them at most, or None for no bound. Those read longest ago go.
            remote_options, anonymous: see `push`.

        Raises:
            RemoteUnavailable, RemoteRefused: the remote cannot be read, also later where something is not here yet.
            NotAStore: the folder holds none.
            NewerFormat: it was written by a newer warmstore.
            Damaged: its description or log does not match its checksums.
            ReadOnly: mode "a" on a folder that cannot be written.
        """
        if mode not in ("r", "a"):
            raise ValueError(f"mode is {mode!r}; it must be 'r' (read) or 'a' (read and append)")
        if is_remote(path):
            if mode != "r":
                raise ReadOnly(f"{path!r} is a remote; write to a folder and push it there")
            from warmstore.replicate.remote_copy import Remote, open_remote

            remote = Remote(os.fspath(path), remote_options, anonymous)
            return cls._open_copy(*open_remote(remote, cache_dir, cache_size))
        files, writing = files or Files(), WriteOptions.of(chunk_size, writer_threads, room)
        try:
            return cls(Path(path), read_manifest(Path(path), files), mode, writing, files, salvage=salvage)
        except OSError as error:
            if is_read_only(error):
                raise ReadOnly(error.errno, "the store cannot be written; open it with mode='r'", str(path)) from error
            raise

    @classmethod
    def _open_copy(cls, folder: Path, files: Files) -> Self:
        try:
            return cls.open(folder, files=files)
        except BaseException:
            files.release()
            raise

    @property
    def manifest(self) -> Manifest:
        """What store.json says, in this process's generation."""
        return self.session.generation.manifest

    @property
    def fields(self) -> Fields:
        """The typed fields of every record, by name."""
        return self.manifest.fields

    @property
    def metadata(self) -> dict[str, Any]:
        """What `create` was given to keep with the store."""
        return self.manifest.metadata

    @property
    def snapshot(self) -> Snapshot:
        """The committed rows this process knows of."""
        return self.session.snapshot

    @property
    def nbytes(self) -> int:
        """Bytes the store takes on the disk."""
        return sum(path.stat().st_size for path in self.path.rglob("*") if path.is_file())

    def __identity__(self) -> Any:
        return Versioned(self.manifest.id, (self.manifest.generation, self.snapshot.edits))

    def __len__(self) -> int:
        return len(self.session)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
        return f"RecordStore({str(self.path)!r}, mode={self.mode!r}, {len(self):,} records, {fields})"

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
            WriteFailed: a flush that came due failed; the rows are pending.
        """
        self.extend_rows(block_of(self.fields, columns))
        if self.session.pending.nbytes >= BATCH_BYTES:
            self.flush()

    def extend_rows(self, block: dict[str, EncodedRows]) -> None:
        """Add a batch that is encoded already, without flushing; its arrays must not change afterwards."""
        self._check_writable()
        widest = largest_record(block)
        if widest > LARGEST_RECORD:
            raise SchemaMismatch(
                f"a record of {widest:,} bytes is too large: one holds at most {LARGEST_RECORD:,}. Split it"
            )
        with self.session.lock:
            self.session.pending.add(block)

    def commit_rows(self, block: dict[str, EncodedRows]) -> None:
        """Commit a batch that is encoded and compressed already, past what is pending.

        Raises:
            WriteFailed: the disk refused; nothing was committed, and nothing is kept.
        """
        self._check_writable()
        self.session.commit_rows(block)

    def flush(self) -> None:
        """Commit all pending rows; they are on the disk, and visible to others, when this returns.

        Raises:
            WriteFailed: the disk refused. Rows not committed are still pending and the next flush tries them again.
        """
        self._check_writable()
        self.session.flush()

    def seal(self) -> None:
        """Commit all pending rows, and end this writer's chunk: any reader of Arrow files can open it from then on.

        The next rows begin a new chunk. `close` does the same.

        Raises:
            WriteFailed: the disk refused; the rows are pending.
        """
        self._check_writable()
        self.session.settle()

    def refresh(self) -> None:
        """See what other processes committed since. A store's own flush does this too."""
        self._check_open()
        self.files.refresh()
        self.session.refresh()

    # Editing

    def update(self, index: Any, values: dict[str, Any]) -> None:
        """Replace values of records in place. Committed at once, with what was pending; positions stay as they are.

        Args:
            index: one position, or what `gather` takes; of equal positions the last one counts.
            values: for one position a value per field, else n values per field. Fields left out keep theirs.

        Raises:
            PositionError, SchemaMismatch, ReadOnly, WriteFailed: nothing is changed.
        """
        if is_integer(index):
            index, values = [index], {name: [value] for name, value in values.items()}
        self._check_writable()
        self.session.update(index, values)

    def delete(self, index: Any) -> None:
        """Take records away: the last ones fill their places. Committed at once, with what was pending.

        The holes are filled in rising order, each by the last record that is left; the store then has n fewer.

        Args:
            index: one position, or what `gather` takes. A position that comes twice is deleted once.

        Raises:
            PositionError, ReadOnly, WriteFailed: nothing is changed.
        """
        if is_integer(index):
            index = [index]
        self._check_writable()
        self.session.delete(index)

    def rebalance(self, *, progress: bool | None = None) -> Utilisation:
        """Write the live records densely into new chunks and remove the old ones; others may read and append meanwhile.

        Args:
            progress: show a bar; None shows one on a terminal.

        Returns:
            How much of the store was in use before, and its size now.

        Raises:
            Damaged: a record does not match its checksum; the store is as it was.
        """
        with self.editing():  # from here on the fields are those that other processes left
            return rewrite(self, self.fields, {}, progress=progress)

    def verify(self, *, repair: bool = False, progress: bool | None = None) -> Report:
        """Check every byte that the store's log speaks of against its hash, read from the disk.

        Args:
            repair: restore what has a whole copy; where chunks are damaged, write the store anew, with damaged values
                absent. Positions stay as they are.

        Returns:
            What is damaged and where.
        """
        with self.editing() if repair else contextlib.nullcontext():
            return check(self, repair=repair, progress=progress)

    def add_field(self, name: str, field: Field, values: Any = None, *, progress: bool | None = None) -> Utilisation:
        """Give every record one more field. The store is written anew, as by `rebalance`.

        Args:
            values: one value per record, or a function that gets batches of records, as `gather` gives them, and
                returns their values; None leaves the field absent.

        Raises:
            SchemaMismatch: the field is there already, or values do not fit; the store is as it was.
        """
        return add_field(self, name, field, values, progress)

    def drop_field(self, name: str, *, progress: bool | None = None) -> Utilisation:
        """Take a field and its values away. The store is written anew, as by `rebalance`."""
        return drop_field(self, name, progress)

    def map_field(
        self,
        name: str,
        function: Callable[[dict[str, Any]], Any],
        field: Field | None = None,
        *,
        progress: bool | None = None,
    ) -> Utilisation:
        """Replace a field's values by a function of the records. The store is written anew, as by `rebalance`.

        Args:
            function: gets batches of n records, as `gather` gives them, and returns n values.
            field: what the field is from now on; as it was if None.
        """
        return map_field(self, name, function, field, progress)

    def filter(
        self,
        path: str | os.PathLike[str],
        keep: Any,
        *,
        fields: Sequence[str] | None = None,
        progress: bool | None = None,
    ) -> "RecordStore":
        """Copy some records, in their order, into a new store and return it, open for appending.

        What is pending is committed first. Values are copied as they are stored. The new store appears at its path when
        it is complete: an error, or a kill, leaves nothing there.

        Args:
            path: a folder that does not exist yet or is empty.
            keep: what `gather` takes, or a function that gets batches of records and returns one bool each.
            fields: the fields to copy; all by default.

        Raises:
            StoreExists: the folder holds something already.
            Damaged: a record does not match its checksum.
        """
        self._check_open()
        return filter_store(self, path, keep, fields, progress)

    def editing(self) -> contextlib.AbstractContextManager[None]:
        """Hold the lock of editors, with nothing pending and everything seen, and see the edits afterwards."""
        self._check_writable()
        return self.session.editing()

    def annotate(self, name: str, value: Any) -> Any:
        """Keep something in the store's metadata unless it is there already; returns what stands there now."""
        self._check_writable()
        return self.session.annotate(name, value)

    # Reading

    def __getitem__(self, index: Any) -> Any:
        """One record for an integer, a field for a str, several for a list of str, else what `gather` returns.

        A field is a `FieldView`, which looks like an array; several are a `FieldsView`, which looks like a store.
        """
        if isinstance(index, str):
            return FieldView(self, index)
        if is_names(index):
            return FieldsView(self, index)
        if is_integer(index):
            return {name: _one(values) for name, values in self.gather([index]).items()}
        return self.gather(index)

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
        """`delete`: the last records fill the places, so positions of others change."""
        if isinstance(index, str) or is_names(index):
            raise PositionError(f"records are deleted by position; to delete a field use drop_field({index!r})")
        self.delete(index)

    def __getitems__(self, index: Any) -> SampleBatch:
        """The records at many positions as torch's DataLoader asks for them."""
        return SampleBatch(self.gather(index), len(index), index)

    def with_format(self, format: str) -> Formatted:
        """The same records as "torch" tensors, "jax" arrays, or "numpy" again.

        Raises:
            NotInstalled: the library is not there.
        """
        return Formatted(self, format)

    def gather(
        self,
        index: Any,
        fields: Sequence[str] | None = None,
        *,
        packed: bool = False,
        out: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Read many records at once, in the order asked for.

        Args:
            index: integers (negative ones count from the end), a slice, or a boolean mask.
            fields: the fields to read; all by default.
            packed: values that are no arrays of one shape come one after the other in one array, with their offsets.
            out: per field a NumPy array or CPU tensor to read into: for an Array field [n, *shape] of its dtype; with
                `packed` one dimension of the field's dtype (uint8 for bytes and text), large enough. Not needed for
                speed: memory of large batches that were dropped is used again.

        Returns:
            Per field: [n, *shape] for an Array; otherwise a list of n read-only arrays (Ragged), memoryviews (Bytes),
            str (Text) or JSON values (Json); or a `Packed`. What is in `out` is given back as it is.

        Raises:
            PositionError: a position outside the store.
            SchemaMismatch: `out` does not fit.
            Damaged: a row does not match its checksum.
        """
        if self.closed:
            self._check_open()
        session = self.session
        generation = session.generation
        known = generation.manifest.fields
        names = known if fields is None else fields
        if not (packed or out or session.pending.count or isinstance(names, str)) and is_positions(index):
            values = generation.gatherer.values(names if names is known else tuple(names), index)
            if values is not None:
                return values
        if fields is not None:
            check_known(self.path, names, known)
        options = Options(packed, out or {}, names) if packed or out else None
        if session.pending.count:  # looked at before the snapshot: what leaves the one is in the other by then
            with session.lock:
                if session.pending.count:
                    positions = as_positions(index, len(session))
                    return read_as_wanted(session.generation, session.pending, names, positions, options)
        positions = as_positions(index, generation.gatherer.snapshot.length)
        if options is not None:
            return read_as_wanted(generation, None, names, positions, options)
        return read(generation, names, positions)

    @property
    def gatherer(self) -> Gatherer:
        """What reads the committed rows now. It goes on giving the same rows for the same numbers, whatever follows."""
        return self.session.generation.gatherer

    def present(self, field: str, index: Any = slice(None)) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which of the committed records have a value for a field: bool [n]."""
        self._check_open()
        check_known(self.path, [field], self.fields)
        gatherer = self.gatherer
        snapshot = gatherer.snapshot
        (gathered,) = gatherer.read_rows([field], snapshot.rows_at(as_positions(index, snapshot.length)))
        count = len(gathered.data if gathered.data is not None else gathered.spans or ())
        return np.ones(count, bool) if gathered.absent is None else ~gathered.absent

    def to_arrow(
        self, *, fields: Sequence[str] | None = None, checksums: bool = False, verify: bool = True
    ) -> pa.Table:
        """The committed records as an Arrow table of typed columns, in their order; pending ones are not in it.

        Columns lie over the mapped files where Arrow has the layout they have there; bools, and values of fields with a
        codec, are copied, and so is everything after edits. `warmstore.records.arrow.arrow_schema` says which types
        fields become. A record without a value is null, and so is NaT.

        Args:
            fields: the fields to have, in their order; all by default.
            checksums: have the checksum columns beside them, `FIELD::xxh3`.
            verify: check every batch against its hash first, once a process; False skips it.

        Raises:
            KeyError: a field that is not there.
            UnsupportedType: Arrow cannot hold the values of a field; the message names it.
            Damaged: a batch is missing or damaged; or there were edits, and a value lies out of bounds.
        """
        self._check_open()
        with self.session.lock:
            generation = self.session.generation
            known = generation.manifest.fields
            names = known if fields is None else fields
            check_known(self.path, names, known)
            stored = generation.to_arrow(verify=verify)
            absent = {name: ~self.present(name) for name in names if not field_has_bytes(known[name])}
        return typed_table(stored, {name: known[name] for name in names}, checksums=checksums, absent=absent)

    # Remotes

    def push(
        self,
        url: str | os.PathLike[str],
        *,
        verify: bool = False,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "PushResult":
        """Have a remote hold what this store holds. What is there already is not sent again, nor after a break.

        Chunks that other processes write to wait for a later push, and rows behind theirs with them; this process's own
        is sealed.

        Args:
            url: s3://bucket/prefix, gs://, az://, http(s):// (WebDAV), or a folder; one store each.
            verify: read what is there already, and send anew what is damaged.
            progress: show a bar; None shows one on a terminal.
            remote_options: what obstore's store of that kind takes, such as {"endpoint": "https://..."}. Without them
                credentials are found where the cloud's own tools find them.
            anonymous: sign no requests.

        Raises:
            Diverged: the remote has what this store lacks, or another store.
            StoreExists: the remote has a feature cache.
            RemoteUnavailable, RemoteRefused: it was not pushed.
        """
        from warmstore.replicate.push import push
        from warmstore.replicate.remote_copy import Remote

        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            return push(self.path, objects, self.files, shared=False, verify=verify, progress=progress)

    def pull(
        self,
        url: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "PullResult":
        """Have this store hold what a remote has of it by now; the arguments are those of `push`.

        Raises:
            Diverged: this store has what the remote lacks, or another process writes to it.
            Damaged: what the remote has is not what was pushed.
            RemoteUnavailable, RemoteRefused: nothing changed; the next pull goes on.
        """
        from warmstore.replicate.pull import pull
        from warmstore.replicate.remote_copy import Remote

        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            pulled = pull(self.path, objects, self.files, progress=progress)
        self.session.refresh()
        return pulled

    def sync(
        self,
        url: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> "tuple[PullResult, PushResult]":
        """`pull` and then `push`: whichever of the two has more gives it to the other."""
        from warmstore.replicate.pull import sync
        from warmstore.replicate.remote_copy import Remote

        self._settle()
        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            done = sync(self.path, objects, self.files, progress=progress)
        self.session.refresh()
        return done

    @classmethod
    def clone(
        cls,
        url: str | os.PathLike[str],
        path: str | os.PathLike[str],
        *,
        progress: bool | None = None,
        remote_options: Mapping[str, Any] | None = None,
        anonymous: bool = False,
    ) -> Self:
        """Copy the store at a remote into a new folder, and open it; the other arguments are those of `push`.

        Killed and called again it goes on. Where the store is there already, it is pulled.
        """
        from warmstore.replicate.pull import pull
        from warmstore.replicate.remote_copy import Remote

        with contextlib.closing(Remote(url, remote_options, anonymous).open()) as objects:
            pull(Path(path), objects, Files(), progress=progress)
        return cls.open(path)

    def _settle(self) -> None:
        """Have nothing pending, and no chunk that this process writes to."""
        self._check_open()
        if self.files.is_remote:
            raise ReadOnly(f"{self.path} is a copy of a remote; clone it to push or pull")
        if self.mode == "a":
            self._check_writable()
            self.session.settle()

    # The end

    def close(self, *, seal: bool = True) -> None:
        """Flush, seal this writer's chunk and let go of the folder. Closing twice is fine.

        Args:
            seal: give the chunk its footer. Without one it takes a few bytes less and is as good, but not to other
                readers of Arrow files.

        Raises:
            WriteFailed: the flush failed; the store stays open and the rows pending.
        """
        if self.closed:
            return
        with self.session.lock:
            if self.mode == "a":
                self.session.settle(seal=seal)
            self.session.generation.release()
            self.closed = True
            self.unregister()
            self.files.release()

    def _after_fork(self) -> None:
        # In a forked child: the parent's pending rows, chunk and locks stay the parent's.
        old = self.session
        old.generation.release()
        try:
            self.session = StoreSession(self.path, self.manifest, old.writing, self.files, write=self.mode == "a")
        except OSError as error:
            self.closed = True
            _log.warning("%s could not be opened again after a fork: %s", self.path, error)

    def __reduce__(self) -> Any:
        if self.files.is_remote:
            return type(self)._open_copy, (self.path, self.files)
        return type(self).open, (str(self.path), "r")

    def _check_open(self) -> None:
        if self.closed:
            raise Closed(f"the store {self.path} is closed; open it again with RecordStore.open")

    def _check_writable(self) -> None:
        self._check_open()
        if self.mode != "a":
            raise ReadOnly(f"{self.path} was opened with mode='r'; open it with mode='a' to append")


def _one(values: Any) -> Any:
    return None if isinstance(values, np.ma.MaskedArray) else values[0]
