"""What hooks on compilers report, and what they ask: the protocol that a `CompileSession` implements.

Paths are relative to the scratch directory that compilers work in. A path with a slash at its end is a folder.
"""

from collections.abc import Callable
from typing import Protocol

from warmstore.compiling.misses.key_descriptions import KeyDescription


class Listener(Protocol):
    """Receives the lookups and saves of a compiler."""

    def inside(self, path: str) -> str | None:
        """The path relative to the scratch directory; None for a path elsewhere."""

    def wanted(self, path: str, *, alone: bool) -> bool:
        """Called before a compiler looks for files below a path. Returns whether files are there now.

        Args:
            alone: Whether the compiler compiles next what is missing. Then only one process should.
        """

    def made(self, path: str) -> None:
        """Called after the compiler has saved its result for a path that was `wanted` with `alone`."""

    def landed(self) -> None:
        """Called when this thread has finished compiling, with or without success."""

    def describe(self, path: str, make: Callable[[], KeyDescription | None]) -> None:
        """Called before a path is `wanted`. `make` returns the components of its key; it runs only on a miss."""

    def found(self, path: str) -> bool:
        """Whether files were there when a path was `wanted`."""

    def refused(self, path: str, reason: str) -> None:
        """Called when a compiler rejects the files below a path, or does not look for them."""

    @property
    def has_room_for_headers(self) -> bool:
        """Whether there is room to precompile headers."""

    def want_header(self, path: str) -> None:
        """Called before a compiler looks for a precompiled header."""

    def made_header(self, path: str) -> None:
        """Called when a precompiled header is complete."""

    def may_go_on(self, error: Exception) -> bool:
        """Whether to repeat a compilation that failed, because compilers now write elsewhere."""

    def remember(self, question: str, ask: Callable[[], bool]) -> bool:
        """The answer to a question about this machine and its compiler; `ask` finds it the first time."""
