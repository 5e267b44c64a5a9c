"""The bytes of a tier that are not of samples: folders, logs, and the framing of chunks and batches.

A budget is for all of them together. A plan subtracts them to know how many samples fit.
"""

import math

from warmstore.pipeline.tiers.sample_store import LAST_WRITE, flush_bytes
from warmstore.pipeline.tiers.tier_store import chunk_bytes
from warmstore.records.log.log_entries import ENTRY
from warmstore.storage.disk_usage import BLOCK

_TIER = 2 * BLOCK  # folder and marker
_PLACEMENT = 10 * BLOCK  # folders, description, manifest, log, copies of both, leases
_FRAMES = 512  # of a chunk's lead and footer, beside the schema in both
_BLOCK_INFO = 24  # in a chunk's footer, for each batch


def tier_overhead(
    limit: int, writers: int, placements: int, *, sample: float = 0.0, per_chunk: float = 0.0, per_batch: float = 0.0
) -> int:
    """The most bytes that a tier of `limit` bytes takes beside the records of its samples.

    Args:
        writers: processes that write; each has a chunk of its own for each placement.
        placements: how many are in the tier.
        sample: bytes of a sample, about.
        per_chunk, per_batch: bytes of the header of a chunk and of a batch.
    """
    if not limit or not placements:
        return 0
    flush = flush_bytes(limit)
    batches = 2 * placements * max(writers, 1) + limit // flush
    in_chunk = max(1, int(chunk_bytes(limit) // (flush + sample)))  # batches are whole
    chunks = placements * max(writers, 1) + limit // (in_chunk * flush)
    of_chunks = chunks * (2 * per_chunk + _FRAMES)
    # A chunk fills its last block by half, on average. The sum differs from that by a block times the root, at most.
    rounding = chunks * BLOCK / 2 + BLOCK * math.sqrt(chunks)
    of_batches = batches * (per_batch + _BLOCK_INFO + 2 * ENTRY.itemsize)
    return int(_TIER + placements * _PLACEMENT + of_chunks + rounding + of_batches + LAST_WRITE + per_chunk + per_batch)
