"""`make torture`: campaigns that go on where they stopped, and whose counts add up in a file.

    python -m tests.faults.torture [--states 100000] [--faults 100000] [--kills 1000]
        [--operations 2000000] [--results build/torture.json]

The campaigns take turns: kills, power cuts, calls that fail (all calls x errors x stories, if as many are wanted), and
soaks.

A part of a campaign that failed is tried again the next time, and so is one of which this file has never heard.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.faults import cache_cuts, io_campaign, kill_campaign, process_stories, record_cuts, remote_cuts, soak
from tests.faults.power_campaign import Story, campaign
from tests.warm import search_for_patches

from warmstore.storage.atomic import replace_file

AT_ONCE = 1000
"""States of one part."""
FAULTS = 240
"""Faults of one part."""
KILLS = 24
"""Kills of one part."""
STORIES: list[Story] = [*record_cuts.STORIES, *cache_cuts.STORIES, *remote_cuts.STORIES]
FAULTY: list[Story] = [*STORIES, *remote_cuts.WITHOUT_POWER_CUTS]
KILLED: list[Any] = [*FAULTY, *process_stories.STORIES]
SHARES = {"tiers": 0.2, "evictions": 0.3}
"""Stories whose states take long to judge have fewer."""
SOAKS = 1_000_000, 100_000
"""Operations of the first soak, and of each later one."""


class Results:
    """The file of counts. parts: by campaign and part, what it counted and how it failed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.parts: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def has(self, campaign: str, part: str) -> bool:
        """Whether a part was done, without a failure."""
        known = self.parts.get(campaign, {}).get(part)
        return known is not None and not known["failures"]

    def add(self, campaign: str, part: str, counts: dict[str, Any]) -> None:
        """Note a part, and write the file."""
        self.parts.setdefault(campaign, {})[part] = counts
        self._path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(self.parts, indent=1).encode(), durable=False)

    def total(self, campaign: str, name: str) -> int:
        """The sum of a count over all parts."""
        counts = (part[name] for part in self.parts.get(campaign, {}).values())
        return sum(len(one) if isinstance(one, list) else one for one in counts)


def power_parts() -> Iterator[tuple[Story, int]]:
    """All stories with each seed, and between them those that are drawn: for ever."""
    drawn = 0
    for seed in range(1_000_000):
        for story in STORIES:
            yield story, seed
        for _ in range(40):
            yield record_cuts.RandomStory(drawn), 0
            drawn += 1


def power(results: Results, wanted: int, kept: Path) -> Iterator[None]:
    """Power cuts, until so many states were judged. Yields after each part."""
    for story, seed in power_parts():
        if results.total("power", "states") >= wanted:
            return
        part = f"{story.name}, seed {seed}"
        if results.has("power", part):
            continue
        began = time.monotonic()
        found = campaign(story, int(AT_ONCE * SHARES.get(story.name, 1)), seed, kept)
        counts = {"operations": found.operations, "exhausted": found.exhausted, "states": found.states}
        results.add("power", part, {**counts, "failures": found.failures})
        print(
            f"power cuts: {part}: {found.states:,} states of {found.operations:,} operations, "
            f"{len(found.failures)} failed, {time.monotonic() - began:.0f} s; "
            f"{results.total('power', 'states'):,} of {wanted:,} in all",
            flush=True,
        )
        for failure in found.failures[:3]:
            print(failure, flush=True)
        yield


def calls(results: Results, wanted: int) -> Iterator[None]:
    """Calls that fail, until so many faults were judged, or all. Yields after each part."""
    sizes: dict[str, int] = {}  # of stories, in faults
    for number in itertools.count():
        left = [story for story in FAULTY if number * FAULTS < sizes.get(story.name, 1)]
        if not left:
            return
        for story in left:
            if results.total("calls", "faults") >= wanted:
                return
            part = f"{story.name}, faults from {number * FAULTS}"
            if results.has("calls", part):
                sizes[story.name] = results.parts["calls"][part]["of"]
                continue
            began = time.monotonic()
            found = io_campaign.campaign(story, number * FAULTS, (number + 1) * FAULTS)
            sizes[story.name] = found.of
            counts = {"calls": found.calls, "of": found.of, "faults": found.faults, "failures": found.failures}
            results.add("calls", part, counts)
            print(
                f"failing calls: {part}: {found.faults:,} of {found.of:,} faults of {found.calls:,} calls, "
                f"{len(found.failures)} failed, {time.monotonic() - began:.0f} s; "
                f"{results.total('calls', 'faults'):,} in all",
                flush=True,
            )
            for failure in found.failures[:3]:
                print(failure, flush=True)
            yield


