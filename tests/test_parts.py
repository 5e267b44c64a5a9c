"""Parts of a run of tests."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.slow import part_of

SOME = ["tests/storage/test_history.py", "tests/frozen/test_remotes.py", "tests/remote/test_remote_options.py"]


def collected(*options: str) -> list[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *options, *SOME]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return [line for line in done.stdout.splitlines() if "::" in line]


def test_each_test_is_in_one_part() -> None:
    whole = collected()
    first, second = collected("--part", "1/2"), collected("--part", "2/2")
    assert len(first) - len(second) in (0, 1)
    assert sorted(first + second) == sorted(whole)
    assert len({*whole}) == len(whole) > 30


@pytest.mark.parametrize("wrong", ["0/2", "3/2", "1", "/", "1/0", "-1/2", "1/2/3", "a/b", ""])
def test_no_part(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"part|int"):
        part_of(wrong)
