"""Upkeep of a store at a remote: what it holds and what is damaged, repair, hosts that retire, and garbage collection.

`verify` and `gc` know record stores and keyed stores. `repair` and `retire` rewrite the segments of keyed stores; a
record store is repaired by `push(verify=True)` from an undamaged copy.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from warmstore.errors import Damaged, NotAStore
from warmstore.remote.objects import Entry, Objects
from warmstore.remote.segment_bundles import Bundle
from warmstore.remote.segment_log import PACKS
from warmstore.replicate.block_cache import fetch_sidecar
from warmstore.replicate.parts import FOLDER, Part, PartChunk, PartLog, PushedParts, has_parts
from warmstore.replicate.push import is_intact
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_snapshot import read_all_heads
from warmstore.replicate.staged_part import STAGED

LEAST_KEEP = 24 * 3600.0
"""The least age in seconds of an object that `gc` removes. A push sends chunks long before it names them."""
STAGED_KEEP = 30 * 24 * 3600.0
"""The age in seconds of the last part of a staged write after which `gc` takes the write for a dead one."""
_ID = re.compile(r"[0-9a-f]{8,}")  # the beginning of a store's id that names it
_AT_ONCE = 200  # objects that `gc` looks at again and removes together
_COLLECTED = re.compile(r"(chunks|sidecars|about|logs|packs)/[0-9a-f]{32,64}(\.hashes)?")


@dataclass(frozen=True)
class HostReport:
    """One host's part of a keyed store. damaged: numbers of the chunks that are missing or damaged."""

    host: str
    store: str
    chunks: int
    size: int
    damaged: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class RemoteReport:
    """What a remote holds.

    problems: what is left out and why. unused, unused_size: objects that nothing names, and their bytes.
    """

    hosts: list[HostReport]
    problems: list[str]
    unused: int
    unused_size: int

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.problems and not any(host.damaged for host in self.hosts)


@dataclass(frozen=True)
class Collected:
    """Objects and bytes that `gc` removed or would remove; objects that stay because they are young."""

    objects: int
    size: int
    young: int


def verify(remote: Remote, *, deep: bool = False) -> RemoteReport:
    """Compare what segments or heads name with what the remote has.

    Args:
        deep: read all chunks, too. Otherwise their sizes are compared.

    Raises:
        NotAStore: the remote has neither a record store nor a keyed store.
        RemoteUnavailable, RemoteRefused: the remote cannot be read.
    """
    with contextlib.closing(remote.open()) as objects:
        return _verify(objects, PartLog(None, sign=remote.sign), deep=deep)


def _verify(objects: Objects, log: PartLog, *, deep: bool) -> RemoteReport:
    entries = {entry.name: entry for entry in objects.entries()}
    if not has_parts(objects):
        return _verify_heads(objects, entries, deep=deep)
    parts = log.read(objects)
    hosts = []
    for part in parts.parts:
        bad = objects.run(
            objects.each(lambda pair: _check(objects, pair[0], pair[1], entries, deep=deep), part.chunks.items())
        )
        hosts.append(_report(part, sorted(number for number in bad if number is not None)))
    unused = _unused(entries.values(), _needed(parts, objects))
    return RemoteReport(hosts, parts.problems, len(unused), sum(entry.size for entry in unused))


def _verify_heads(objects: Objects, entries: dict[str, Entry], *, deep: bool) -> RemoteReport:
    heads, problems = read_all_heads(objects)
    if not heads and not problems:
        raise NotAStore(f"{objects.location.url} holds no store; push one there")
    chunks = {chunk for head in heads for chunk in head.chunks.values()}
    for chunk in chunks:
        listed = PartChunk(chunk, "")
        if (
            objects.run(_check(objects, 0, listed, entries, deep=deep)) is not None
            or chunk.hashes_object not in entries
        ):
            problems.append(f"{chunk.object} is missing or damaged; push the store again, with verify=True")
    lists = [name for name in entries if name.startswith(f"{STAGED}/")]
    unused = _unused(entries.values(), _named_in_store(objects, lists))
    return RemoteReport([], problems, len(unused), sum(entry.size for entry in unused))


async def _check(
    objects: Objects, number: int, listed: PartChunk, entries: dict[str, Entry], *, deep: bool
) -> int | None:
    """The number of a chunk that is missing or damaged; None for a good one."""
    chunk = listed.chunk
    if chunk.object not in entries or entries[chunk.object].size != chunk.size:
        return number
    try:
        if chunk.sidecar is not None:
            await fetch_sidecar(objects, chunk)
    except Damaged:
        return number
    return None if not deep or await is_intact(objects, chunk) else number


