"""Chunks of keyed stores that stay at a remote, except for their sidecars: lookups then need no remote."""

from pathlib import Path

from warmstore.replicate.attach import Keep
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_copy import RemoteFiles, add_chunks
from warmstore.replicate.sidecar import sidecar_path
from warmstore.storage.atomic import replace_file


def keys_first(files: RemoteFiles) -> Keep:
    """Leave chunks at the remote, except for the headers and keys in their sidecars: lookups then need no remote."""

    def keep(folder: Path, number: int, chunk: RemoteChunk, sidecar: bytes) -> None:
        replace_file(sidecar_path(folder, number), sidecar, durable=True, files=files)
        add_chunks(folder, {number: chunk}, files)
        files.block_source(folder).base_index(number)

    return keep
