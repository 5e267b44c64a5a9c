"""A segment log: the entries of many writers in one folder of a remote, as a set that only grows.

A writer appends immutable segments. Where there are many, a writer folds them into a head, which later ones replace.
The state is the union of all heads that no other head names and of the segments outside of heads, so writers need no
order and no lock, and an outdated fold hides nothing. docs/decisions.md says why.

    FOLDER/s-HASH          a segment
    FOLDER/hDEPTH-HASH     a head: segments, packs, and the names of the heads that it replaces
    packs/HASH             more segments of a head
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from warmstore.errors import BadArtifact, Damaged, NewerFormat
from warmstore.remote.mirror import Mirror
from warmstore.remote.objects import Entry
from warmstore.remote.segment_bundles import MOST, Bundle, Segment, bundle_bytes, segment_bytes
from warmstore.remote.segment_names import SEGMENT, LogName, Vouching, hash_of, head_kind
from warmstore.storage.cached_property import cached_property

T = TypeVar("T")
Flowed = Callable[[int], None] | None

PACKS = "packs"
_LOOSE = 2  # segments outside of heads that readers fetch one by one
_PACKED = 512 << 10  # bytes of a head from which its segments go to a pack
_FAN_IN = 8  # packs of one size class that become one
_GARBAGE = 32  # objects that are removed together
_SPARE = 2  # heads that were replaced and stay, should a newer one be damaged
_TRIES = 5  # listings, while objects are removed
_TRANSIT = 2  # requests for one object


class LogRequests(Protocol):
    """The requests that a log needs; `Objects` has them."""

    async def get_async(
        self, name: str, /, *, most: int | None = None, flowed: Callable[[int], None] | None = None
    ) -> bytes | None: ...

    async def put_async(self, name: str, data: bytes, /) -> bool: ...

    async def entries_async(self, prefix: str, /, *, flowed: Callable[[int], None] | None = None) -> list[Entry]: ...

    async def delete_async(self, names: Iterable[str], /) -> None: ...

    async def each(self, function: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any], /) -> list[T]: ...


class _Removed(Exception):
    """An object was removed after it was listed: what replaces it is in a later listing."""


@dataclass(frozen=True)
class LogState:
    """What one listing and the objects in it say.

    loose: segments outside of heads. heads: the current heads. folded: the segments of these heads and of their packs,
    each with the depth of the head in which it was first. listed: names in the folder that are accepted. others: other
    names in the folder. problems: why objects are left out. damaged: names of the objects that could not be read.
    """

    loose: Sequence[Segment] = ()
    heads: Sequence[tuple[LogName, Bundle]] = ()
    folded: Sequence[tuple[Segment, int]] = ()
    listed: Sequence[LogName] = ()
    others: Sequence[str] = ()
    problems: Sequence[str] = ()
    damaged: Sequence[str] = ()

    @cached_property
    def replaced(self) -> frozenset[str]:
        """Hashes of the segments that others replace."""
        return frozenset(digest for segment in self._all for digest in segment.replaces)

    @cached_property
    def superseded(self) -> frozenset[str]:
        """The names of the heads that the current ones replace."""
        return frozenset(text for _, head in self.heads for text in head.heads)

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments that count, by the hash of each once."""
        by_hash = {segment.name.hash: segment for segment in self._all}
        return [segment for digest, segment in by_hash.items() if digest not in self.replaced]

    @property
    def _all(self) -> Iterator[Segment]:
        yield from (segment for segment, _ in self.folded)
        yield from self.loose


