"""Objects of a remote that never change, kept by name in memory and in a local folder, so that each is fetched once."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from warmstore.storage.atomic import replace_file
from warmstore.storage.files import PLAIN, Files, read_whole


class Mirror:
    """Bytes by the name of their object. Whoever reads them checks them.

    Args:
        folder: where all processes of the host keep them; None, or one that cannot be written, keeps them in memory.
    """

    def __init__(self, folder: Path | None, files: Files = PLAIN) -> None:
        self._folder = folder
        self._files = files
        self._memory: dict[str, bytes] = {}

    def get(self, name: str) -> bytes | None:
        """The bytes of an object; None if they are not here."""
        if name not in self._memory and self._folder is not None:
            with contextlib.suppress(OSError):
                return read_whole(self._files, self._path(name))
        return self._memory.get(name)

    def put(self, name: str, data: bytes) -> None:
        """Keep the bytes of an object."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.mkdir(parents=True, exist_ok=True)
                replace_file(self._path(name), data, durable=False, files=self._files)
                return
        self._memory[name] = data

    def keep(self, names: Collection[str]) -> None:
        """Forget all other objects."""
        kept = {name.replace("/", "+")[:200] for name in names}
        self._memory = {name: data for name, data in self._memory.items() if name in names}
        if self._folder is not None:
            with contextlib.suppress(OSError):
                for path in self._folder.iterdir():
                    if path.name not in kept and not path.name.endswith(".tmp"):
                        self._files.remove(path)

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name.replace("/", "+")[:200]
