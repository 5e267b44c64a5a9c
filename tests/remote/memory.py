"""A remote in the memory of this process, which counts the requests and their bytes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import obstore.store

from warmstore.remote.objects import Entry, Objects

_LISTED = 350
"""Bytes of the answer to a listing of S3 for each object, besides its name."""


@dataclass
class Count:
    """Requests since `reset`, and the bytes of their bodies."""

    requests: list[tuple[str, str]] = field(default_factory=list)
    received: int = 0
    sent: int = 0

    def reset(self) -> None:
        self.requests, self.received, self.sent = [], 0, 0

    def __len__(self) -> int:
        return len(self.requests)


class MemoryObjects(Objects):
    """Objects in a store that several of these may share."""

    def __init__(self, store: Any = None, count: Count | None = None) -> None:
        super().__init__("file:///memory")
        self.store = obstore.store.MemoryStore() if store is None else store
        self.count = Count() if count is None else count
        self.change: Callable[[str, bytes | None], bytes | None] = lambda name, data: data  # what a reader gets

    def _opened(self, *, write: bool) -> Any:
        return self.store

    async def get_async(self, name: str, start: int = 0, stop: int | None = None, **options: Any) -> bytes | None:
        self.count.requests.append(("get", name))
        take, options["take"] = options.pop("take", None), None
        data = self.change(name, await super().get_async(name, start, stop, **options))
        self.count.received += len(data or b"")
        if take is not None and data is not None:
            await take(data)
            return b""
        return data

    async def put_async(self, name: str, data: bytes | memoryview | Path, *, create: bool = False) -> bool:
        self.count.requests.append(("put", name))
        self.count.sent += data.stat().st_size if isinstance(data, Path) else len(data)
        return await super().put_async(name, data, create=create)

    async def entry_async(self, name: str) -> Entry | None:
        self.count.requests.append(("head", name))
        return await super().entry_async(name)

    async def entries_async(self, prefix: str = "", **options: Any) -> list[Entry]:
        found = await super().entries_async(prefix, **options)
        self.count.requests += [("list", prefix)] * max(1, -(-len(found) // 1000))
        self.count.received += sum(_LISTED + len(entry.name) for entry in found)
        return found

    async def delete_async(self, names: Iterable[str]) -> None:
        listed = list(names)
        self.count.requests += [("delete", "")] * -(-len(listed) // 1000)
        await super().delete_async(listed)
