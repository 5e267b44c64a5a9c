"""RemoteTier: the samples of tiers at a remote, as all hosts have pushed them.

A version of a tier has a place of its own below the URL, with the same name as its folder. Keys of samples are fetched
when a version is opened, values when they are read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np

from warmstore.errors import Damaged, StaleCache, UnsupportedType, WarmstoreError
from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.step_identities import Description, key_of
from warmstore.pipeline.tiers.flattening import flatten
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SampleSchema
from warmstore.pipeline.tiers.sample_spec import Taken
from warmstore.pipeline.tiers.sample_table import match
from warmstore.pipeline.tiers.tier_folders import parsed_version
from warmstore.pipeline.tiers.tier_store import KINDS
from warmstore.pipeline.tiers.unflattening import Marked
from warmstore.records.keyed_store import read_keys
from warmstore.records.local_store import LocalStore
from warmstore.records.log.log_entries import ADOPTED
from warmstore.replicate.attach import attach
from warmstore.replicate.keys_first import keys_first
from warmstore.replicate.parts import Part
from warmstore.replicate.remote_copy import Remote, RemoteFiles
from warmstore.storage.array_types import Bools
from warmstore.storage.cached_property import cached_property
from warmstore.storage.memory.address_space import SLOT

_SCRATCH = 2 * SLOT  # most bytes of fetched blocks: one fetch takes at most a chunk
_EXAMPLES = 8
_AT_ONCE = 1 << 20  # rows whose keys are read at once


@dataclass(frozen=True)
class RemotePart:
    """What one host has pushed of one of the two stores of a version.

    kind: of the store; see `KINDS`. keys: uint64 [rows, 2]; zeros for damaged ones. chunks: the rows of each chunk, by
    its number in `pushed`. store: has the rows; values are fetched when they are read.
    """

    pushed: Part
    kind: int
    schema: SampleSchema
    store: LocalStore
    keys: UInt64
    chunks: dict[int, slice]

    def flattened(self, rows: Int64) -> list[Taken]:
        """The flattened values of some rows.

        Raises:
            Damaged: a row does not match its checksum.
            UnsupportedType: a class of a value is not imported.
            RemoteUnavailable, RemoteRefused: a value cannot be fetched.
        """
        values = self.schema.decode(self.store.gather(rows, self.schema.names))
        return [
            flatten(value.value, outside=value.parts) if isinstance(value, Marked) else flatten(value, copy=False)
            for value in values
        ]


@final
class RemoteVersion:
    """One version of a tier at a remote.

    Raises:
        StaleCache: the place holds the results of other steps than its name says.
        Damaged, RemoteUnavailable, RemoteRefused: the heads or the keys cannot be read.
    """

    def __init__(self, name: str, remote: Remote, scratch: Path) -> None:
        self.name = name
        self.remote = remote
        self._files = RemoteFiles(remote, _SCRATCH, scratch)
        self.parts = [
            self._part(part, scratch / f"{name}.{number}")
            for number, part in enumerate(remote.part_log().read(self._files.objects).filled)
        ]

    @cached_property
    def keys(self) -> UInt64:
        """The keys of all undamaged rows, uint64 [n, 2]. Samples that several hosts have computed are repeated."""
        every = np.concatenate([np.empty((0, 2), np.uint64), *(part.keys for part in self.parts)])
        return every[every.any(axis=1)]

    @property
    def schema(self) -> SampleSchema | None:
        """The schema of most samples, by the part with most of them; None if they have nothing in common."""
        content = self._largest.pushed.manifest.metadata["schema"]
        return None if content is None else SampleSchema.from_json(content)

    def examples(self) -> list[Taken]:
        """Some flattened samples, from which the schema of another codec is inferred."""
        return self._largest.flattened(np.arange(min(_EXAMPLES, len(self._largest.keys))))

    @property
    def _largest(self) -> RemotePart:
        return max(self.parts, key=lambda part: len(part.keys))

    @property
    def steps(self) -> tuple[Description, ...]:
        """The steps, without the facts of their identities."""
        return tuple(self.parts[0].pushed.manifest.metadata["steps"])

    def close(self) -> None:
        """Close the connection."""
        for part in self.parts:
            part.store.close()
        self._files.release()

    def _part(self, part: Part, folder: Path) -> RemotePart:
        found = parsed_version(self.name)
        metadata = part.manifest.metadata
        if metadata.get("kind") not in KINDS or found is None:
            raise StaleCache(f"{self.remote!r} holds no samples of a pipeline; push to another URL")
        kind = KINDS.index(metadata["kind"])
        try:
            key = key_of(metadata["steps"])
            schema = SampleSchema.of_bytes(found["codec"]) if kind else SampleSchema.from_json(metadata["schema"])
            fields = schema.store_fields
        except (KeyError, TypeError, ValueError, AttributeError, WarmstoreError) as error:
            raise Damaged(f"{part.name} at {self.remote!r} does not say what it holds: {error!r}; remove it") from error
        if key != found["key"]:
            raise StaleCache(f"{part.name} at {self.remote!r} holds the results of other steps than those of its name")
        if fields != part.manifest.fields:
            raise Damaged(f"{part.name} at {self.remote!r} has other fields than its schema; remove it")
        LocalStore.create(folder, part.manifest.fields, files=self._files).close(seal=False)
        attach(folder, part, self._files.objects, self._files, keep_remote=keys_first(self._files), progress=False)
        store = LocalStore._open_folder(folder, "r", files=self._files)
        return RemotePart(part, kind, schema, store, _keys(store), _chunks(store))


@final
class RemoteTier:
    """The versions of tiers at a remote.

    Args:
        scratch: a folder for fetched keys and values.
        codecs: of samples that other plans may have pushed.
    """

    def __init__(self, remote: Remote, scratch: Path, codecs: Sequence[str]) -> None:
        self._remote = remote
        self._scratch = scratch
        self._codecs = codecs
        self._opened: dict[str, RemoteVersion] = {}

    def version(self, name: str) -> RemoteVersion:
        """A version by its name; it has no parts if nothing was pushed."""
        if name not in self._opened:
            self._opened[name] = RemoteVersion(name, self._remote.below(name), self._scratch)
        return self._opened[name]

    def forms(self, name: str) -> list[RemoteVersion]:
        """What was pushed of a version in its codec, and then in others, which hold the same samples."""
        found = parsed_version(name)
        assert found is not None
        others = (f"{found['step']}-{codec}-{found['key']}" for codec in self._codecs if codec != found["codec"])
        return [version for form in (name, *others) if (version := self.version(form)).parts]

    def holds(self, name: str, keys: UInt64) -> Bools:
        """Which samples are at the remote in any form of a version: bool [n], for keys uint64 [n, 2]."""
        held = np.zeros(len(keys), np.bool_)
        for version in self.forms(name):
            held |= match(version.keys, keys) >= 0
        return held

    def schema(self, name: str) -> SampleSchema | None:
        """The schema of most samples of a version; None if there are none, or they have nothing in common.

        Raises:
            UnsupportedType: an encoder or a class of the samples is unknown to this process.
        """
        found = parsed_version(name)
        assert found is not None
        for version in self.forms(name):
            if version.name != name:
                return SampleSchema.of(version.examples(), found["codec"])
            schema = version.schema
            if schema is not None and schema.objection:
                raise UnsupportedType(schema.objection)
            return schema
        return None

    def names(self) -> list[str]:
        """The names of all versions."""
        with self._remote.open() as objects:
            folders = {entry.name.partition("/")[0] for entry in objects.entries()}
        return sorted(name for name in folders if parsed_version(name) is not None)

    def close(self) -> None:
        """Close all connections."""
        for version in self._opened.values():
            version.close()


def _keys(store: LocalStore) -> UInt64:
    rows = store._snapshot.rows
    blocks: Sequence[UInt64] = [np.empty((0, 2), np.uint64)]
    for first in range(0, rows, _AT_ONCE):
        keys, bad = read_keys(store._gatherer, SAMPLE, np.arange(first, min(first + _AT_ONCE, rows)))
        halves = keys.halves if bad is None else np.where(bad[:, None], np.uint64(0), keys.halves)
        blocks = [*blocks, halves]
    return np.concatenate(blocks)


def _chunks(store: LocalStore) -> dict[int, slice]:
    """The rows of each adopted chunk, by its number where it was written. Adopted chunks follow one another."""
    snapshot = store._snapshot
    entries = store._session.generation.log.read(0)
    adopted = entries[entries["kind"] == ADOPTED]
    origin = dict(zip(adopted["chunk"].tolist(), adopted["rows"].tolist(), strict=True))
    chunks = snapshot.chunk[: snapshot.batches]
    ends = np.append(snapshot.first_row[1 : snapshot.batches], snapshot.rows)
    found: dict[int, slice] = {}
    for chunk, first, end in zip(
        chunks.tolist(), snapshot.first_row[: snapshot.batches].tolist(), ends.tolist(), strict=True
    ):
        number = origin[chunk]
        found[number] = slice(found[number].start if number in found else first, end)
    return found
