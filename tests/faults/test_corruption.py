"""Bytes of small stores flipped, and files cut at many lengths: an exact value or a typed error.

The reading runs in child processes, so that a crash of the interpreter shows. `make torture` takes every byte and every
length of every file, and runs and pairs all over it (`corruption_campaign.py`).
"""

import itertools
import os
import signal
from collections.abc import Iterable
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
from tests.slow import either, thinned

pytestmark = pytest.mark.forks

_IN_SHORT = [("plain", "log"), ("edited", "1")]
CHUNKS = {"edited": range(2), "rebalanced": range(2), "merged": range(2, 5)}
FILES = [
    (name, file)
    for name in STORIES
    for file in (
        *("store.json", "store.json.copy", "log", "log.copy"),
        *(("numbers", "numbers.copy") if name not in ("plain", "compressed") else ()),
        *map(str, CHUNKS.get(name, range(1))),
    )
]


# The others come with --slow and `make torture`: files of one store are damaged in test_every_byte.py, and some of each
# format in test_damaged_formats.py.
FEW = [pytest.param(name, file, marks=() if (name, file) in _IN_SHORT else pytest.mark.slow) for name, file in FILES]


def test_all_files_are_damaged(tmp_path: Path) -> None:
    stories = {name: make(tmp_path / name) for name, make in STORIES.items()}
    assert [(name, file) for name, story in stories.items() for file in files_of(story)] == FILES


def look(story: Story, file: str, damages: Iterable[Damage], *, depth: int = WHOLE, noticed: bool = False) -> int:
    """Do each damage to a file and look. What is damaged in files other than chunks stands in their copies."""
    scratch = story.path.with_name("scratch")
    return look_at(
        files_of(story)[file],
        damages,
        lambda: wrong(
            story, [story.entries], depth=depth, scratch=scratch, exact=not file.isdecimal(), noticed=noticed
        ),
        scratch=scratch,
    )


@pytest.mark.parametrize("name", thinned(3, STORIES))
def test_without_damage_nothing_is_wrong(tmp_path: Path, name: str) -> None:
    story = STORIES[name](tmp_path / "s")
    for file, path in files_of(story).items():
        assert look(story, file, [("nothing", path.read_bytes())], depth=DEEP) == 1


@pytest.mark.parametrize(("name", "file"), FEW)
def test_bytes_flipped(tmp_path: Path, name: str, file: str) -> None:
    """Bytes all over every file of every store; then the store is repaired and written to."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    # Steps that share no factor with 8 visit every bit.
    step = either(521, 131) if file.isdecimal() else either(97, 23)
    assert look(story, file, flips(data, range(0, len(data), step)), depth=DEEP)
    assert look(story, file, flips(data, range(1, len(data), step)))


@pytest.mark.parametrize(("name", "file"), FEW)
def test_cut(tmp_path: Path, name: str, file: str) -> None:
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    # Of a chunk lengths that no buffer's alignment can hide.
    step = either(293, 73) if file.isdecimal() else either(71, 17)
    assert look(story, file, cuts(data, range(0, len(data), step)))
    assert look(story, file, cuts(data, range(3, len(data), 5 * step)), depth=DEEP)


@pytest.mark.parametrize(("name", "file"), FEW)
def test_zeros_and_garbage(tmp_path: Path, name: str, file: str) -> None:
    """Over any part of any file."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    for length in (1, 8, 61, 512, 100_000)[either(4, 0) :]:
        assert look(story, file, fills(data, length, max(61, len(data) // 12)), depth=QUICK)


@pytest.mark.parametrize(("name", "file"), FEW)
def test_two_bits_and_swapped_words(tmp_path: Path, name: str, file: str) -> None:
    """What sums, and sums of products, do not see."""
    story = STORIES[name](tmp_path / "s")
    data = files_of(story)[file].read_bytes()
    rng = np.random.default_rng(1)
    count = either(10, 60) if file.isdecimal() else either(5, 20)
    damages = itertools.chain(pairs_of_bits(data, count, rng), swapped_words(data, count, rng))
    assert look(story, file, damages, depth=QUICK) >= 10


def test_the_check_itself_would_see_a_crash(tmp_path: Path) -> None:
    path = files_of(STORIES["plain"](tmp_path / "s"))["log"]

    def crash() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with pytest.raises(AssertionError, match=r"'cut to 1'.*signal 9"):
        look_at(path, cuts(path.read_bytes(), [1, 2]), crash, scratch=tmp_path / "scratch")
