"""What the short run has of a long test; `--slow` has all of it."""

from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark import ParameterSet

_long = [False]
_fresh = [False]


def set_run(*, long: bool, fresh: bool) -> None:
    """Whether this is the run with `--slow`, and with `--fresh`; conftest tells, before any test is imported."""
    _long[0], _fresh[0] = long, fresh


def is_long() -> bool:
    return _long[0]


def is_fresh() -> bool:
    """Whether each program that tests start has an interpreter of its own."""
    return _fresh[0]


def either(short: int, long: int) -> int:
    """A size: the first one in the short run."""
    return long if _long[0] else short


def unforked() -> str:
    """The start method of processes that know only what they are sent: "spawn" with `--fresh`.

    Else "forkserver": its processes are forks of one that has imported torch and nothing else, in place of seconds of
    imports each.
    """
    return "spawn" if _fresh[0] else "forkserver"


def thinned(count: int, parameters: Iterable[Any]) -> list[Any]:
    """The parameters, of which the short run has the first and every `count`-th after it; tuples are several values."""
    return [_at(values, is_slow=at % count > 0) for at, values in enumerate(parameters)]


def _at(values: Any, *, is_slow: bool) -> ParameterSet:
    if not isinstance(values, ParameterSet):
        values = pytest.param(*values) if isinstance(values, tuple) else pytest.param(values)
    return pytest.param(*values.values, marks=(*values.marks, *([pytest.mark.slow] if is_slow else ())), id=values.id)


def part_of(text: str) -> tuple[int, int]:
    """A part of the tests, and of how many: `(2, 3)` of "2/3".

    Raises:
        ValueError: no such part.
    """
    part, _, parts = text.partition("/")
    if not 1 <= int(part) <= int(parts):
        raise ValueError(f"a part is I/N with I from 1 to N, got {text!r}")
    return int(part), int(parts)
