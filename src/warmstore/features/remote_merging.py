"""Merging the parts of a cache at a remote: a thousand tasks leave a thousand parts, which become one."""

import contextlib
import os
from dataclasses import dataclass

from warmstore.errors import Damaged, NotAStore
from warmstore.features.keyed.cache_quota import rebalance
from warmstore.features.outputs.output_schema import KEY
from warmstore.features.remote_binding import pull_parts, push_folder
from warmstore.records.keyed_store import IndexedStore
from warmstore.replicate.record_store import RecordStore
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.temporary_folder import TemporaryFolder


@dataclass(frozen=True)
class MergedParts:
    """The result of merging the parts of a cache. parts: merged ones. samples: in the one part that is left."""

    parts: int
    samples: int


def merge_parts(
    remote: Remote, *, work_dir: str | os.PathLike[str] | None = None, progress: bool | None = None
) -> MergedParts:
    """Replace all parts of a cache at a remote by one, with one row per id.

    The parts are fetched, rewritten and pushed, and only then retired: a merge that is killed changes nothing. What
    hosts push meanwhile stays beside it. A host that goes on writing brings its own part back with its next push, so
    merge when the tasks have ended. The chunks of retired parts stay until `warmstore remote gc` removes them.

    Args:
        work_dir: a local folder for a copy of the cache; the folder of temporary files by default.

    Raises:
        NotAStore: the remote has no cache.
        StaleCache, SchemaMismatch: its parts do not fit together.
        NotTrusted: parts are signed and `remote` is not, or no key can sign.
        Damaged, RemoteUnavailable, RemoteRefused: the remote is as it was, or has the merged part besides.
    """
    with contextlib.closing(remote.open()) as objects:
        log = remote.part_log()
        merged = log.read(objects).filled
        if not merged:
            raise NotAStore(f"{remote.shown} has no cache; the URL is FOLDER/ID, with the id of the cache")
        for part in merged:
            log.check_may_forget(objects, part.signed)
        with TemporaryFolder("merge", work_dir) as folder:
            path = folder / "merged"
            damaged = pull_parts(path, merged, objects, remote, progress=progress).damaged
            if damaged:
                raise Damaged(
                    f"{damaged} chunks at {remote.shown} are missing or damaged, so nothing is merged; `warmstore "
                    "remote verify` names them, and `remote repair` forgets them"
                )
            with contextlib.closing(IndexedStore(RecordStore.open(path, "a"), KEY)) as keyed:
                keyed.catch_up()
                samples = rebalance(keyed, None, progress).records
                manifest = keyed.store._manifest
            if len(merged) > 1:
                push_folder(path, remote, progress=progress)
                replaced = frozenset(segment for part in merged for segment in part.segments)
                log.append(objects, log.read(objects), manifest, {}, (), replaced)
        return MergedParts(len(merged), samples)
