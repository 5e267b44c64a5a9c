"""WalkSettings: what counts in a walk, and what is watched."""

from __future__ import annotations

from collections.abc import Collection
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
        folders: Whether the files in a folder that an argument names count, if there are at most 256.
        elsewhere: Absolute paths of folders whose files count by other means.
        patches: What the program has put into installed modules.
        draws: Whether the state of a default random generator counts where code draws from it.
        is_called_here: Whether the thread that looks also calls the object: settings of the thread are then watched.
        modes: Whether torch's modes of gradients, inference and autocast count where code uses torch.
        read_elsewhere: Whether other walks follow the code that reads the object. What counts only where code reads it,
            such as the order of attributes and hooks of the backward pass, then counts in any case.
    """

    ignore: frozenset[str] = frozenset()
    root: str | None = None
    files: Files = "stat"
    tensors: str = "content"
    watch: Watch | None = None
    folders: bool = False
    elsewhere: Collection[str] = ()
    patches: Patches | None = None
    draws: bool = True
    is_called_here: bool = False
    modes: bool = False
    read_elsewhere: bool = False
