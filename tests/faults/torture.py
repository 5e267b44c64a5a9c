"""`make torture`: campaigns that go on where they stopped, and whose counts add up in files.

    python -m tests.faults.torture [--states 100000] [--faults 200000] [--kills 1000] [--shortages 500]
        [--limits 1000] [--operations 2000000] [--damages 1000000] [--inputs 10000000] [--only power calls]
        [--results build/torture]

The campaigns take turns: kills, kills by the kernel for lack of memory, limits of processes, power cuts, calls that
fail (all calls x errors x stories, if as many are wanted), soaks, damage at rest (all damages of all files), and
parsers with inputs of a fuzzer.

Each has a file of its own, so that two processes may run different ones. A part of a campaign that failed is tried
again the next time.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults import (
    corruption_campaign,
    fuzz_campaign,
    io_campaign,
    kill_campaign,
    limit_campaign,
    record_cuts,
    soak,
)
from tests.faults.damaged_caches import SUBJECTS as CACHES
from tests.faults.damaged_remotes import SUBJECTS as REMOTES
from tests.faults.damaged_stores import SUBJECTS as STORES
from tests.faults.fuzzed_parsers import PARSERS
from tests.faults.memory_cgroup import MemoryCgroup
from tests.faults.power_campaign import Story, campaign
from tests.faults.story_lists import FAULTY, KILLED, STORIES
from tests.warm import search_for_patches

from warmstore.storage.atomic import replace_file

AT_ONCE = 1000
"""States of one part."""
FAULTS = 240
"""Faults of one part."""
DRAWN = 24
"""Kills or limits of one part. A few kills come too late."""
DAMAGES = 2000
"""Damages of one part."""
INPUTS = 20_000
"""Inputs of one part, for one parser."""
SUBJECTS = [*STORES, *CACHES, *REMOTES]
SHARES = {"tiers": 0.2, "evictions": 0.3}
"""Stories whose states take long to judge have fewer."""
SOAKS = 1_000_000, 100_000
"""Operations of the first soak, and of each later one."""


class Results:
    """The files of counts in a folder. parts: by campaign and part, what it counted and how it failed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.parts: dict[str, dict[str, Any]] = {
            path.stem: json.loads(path.read_text()) for path in folder.glob("*.json")
        }

    def has(self, campaign: str, part: str) -> bool:
        """Whether a part was done, without a failure."""
        known = self.parts.get(campaign, {}).get(part)
        return known is not None and not known["failures"]

    def add(self, campaign: str, part: str, counts: dict[str, Any]) -> None:
        """Note a part, and write the file."""
        parts = self.parts.setdefault(campaign, {})
        parts[part] = counts
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_file(self._folder / f"{campaign}.json", json.dumps(parts, indent=1).encode(), durable=False)

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
    """Calls that fail, until so many faults were judged, or all."""
    return _all_of(results, "calls", "faults", FAULTY, FAULTS, io_campaign.campaign, wanted)


def corruption(results: Results, wanted: int) -> Iterator[None]:
    """Damage at rest, until so many damages were judged, or all."""
    return _all_of(results, "corruption", "damages", SUBJECTS, DAMAGES, corruption_campaign.campaign, wanted)


def _all_of(
    results: Results,
    name: str,
    counted: str,
    subjects: Sequence[Any],
    size: int,
    judge: Callable[[Any, int, int], Any],
    wanted: int,
) -> Iterator[None]:
    """A part of each subject in turn, until there are no more, or so many were judged. Yields after each part.

    Args:
        name: of the campaign. counted: what is counted. size: of a part.
        judge: judges a subject from one number to another; its result has `of`, how many there are.
    """
    sizes: dict[str, int] = {}  # of subjects
    for number in itertools.count():
        left = [subject for subject in subjects if number * size < sizes.get(subject.name, 1)]
        if not left:
            return
        for subject in left:
            if results.total(name, counted) >= wanted:
                return
            part = f"{subject.name}, {counted} from {number * size}"
            if results.has(name, part):
                sizes[subject.name] = results.parts[name][part]["of"]
                continue
            began = time.monotonic()
            found = judge(subject, number * size, (number + 1) * size)
            sizes[subject.name] = found.of
            counts = asdict(found)
            results.add(name, part, counts)
            print(
                f"{name}: {part}: {counts[counted]:,} of {found.of:,} {counted}, {len(found.failures)} failed, "
                f"{time.monotonic() - began:.0f} s; {results.total(name, counted):,} in all",
                flush=True,
            )
            for failure in found.failures[:3]:
                print(failure, flush=True)
            yield


