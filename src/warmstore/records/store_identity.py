"""What the content of an open store is known by: one value for all records, and a hash for each of them.

Both come from the log. The hash of an entry covers the hash of its batch or of its positions, and is seeded by the
store's id and generation. So a store and its copies have equal values while they have equal records, and copies that
have diverged have not. Footers and merges of small chunks change no record, and do not count.
"""

import json

import numpy as np
import xxhash

from warmstore.records.format.fields import Fields, fields_to_json
from warmstore.records.read.live_batches import HAS_ROWS
from warmstore.records.store_session import StoreSession
from warmstore.storage.array_types import UInt64


def content_of(session: StoreSession) -> str:
    """A text that differs between different contents of stores of one id. It takes microseconds."""
    if not session.pending.count:  # read before the snapshot: a flush adds rows to it before it drops them here
        return _content(session)
    with session.lock:
        return _content(session)


def _content(session: StoreSession) -> str:
    generation = session.generation
    manifest, lost = generation.manifest, [*generation.log.lost, *generation.batches.lost_edits]
    committed = f"{manifest.generation} {manifest.digest} {generation.snapshot.history}"
    return f"{committed} {session.pending.digest().hex()} {lost}"


def record_hashes(session: StoreSession) -> UInt64:
    """A hash of each record, uint64 [n, 2]: of the batch that it was committed in, and of its place there.

    Appends, and edits of other records, leave it as it is. A pending record has another one until it is committed.
    """
    from warmstore.identity.samples.sample_hashes import mixed  # whoever asks has imported it

    with session.lock:
        generation, pending = session.generation, session.pending
        snapshot = generation.snapshot
        entries = generation.log.read(0)[: snapshot.entries]
        batches = entries[HAS_ROWS[entries["kind"]]]
        ends = np.cumsum(batches["rows"].astype(np.int64))
        rows = snapshot.rows_at(np.arange(snapshot.length, dtype=np.int64))
        which = np.searchsorted(ends, rows, side="right")
        places = rows - (ends - batches["rows"])[which]
        committed = np.stack((batches["hash"][which], batches["body_hash"][which]), axis=1)
        fresh = np.broadcast_to(_halves(pending.digest()), (pending.count, 2))
        places = np.concatenate((places, np.arange(pending.count)))
        hashes = mixed(np.concatenate((committed, fresh)), places.astype(np.uint64)[:, None] + np.uint64(1))
        return mixed(hashes, np.broadcast_to(_halves(_digest_of(generation.manifest.fields)), hashes.shape))


def _digest_of(fields: Fields) -> bytes:
    return xxhash.xxh3_128_digest(json.dumps(fields_to_json(fields), sort_keys=True).encode())


def _halves(digest: bytes) -> UInt64:
    return np.frombuffer(digest, ">u8").astype(np.uint64)
