"""CacheSession: looks up and accepts outputs in one version of a cache.

A lookup searches the pending blocks first and the store's index second, so that it finds everything that was accepted.
The store, its folder and its fingerprint belong to `OpenVersion`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore.errors import AmbiguousBatch, BadBudget, Damaged, RemoteError, SchemaMismatch
from warmstore.features.keyed.cache_reader import merge, no_values, select
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.features.outputs.dims_inference import Repeats
from warmstore.features.outputs.leaves import Leaf, nbytes_of
from warmstore.features.outputs.out_dims import UNSET
from warmstore.features.outputs.output_schema import OutputSchema
from warmstore.features.outputs.output_structure import flatten
from warmstore.features.write_queue import Block
from warmstore.records.format.fields import LARGEST_RECORD
from warmstore.records.index.sample_keys import Keys
from warmstore.records.keyed_store import DAMAGED, MISSING
from warmstore.storage.array_types import Int64
from warmstore.storage.memory.buffer_pool import Arena
from warmstore.tree.spec import TreeSpec

if TYPE_CHECKING:
    import torch

_NOWHERE = np.zeros(0, np.int64)
_LARGEST = LARGEST_RECORD - 16  # bytes of a sample; its record has its key too
_ARENA = 64 << 20
"""The most bytes of one arena, which holds pending values of one leaf."""

_IN_USE = 8
"""Versions of a cache that do not rest, beside the first one: those that were opened last."""


class CacheSession:
    """Lookups and accepted outputs of one version. Safe to use from several threads.

    damaged: rows that did not match their checksums. bytes_read: bytes of the values that were found.
    """

    def __init__(self, version: OpenVersion) -> None:
        options = version.options
        self.version = version
        self.blocks = version.blocks
        self.cost = version.cost
        self.damaged = self.bytes_read = 0
        self.lists = options.lists
        self.repeats = Repeats()
        self._pad_value = options.pad_value
        self._allow_pickle = options.allow_pickle
        self._remote = version.remote
        self._checked: tuple[Any, Any] | None = None  # the structure and out_dims that were found to agree
        self._arenas: dict[str, Arena] = {}  # by leaf

    @property
    def is_fixed(self) -> bool:
        """Whether earlier outputs, accepted or stored, have fixed the structure of outputs."""
        return self.version.schema is not None

    def check_dims(self, out_dims: Any) -> None:
        """Raise SchemaMismatch if the dimensions of samples in the cached outputs differ from `out_dims`."""
        schema = self.version.schema
        if schema is not None and (schema.structure, out_dims) != self._checked:
            schema.check_dims(out_dims)
            self._checked = (schema.structure, out_dims)
            with self.version.lock:
                self.version.settle()

    @property
    def is_settled(self) -> bool:
        """Whether the dimensions of samples in outputs are known. A batch of one does not show them."""
        return self.version.schema is not None and self.version.settled

    def serves(self, count: int) -> bool:
        """Whether batches of `count` samples may be assembled from cached samples."""
        return count < 2 or self.version.settled

    def confirm(self, outputs: Any, count: int) -> None:
        """Learn the dimensions of samples from an output for several samples.

        Raises:
            SchemaMismatch: the output does not fit the schema of the cache.
        """
        with self.version.lock:
            known = self.version.schema
            assert known is not None
            _, leaves = flatten(outputs, count, known.structure, self.lists, allow_pickle=self._allow_pickle)
            known.check_growth(leaves, count)
            self.version.settle()

    # Lookup

    def fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        """Look keys up.

        Returns:
            The leaves of the keys that are cached, in order, as NumPy values, or None if no key is; and the indices of
            the missing keys, int64.
        """
        try:
            return self._fetch(keys)
        except (RemoteError, Damaged, BadBudget) as error:
            if self._remote is None:
                raise
            self._remote.failed(error)
            self._count({}, 0, len(keys), time.perf_counter())
            return None, np.arange(len(keys))

    def _fetch(self, keys: Keys) -> tuple[dict[str, Any] | None, Int64]:
        began = time.perf_counter()
        self.version.check_open()
        self.blocks.raise_error()
        reader = self.version.reader
        if reader is not None and not len(self.blocks):
            values = reader.read_all(keys)
            if values is not None:
                self._count(values, len(keys), 0, began)
                return values, _NOWHERE
        pending = self.blocks.find(keys)
        return self._fetch_some(keys, self._find(keys, pending), pending, began)

    def serve(self, keys: Keys, device: torch.device | None) -> Any:
        """The output for keys that are all committed; None if some are not, or if this needs a longer lookup."""
        began = time.perf_counter()
        version = self.version
        reader = version.reader
        if version.closed or reader is None or self._remote is not None or len(self.blocks):
            return None
        self.blocks.raise_error()
        values = reader.read_all(keys) if len(keys) and self.serves(len(keys)) else None
        if values is None:
            return None
        self._count(values, len(keys), 0, began)
        return self.assemble(values, device)

    def missing(self, keys: Keys) -> Int64:
        """The indices of the keys that are not cached, int64 in order, without reading any values."""
        self.version.check_open()
        pending = self.blocks.find(keys)
        absent = self._find(keys, pending) < 0
        absent[list(pending)] = False
        return np.flatnonzero(absent)

    def _fetch_some(
        self, keys: Keys, rows: Int64, pending: dict[int, tuple[Block, int]], began: float
    ) -> tuple[dict[str, Any] | None, Int64]:
        schema, reader = self.version.schema, self.version.reader
        stored = np.flatnonzero(rows >= 0) if reader is not None else _NOWHERE
        if not len(stored) and not pending:
            self._count({}, 0, len(keys), began)
            return None, np.arange(len(keys))
        assert schema is not None
        values = no_values(schema)
        if reader is not None and len(stored):
            values, bad, damaged = reader.values(keys.take(stored), rows[stored])
            if bad is not None:
                again = self._find(keys, pending) if damaged < np.count_nonzero(bad) else rows
                if (again != rows).any():  # a rebalance has given them other rows since they were found
                    return self._fetch_some(keys, again, pending, began)
                self._count_damaged(damaged)
                stored = stored[~bad]
                values = {path: select(value, ~bad) for path, value in values.items()}
        found = np.union1d(stored, np.array(list(pending), np.int64))
        if pending:
            for block in {id(block): block for block, _ in pending.values()}.values():
                schema.check(block.leaves)  # since it was found, a store of other outputs may have been opened
            rank = {index: number for number, index in enumerate(found.tolist())}
            pending_rows = [(rank[index], block.leaves, row) for index, (block, row) in pending.items()]
            values = merge(schema, values, np.searchsorted(found, stored), pending_rows, len(found))
        missing = np.setdiff1d(np.arange(len(keys)), found)
        self._count(values, len(found), len(missing), began)
        return values if len(found) else None, missing

    def _count(self, values: dict[str, Any], hits: int, misses: int, began: float) -> None:
        self.cost.add(hits=hits, misses=misses)
        nbytes = 0
        for value in values.values():
            nbytes += nbytes_of(value)
        self.bytes_read += nbytes
        self.version.recorder.looked_up(self.version, hits, misses, nbytes, began)

    def _count_damaged(self, count: int) -> None:
        if count:
            self.damaged += count
            self.version.recorder.damaged(count)

    def count_computed(self, seconds: float, samples: int) -> None:
        """Count samples that the module computed."""
        self.cost.add(seconds, samples)
        self.version.recorder.computed(seconds, samples)

    def _find(self, keys: Keys, pending: dict[int, Any]) -> Int64:
        """The confirmed row of each key, or a negative code. A key counts as missing only after a refresh."""
        rows = np.full(len(keys), MISSING, np.int64)
        unknown = wanted = np.delete(np.arange(len(keys)), list(pending))
        version, reader = self.version, self.version.reader
        has_new_rows = reader is not None or version.see_others()
        while len(unknown) and has_new_rows:
            if version.reader is not reader:  # its folder was removed: rows are numbers of one store
                reader, unknown = version.reader, wanted
                rows[:] = MISSING
            if reader is None:  # another thread saw just now that its folder was removed
                break
            before = reader.keyed.state
            rows[unknown] = reader.keyed.find(keys.take(unknown))
            unknown = unknown[rows[unknown] < 0]
            # Another thread may have seen the new rows.
            has_new_rows = bool(len(unknown)) and (version.see_others() or reader.keyed.state != before)
        if version.reader is not reader:
            rows[:] = MISSING
        self._count_damaged(int((rows == DAMAGED).sum()))
        return rows

    def completed(self, values: Any, missing: Int64, leaves: Sequence[Leaf], rows: Int64, count: int) -> dict[str, Any]:
        """Leaves of `count` samples: row `rows[i]` of `leaves` for the i-th missing one, `values` for the others."""
        schema = self.version.schema
        assert schema is not None
        found = np.setdiff1d(np.arange(count), missing)
        computed = [(index, leaves, row) for index, row in zip(missing.tolist(), rows.tolist(), strict=True)]
        return merge(schema, values or no_values(schema), found, computed, count)

    def assemble(self, values: dict[str, Any] | None, device: torch.device | None) -> Any:
        """The output that leaves of `fetch` belong to."""
        version = self.version
        schema = version.schema
        assert schema is not None
        assert values is not None
        if not version.settled and max(map(len, values.values())) > 1:
            raise AmbiguousBatch(
                f"the cache {version.path} was filled in batches of one, which do not show the dimension of samples in "
                "outputs. Call the module with a batch of several samples once, or pass out_dims= to CachedModule"
            )
        return schema.assemble(values, self._pad_value, device, allow_pickle=self._allow_pickle)

    def samples(self, keys: Keys, device: torch.device | None = None) -> tuple[list[Any], Int64]:
        """The outputs of the keys that are cached, in order, each without the dimension of samples; and the indices of
        the missing keys, int64."""
        values, missing = self.fetch(keys)
        if values is None:
            return [], missing
        schema = self.version.schema
        assert schema is not None
        parts = (
            {path: column[row : row + 1] for path, column in values.items()} for row in range(len(keys) - len(missing))
        )
        return [schema.sample(part, device, allow_pickle=self._allow_pickle) for part in parts], missing

    def sample(self, key: Keys) -> tuple[Any, bool]:
        """The output of one sample, on the CPU, and whether it is cached."""
        found, _ = self.samples(key)
        return (found[0], True) if found else (None, False)

    # Accepting outputs

    def put(
        self, keys: Keys, outputs: Any, out_dims: Any = UNSET, rows: Int64 | None = None, *, sure: bool = True
    ) -> tuple[TreeSpec, list[Leaf]]:
        """Accept the outputs of some keys to be committed, unless this process does not write.

        Args:
            out_dims: see `flatten`.
            rows: the samples to store; None for all.
            sure: whether the dimensions of samples are known. Until they are, only batches of one are served.

        Returns:
            All outputs, flattened.
        """
        version = self.version
        version.check_open()
        with version.lock:
            if version.reader is None:
                version.find_store()
            known = version.schema
            structure, leaves = flatten(
                outputs,
                len(keys),
                known.structure if known else None,
                self.lists,
                allow_pickle=self._allow_pickle,
                out_dims=out_dims,
            )
            if known is not None and sure and not version.settled:
                known.check_growth(leaves, len(keys))
            if known is None:
                options = version.options
                version.schema = OutputSchema.of_leaves(structure, leaves, options.variable, options.codec)
                version.settled = sure
            elif version.reader is None:
                version.schema = known.widened(leaves)
            else:
                known.check(leaves)
            if sure:
                version.settle()
        if version.writes and (rows is None or len(rows)):
            kept = leaves if rows is None else [leaf.take(rows) for leaf in leaves]
            own = tuple(leaf.to_host(self._arena(leaf, len(keys)).copy) for leaf in kept)
            self._keep(Block.of(keys if rows is None else keys.take(rows), own))
        return structure, leaves

    def _arena(self, leaf: Leaf, count: int) -> Arena:
        """The arena for pending values of a leaf. It is as large as the values of one commit, but at most 64 MiB.

        Args:
            count: samples of the first batch.
        """
        known = self._arenas.get(leaf.path)
        if known is None:
            size = nbytes_of(leaf.values) // max(count, 1) * self.version.options.flush_every
            known = self._arenas.setdefault(leaf.path, Arena(min(size, _ARENA)))
        return known

    def _keep(self, block: Block) -> None:
        if largest := block.larger_than(_LARGEST):
            raise SchemaMismatch(
                f"a sample of {largest:,} bytes is too large: one holds at most {_LARGEST:,}. Cache smaller outputs"
            )
        if self.version.quota is not None:
            self.version.quota.check(block)
        self.blocks.put(block)

    def accept(self, keys: Keys, leaves: tuple[Leaf, ...]) -> None:
        """Accept leaves that fit the schema. The cache owns their memory from now on."""
        self.version.check_open()
        self._keep(Block.of(keys, leaves))

    def expect(self, schema: OutputSchema, *, settled: bool) -> OutputSchema:
        """The schema of this cache. A cache without a schema adopts the given one."""
        with self.version.lock:
            if self.version.reader is None:
                self.version.find_store()
            if self.version.schema is None:
                self.version.schema, self.version.settled = schema, settled
            return self.version.schema

    def rest(self) -> None:
        """Keep no files open and no memory until the next use; see `OpenVersion.rest`."""
        self.version.rest()
        self._arenas = {}

    def after_fork(self) -> None:
        """In a forked child: pending blocks, counts, locks and hot rows stay with the parent."""
        self._arenas = {}
        self.bytes_read = 0
        self.version.after_fork()


def rest_unused(sessions: Sequence[CacheSession]) -> None:
    """Let all versions of a cache rest but the first one and those that were opened last: a program that changes its
    module in every epoch opens one more version each time.

    Raises:
        WriteFailed, SchemaMismatch, StaleCache: what was pending in one of them could not be committed.
    """
    for session in sessions[1:-_IN_USE]:
        session.rest()
