"""How fast are other formats converted, and how much memory does that take, whatever their size?

Each conversion has a process of its own, which reports the peak of its resident memory above what it had before. Run as
a module (`python -m benchmarks.convert SOURCE STORE`) this file is that process.
"""

from __future__ import annotations

import json
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import warmstore as ws
from benchmarks.private_memory import in_fresh_process
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

WIDTH = 2048  # bytes of a record of the formats of arrays
FILE = 100_000  # bytes of a file in the tar
LIMIT = 500e6


def run(settings: Settings) -> Report:
    size = settings.pick(4_000_000_000, 40_000_000)
    rows = []
    peaks = []
    for name, make in MAKERS.items():
        source, store = settings.folder / name, settings.folder / "store"
        make(source, size)
        settings.break_in_disk(size)
        found = in_fresh_process(__name__, str(source), str(store))
        peaks.append(found["peak"])
        rate = size / found["seconds"] / 1e6
        rows.append((name, found["records"], found["seconds"], rate, found["peak"] / 1e6, ""))
        if name == "array.npy":
            for target in ("out.npy", "out.arrow", "out.parquet"):
                out = in_fresh_process(__name__, str(store), str(settings.folder / target))
                peaks.append(out["peak"])
                rate = size / out["seconds"] / 1e6
                rows.append((target, found["records"], out["seconds"], rate, out["peak"] / 1e6, "export"))
                (settings.folder / target).unlink()
        source.unlink()
        remove(store)
    return Report(
        "convert",
        f"{size / 1e9:.2g} GB of each format become a store, and one becomes files again; each in a fresh process.",
        (Table("", ("", "records", "seconds", "MB/s", "peak MB", "note"), tuple(rows)),),
        (Bar.at_most("peak memory above the start, MB, worst", max(peaks) / 1e6, LIMIT / 1e6),),
        (
            "Peak: resident memory, mapped file pages included, sampled every 5 ms; imports are not counted.",
            "Everything is on the disk (fdatasync) when a conversion ends.",
        ),
    )


def make_npy(path: Path, size: int) -> None:
    array = np.lib.format.open_memmap(path, "w+", np.float32, (size // WIDTH, WIDTH // 4))
    for rows in np.array_split(array, max(size // (64 << 20), 1)):
        rows[:] = np.random.default_rng(0).standard_normal(rows.shape, np.float32)
    array.flush()


def make_tables(path: Path, size: int, writer_of: Callable) -> None:
    rng = np.random.default_rng(0)
    rows = (32 << 20) // WIDTH
    schema = pa.schema([("image", pa.large_binary()), ("label", pa.int64())])
    blob = [rng.bytes(WIDTH) for _ in range(rows)]
    with writer_of(path, schema) as writer:
        for _ in range(-(-size // (rows * WIDTH))):
            writer.write_table(pa.table({"image": blob, "label": np.arange(rows)}, schema))


def make_tar(path: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    with tarfile.open(path, "w") as tar:
        for number in range(size // FILE):
            for name, data in ((f"{number:08d}.jpg", rng.bytes(FILE)), (f"{number:08d}.cls", b"7")):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, BytesIO(data))


MAKERS: dict[str, Callable[[Path, int], None]] = {
    "array.npy": make_npy,
    "table.parquet": lambda path, size: make_tables(path, size, pq.ParquetWriter),
    "table.arrow": lambda path, size: make_tables(path, size, pa.ipc.new_file),
    "files.tar": make_tar,
}


def remove(store: Path) -> None:
    for file in sorted(store.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    store.rmdir()


class Peak(threading.Thread):
    """The most resident memory of this process above what it had when this was made."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._process = psutil.Process()
        self._before = self._process.memory_info().rss
        self._done = threading.Event()
        self.bytes = 0

    def run(self) -> None:
        while not self._done.wait(0.005):
            self.bytes = max(self.bytes, self._process.memory_info().rss - self._before)

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.bytes


def main(source: str, target: str) -> None:
    """Prints {"records", "seconds", "peak"}; a store as the source is exported, anything else converted."""
    convert, export = ws.convert, ws.export  # imported before the clock starts
    peak = Peak()
    peak.start()
    began = time.perf_counter()
    if Path(source).is_dir():
        export(source, target)
        records = 0
    else:
        with convert(source, target) as store:
            records = len(store)
    seconds = time.perf_counter() - began
    print(json.dumps({"records": records, "seconds": seconds, "peak": peak.stop()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
