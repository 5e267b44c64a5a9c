"""Questions to the index of a compile cache, in which nothing changes."""

from contextlib import closing
from pathlib import Path
from typing import Any

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.store.artifact_index import Index
from warmstore.compiling.store.blobs import Blobs
from warmstore.compiling.store.index_rows import ArtifactRows
from warmstore.storage.disk_usage import allocated_bytes
from warmstore.storage.files import PLAIN


def ask(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """The rows that answer a question in SQL; no rows are counted in a damaged index.

    Raises:
        NewerFormat: a newer warmstore made the cache.
    """
    with closing(Index(folder, PLAIN, read_only=True)) as index:
        return index.connection().execute(question).fetchall()


def by_last_use(folder: Path) -> list[tuple[Artifact, int]]:
    """The artifacts, those unused for longest first, each with the allocated bytes that its removal frees after that of
    all before it: the bytes of a blob go with the last of its artifacts. Raises as `ask`."""
    with closing(Index(folder, PLAIN, read_only=True)) as index:
        artifacts = ArtifactRows().select(index.connection(), "1", (), "u.last_used, a.id")
    last = {artifact.digest: number for number, artifact in enumerate(artifacts)}
    blobs = Blobs(folder / "blobs", PLAIN)
    return [
        (artifact, allocated_bytes(blobs.path(artifact.digest)) if last[artifact.digest] == number else 0)
        for number, artifact in enumerate(artifacts)
    ]
