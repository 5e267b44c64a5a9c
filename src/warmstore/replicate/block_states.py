"""The blocks of remote chunks that are in a local folder: their states, their hashes, and whether they match.

The file `pages` has a header, and then one byte per block: the state of each block of each chunk, `PAGES` for a chunk.
"""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import Damaged
from warmstore.records.format.chunk_names import chunk_path
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.sidecar import Sidecar, name_of, sidecar_path
from warmstore.storage.block_source import BLOCK
from warmstore.storage.files import Files, opened, read_whole
from warmstore.storage.memory.mmap import GrowableMmap

HEADER = 4096
ABSENT, PRESENT, USED, COMING, UNSURE = range(5)
"""The states of a block. USED: present, and read lately. UNSURE: present before the last boot."""


def check_blocks(folder: Path, chunks: Mapping[int, RemoteChunk], files: Files) -> tuple[int, list[str]]:
    """Compare the blocks in a folder with their hashes, without a remote. Other processes may use the folder.

    Returns:
        The number of blocks that match, and a text for each chunk with others.
    """
    try:
        table = GrowableMmap(folder / "pages", files, write=False)
    except FileNotFoundError:
        return 0, []  # nothing was read yet
    matching, found = 0, []
    for number, chunk in sorted(chunks.items()):
        states = table.memory[HEADER : table.size][PAGES * number :][: chunk.blocks]
        present = np.flatnonzero(is_present(states)).tolist()
        if not present:
            continue
        hashes, path, damaged = local_hashes(folder, number, chunk, files), chunk_path(folder, number), 0
        with opened(path, files) as descriptor:
            for block in present:
                data = files.read(descriptor, min(BLOCK, chunk.size - block * BLOCK), block * BLOCK)
                # A block that does not match may be evicted by now.
                is_damaged = hashes is None or not chunk.is_block(hashes, block, data)
                damaged += is_damaged and bool(is_present(states[block]))
        matching += len(present) - damaged
        if damaged:
            why = "have no hashes beside them" if hashes is None else "do not match their hashes"
            found.append(f"{path}: {damaged:,} of {len(present):,} blocks {why}; they are damaged")
    return matching, found


def local_hashes(folder: Path, number: int, chunk: RemoteChunk, files: Files) -> bytes | None:
    """The hashes of a chunk's blocks that are in a folder; None without valid ones."""
    with contextlib.suppress(OSError, Damaged):
        if chunk.sidecar is None:
            return chunk.hashes(read_whole(files, hashes_path(folder, number)))
        data = read_whole(files, sidecar_path(folder, number))
        return chunk.hashes(Sidecar.parse(data, chunk.sidecar, chunk.size).hashes)
    return None


def chunks_with_sidecars(folder: Path, files: Files) -> dict[int, RemoteChunk]:
    """The remote chunks in a folder by their sidecars there. A file of a chunk has its size from the beginning."""
    found = {}
    for path in folder.glob("*.sidecar"):
        with contextlib.suppress(OSError, Damaged, ValueError):
            number, data = int(path.stem), read_whole(files, path)
            size = chunk_path(folder, number).stat().st_size
            hashes = Sidecar.parse(data, name_of(data), size).hashes
            found[number] = RemoteChunk.of_hashes(size, hashes, name_of(data))
    return found


def hashes_path(folder: Path, number: int) -> Path:
    """The local file of a chunk's hashes."""
    return folder / f"{number:06d}.hashes"


def is_present(states: Any) -> Any:
    """Which of some states of blocks are those of blocks that are in the local file."""
    return (states == PRESENT) | (states == USED)
