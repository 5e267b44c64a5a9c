"""The bytes of artifacts: files that are named by the BLAKE3 of their content and never changed."""

from __future__ import annotations

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, read_whole

_BLOB = re.compile(r"[0-9a-f]{64}(\.partial)?")


class Blobs:
    """The files `ab/cdef...` under a folder."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files

    def path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:]

    def has(self, digest: str, size: int) -> bool:
        """Whether there is a file of that name and size."""
        try:
            return self.path(digest).stat().st_size == size
        except OSError:
            return False

    def holds(self, digest: str, content: bytes) -> bool:
        """Whether the file has these bytes, and is not damaged."""
        try:
            return self.has(digest, len(content)) and read_whole(self.files, self.path(digest)) == content
        except OSError:
            return False

    def folders(self) -> int:
        """The number of folders; an upper bound where the file system does not count links."""
        try:
            links = self.folder.stat().st_nlink
        except OSError:
            return 0
        return links - 1 if 1 < links <= 258 else 257  # some file systems count no links, some count files too

    def write(self, digest: str, content: bytes) -> None:
        """Write the file whole or not at all. Called by one process at a time."""
        draft = self._unfinished(digest)
        self.files.remove(draft)  # of a killed process
        replace_file(self._made_path(digest), content, durable=False, draft=draft, files=self.files)

    def staged(self, digest: str) -> Path:
        """The path of a blob of an import that is not complete yet."""
        return self.folder.with_name("import") / digest

    def take_staged(self, digest: str) -> None:
        """Make a staged file the blob."""
        self.files.rename(self.staged(digest), self._made_path(digest))

    def read(self, digest: str) -> bytes | None:
        """The bytes; None if their hash is not the digest. Raises OSError for a missing or unreadable file."""
        content = read_whole(self.files, self.path(digest))
        return content if blake3(content).hexdigest() == digest else None

    def remove(self, digest: str) -> None:
        """Remove the file, and its drafts that a killed writer or importer left."""
        for path in (self._unfinished(digest), self.staged(digest), self.path(digest)):
            self.files.remove(path)

    def sweep(self, kept: Collection[str]) -> int:
        """Remove every blob and draft of a blob that is not one of these digests; return how many."""
        swept = 0
        for path in self.folder.glob("*/*"):
            name = path.parent.name + path.name
            if _BLOB.fullmatch(name) and name not in kept:
                self.files.remove(path)
                swept += 1
        return swept

    def _made_path(self, digest: str) -> Path:
        """The path of a blob, in a folder that exists."""
        path = self.path(digest)
        with suppress(FileExistsError):
            self.files.make_folder(path.parent)
        return path

    def _unfinished(self, digest: str) -> Path:
        path = self.path(digest)
        return path.with_name(path.name + ".partial")
