"""The ids of the samples in one version of a cache: those that lookups find, each once."""

from collections.abc import Iterator

from warmstore.features.keyed.cache_reader import CacheReader
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.records.index.sample_keys import HashedId, Keys
from warmstore.records.read.snapshot import Snapshot

_AT_ONCE = 1 << 16


class CachedIds:
    """Lists and counts the ids of a version. Samples that are added meanwhile may be left out."""

    def __init__(self, version: OpenVersion) -> None:
        self._version = version
        self._counted: tuple[Snapshot, int] | None = None

    def __iter__(self) -> Iterator[int | HashedId]:
        pending = self._pending()
        yield from pending.values()
        for keys in self._stored():
            yield from (given for key, given in zip(keys.packed, keys.ids(), strict=True) if key not in pending)

    def __len__(self) -> int:
        """The number of ids. It reads the keys of all rows, once for each state of the store."""
        pending = self._pending()
        if pending:
            return len(pending) + sum(
                len(keys) - sum(map(pending.__contains__, keys.packed)) for keys in self._stored()
            )
        reader = self._reader()
        if reader is None:
            return 0
        snapshot = reader.store._snapshot
        if self._counted is None or self._counted[0] is not snapshot:
            self._counted = snapshot, sum(map(len, self._stored()))
        return self._counted[1]

    def _reader(self) -> CacheReader | None:
        version = self._version
        version.check_open()
        version.see_others()
        return version.reader

    def _stored(self) -> Iterator[Keys]:
        reader = self._reader()
        rows = 0 if reader is None else reader.store._snapshot.rows
        for first in range(0, rows, _AT_ONCE):
            assert reader is not None
            yield reader.keyed.live(first, min(first + _AT_ONCE, rows))

    def _pending(self) -> dict[bytes, int | HashedId]:
        found: dict[bytes, int | HashedId] = {}
        for block in self._version.blocks.waiting():
            found.update(zip(block.keys.packed, block.keys.ids(), strict=True))
        return found
