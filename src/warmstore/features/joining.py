"""One cache at a remote, filled by many hosts: each pushes what it computed, and takes over what the others did."""

import contextlib
from typing import TYPE_CHECKING

from warmstore.errors import SchemaMismatch, StaleCache
from warmstore.features.versions import differing
from warmstore.records.adoption import Keep, adopt
from warmstore.records.heads import Head, read_heads
from warmstore.records.manifest import Manifest
from warmstore.records.mirror import Pulled, Pushed
from warmstore.records.mirror import push as push_store
from warmstore.records.remote_copy import Remote
from warmstore.remote.objects import Objects

if TYPE_CHECKING:
    from warmstore.features.cache import FeatureCache


def push(cache: "FeatureCache", remote: Remote, verify: bool, progress: bool | None) -> Pushed:
    """See `FeatureCache.push`."""
    store = cache.settled_store()
    if store is None:
        return Pushed(0, 0, 0, 0)
    with contextlib.closing(remote.open()) as objects:
        for head in read_heads(objects):
            check_joins(store.manifest, head, remote)
        return push_store(store.path, objects, store.files, shared=True, verify=verify, progress=progress)


def pull(cache: "FeatureCache", remote: Remote, progress: bool | None) -> Pulled:
    """See `FeatureCache.pull`."""
    with contextlib.closing(remote.open()) as objects:
        return join(cache, objects, remote, progress)


def join(
    cache: "FeatureCache", objects: Objects, remote: Remote, progress: bool | None, lazily: Keep | None = None
) -> Pulled:
    """Adopt what all others have."""
    done = Pulled(0, 0, 0)
    for head in read_heads(objects):
        store = cache.joined_store(head.manifest)
        check_joins(store.manifest, head, remote)
        one = adopt(store.path, head, objects, store.files, lazily=lazily, room=cache.room, progress=progress)
        done = Pulled(done.chunks + one.chunks, done.size + one.size, done.records + one.records)
    cache.take_in()
    return done


def check_joins(mine: Manifest, head: Head, remote: Remote) -> None:
    """Raise where what another host wrote is not what this one's module gives."""
    theirs = head.manifest
    parts = differing(mine.metadata.get("fingerprint") or {}, theirs.metadata.get("fingerprint") or {})
    if parts:
        raise StaleCache(
            f"{remote!r} was filled with other {' and '.join(parts)} than this cache. Use another cache id for the "
            "changed module, or versions='new'"
        )
    if (
        not head.shared
        or mine.fields != theirs.fields
        or mine.metadata.get("structure") != theirs.metadata.get("structure")
    ):
        raise SchemaMismatch(f"{remote!r} holds other outputs, or another codec, than this cache: use another cache id")
