"""docs/troubleshooting.md has an entry for every public error, and its messages are those of the sources."""

import ast
import functools
import re
from pathlib import Path

import pytest

import warmstore as ws
from warmstore import errors

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ENTRIES = re.findall(r"^### `(\w+)` \((\w+)\)\n\n```text\n(.*?)\n```\n\n(.+?)$", PAGE, re.DOTALL | re.MULTILINE)
ERRORS = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
LEAST = 18
"""Fixed characters that a message of the sources must have in common with the page."""


def test_every_error_has_an_entry() -> None:
    kinds = {name for name, value in ERRORS.items() if ws.WarmstoreError in (value, *value.__bases__)}
    assert [name for name, *_ in ENTRIES] == [name for name in ERRORS if name not in kinds]
    for name in kinds - {"WarmstoreError"}:
        assert f"\n`{name}`: " in PAGE, name
    assert set(ERRORS) <= set(ws.__all__)


@pytest.mark.parametrize(("name", "builtin", "message"), [entry[:3] for entry in ENTRIES], ids=lambda value: value[:20])
def test_the_message_is_one_of_the_sources(name: str, builtin: str, message: str) -> None:
    assert builtin in {base.__name__ for base in ERRORS[name].__mro__}
    assert _is_of_a_source(message), message


def _is_of_a_source(message: str) -> bool:
    return any(fixed in message and re.search(pattern, message, re.DOTALL) for pattern, fixed in _messages())


@functools.cache
def _messages() -> tuple[tuple[str, str], ...]:
    """Patterns of all texts in the sources that are long enough to be recognised, each with its longest fixed part."""
    found = set()
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else None for part in node.values]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            if sum(len(part) for part in parts if part) >= LEAST and len(parts) < 20:
                pattern = "".join(".*?" if part is None else re.escape(part) for part in parts)
                fixed = max((part for part in parts if part), key=len)
                found.add((pattern.removeprefix(".*?").removesuffix(".*?"), fixed))
    return tuple(found)


def test_a_message_of_nowhere_is_noticed() -> None:
    assert not _is_of_a_source("no source of this library says such a thing")
