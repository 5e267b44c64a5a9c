"""What a run of a callable reads is counted in its key.

A run is traced; then each value that it read, and each function that ran, is changed in a program that is imported
anew: its key must change, whether or not what it gives does, and the difference must be told by name. So a key that
forgets an attribute fails here even where the example would not show it.
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.identity.engine import identify
from tests.identity.leaves import Leaf, changed, other_code, reached
from tests.identity.reads import Reads, reads_of
from tests.identity.worlds import PROGRAMS, Examples, World, run
from tests.slow import thinned

from warmstore.identity import Identity

SAMPLE = 12  # one value of so many
LARGE = {"backbones": 6}  # programs of which so many times fewer are taken
ROOT = Path(__file__).parent.parent.parent


@dataclass
class Result:
    """What was read of one program, and what of it does not count or is not told by name."""

    values: int = 0
    functions: int = 0
    unknown: int = 0
    forgotten: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    strangers: set[str] = field(default_factory=set)


def read_by(world: World, program: str, name: str, examples: Examples, output: str) -> tuple[list[int], Reads]:
    """The leaves that a run reads, by their number, and all that it reads."""
    with world.entries(program) as entries:
        entry, arguments = entries[name], examples(name)
        within = reached(entry)
        with reads_of(within) as reads:
            assert run(entry, arguments) == output, f"{program}.{name} gives something else when it is traced"
        return [at for at, leaf in enumerate(within.leaves) if reads.has(leaf)], reads


def outputs_of(world: World, program: str, examples: Examples) -> dict[str, str]:
    with world.entries(program) as entries:
        return {name: run(entry, examples(name)) for name, entry in entries.items()}


def trial(world: World, program: str, engine: Callable[[Any], Identity], keep: Callable[[int], bool]) -> Result:
    result = Result()
    examples = Examples(world, program)
    for name, output in outputs_of(world, program, examples).items():
        numbers, reads = read_by(world, program, name, examples, output)
        result.strangers |= reads.strangers
        with world.entries(program) as entries:
            within = reached(entries[name])
            before = engine(entries[name])
            if before.unknown:
                result.unknown += 1
                continue
            for at in filter(keep, numbers):
                _change_value(entries[name], within.leaves[at], engine, before, f"{program}.{name}", result)
            for at, path in enumerate(sorted(reads.functions)):
                if keep(at):
                    function = within.functions[path]
                    code, function.__code__ = function.__code__, other_code(function)
                    result.functions += 1
                    if not _is_told(before, engine(entries[name])):
                        result.forgotten.append(f"{program}.{name}: the code of {path}")
                    function.__code__ = code
            assert engine(entries[name]).digest == before.digest
    return result


def _change_value(
    entry: Any, leaf: Leaf, engine: Callable[[Any], Identity], before: Identity, words: str, result: Result
) -> None:
    try:
        leaf.put(changed(leaf.value))
    except ValueError:  # another key of a dict has that name
        return
    after = engine(entry)
    leaf.put(leaf.value)
    result.values += 1
    if not _is_told(before, after):
        result.forgotten.append(f"{words}{leaf.path}")
    elif not after.unknown and not _names(before.difference(after), leaf):
        result.unnamed.append(f"{words}{leaf.path}: {before.difference(after)}")


def _is_told(before: Identity, after: Identity) -> bool:
    return before.digest != after.digest or bool(after.unknown)


def _names(words: str, leaf: Leaf) -> bool:
    """Whether a difference names the place of a leaf: the last names of its path, or the key that is another."""
    names = [leaf.place.name, *re.findall(r"[^\W\d]\w*", leaf.path)[-3:]]
    return any(name.strip("_").lower() in words.lower() for name in names if name.strip("_"))


def check(result: Result) -> None:
    print(f"{result.values} values and {result.functions} functions read; {result.unknown} unknown")
    assert not result.forgotten, "\n".join(result.forgotten)
    assert not result.unnamed, "\n".join(result.unnamed)
    assert not result.strangers, f"code that runs and is not in reach: {result.strangers}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_a_sample_of_what_is_read_counts(program: str, world: World) -> None:
    every = SAMPLE * LARGE.get(program, 1)
    first = sum(map(ord, program)) % every
    check(trial(world, program, identify, lambda number: number % every == first))


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_all_that_is_read_counts(program: str, world: World) -> None:
    check(trial(world, program, identify, lambda number: True))


FORGOTTEN = {  # a program, the places that are left out of keys, and what must be found
    "an attribute of a module": ("training", r"\bSCALE$", "training.crop.*SCALE"),
    "an attribute of an object": ("images", r"\bbrightness$", "images.jitter.*brightness"),
    "an attribute of a class": ("tokens", r"\bend$", "tokens.byte_pairs.*end"),
    "a global": ("series", r"\bWEEKEND$", "series.calendar.*WEEKEND"),
    "a cell": ("plugins", r"running\.mean\W+window\W+$", "plugins.running.*window"),
    "a default": ("audio", r"mu_law\W+levels\W+$", "audio.mu_law.*levels"),
    "an argument": ("geometry", r"^value\W+degrees\W+$", "geometry.rotate_about_corner.*degrees"),
    "a function": ("geometry", r"rotate_points\W+about\W+$", "geometry.rotate_points: the code of .*about"),
    "an item": ("cleaning", r"\bUNITS$", "cleaning.to_meters.*UNITS"),
    "a parameter": ("layers", r"^value\.weight$", "layers.channel_norm.*weight"),
}


@pytest.mark.parametrize("kind", thinned(6, FORGOTTEN))
def test_an_engine_that_forgets_something_is_found_out(kind: str, world: World) -> None:
    program, forgotten, expected = FORGOTTEN[kind]

    def engine(entry: Any) -> Identity:
        return identify(entry, ignore=[place for place in identify(entry).facts if re.search(forgotten, place)])

    result = trial(world, program, engine, lambda number: True)
    assert any(re.match(expected, line) for line in result.forgotten), result.forgotten


def test_files_that_are_opened_count(tmp_path: Path) -> None:
    """In a process of its own, as nothing takes a hook of the interpreter back."""
    World(tmp_path)
    child = [sys.executable, "-B", "-m", "tests.identity.opened", str(tmp_path)]
    done = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    entries = json.loads(done.stdout)
    assert {file for one in entries for file in one["files"]} == {"words.txt", "labels.json", "prices.csv"}
    assert not [one["entry"] for one in entries if one["files"] != one["told"] and not one["unknown"]]
    for one in entries:
        assert all(any(file in words for words in one["words"]) for file in one["told"]), one
