"""Brace patterns as shells and WebDataset write them: `shard-{000..099}.tar`, `{train,val}.parquet`, also nested."""

import re
import string
from collections.abc import Iterator

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


MOST = 1 << 20
"""The most names that a pattern may expand to."""


def expand(pattern: str) -> list[str]:
    """The names that a pattern expands to, in order; the pattern itself where it has no braces to expand.

    `{a,b}` expands to its parts, `{1..3}` and `{a..c}` to a range, `{0..10..2}` to every second number. If the first or
    last number of a range starts with 0, numbers are padded to the longer of the two. `\\{` is a brace. Braces without
    a comma or a range, and braces that do not close, stay as they are.

    Raises:
        ValueError: the pattern expands to more than `MOST` names, or is nested too deeply.
    """
    try:
        return _expanded(pattern)
    except RecursionError:
        raise ValueError(f"the pattern {pattern[:80]!r} has too many braces") from None


def _expanded(pattern: str) -> list[str]:
    for first, last in _groups(pattern):
        options = _options(pattern[first + 1 : last])
        if options is not None:
            head, rest = _plain(pattern[:first]), _expanded(pattern[last + 1 :])
            _check_count(len(options) * len(rest), pattern)
            return [f"{head}{option}{tail}" for option in options for tail in rest]
    return [_plain(pattern)]


def _groups(pattern: str) -> Iterator[tuple[int, int]]:
    """The positions of matching braces, in the order of the opening braces."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for at, letter in _letters(pattern):
        if letter == "{":
            opened.append(at)
        elif letter == "}" and opened:
            closed[opened.pop()] = at
    yield from sorted(closed.items())


def _letters(pattern: str) -> Iterator[tuple[int, str]]:
    """The letters without a backslash before them, with their positions."""
    escaped = False
    for at, letter in enumerate(pattern):
        if not escaped and letter != "\\":
            yield at, letter
        escaped = letter == "\\" and not escaped


def _options(inner: str) -> list[str] | None:
    """The expansions of the text between braces, or None where it is no pattern."""
    if match := _NUMBERS.fullmatch(inner):
        return _numbers(match[1], match[2], abs(int(match[3] or 1)) or 1)
    if match := _LETTERS.fullmatch(inner):
        letters = string.ascii_uppercase + string.ascii_lowercase
        first, last = letters.index(match[1]), letters.index(match[2])
        step = abs(int(match[3] or 1)) or 1
        return [letters[at] for at in _range(first, last, step)]
    parts, depth, start = [], 0, 0
    for at, letter in _letters(inner):
        depth += (letter == "{") - (letter == "}")
        if letter == "," and not depth:
            parts.append(inner[start:at])
            start = at + 1
    if not parts:
        return None
    expanded = [_expanded(part) for part in (*parts, inner[start:])]
    _check_count(sum(map(len, expanded)), inner)
    return [name for names in expanded for name in names]


def _numbers(first: str, last: str, step: int) -> list[str]:
    padded = any(re.match(r"-?0\d", edge) for edge in (first, last))
    width = max(len(first), len(last)) if padded else 0
    numbers = _range(int(first), int(last), step)
    _check_count(_length(numbers), f"{first}..{last}")
    return [f"{number:0{width}d}" for number in numbers]


def _check_count(count: int, pattern: str) -> None:
    if count > MOST:
        raise ValueError(f"the pattern {pattern[:80]!r} stands for {count:,} names, and {MOST:,} are the most")


def _length(numbers: range) -> int:
    """The length of a range that `len` may not have."""
    return max(0, (numbers.stop - numbers.start + numbers.step - (1 if numbers.step > 0 else -1)) // numbers.step)


def _range(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _plain(text: str) -> str:
    return re.sub(r"\\([{},])", r"\1", text)
