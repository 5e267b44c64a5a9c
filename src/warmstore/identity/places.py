"""Places of facts: a root, such as a function or a global, and a path from the root, such as `.model[0]`.

Modules appear in places as numbers, in the order in which the walk meets them, so that renaming a module of the program
leaves its identity the same. `Names` translates places for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

_ROOT = re.compile(r"@(\d+):([^|]*)\|")


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a fact: the number of its root, and the path from there."""

    root: int
    suffix: str = ""

    def __add__(self, suffix: str) -> Place:
        return Place(self.root, self.suffix + suffix)


@dataclass(frozen=True)
class Names:
    """The name of the value that a walk starts from, and the prefixes of modules by their numbers."""

    start: str
    modules: tuple[str, ...]

    def in_words(self, text: str) -> str:
        """A key of a place, or a fact, with the names of modules in place of their numbers."""
        return _ROOT.sub(self._name_of_root, text).lstrip(".")

    def renumbered(self, text: str | None, other: Names) -> str | None:
        """A fact with the numbers that another walk has given to the modules in it.

        Raises:
            ValueError: It has not met one of them.
        """
        return text if text is None or "@" not in text else _ROOT.sub(partial(self._renumbered, other), text)

    def _renumbered(self, other: Names, match: re.Match[str]) -> str:
        return f"@{other.modules.index(self.modules[int(match[1])])}:{match[2]}|"

    def _name_of_root(self, match: re.Match[str]) -> str:
        return self.modules[int(match[1])] + match[2] if match[2] else self.start