class SegmentLog:
    """The log in one folder of a remote. Not safe to use from several threads at once.

    Args:
        folder: the prefix of the names.
        vouching: makes and accepts names.
        mirror: keeps fetched objects.
        packs: the prefix of the names of packs.
    """

    def __init__(self, folder: str, vouching: Vouching, mirror: Mirror, *, packs: str = PACKS) -> None:
        self.folder = folder
        self.packs = packs
        self.vouching = vouching
        self._mirror = mirror
        self._objections: dict[str, str | None] = {}  # by name; None to accepted ones
        self._bundles: dict[str, Bundle] = {}  # by the name of a head or a pack
        self._segments: dict[str, Segment] = {}  # loose ones, by name

    # Reading

    async def read(self, objects: LogRequests, *, flowed: Flowed = None) -> LogState:
        """The present state: one listing, and the objects in it that are not here.

        Raises:
            RemoteUnavailable, RemoteRefused: a request failed. Damaged objects are left out and are no error.
        """
        for left in reversed(range(_TRIES)):
            with contextlib.suppress(_Removed):
                return await self._read(objects, flowed, is_last=not left)
        raise AssertionError

    async def _read(self, objects: LogRequests, flowed: Flowed, *, is_last: bool) -> LogState:
        listed: list[LogName] = []
        others: list[str] = []
        problems: list[str] = []
        for entry in await objects.entries_async(self.folder, flowed=flowed):
            name = LogName.parse(entry.name.removeprefix(f"{self.folder}/"))
            if name is None:
                others.append(entry.name)
            elif (why := self._objection(name)) is not None:
                problems += [f"{entry.name[:80]}: {why}"] if why else []
            elif entry.size > MOST:
                problems.append(f"{entry.name[:80]} has {entry.size:,} bytes")
            else:
                listed.append(name)
        reading = _Reading(self, objects, flowed, problems, is_last=is_last)
        heads = await reading.current_heads([name for name in listed if name.depth >= 0])
        packs = {pack: size for _, head in heads for pack, size in head.packs}
        bundles = [head for _, head in heads] + await reading.packs(packs)
        folded = {segment.name.hash: (segment, depth) for bundle in bundles for segment, depth in bundle.segments}
        for digest, (segment, _) in [*folded.items()]:
            if (why := self._objection(segment.name)) is not None:
                problems += [f"{segment.name.text[:20]} in a head: {why}"] if why else []
                del folded[digest]
        replaced = {digest for segment, _ in folded.values() for digest in segment.replaces}
        wanted = [name for name in listed if name.depth < 0 and name.hash not in folded and name.hash not in replaced]
        loose = await reading.segments(wanted)
        self._forget({*(name.text for name, _ in heads), *packs, *(name.text for name in wanted)})
        accepted = [*listed, *(segment.name for segment, _ in folded.values())]
        self._objections = dict.fromkeys(name.text for name in accepted)  # those to others are found again
        return LogState(loose, heads, list(folded.values()), listed, others, problems, reading.damaged)

    def _objection(self, name: LogName) -> str | None:
        if name.text not in self._objections:
            self._objections[name.text] = self.vouching.objection(name)
        return self._objections[name.text]

    def _forget(self, current: set[str]) -> None:
        self._bundles = {name: bundle for name, bundle in self._bundles.items() if name in current}
        self._segments = {name: segment for name, segment in self._segments.items() if name in current}
        self._mirror.keep(current)

    # Writing

    async def append(
        self, objects: LogRequests, payload: bytes, state: LogState, *, replaces: Iterable[str] = ()
    ) -> Segment:
        """Add a segment to a state that was just read. It is at the remote when this returns, alone or in a head.

        Args:
            payload: unlike any before; a segment of the same bytes as a replaced one is replaced.
            replaces: hashes of segments that no longer count.

        Raises:
            NotTrusted: no key can sign.
            RemoteUnavailable, RemoteRefused: a request failed. The segment may be at the remote, or not.
        """
        data = segment_bytes(payload, replaces)
        segment = Segment.parse(self.vouching.name(SEGMENT, data), data)
        loose = len(state.loose) + 1
        if loose > _LOOSE and random.random() * loose < _LOOSE + 1:
            await self.fold(objects, state, segment)
        else:
            await objects.put_async(f"{self.folder}/{segment.name.text}", data)
            self._segments[segment.name.text] = segment
            self._mirror.put(segment.name.text, data)
        return segment

    async def fold(self, objects: LogRequests, state: LogState, *new: Segment, forget: Collection[str] = ()) -> None:
        """Write a head of all segments of a state and of new ones, and remove what two listed heads hold.

        Args:
            forget: names of objects that are damaged, to which the head does not refer.

        Raises:
            NotTrusted, RemoteUnavailable, RemoteRefused: as `append`.
        """
        depth = max([name.depth for name in state.listed], default=0) + 1
        replaced = {digest for segment in new for digest in segment.replaces} | state.replaced
        # Heads and packs that could not be read are not replaced: what they hold may be read later.
        every = {pack: size for _, head in state.heads for pack, size in head.packs}
        packs = {pack: size for pack, size in every.items() if f"{self.packs}/{pack}" not in forget}
        readable = [self._bundles[pack] for pack in packs if pack in self._bundles]
        packed = {segment.name.hash for pack in readable for segment, _ in pack.segments}
        # A replaced segment stays where those that it has replaced may be found: they would count again.
        found = {name.hash for name in state.listed} | packed
        are_all = len(readable) == len(packs)
        gone = replaced - {each.name.hash for each in state._all if found & {*each.replaces} or not are_all}
        direct = [(segment, since) for segment, since in state.folded if segment.name.hash not in packed]
        direct += [(segment, depth) for segment in (*state.loose, *new)]
        segments = [pair for pair in direct if pair[0].name.hash not in gone]
        listed = {name.text for name in state.listed}
        replaces = [name.text for name, _ in state.heads] + sorted(state.superseded & listed)
        data = bundle_bytes(segments, replaces, packs.items())
        if len(data) > _PACKED:
            await self._pack(objects, segments, packs, gone)
            data = bundle_bytes([], replaces, packs.items())
        name = self.vouching.name(head_kind(depth), data)
        await objects.put_async(f"{self.folder}/{name.text}", data)
        self._bundles[name.text] = Bundle.parse(data, name.text)
        self._mirror.put(name.text, data)
        # Whoever uses only signed objects does not see what an unsigned head holds.
        garbage = [old.text for old in _garbage(state) if name.signature is not None or old.signature is None]
        if len(garbage) >= _GARBAGE:
            await objects.delete_async([f"{self.folder}/{text}" for text in garbage])

    async def rewrite(self, objects: LogRequests, payload: bytes, state: LogState) -> Segment:
        """Replace all segments of a state that was just read by one, and remove the objects that held them.

        Raises:
            NotTrusted, RemoteUnavailable, RemoteRefused: as `append`.
        """
        data = segment_bytes(payload, [segment.name.hash for segment in state.segments])
        segment = Segment.parse(self.vouching.name(SEGMENT, data), data)
        await self.fold(objects, state, segment, forget=state.damaged)
        replaced = state.replaced.union(segment.replaces)
        read = {name.text for name, _ in state.heads} | state.superseded
        old = [name.text for name in state.listed if name.hash in replaced or name.text in read]
        await objects.delete_async([f"{self.folder}/{text}" for text in old])
        return segment

    async def _pack(
        self, objects: LogRequests, segments: list[tuple[Segment, int]], packs: dict[str, int], gone: set[str]
    ) -> None:
        """Put segments into a new pack. `_FAN_IN` packs of one size class become one."""
        while True:
            data = bundle_bytes(segments)
            digest = hash_of(data)
            await objects.put_async(f"{self.packs}/{digest}", data)
            self._bundles[digest] = Bundle.parse(data, digest)
            self._mirror.put(digest, data)
            packs[digest] = len(data)
            alike = [pack for pack, size in packs.items() if _size_class(size) == _size_class(len(data))]
            if len(alike) < _FAN_IN or any(pack not in self._bundles for pack in alike):
                return
            # Packs of hosts that folded at once have segments in common.
            every = {pair[0].name.hash: pair for pack in alike for pair in self._bundles[pack].segments}
            segments = [pair for hash_, pair in every.items() if hash_ not in gone]
            for pack in alike:
                del packs[pack]


