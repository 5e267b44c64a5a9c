"""Folders of caches with histories that are written by hand, and the figures of a page found in them again."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from warmstore.compiling.misses.lookup_log import FOLDER
from warmstore.report.markup import clean
from warmstore.report.report_data import ReportData
from warmstore.storage.history import NAME

NOW = 1_800_000_000.0


def write(folder: Path, records: Sequence[Mapping[str, Any]]) -> None:
    """Write a history. Records have what is given, and what every record has."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, record in enumerate(records):
        common = {
            "v": 1, "kind": "features", "event": "use", "at": NOW - 1000 + number, "run": "r1", "n": number,
            "host": "gpu-7", "pid": 7, "program": "train.py",
        }  # fmt: skip
        lines.append(json.dumps({**common, **record}))
    (folder / NAME).write_text("\n".join(lines) + "\n")


def feature_cache(folder: Path, id: str, samples: int = 8) -> Path:
    """A real cache, whose history is to be written by hand."""
    with ws.FeatureCache(folder, id) as cache:
        cache.put_batch(np.arange(samples), np.ones((samples, 4), np.float32))
    return cache.path


def epochs(count: int, run: str = "r1", samples: int = 100, **others: Any) -> list[dict[str, Any]]:
    """A run that computes all samples in its first epoch and then finds them."""
    return [
        {
            "run": run, "n": epoch, "epoch": epoch, "seconds": 3.0,
            "hits": samples * (epoch > 0),
            "misses": samples * (epoch == 0), "computed_seconds": 2.0 * (epoch == 0), "read_seconds": 0.01,
            "saved_seconds": 2.0 * (epoch > 0), "bytes_read": 1600 * (epoch > 0), "entries": samples, "bytes": 999,
            **others,
        }
        for epoch in range(count)
    ]  # fmt: skip


def pipeline_history(folder: Path) -> None:
    """The history of a plan with a fill and four epochs."""
    common = {"kind": "pipelines", "name": "decode -> resize", "run": "r2"}
    plan = {
        **common, "event": "plan", "n": 0, "samples": 500, "epoch_seconds": 1.25, "uncached_seconds": 9.5,
        "band": [1.0, 1.5], "disk": 40_000_000, "memory": 0, "limited_by": "cores",
        "placements": [{"after": "resize", "tier": "disk", "codec": "zstd", "samples": 450}],
    }  # fmt: skip
    measured = [
        {
            **common, "event": "epoch", "n": 2 + epoch, "epoch": epoch, "seconds": 2.0 + epoch / 8,
            "is_steady": epoch > 0, "waited_seconds": 1.5, "hits": 450, "misses": 50, "predicted_seconds": 1.25,
            "uncached_seconds": 9.5, "saved_seconds": 8.0,
        }
        for epoch in range(4)
    ]  # fmt: skip
    part = {**common, "event": "part", "n": 7, "hits": 40, "misses": 0, "seconds": 20.5}
    fill = {**common, "event": "fill", "n": 1, "seconds": 4.5, "computed": 450, "hits": 0}
    write(folder, [plan, fill, *measured, part, {**common, "event": "evicted", "n": 9, "bytes": 12345}])


def compile_history(folder: Path) -> None:
    """The history of a compile cache: one run that compiles, one that finds."""
    common = {"kind": "compiled", "event": "lookups", "job": "train"}
    reasons = {"torch 2.12.0 -> 2.13.0": 3, "input 0: shape (8, 16) -> (4, 16)": 1, "<b>&": 2}
    misses = {**common, "run": "r3", "n": 0, "hits": 0, "misses": 6, "reasons": reasons, "computed_seconds": 30.5}
    hits = {**common, "run": "r4", "n": 0, "hits": 6, "misses": 0, "saved_seconds": 30.5, "restored": 6, "evicted": 2}
    write(folder / FOLDER, [misses, hits])


