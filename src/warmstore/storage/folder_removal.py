"""Removal of folders, so that other processes see all of a folder or nothing.

A folder is renamed first. A killed removal leaves a hidden folder beside, which the next removal in the same parent
takes away, and never half a folder under its name.
"""

import contextlib
import re
import secrets
import shutil
from pathlib import Path

from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.files import Files

_HIDDEN = re.compile(r"\..+\.[0-9a-f]{8}\.cleared\.tmp")


def is_hidden(name: str) -> bool:
    """Whether an entry of a folder has the name of a folder that is being removed."""
    return _HIDDEN.fullmatch(name) is not None


def hide(folder: Path, files: Files) -> Path:
    """Rename a folder that is to be removed. Returns its hidden path. Raises OSError if it cannot be renamed."""
    hidden = folder.with_name(f".{folder.name.lstrip('.')[:100]}.{secrets.token_hex(4)}.cleared.tmp")
    files.rename(folder, hidden)
    return hidden


def sweep_hidden(parent: Path) -> int:
    """Remove what killed removals left in a folder. Returns the bytes that were freed."""
    freed = 0
    for left in parent.glob(".*.cleared.tmp"):
        if is_hidden(left.name):
            with contextlib.suppress(OSError):
                size = folder_bytes(left)
                shutil.rmtree(left)
                freed += size
    return freed