def _size_class(size: int) -> int:
    return int(math.log(max(size / _PACKED, 1), _FAN_IN) + 0.5)


def _garbage(state: LogState) -> list[LogName]:
    """The listed objects that two heads hold: the current one, and one that it replaces and that stays."""
    depths = [name.depth for name, _ in state.heads]
    held = {segment.name.hash for segment, since in state.folded if depths and since < min(depths)}
    older = sorted((name for name in state.listed if name.text in state.superseded), key=lambda name: -name.depth)
    segments = [name for name in state.listed if name.depth < 0 and name.hash in held | state.replaced]
    return [*segments, *older[_SPARE:]]


@dataclass
class _Reading:
    """One reading of the objects of a listing. problems: gets why objects are left out."""

    log: SegmentLog
    objects: LogRequests
    flowed: Flowed
    problems: list[str]
    is_last: bool
    damaged: list[str] = field(default_factory=list)

    async def current_heads(self, names: list[LogName]) -> list[tuple[LogName, Bundle]]:
        """The heads that no other readable head replaces. The deepest is read first: it mostly replaces all others."""
        read: dict[LogName, Bundle] = {}
        left = sorted(names, key=lambda name: (name.depth, name.text))
        replaced: set[str] = set()
        while left:
            now, left = left[-1:] if not read else left, left[:-1] if not read else []
            bundles = await self._each(
                lambda name: self._bundle(f"{self.log.folder}/{name.text}", name.text, name), now
            )
            read |= {name: bundle for name, bundle in zip(now, bundles, strict=True) if bundle is not None}
            replaced = {text for bundle in read.values() for text in bundle.heads}
            left = [name for name in left if name.text not in replaced]
        return [(name, bundle) for name, bundle in read.items() if name.text not in replaced]

    async def packs(self, packs: Iterable[str]) -> list[Bundle]:
        """The packs that can be read."""
        bundles = await self._each(lambda digest: self._bundle(f"{self.log.packs}/{digest}", digest, None), packs)
        return [bundle for bundle in bundles if bundle is not None]

    async def segments(self, names: Iterable[LogName]) -> list[Segment]:
        """The segments that can be read."""
        found = await self._each(self._segment, names)
        return [segment for segment in found if segment is not None]

    async def _each(self, read: Callable[[Any], Coroutine[Any, Any, T]], items: Iterable[Any]) -> list[T]:
        listed = list(items)
        return await self.objects.each(read, listed) if listed else []

    async def _bundle(self, path: str, key: str, name: LogName | None) -> Bundle | None:
        if key not in self.log._bundles:
            data = await self._data(path, key, name.hash if name is not None else key)
            if data is None:
                return None
            try:
                self.log._bundles[key] = Bundle.parse(data, path)
            except NewerFormat as error:  # not damaged: a repair must leave it
                self.problems.append(str(error))
                return None
            except Damaged as error:
                self._leave_out(path, str(error))
                return None
        bundle = self.log._bundles[key]
        self.problems += bundle.problems
        return bundle

    async def _segment(self, name: LogName) -> Segment | None:
        if name.text not in self.log._segments:
            data = await self._data(f"{self.log.folder}/{name.text}", name.text, name.hash)
            if data is None:
                return None
            try:
                self.log._segments[name.text] = Segment.parse(name, data)
            except Damaged as error:
                self._leave_out(f"{self.log.folder}/{name.text}", str(error))
                return None
        return self.log._segments[name.text]

    async def _data(self, path: str, key: str, digest: str) -> bytes | None:
        """The bytes of an object, from the mirror or the remote; None for a damaged one."""
        data = self.log._mirror.get(key)
        if data is not None and hash_of(data) == digest:
            return data
        for _ in range(_TRANSIT):  # bytes that were damaged in transit may arrive undamaged on a retry
            try:
                data = await self.objects.get_async(path, most=MOST, flowed=self.flowed)
            except BadArtifact:
                break
            if data is None:
                if not self.is_last:
                    raise _Removed
                self._leave_out(path, f"{path[:80]} is missing")
                return None
            if hash_of(data) == digest:
                self.log._mirror.put(key, data)
                return data
        self._leave_out(path, f"{path[:80]} does not match its name; it is damaged")
        return None

    def _leave_out(self, path: str, problem: str) -> None:
        self.problems.append(problem)
        self.damaged.append(path)
