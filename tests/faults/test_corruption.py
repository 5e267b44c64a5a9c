"""Every byte of small stores flipped, and every file cut at every length: an exact value or a typed error.

The reading runs in child processes, so that a crash of the interpreter shows. The short forms here take every byte or
some; the long ones, under `slow`, take every one of every file, and do more with each.
"""

import os
import signal
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
import pytest
from tests.faults.damage import (
    DEEP,
    QUICK,
    WHOLE,
    Damage,
    cuts,
    files_of,
    fills,
    flips,
    look_at,
    pairs_of_bits,
    swapped_words,
    wrong,
)
from tests.faults.stories import STORIES, Story

FILES = [
    (name, file)
    for name in STORIES
    for file in ("json", "log", "0", *(["1"] if name in ("edited", "rebalanced") else []))
]


def test_all_files_are_damaged(tmp_path: Path) -> None:
    stories = {name: make(tmp_path / name) for name, make in STORIES.items()}
    assert [(name, file) for name, story in stories.items() for file in files_of(story)] == FILES


def look(
    story: Story, file: str, damages: Iterable[Damage], entries: Collection[int] | None = None, *, depth: int = WHOLE
) -> int:
    """Do each damage to a file and look; the log's whole entries count unless told otherwise."""
    scratch = story.path.with_name("scratch")
    allowed = [story.entries] if entries is None else entries
    return look_at(
        files_of(story)[file],
        damages,
        lambda: wrong(story, allowed, depth=depth, scratch=scratch),
        scratch=scratch,
    )


def prefixes(story: Story, file: str) -> Collection[int] | None:
    """A log that is cut, or ends in zeros, is that of a shorter store."""
    return range(story.entries + 1) if file == "log" else None


@pytest.mark.parametrize("name", STORIES)
def test_without_damage_nothing_is_wrong(tmp_path: Path, name: str) -> None:
    story = STORIES[name](tmp_path / "s")
    for file, path in files_of(story).items():
        assert look(story, file, [("nothing", path.read_bytes())], depth=DEEP) == 1


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("file", ["json", "log", pytest.param("0", marks=pytest.mark.slow)])
def test_every_byte_flipped(tmp_path: Path, file: str, part: int) -> None:
    """One bit of every byte, another one from byte to byte; every other byte always."""
    story = STORIES["plain"](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    places = range(part, len(data), 2)
    assert look(story, file, flips(data, places), depth=QUICK) == len(places)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_bytes_flipped(tmp_path: Path, name: str, file: str) -> None:
    """Bytes all over every file of every store; then the store is repaired and written to."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    # Steps that share no factor with 8 visit every bit.
    step = 131 if file.isdecimal() else 23
    assert look(story, file, flips(data, range(0, len(data), step)), depth=DEEP)
    assert look(story, file, flips(data, range(1, len(data), step)))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize(("name", "file"), FILES)
def test_every_byte_flipped_in_every_store(tmp_path: Path, name: str, file: str, part: int) -> None:
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    look(story, file, flips(data, range(part, len(data), 4)), depth=DEEP)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("file", ["json", "log", "0"])
def test_every_bit_flipped(tmp_path: Path, file: str, part: int) -> None:
    story = STORIES["plain"](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    look(story, file, flips(data, range(part, len(data), 4), range(8)), depth=QUICK)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_cut(tmp_path: Path, name: str, file: str) -> None:
    """The log at every length, and then exactly the entries that are whole count; other files at some."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    if file == "log":
        for entries in range(story.entries + 1):
            lengths = range(64 * entries, min(64 * entries + 64, len(data) + 1))
            assert look(story, file, cuts(data, lengths), [entries], depth=QUICK)
            assert look(story, file, cuts(data, lengths[::40]), [entries], depth=DEEP)
    else:
        # Of a chunk lengths that no buffer's alignment can hide.
        step = 73 if file.isdecimal() else 17
        assert look(story, file, cuts(data, range(0, len(data), step)))
        assert look(story, file, cuts(data, range(3, len(data), 5 * step)), depth=DEEP)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), FILES)
def test_cut_at_every_length(tmp_path: Path, name: str, file: str) -> None:
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    look(story, file, cuts(data, range(len(data))), prefixes(story, file))
    look(story, file, cuts(data, range(0, len(data), 7)), prefixes(story, file), depth=DEEP)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_zeros_and_garbage(tmp_path: Path, name: str, file: str) -> None:
    """Over any part of any file. Zeros over the log's end are what a torn tail looks like."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    for length in (1, 8, 61, 512, 100_000):
        assert look(story, file, fills(data, length, max(61, len(data) // 12)), prefixes(story, file), depth=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 7, 8, 64, 512, 100_000])
@pytest.mark.parametrize(("name", "file"), FILES)
def test_zeros_and_garbage_everywhere(tmp_path: Path, name: str, file: str, length: int) -> None:
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    look(story, file, fills(data, length, 64), prefixes(story, file), depth=DEEP)


def both(data: bytes, count: int, seed: int) -> Iterable[Damage]:
    rng = np.random.default_rng(seed)
    yield from pairs_of_bits(data, count, rng)
    yield from swapped_words(data, count, rng)


@pytest.mark.parametrize(("name", "file"), FILES)
def test_two_bits_and_swapped_words(tmp_path: Path, name: str, file: str) -> None:
    """What sums, and sums of products, do not see."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    assert look(story, file, both(data, 60 if file.isdecimal() else 20, 1), depth=QUICK) >= 40


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), FILES)
def test_many_two_bits_and_swapped_words(tmp_path: Path, name: str, file: str) -> None:
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    look(story, file, both(data, 3000, 2), depth=QUICK)


def test_the_check_itself_would_see_a_wrong_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.records import gather

    story = STORIES["plain"](tmp_path / "s")
    data = files_of(story)["0"].read_bytes()
    monkeypatch.setattr(gather.Gatherer, "_check", lambda *arguments: None)
    with pytest.raises(AssertionError, match=r"of record \d"):
        look(story, "0", flips(data, range(0, len(data), 16)))


def test_the_check_itself_would_see_a_crash(tmp_path: Path) -> None:
    path = files_of(STORIES["plain"](tmp_path / "s"))["log"]

    def crash() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with pytest.raises(AssertionError, match=r"'cut to 1'.*signal 9"):
        look_at(path, cuts(path.read_bytes(), [1, 2]), crash, scratch=tmp_path / "scratch")
