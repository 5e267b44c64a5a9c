"""Chunks of keyed stores that stay at a remote, except for their keys: lookups then need no remote."""

from pathlib import Path

import numpy as np

from warmstore.records.log.log_entries import Entries
from warmstore.replicate.attach import Keep
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.remote_copy import RemoteFiles, add_chunks
from warmstore.storage.block_source import BLOCK


def keys_first(files: RemoteFiles) -> Keep:
    """Leave chunks at the remote, except for the blocks with keys: lookups then need no remote."""

    def keep(folder: Path, number: int, chunk: RemoteChunk, entries: Entries) -> None:
        add_chunks(folder, {number: chunk}, files)
        blocks = files.block_source(folder)
        blocks.base_index(number)
        # Keys are the first column: 16 bytes per row, and 8 of their checksums.
        first = entries["offset"].astype(np.int64)
        last = first + entries["header"] + 24 * entries["rows"].astype(np.int64) + 256
        last = np.minimum(last, chunk.size) - 1
        ranges = [np.arange(start // BLOCK, end // BLOCK + 1) for start, end in zip(first, last, strict=True)]
        blocks.fetch(PAGES * number + np.unique(np.concatenate(ranges)))

    return keep
