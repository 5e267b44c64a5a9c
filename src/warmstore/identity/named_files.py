"""Files that values name: a text for each, which differs where its content may differ.

A file counts by its absolute place, size and time, or by its content. Files of the program's own checkout that its code
names count by their place in the checkout and by content, so that a checkout may move. What names no file has no text.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import xxhash

from warmstore.identity.plain_data import digest_of

Files = Literal["stat", "content"]
MOVABLE = ("<root>/", "<program>/")
"""With these, texts of places begin that are the same in another copy of a folder."""

_LONGEST = 4096
_BLOCK = 1 << 20
_LARGEST_OF_PROGRAM = 16 << 20


_MOST_LISTED = 256


def listing(folder: str) -> str:
    """The files that lie directly in a folder, with sizes and times; "" where they are many, or it is no folder."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and not entry.name.startswith((".", "profile-")):
                    state = entry.stat()
                    found.append(f"{entry.name} {state.st_size} {state.st_mtime_ns}")
                    if len(found) > _MOST_LISTED:
                        return ""
    except OSError:
        return ""
    return digest_of("\n".join(sorted(found))) if found else ""


def may_be_path(text: str) -> bool:
    """Whether a text could be the path of a file."""
    return 0 < len(text) <= _LONGEST and "\0" not in text and "\n" not in text


def stat_of(path: str | os.PathLike[str]) -> os.stat_result | None:
    """What `os.stat` says of a regular file or folder; None of anything else."""
    try:
        found = os.stat(path)  # noqa: PTH116  half the time of Path.stat
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else None


def file_text(path: str, files: Files, root: str | None, checkouts: tuple[str, ...] = ()) -> str:
    """The text of a file or folder that is named by a value; "" where there is none. Absolute paths below `root` or a
    checkout have one in any case.

    Args:
        path: as the value has it; relative ones are below the working directory.
        files: "stat", by size and time; "content", by content.
        root: places below this folder count relative to it.
        checkouts: folders of the program; files in there count by content and relative to them.
    """
    if not may_be_path(path):
        return ""
    found = stat_of(path)
    if found is None and not os.path.isabs(path):  # noqa: PTH117  called for every text
        return ""
    absolute = os.path.abspath(path)  # noqa: PTH100  it must not follow links
    place, inside = _place(absolute, root, checkouts)
    if found is None or not stat.S_ISREG(found.st_mode):
        if place != absolute:
            return place
        return f"{place} folder" if found is not None and os.sep in path.strip("./") else ""
    if files == "content" or (inside and found.st_size <= _LARGEST_OF_PROGRAM):
        return f"{place} file {content_of(absolute, found.st_size, found.st_mtime_ns, found.st_ino)}"
    return f"{place} file of {found.st_size} bytes at {found.st_mtime_ns}"


@dataclass(frozen=True)
class FileStamps:
    """How files that samples name count, and in which folders those lie that are named without one."""

    files: Files = "stat"
    root: str | None = None
    folders: tuple[str, ...] = ()

    def stamp(self, text: str) -> str:
        """The text of the file or folder that a text names; "" where it names none."""
        if not text or len(text) > _LONGEST or "\0" in text or "\n" in text:
            return ""
        found = None
        try:
            found = os.stat(text)  # noqa: PTH116  half the time of Path.stat, a million times
        except (OSError, ValueError):
            if not text.startswith("/"):
                for folder in self.folders:
                    if (named := stat_of(f"{folder}/{text}")) is not None:
                        text, found = f"{folder}/{text}", named
                        break
        if found is None:
            return ""
        if self.files == "stat" and self.root is None and stat.S_ISREG(found.st_mode):
            place = "" if text.startswith("/") else os.getcwd()  # noqa: PTH109
            return f"{place} {found.st_size} {found.st_mtime_ns};"
        return file_text(text, self.files, self.root) + ";"


def _place(absolute: str, root: str | None, checkouts: tuple[str, ...]) -> tuple[str, bool]:
    if root is not None and _is_below(absolute, root):
        return f"{MOVABLE[0]}{os.path.relpath(absolute, root)}", False
    for checkout in checkouts:
        if _is_below(absolute, checkout):
            return f"{MOVABLE[1]}{os.path.relpath(absolute, checkout)}", True
    return absolute, False


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@lru_cache(maxsize=1 << 14)
def content_of(path: str, size: int, time: int, inode: int) -> str:
    """The xxh3-128 of a file's content, remembered while size, time and inode stay the same."""
    digest = xxhash.xxh3_128()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        return f"unreadable {error.strerror}"
    return digest.hexdigest()
