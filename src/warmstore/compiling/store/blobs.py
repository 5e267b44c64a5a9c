"""The bytes of artifacts: files named by the BLAKE3 of what is in them, which nobody ever changes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from blake3 import blake3

from warmstore.storage.atomic import draft_of


class Blobs:
    """The files `ab/cdef...` under a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:]

    def has(self, digest: str, size: int) -> bool:
        """Whether there is a file of that name and size."""
        try:
            return self.path(digest).stat().st_size == size
        except OSError:
            return False

    def folders(self) -> int:
        """How many folders there are, at most."""
        try:
            links = self.folder.stat().st_nlink
        except OSError:
            return 0
        return links - 1 if 1 < links <= 258 else 257  # some file systems count no links, some count files too

    def write(self, digest: str, content: bytes) -> None:
        """Have the file whole, or not at all. One process does so at a time."""
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        with draft_of(path, draft=self._unfinished(digest)) as draft:
            draft.write_bytes(content)

    def staged(self, digest: str) -> Path:
        """Where an import keeps a blob until all of them are there."""
        return self.folder.with_name("import") / digest

    def take_staged(self, digest: str) -> None:
        """Make a staged file the blob."""
        path = self.path(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.staged(digest).replace(path)

    def read(self, digest: str) -> bytes | None:
        """The bytes, or None when they are not those of the name.

        Raises:
            OSError: there is no such file, or it cannot be read.
        """
        content = self.path(digest).read_bytes()
        return content if blake3(content).hexdigest() == digest else None

    def remove(self, digest: str) -> None:
        """Remove the file, and what a killed writer or importer left of it."""
        self._unfinished(digest).unlink(missing_ok=True)
        self.staged(digest).unlink(missing_ok=True)
        self.path(digest).unlink(missing_ok=True)

    def sweep(self, kept: Collection[str]) -> int:
        """Remove every file that is not the blob of one of these digests; return how many."""
        swept = 0
        for path in self.folder.glob("*/*"):
            if path.parent.name + path.name not in kept:
                path.unlink(missing_ok=True)
                swept += 1
        return swept

    def _unfinished(self, digest: str) -> Path:
        path = self.path(digest)
        return path.with_name(path.name + ".partial")