def kills(results: Results, wanted: int) -> Iterator[None]:
    """Kills, until so many processes were killed. Yields after each part."""
    for number, story in ((number, story) for number in itertools.count() for story in KILLED):
        if results.total("kills", "kills") >= wanted:
            return
        part = f"{story.name}, kills from {number * KILLS}"
        if results.has("kills", part):
            continue
        began = time.monotonic()
        found = kill_campaign.campaign(story, number * KILLS, (number + 1) * KILLS)
        results.add("kills", part, {"kills": found.kills, "failures": found.failures})
        print(
            f"kills: {part}: {found.kills} processes killed, {len(found.failures)} failed, "
            f"{time.monotonic() - began:.0f} s; {results.total('kills', 'kills'):,} of {wanted:,} in all",
            *found.failures[:3],
            sep="\n",
            flush=True,
        )
        yield


def soaks(results: Results, wanted: int) -> Iterator[None]:
    """Soaks: one of a million operations, in which memory must not grow, then smaller ones. Yields after each part."""
    for seed in itertools.count():
        if results.total("soak", "operations") >= wanted:
            return
        size = SOAKS[min(seed, 1)]
        part = f"{size:,} operations, seed {seed}"
        if results.has("soak", part):
            continue
        found = soak.campaign(soak.Soak(size, seed))
        counts = {"operations": found.operations, "seconds": round(found.seconds), "failures": found.failures}
        results.add("soak", part, {**counts, "at a tenth": found.at_a_tenth, "in the end": found.in_the_end})
        print(
            f"soak: {part}: {len(found.failures)} failures, {found.seconds:,.0f} s; "
            f"{results.total('soak', 'operations'):,} of {wanted:,} in all",
            *found.failures[:3],
            sep="\n",
            flush=True,
        )
        yield


def summary(results: Results) -> str:
    """The counts of all campaigns."""
    lines = []
    for name, counted in (("power", "states"), ("calls", "faults"), ("kills", "kills"), ("soak", "operations")):
        parts = len(results.parts.get(name, {}))
        failures = results.total(name, "failures")
        lines.append(f"{name}: {results.total(name, counted):,} {counted} in {parts:,} parts, {failures:,} failures")
    after_kills = [failure for part in results.parts.get("kills", {}).values() for failure in part["failures"]]
    counts = {kind: sum(failure.startswith(f"{kind}: ") for failure in after_kills) for kind in kill_campaign.KINDS}
    lines.append("after kills: " + ", ".join(f"{count} x {kind}" for kind, count in counts.items()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=100_000, help="states after power cuts, in all")
    parser.add_argument("--faults", type=int, default=100_000, help="calls that fail, in all")
    parser.add_argument("--kills", type=int, default=1000, help="processes killed, in all")
    parser.add_argument("--operations", type=int, default=2_000_000, help="operations of soaks, in all")
    parser.add_argument("--results", type=Path, default=Path("build/torture.json"), help="the file of counts")
    options = parser.parse_args()
    results = Results(options.results)
    kept = options.results.with_suffix(".failures")
    with tempfile.TemporaryDirectory(prefix="warmstore-state-") as state:
        os.environ["XDG_STATE_HOME"] = state  # never the user's registry
        try:
            search_for_patches()  # once for all children
            campaigns = (
                kills(results, options.kills),
                power(results, options.states, kept),
                calls(results, options.faults),
                soaks(results, options.operations),
            )
            for _ in itertools.zip_longest(*campaigns):
                pass
        finally:
            print(summary(results), flush=True)
    sys.exit(1 if any(results.total(name, "failures") for name in results.parts) else 0)


if __name__ == "__main__":
    main()
