"""Brace patterns mean what they mean to WebDataset, and a shard that is missing is named."""

from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.converting.common import holds
from tests.slow import either

import warmstore as ws
from warmstore.converting.brace_patterns import expand
from warmstore.converting.source_paths import paths_of


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain.tar", ["plain.tar"]),
        ("s-{008..011}", ["s-008", "s-009", "s-010", "s-011"]),
        ("{0..10..5}", ["0", "5", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{a..e..2}", ["a", "c", "e"]),
        ("{a,b{1..2},}x{c,d}", ["axc", "axd", "b1xc", "b1xd", "b2xc", "b2xd", "xc", "xd"]),
        ("{a}{b", ["{a}{b"]),
        ("{{a,b}}", ["{a}", "{b}"]),
        (r"\{a,b\}", ["{a,b}"]),
        ("}{,}{", ["}{", "}{"]),
    ],
)
def test_a_pattern_is_taken_apart(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


DEEP = either(1200, 3000)


@pytest.mark.parametrize(
    "pattern", ["{0..1000000000000}", "{1..1000}{1..1000}{1..1000}", "{a,b}" * 30, "{a," * DEEP + "b" + "}" * DEEP]
)
def test_a_pattern_of_too_many_names_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"are the most|too many braces"):
        expand(pattern)


@given(st.text("ab{},.0123-", max_size=14))
def test_the_names_are_those_of_braceexpand(pattern: str) -> None:
    braceexpand: Any = pytest.importorskip("braceexpand")
    depths = list(accumulate((letter == "{") - (letter == "}") for letter in pattern))
    assume(min(depths, default=0) >= 0)  # braceexpand sees only that as many close as open; we go by shells
    try:
        expected = list(braceexpand.braceexpand(pattern))
    except (braceexpand.UnbalancedBracesError, ValueError):
        return
    assert expand(pattern) == expected


def test_shards_come_in_the_order_of_the_pattern(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / f"{number:02d}").mkdir()
        np.save(tmp_path / f"{number:02d}" / f"x{number}.npy", np.arange(3))
    pattern = str(tmp_path / "{10..08}" / "*.npy")
    assert [path.name for path in paths_of(pattern) or []] == ["x10.npy", "x9.npy", "x8.npy"]
    with ws.convert(pattern, tmp_path / "store") as store:
        holds(store, {"x10": np.arange(3), "x9": np.arange(3), "x8": np.arange(3)})


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        np.save(tmp_path / f"x{number}.npy", np.arange(3))
    with pytest.raises(ws.NoSource, match=r"x2\.npy does not exist: 2 of the 5 names"):
        ws.convert(str(tmp_path / "x{0..4}.npy"), tmp_path / "store")
    with pytest.raises(ws.NoSource, match=r"b\*\.npy does not exist: 1 of the 2"):
        ws.convert(str(tmp_path / "{x,b}*.npy"), tmp_path / "store")


def test_a_name_with_braces_is_itself_where_it_is_there(tmp_path: Path) -> None:
    np.save(tmp_path / "{a,b}.npy", np.arange(3))
    assert paths_of(tmp_path / "{a,b}.npy") == [tmp_path / "{a,b}.npy"]
