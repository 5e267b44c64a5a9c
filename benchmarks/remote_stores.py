"""How fast are stores pushed and pulled beside plain obstore, and how soon is the first batch of a large one there?

The same chunks go to and come from the same local server in parallel, by warmstore (which names, checks and syncs them)
and by obstore alone. The large store is some 10 GB of sparse files, served by nginx; each time it is opened anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.remote.packages import find_nginx
from tests.remote.proxy import Proxy
from tests.remote.servers import S3, Nginx

import warmstore as ws
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_copy import Remote
from warmstore.replicate.remote_diff import Local
from warmstore.replicate.remote_snapshot import RemoteSnapshot, write_head
from warmstore.storage.files import Buffer, Files

CHUNK = 64 << 20
IMAGE = (224, 224, 3)
BATCH = 64
AT_ONCE = 4  # chunks, as warmstore does


def run(settings: Settings) -> Report:
    folder, times = settings.folder, settings.pick(3, 1)
    store = _store(folder / "store", settings.pick(8, 2) * CHUNK)
    settings.break_in_disk(settings.pick(2 << 30, 1 << 20))
    rows: list[tuple[Any, ...]] = []
    bars: list[Bar] = []
    with contextlib.ExitStack() as stack:
        for name, base in _servers(folder, stack):
            runs = [_both(store, f"{base}/{number}", folder) for number in range(times)]
            for what in ("push", "pull"):
                ours, theirs = (median(one[f"{who} {what}"] for one in runs) for who in ("warmstore", "obstore"))
                ratio = median(one[f"warmstore {what}"] / one[f"obstore {what}"] for one in runs)
                rows.append((name, what, ours, theirs, ratio))
                bars.append(Bar.at_least(f"{name}: {what}, of the rate of plain obstore", ratio, 0.7))
    tables = [Table("MB/s", ("server", "", "warmstore", "plain obstore", "ratio"), tuple(rows))]
    notes = [
        f"{sum(path.stat().st_size for path in store.rglob('*.arrow')) / 1e6:,.0f} MB in chunks of 64 MB, {AT_ONCE} "
        f"at a time; medians of {times}. Both sync the files that they write.",
    ]
    if find_nginx() is not None:
        size, direct, late = _first_batches(folder, settings.pick(10_000_000_000, 100_000_000), times)
        name = f"first batch of {BATCH} random images, s"
        tables.append(
            Table(f"{size / 1e9:.1f} GB", ("", name), (("loopback", median(direct)), ("50 ms", median(late))))
        )
        bars.append(Bar.at_most("first batch from a remote store of 10 GB, s, worst", max(direct), 2.0))
    else:
        notes.append("nginx is not there (python -m tests.remote.packages): no first batch of a large store.")
    return Report(
        "remote_stores",
        "Push and pull of a store beside plain obstore, and the first batch of one that is opened at a remote.",
        tuple(tables),
        tuple(bars),
        tuple(notes),
    )


def _servers(folder: Path, stack: contextlib.ExitStack) -> Iterator[tuple[str, str]]:
    if find_nginx() is not None:
        yield "nginx (WebDAV)", stack.enter_context(Nginx(folder / "nginx")).url
    server = stack.enter_context(S3(folder / "s3"))
    os.environ.update(server.variables)
    yield "moto (S3)", "s3://bucket/stores"


def _store(path: Path, size: int) -> Path:
    fields = {"x": ws.Array("uint8", (4096,)), "n": ws.Array("int64")}
    rng = np.random.default_rng(0)
    with ws.RecordStore.create(path, fields, chunk_size=CHUNK) as store:
        for first in range(0, size // 4096, 4000):
            store.extend({"x": rng.integers(0, 256, (4000, 4096), np.uint8), "n": np.arange(first, first + 4000)})
            store.flush()
    return path


def _both(store: Path, url: str, folder: Path) -> dict[str, float]:
    """MB/s of each, in turns."""
    files = sorted(store.rglob("*.arrow"))
    size = sum(path.stat().st_size for path in files) / 1e6
    seconds: dict[str, float] = {}
    with ws.RecordStore.open(store) as opened:
        seconds["warmstore push"] = _timed(lambda: opened.push(f"{url}/ours", progress=False))
    seconds["obstore push"] = _timed(lambda: _put(files, f"{url}/theirs"))
    seconds["warmstore pull"] = _timed(lambda: ws.RecordStore.clone(f"{url}/ours", folder / "ours").close())
    seconds["obstore pull"] = _timed(lambda: _get(files, f"{url}/theirs", folder / "theirs"))
    for copy in ("ours", "theirs"):
        shutil.rmtree(folder / copy)
    return {name: size / spent for name, spent in seconds.items()}


def _put(files: Sequence[Path], url: str) -> None:
    import obstore

    with Remote(url).open() as objects:
        store = objects._opened(write=True)
        parts = False if url.startswith("http:") else None

        async def put(path: Path) -> None:
            with open(path, "rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            await obstore.put_async(store, path.name, data, use_multipart=parts)

        _all(put, files)


def _get(files: Sequence[Path], url: str, folder: Path) -> None:
    import obstore

    folder.mkdir()
    with Remote(url).open() as objects:
        store = objects._opened(write=False)

        async def get(path: Path) -> None:
            found = await obstore.get_async(store, path.name)
            with open(folder / path.name, "wb") as file:
                async for piece in found.stream(min_chunk_size=1 << 20):
                    file.write(piece)
                await asyncio.to_thread(os.fsync, file.fileno())

        _all(get, files)


def _all(do: Any, files: Sequence[Path]) -> None:
    async def run() -> None:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(path: Path) -> None:
            async with room:
                await do(path)

        await asyncio.gather(*map(one, files))

    asyncio.run(run())


# A store of 10 GB that takes next to no room


class Sparse(Files):
    """Writes no zeros: they become holes."""

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        first = memoryview(buffers[0]).cast("B")
        if len(first) >= 1 << 20 and not np.frombuffer(first, np.uint8).any():
            self.truncate(descriptor, offset + len(first))
            return len(first)
        return super().write(descriptor, buffers[:1], offset)


def serve_sparse(path: Path, root: Path, size: int) -> tuple[int, int]:
    """Have a folder that looks as if a store of black images had been pushed there. Returns its bytes and images."""
    count = size // int(np.prod(IMAGE))
    fields = {"image": ws.Array("uint8", IMAGE), "label": ws.Array("int64")}
    zeros = np.zeros((400, *IMAGE), np.uint8)
    with ws.RecordStore.create(path, fields, files=Sparse()) as store:
        for first in range(0, count, 400):
            store.extend({"image": zeros, "label": np.arange(first, first + 400)})
            store.flush()
    return _serve(path, root), -(-count // 400) * 400


def _first_batches(folder: Path, size: int, times: int) -> tuple[int, list[float], list[float]]:
    with Nginx(folder / "large-nginx") as server, Proxy(server.url) as late:
        late.latency = 0.05
        size, count = serve_sparse(folder / "large", server.root / "large", size)
        direct = [_first_batch(f"{server.url}/large", folder / f"direct{at}", count, at) for at in range(times)]
        slow = [_first_batch(f"{late.url}/large", folder / f"late{at}", count, at) for at in range(times)]
    return size, direct, slow


def _serve(path: Path, root: Path) -> int:
    """Have a folder that looks as if the store had been pushed there; the chunks are moved, holes and all."""
    local = Local.read(path, Files())
    chunks = {}
    (root / "chunks").mkdir(parents=True)
    for number, end in local.ends.items():
        with open(local.chunk_path(number), "rb") as file:
            chunk, hashes = RemoteChunk.of(memoryview(mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ)))
        local.chunk_path(number).rename(root / chunk.object)
        (root / chunk.hashes_object).write_bytes(hashes)
        chunks[number] = chunk
    with Remote(str(root)).open() as objects:
        name = f"heads/{local.manifest.id}/00000001.json"
        write_head(objects, RemoteSnapshot(name, 1, False, local.manifest, local.entries.tobytes(), chunks))
    return sum(chunk.size for chunk in chunks.values())


def _first_batch(url: str, cache: Path, count: int, seed: int) -> float:
    index = np.random.default_rng(seed).integers(0, count, BATCH)
    began = time.perf_counter()
    with ws.RecordStore.open(url, cache_dir=cache) as store:
        batch = store.gather(index)
        spent = time.perf_counter() - began
    assert (batch["label"] == index).all(), "wrong values"
    shutil.rmtree(cache)
    return spent


def _timed(do: Any) -> float:
    began = time.perf_counter()
    do()
    return time.perf_counter() - began
