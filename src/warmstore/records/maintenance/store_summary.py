"""What a store is and how much it holds, read in a fraction of a millisecond: for lists of many stores.

The description and the log are parsed without their checksums, and no chunk is opened. NumPy and pyarrow are not
imported. `LocalStore.open_folder` reads the same with all checks.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warmstore.errors import Damaged, NotAStore
from warmstore.records.log.entry_kinds import BATCH, COPIED, COUNTS, DELETE, DELETED, EVICTED, SEALED, STAGED, UPDATE

DESCRIPTION = "store.json"


@dataclass(frozen=True)
class StoreSummary:
    """A store on the disk.

    records: live ones. created, written: times of store.json and of the last commit, in seconds since 1970. fields:
    their entries in store.json without the name, by name. generation: the folder of the current generation. writing:
    whether a live process has a chunk.
    """

    records: int
    created: float
    written: float
    fields: dict[str, dict[str, Any]]
    metadata: dict[str, Any]
    generation: Path
    writing: bool


def summarize(path: Path) -> StoreSummary:
    """The summary of the store in a folder.

    Raises:
        NotAStore: there is no store.
        Damaged: its description or log cannot be read.
    """
    description = f"{path}/{DESCRIPTION}"
    try:
        data, created = _read(description)
        content = json.loads(data)
        generation = f"{path}/g{content['generation']:04d}"
        fields = {entry.pop("name"): entry for entry in content["fields"]}
        metadata = dict(content["metadata"])
    except (FileNotFoundError, NotADirectoryError):
        raise NotAStore(f"{path} is not a warmstore store: it has no {DESCRIPTION}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Damaged(f"{description} is not readable as a store description") from None
    log = f"{generation}/log"
    try:
        data, written = _read(log)
    except OSError as error:
        raise Damaged(f"{log} cannot be read: {error.strerror}") from None
    rows: dict[int, int] = {}  # by chunk
    deleted, replaced, is_merged, evicted, sealed = 0, 0, False, set(), set()
    for chunk, count, kind in COUNTS.iter_unpack(data[: len(data) // COUNTS.size * COUNTS.size]):
        if kind == BATCH:
            rows[chunk] = rows.get(chunk, 0) + count
        elif kind in (DELETED, DELETE):
            deleted += count
        elif kind in (STAGED, UPDATE):
            replaced += count
        elif kind == EVICTED:
            evicted.add(chunk)
        elif kind == SEALED:
            sealed.add(chunk)
        is_merged |= kind == COPIED
    if evicted and is_merged:
        records = _rows_left(path) - replaced - deleted  # rows left with the chunk that they were merged into
    else:
        records = sum(count for chunk, count in rows.items() if chunk not in evicted) - deleted
    writing = any(_is_written(generation, chunk) for chunk in rows.keys() - sealed - evicted)
    return StoreSummary(records, created, written, fields, metadata, Path(generation), writing)


def _read(path: str) -> tuple[bytes, float]:
    """The content of a file, and when it was written."""
    with open(path, "rb") as file:
        return file.read(), os.fstat(file.fileno()).st_mtime


def _rows_left(path: Path) -> int:
    from warmstore.records.maintenance.chunk_states import chunk_states

    return sum(chunk.records for chunk in chunk_states(path))


def _is_written(generation: str, chunk: int) -> bool:
    from warmstore.storage.files import is_locked

    try:
        return is_locked(Path(generation) / f"{chunk:06d}.arrow")
    except OSError:
        return False