def repair(remote: Remote, *, deep: bool = False) -> RemoteReport:
    """`verify`, and then forget what is damaged: chunks, which hosts that have them push again, and objects of the log,
    of which everything that can be read, here or at the remote, is written anew. Returns what was found.

    Raises:
        NotAStore, RemoteUnavailable, RemoteRefused: as `verify`.
        NotTrusted: signatures are needed, and no key can make them; or `remote` does not sign, and damaged chunks are
            named by signed segments.
    """
    with contextlib.closing(remote.open()) as objects:
        views = _views(sign=remote.sign)
        report = _verify(objects, views[0], deep=deep)
        log = remote.part_log()
        mended = {host.store: host.damaged for host in report.hosts if host.damaged}
        chunks: list[RemoteChunk] = []
        for found in log.read(objects).parts if mended else ():
            listed = [found.chunks.get(number) for number in mended.get(found.manifest.id, ())]
            of_part = [one.chunk for one in listed if one]
            log.check_may_forget(objects, found.signed.intersection(chunk.name for chunk in of_part))
            chunks += of_part
        # Before they are forgotten: the owner's next push would take one that was sent lately for good by its size.
        objects.run(objects.each(lambda chunk: _remove_damaged(objects, chunk), chunks))
        for store, numbers in mended.items():
            parts = log.read(objects)
            if (part := parts.of(store)) is not None:
                kept = {number: one for number, one in part.chunks.items() if number not in numbers}
                _rewrite(objects, log, parts, part, kept)
        has_log = report.hosts or report.problems
        damaged = {name for view in views for name in view.read(objects).state.damaged} if has_log else set()
        if damaged:
            objects.run(log.log.fold(objects, log.read(objects).state, forget=damaged))
            objects.delete(damaged)
        return report


async def _remove_damaged(objects: Objects, chunk: RemoteChunk) -> None:
    if not await is_intact(objects, chunk):
        await objects.delete_async([chunk.object])


def find_host(remote: Remote, host: str) -> list[HostReport]:
    """The parts of a host, as `retire` finds them. Raises as it does."""
    with contextlib.closing(remote.open()) as objects:
        return [_report(part) for part in _parts_of(objects, remote.part_log(), host)]


def retire(remote: Remote, host: str) -> list[HostReport]:
    """Forget the parts of a host, by its name, or by the beginning of its store's id: 8 digits or more, that fit one
    store. Should it push again, it is back.

    Raises:
        ValueError: `host` is empty.
        NotAStore: there is no such host.
        NotTrusted: signatures are needed, and no key can make them; or `remote` does not sign, and the parts are
            signed.
    """
    with contextlib.closing(remote.open()) as objects:
        log = remote.part_log()
        found = _parts_of(objects, log, host)
        for part in found:
            _rewrite(objects, log, log.read(objects), part, {})
        return [_report(part) for part in found]


def _parts_of(objects: Objects, log: PartLog, host: str) -> list[Part]:
    if not host:
        raise ValueError("the name of the host is empty; `warmstore remote verify` lists the hosts")
    parts = log.read(objects).filled
    found = [part for part in parts if part.host == host]
    by_id = [part for part in parts if _ID.fullmatch(host) and part.manifest.id.startswith(host)]
    if not found and len(by_id) != 1:
        raise NotAStore(
            f"{objects.location.url} has no part of a host {host!r}, and not one store whose id begins with that, in "
            "8 digits or more; `warmstore remote verify` lists them"
        )
    found = found or by_id
    for part in found:
        log.check_may_forget(objects, part.signed)
    return found


def _report(part: Part, damaged: Sequence[int] = ()) -> HostReport:
    size = sum(listed.chunk.size for listed in part.chunks.values())
    return HostReport(part.host, part.manifest.id, len(part.chunks), size, list(damaged))


def _rewrite(objects: Objects, log: PartLog, parts: PushedParts, part: Part, kept: dict[int, PartChunk]) -> None:
    log.append(objects, parts, part.manifest, kept, part.gone, part.segments, host=part.host)


def gc(remote: Remote, *, keep: float, dry_run: bool = False) -> Collected:
    """Remove objects that nothing names and that are older than `keep` seconds. Safe beside pushes and readers: a push
    may send an object that nothing names again, and name it, so each is looked at again just before it is removed.

    The parts of a staged write stay until the last one that was sent is older than `STAGED_KEEP`.

    Raises:
        ValueError: `keep` is less than a day.
        Damaged: something cannot be read, so what it names is unknown; repair or retire it first.
        RemoteUnavailable, RemoteRefused: a request failed.
    """
    if not keep >= LEAST_KEEP:
        raise ValueError(f"keep is {keep:,.0f} seconds; it must be a day at least: a push may be under way")
    with contextlib.closing(remote.open()) as objects:
        views = _views(sign=False)  # what others have signed, or not, is needed too
        now = objects.run(objects.clock_async())
        unused = _unnamed(objects, views, objects.entries(), now)
        old = [entry for entry in unused if entry.modified < now - keep]
        if not dry_run:
            groups = [old[first : first + _AT_ONCE] for first in range(0, len(old), _AT_ONCE)]
            old = [entry for group in groups for entry in _remove(objects, views, group, now, keep)]
        return Collected(len(old), sum(entry.size for entry in old), len(unused) - len(old))


