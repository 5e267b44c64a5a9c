"""Questions to the index of a compile cache, without opening its store, which may evict artifacts."""

from contextlib import closing
from pathlib import Path
from typing import Any

from warmstore.compiling.store.artifact_index import Index
from warmstore.storage.files import PLAIN


def ask(folder: Path, question: str) -> list[tuple[Any, ...]]:
    """The rows that answer a question in SQL; no rows are counted in a damaged index.

    Raises:
        NewerFormat: a newer warmstore made the cache.
    """
    with closing(Index(folder, PLAIN, read_only=True)) as index:
        return index.connection().execute(question).fetchall()
