"""The options of a walk: which places, files and contents count, and what to watch for changes."""

from __future__ import annotations

from dataclasses import dataclass

from warmstore.identity.named_files import Files
from warmstore.identity.patches import Patches
from warmstore.identity.watch import Watch


@dataclass(frozen=True)
class WalkSettings:
    """Options of a walk.

    Args:
        ignore: Places that do not count, as facts show them.
        root: Files below this folder count relative to it.
        files: Whether files count by size and time, "stat", or by "content".
        tensors: "content", or "layout" for inputs of compiled code.
        watch: Records what to check for changes, and remembers the texts of tensors and arrays.
        folders: Whether the files in a folder that an argument names count.
        elsewhere: Folders whose files other means account for.
        patches: Functions that the program has put into installed modules.
        draws: Whether the state of a default random generator counts where code draws from it.
    """

    ignore: frozenset[str] = frozenset()
    root: str | None = None
    files: Files = "stat"
    tensors: str = "content"
    watch: Watch | None = None
    folders: bool = False
    elsewhere: frozenset[str] = frozenset()
    patches: Patches | None = None
    draws: bool = True
