"""Brace patterns as shells and WebDataset write them: `shard-{000..099}.tar`, `{train,val}.parquet`, also nested."""

import re
import string
from collections.abc import Iterator

_NUMBERS = re.compile(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?")
_LETTERS = re.compile(r"([A-Za-z])\.\.([A-Za-z])(?:\.\.(-?\d+))?")


def expand(pattern: str) -> list[str]:
    """The names that a pattern stands for, in order; the pattern itself where it holds no braces to expand.

    `{a,b}` is either of its parts, `{1..3}` and `{a..c}` every one of a range, `{0..10..2}` every second. A range whose
    first or last number starts with 0 is padded to the longer of the two. `\\{` is a brace. Braces without a comma or a
    range, and those that do not close, stand for themselves.
    """
    for first, last in _groups(pattern):
        options = _options(pattern[first + 1 : last])
        if options is not None:
            head, rest = _plain(pattern[:first]), expand(pattern[last + 1 :])
            return [f"{head}{option}{tail}" for option in options for tail in rest]
    return [_plain(pattern)]


def _groups(pattern: str) -> Iterator[tuple[int, int]]:
    """Where braces open and close, in the order in which they open."""
    opened: list[int] = []
    closed: dict[int, int] = {}
    for at, letter in _letters(pattern):
        if letter == "{":
            opened.append(at)
        elif letter == "}" and opened:
            closed[opened.pop()] = at
    yield from sorted(closed.items())


def _letters(pattern: str) -> Iterator[tuple[int, str]]:
    """Letters that no backslash precedes."""
    escaped = False
    for at, letter in enumerate(pattern):
        if not escaped and letter != "\\":
            yield at, letter
        escaped = letter == "\\" and not escaped


def _options(inner: str) -> list[str] | None:
    """What the inside of braces stands for, or None where it is no pattern."""
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
    return [name for part in (*parts, inner[start:]) for name in expand(part)]


def _numbers(first: str, last: str, step: int) -> list[str]:
    padded = any(re.match(r"-?0\d", edge) for edge in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return [f"{number:0{width}d}" for number in _range(int(first), int(last), step)]


def _range(first: int, last: int, step: int) -> range:
    return range(first, last + 1, step) if first <= last else range(first, last - 1, -step)


def _plain(text: str) -> str:
    return re.sub(r"\\([{},])", r"\1", text)