def drawn(
    results: Results, name: str, counted: str, judge: Callable[..., Any], stories: Sequence[Any], wanted: int
) -> Iterator[None]:
    """Kills or limits, which are drawn for each story, until so many were judged. Yields after each part.

    Args:
        name: of the campaign. counted: what is counted.
    """
    for number, story in ((number, story) for number in itertools.count() for story in stories):
        part = f"{story.name}, from {number * DRAWN}"
        if results.has(name, part):
            continue
        if results.total(name, counted) >= wanted and part not in results.parts.get(name, {}):
            return
        began = time.monotonic()
        found = judge(story, number * DRAWN, (number + 1) * DRAWN)
        counts = asdict(found)
        results.add(name, part, counts)
        print(
            f"{name}: {part}: {counts[counted]}, {len(found.failures)} failed, {time.monotonic() - began:.0f} s; "
            f"{results.total(name, counted):,} of {wanted:,} in all",
            *found.failures[:3],
            sep="\n",
            flush=True,
        )
        yield


def shortages(results: Results, wanted: int) -> Iterator[None]:
    """Kills by the kernel, until there were so many. Yields after each part."""
    if why_not := MemoryCgroup.why_not():
        print(why_not, flush=True)
        return iter(())
    return drawn(results, "memory", "kills", kill_campaign.shortages, KILLED, wanted)


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


def fuzz(results: Results, wanted: int, corpora: Path) -> Iterator[None]:
    """Parsers with inputs of a fuzzer, until so many were tried. Yields after each part."""
    if not fuzz_campaign.is_installed():
        print("parsers are not fuzzed: pip install 'warmstore[fuzz]'", flush=True)
        return
    for number in itertools.count():
        for name, parser in PARSERS.items():
            if results.total("fuzz", "inputs") >= wanted:
                return
            part = f"{name}, part {number}"
            if results.has("fuzz", part):
                continue
            began = time.monotonic()
            found = fuzz_campaign.campaign(name, number, int(INPUTS * parser.share), corpora)
            results.add("fuzz", part, asdict(found))
            print(
                f"parsers: {part}: {found.inputs:,} inputs, {found.edges:,} edges, {len(found.failures)} failed, "
                f"{time.monotonic() - began:.0f} s; {results.total('fuzz', 'inputs'):,} in all",
                flush=True,
            )
            for failure in found.failures:
                print(failure, flush=True)
            yield


COUNTED = {
    "power": ("states",),
    "calls": ("faults",),
    "kills": ("kills", "lost", "wrong", "crashes", "hangs", "others"),
    "memory": ("kills", "lost", "wrong", "crashes", "hangs", "others"),
    "limits": ("limits", "stopped"),
    "soak": ("operations",),
    "corruption": ("damages", "exact", "reported", "lost", "wrong", "crashes", "hangs", "others"),
    "fuzz": ("inputs", "exceptions", "crashes", "hangs", "memory"),
}
"""What is counted of each campaign."""


def summary(results: Results) -> str:
    """The counts of all campaigns."""
    lines = []
    for name, counted in COUNTED.items():
        counts = ", ".join(f"{results.total(name, each):,} {each}" for each in counted)
        parts = len(results.parts.get(name, {}))
        lines.append(f"{name}: {counts} in {parts:,} parts, {results.total(name, 'failures'):,} failures")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--states", type=int, default=100_000, help="states after power cuts, in all")
    parser.add_argument("--faults", type=int, default=200_000, help="calls that fail, in all")
    parser.add_argument("--kills", type=int, default=1000, help="processes killed, in all")
    parser.add_argument("--shortages", type=int, default=500, help="processes killed for lack of memory, in all")
    parser.add_argument("--limits", type=int, default=1000, help="limits of processes, in all")
    parser.add_argument("--operations", type=int, default=2_000_000, help="operations of soaks, in all")
    parser.add_argument("--damages", type=int, default=1_000_000, help="damages of files, in all")
    parser.add_argument("--inputs", type=int, default=10_000_000, help="inputs of parsers, in all")
    parser.add_argument("--only", nargs="+", choices=COUNTED, default=[*COUNTED], help="campaigns")
    parser.add_argument("--results", type=Path, default=Path("build/torture"), help="the folder of counts")
    options = parser.parse_args()
    results = Results(options.results)
    with tempfile.TemporaryDirectory(prefix="warmstore-state-") as state:
        os.environ["XDG_STATE_HOME"] = state  # never the user's registry
        try:
            search_for_patches()  # once for all children
            campaigns = {
                "kills": drawn(results, "kills", "kills", kill_campaign.campaign, KILLED, options.kills),
                "memory": shortages(results, options.shortages),
                "limits": drawn(results, "limits", "limits", limit_campaign.campaign, FAULTY, options.limits),
                "power": power(results, options.states, options.results / "failures"),
                "calls": calls(results, options.faults),
                "soak": soaks(results, options.operations),
                "corruption": corruption(results, options.damages),
                "fuzz": fuzz(results, options.inputs, options.results / "corpora"),
            }
            for _ in itertools.zip_longest(*(campaigns[name] for name in options.only)):
                pass
        finally:
            print(summary(results), flush=True)
    sys.exit(1 if any(results.total(name, "failures") for name in results.parts) else 0)


if __name__ == "__main__":
    main()