def _views(*, sign: bool) -> list[PartLog]:
    """The logs of those who use what their keys have signed; or of those who use everything, and who use only what is
    signed: an unsigned segment replaces a signed one for the former alone."""
    return [PartLog(None, sign=True)] if sign else [PartLog(None), PartLog(None, signed_only=True)]


def _unnamed(objects: Objects, views: list[PartLog], entries: Iterable[Entry], now: float) -> list[Entry]:
    """The objects among some that nothing names. Those of staged writes must be among them.

    Raises:
        Damaged: something cannot be read.
    """
    if has_parts(objects):
        needed: set[str] = set()
        for view in views:
            parts = view.read(objects)
            if parts.problems:
                raise Damaged(f"{objects.location.url}: {parts.problems[0]}; repair it first, or retire the host")
            needed |= _needed(parts, objects)
        return _unused(entries, needed)
    lists, expired = _staged_lists(entries, now - STAGED_KEEP)
    return [*_unused(entries, _named_in_store(objects, lists)), *expired]


def _remove(objects: Objects, views: list[PartLog], group: list[Entry], now: float, keep: float) -> list[Entry]:
    """Remove the objects that still are old, and that still nothing names. Returns them."""
    wanted = {entry.name: entry for entry in group}
    unnamed = _unnamed(
        objects, views, {**wanted, **{entry.name: entry for entry in objects.entries(STAGED)}}.values(), now
    )
    # After what names them was read: a push that sends one of them again later has not named it yet.
    found = objects.run(objects.each(objects.entry_async, [entry.name for entry in unnamed if entry.name in wanted]))
    old = [entry for entry in found if entry is not None and entry.modified < now - keep]
    objects.delete(entry.name for entry in old)
    return old


def _needed(parts: PushedParts, objects: Objects) -> set[str]:
    """The objects that segments and heads name, and the packs of replaced heads."""
    chunks = [listed.chunk for part in parts.parts for listed in part.chunks.values()]
    packs = {pack for _, head in parts.state.heads for pack, _ in head.packs}
    for name in parts.state.listed:
        if name.text in parts.state.superseded:
            data = objects.get(f"{FOLDER}/{name.text}")
            if data is not None and name.matches(data):
                packs |= {pack for pack, _ in Bundle.parse(data, name.text).packs}
    return {
        *_of_chunks(chunks),
        *(f"about/{about}" for part in parts.parts for about in part.abouts),
        *(f"{PACKS}/{pack}" for pack in packs),
    }


def _staged_lists(entries: Iterable[Entry], since: float) -> tuple[list[str], list[Entry]]:
    """The lists of parts of staged writes: those of writes that have sent a part since then, and those of others."""
    by_write: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.name.startswith(f"{STAGED}/"):
            by_write.setdefault(entry.name.rpartition("/")[0], []).append(entry)
    lists: list[str] = []
    expired: list[Entry] = []
    for parts in by_write.values():
        if max(entry.modified for entry in parts) >= since:
            lists += [entry.name for entry in parts]
        else:
            expired += parts
    return lists, expired


def _named_in_store(objects: Objects, lists: Iterable[str]) -> set[str]:
    """The objects that the heads of a record store name, old ones included, and these lists of parts of staged writes.

    Raises Damaged if one cannot be read.
    """
    # Before the heads: a commit writes its head, and then removes the lists.
    staged = objects.run(objects.each(lambda name: _listed(objects, name), lists))
    heads, problems = read_all_heads(objects)
    if problems or not heads:
        raise Damaged(problems[0] if problems else f"{objects.location.url} holds no store")
    names = set(_of_chunks(chunk for head in heads for chunk in head.chunks.values()))
    names.update(_of_chunks(chunk for chunks in staged for chunk in chunks))
    return names | {f"logs/{name}" for head in heads for name in head.logs}


async def _listed(objects: Objects, name: str) -> list[RemoteChunk]:
    """The chunks of one part of a staged write."""
    data = await objects.get_async(name)
    try:
        return [RemoteChunk(chunk, 0) for chunk in json.loads(data or b"[]")]
    except (ValueError, TypeError):
        raise Damaged(
            f"{objects.location.url}/{name}, which lists the chunks of a part, cannot be read; remove it once its "
            "staged write has been committed or given up"
        ) from None


def _of_chunks(chunks: Iterable[RemoteChunk]) -> Iterable[str]:
    for chunk in chunks:
        yield chunk.object
        yield chunk.hashes_object


def _unused(entries: Iterable[Entry], needed: set[str]) -> list[Entry]:
    return [entry for entry in entries if _COLLECTED.fullmatch(entry.name) and entry.name not in needed]