class Found(HTMLParser):
    """What a page says: (source, value, text) of each figure, all tags, and the texts that are no figures."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.figures: list[tuple[str, str, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.titles: list[tuple[str, str]] = []  # of columns, with their source
        self.histories: dict[str, str] = {}
        self.folders: dict[str, str] = {}
        self._open: tuple[str, str] | None = None
        self._skipped = False
        self._titled = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self._skipped = tag in ("style", "script")
        if given.get("data-history"):
            self.histories[str(given["id"])] = str(given["data-history"])
        if given.get("data-path"):
            self.folders[str(given["id"])] = str(given["data-path"])
        source = given.get("data-source")
        if source is not None:
            if tag == "data":
                self._open = source, str(given["value"])
            else:
                self.figures.append((source, str(given["data-value"]), ""))
                self._titled = source if tag == "rect" else ""

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self.figures.append((*self._open, data))
            self._open = None
        elif self._titled:
            self.titles.append((self._titled, data))
            self._titled = ""
        elif not self._skipped:
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._skipped = False


class Truth:
    """Computes figures from the raw lines of histories and from the disk, by nothing of the library's."""

    def __init__(self, found: Found, data: ReportData) -> None:
        self._lines = {key: list(_lines(Path(path))) for key, path in found.histories.items()}
        self._disk = {folder.path: folder for folder in data.folders}
        self._folders = {key: Path(path) for key, path in found.folders.items()}
        self._caches = {cache.key: cache for cache in data.caches}

    def value(self, source: str) -> float:
        """The value of a source."""
        key, figure, *_ = source.split(" ")
        rest = source[len(key) + 1 :]
        if key == "disk":
            kind = rest.partition("kind=")[2]
            chosen = [each for each in self._disk.values() if not kind or each.kind == kind]
            return len(chosen) if figure == "folders" else sum(_allocated(each.path) for each in chosen)
        if re.fullmatch(r"d\d+", key):
            folder = self._disk[self._folders[key]]
            return _allocated(folder.path) if figure == "nbytes" else float(folder.entries or 0)
        if match := re.fullmatch(r"d(\d+)-d(\d+)", key):
            paths = [self._folders[f"d{number}"] for number in range(int(match[1]), int(match[2]) + 1)]
            return sum(map(_allocated, paths))
        if rest.startswith("plan="):
            number, _, name = rest.removeprefix("plan=").partition(" ")
            plans = {line["name"]: line for line in self._lines[key] if line["event"] == "plan"}
            plan = list(plans.values())[int(number)]
            at = re.fullmatch(r"placement=(\d+)", name)
            return float(plan["placements"][int(at[1])]["samples"] if at else plan[name])
        if rest.startswith("reason="):
            return sum(line.get("reasons", {}).get(rest.removeprefix("reason="), 0) for line in self._lines[key])
        return self._sum(key, figure, rest.partition(" ")[2])

    def _sum(self, key: str, figure: str, restrictions: str) -> float:
        all_lines = [line for lines in self._lines.values() for line in lines] if key == "*" else self._lines[key]
        if figure == "runs":
            return len({line["run"] for line in all_lines})
        if figure == "refusals":
            return sum(line["event"] == "stale" for line in all_lines)
        if figure == "evicted":
            return sum(
                line.get("evicted_files", 0) + line.get("evicted", 0) + (line["event"] == "evicted")
                for line in all_lines
            )
        if figure == "evicted_bytes":
            return sum(
                line.get("evicted_bytes", 0) + (line["bytes"] if line["event"] == "evicted" else 0)
                for line in all_lines
            )
        if figure == "entries":
            return [line["entries"] for line in all_lines if line["event"] == "use"][-1]
        if figure == "nbytes":
            return sum(_allocated(folder.path) for folder in self._caches[key].folders)
        wanted, parts = _restrictions(restrictions)
        worked = ("use", "epoch", "part", "fill", "lookups")
        lines = [line for line in all_lines if line["event"] in worked and wanted(line)]
        assert lines, (key, figure, restrictions)
        sums = [_figure(line, figure) for line in lines]
        if figure == "rate":
            hits, misses = (sum(line.get(name, 0) for line in lines) for name in ("hits", "misses"))
            return hits / max(hits + misses, 1)
        return sum(sums) / parts


def _restrictions(text: str) -> Any:
    text, _, name = text.partition("name=")
    given = dict(part.split("=") for part in text.split())
    first, last = map(int, given["epochs"].split("-")) if "epochs" in given else (0, 1 << 60)

    def wanted(line: Mapping[str, Any]) -> bool:
        return (
            line["run"] == given.get("run", line["run"])
            and line["event"] == given.get("event", line["event"])
            and first <= line.get("epoch", 0) <= last
            and (not name or name in map(clean, (line.get("name", ""), line.get("job", ""))))
        )

    return wanted, int(given.get("parts", 1))


def _figure(line: Mapping[str, Any], figure: str) -> float:
    def of(name: str) -> float:
        return line.get(name, 0)

    pipeline, fill = line["event"] == "epoch", line["event"] == "fill"
    work = of("waited_seconds") if pipeline else of("seconds") if fill else of("computed_seconds") + of("read_seconds")
    return {
        "lookups": of("hits") + of("misses"),
        "work": work,
        "uncached": 0 if fill else max(work - of("read_seconds") + of("saved_seconds"), 0),
        "rest": max(of("seconds") - work, 0) if line["event"] in ("use", "epoch") else 0,
    }.get(figure, of(figure))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def _allocated(folder: Path) -> int:
    """Bytes of a folder as `du` counts them, the folders themselves too."""
    seen = {}
    for root, _, names in os.walk(folder):
        for path in (root, *(f"{root}/{name}" for name in names)):
            status = os.lstat(path)
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())
