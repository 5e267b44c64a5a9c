"""Texts of the files that values name. Two texts differ if the files may have different contents.

A file counts by absolute path, size and time, or by content. A file in a checkout of the program counts by its path in
the checkout and by content, so that checkouts may move. A string that names no file has no text.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import xxhash

from warmstore.identity.plain_data import LONGEST_PATH, digest_of
from warmstore.storage.file_times import settle

Files = Literal["stat", "content"]
MOVABLE = ("<root>/", "<program>/")
"""Prefixes of paths that are the same in another copy of a folder."""

FEW = 1024
"""More texts than these are compared with the names in the working directory, and only some looked up as files."""

_LONGEST = 4096
_LIKE_A_NAME = re.compile(r"[^\s/]\.(?!\d+$)\w{1,10}$")  # a suffix, and no number
_BLOCK = 1 << 20
_LARGEST_OF_PROGRAM = 16 << 20
_MOST_LISTED = 256
_MOST_BELOW = 100_000


class TooManyFiles(Exception):
    """A sample is a folder with more files below it than are examined for each epoch."""


def moved_path(text: str, root: str) -> str | None:
    """What stands for a path below `root`, wherever that is; None for another text.

    A path is moved as it is written: equal results come from equal paths below the root. A relative one counts if there
    is a file, since it may be any text. None has a zero, so no other text is equal to the result.
    """
    is_absolute = text.startswith("/")
    if not may_be_path(text) or os.path.normpath(text) != text:
        return None
    absolute = text if is_absolute else f"{os.getcwd()}/{text}"  # noqa: PTH109
    place, _ = _place(absolute if is_absolute else os.path.normpath(absolute), root, ())
    if not place.startswith(MOVABLE[0]) or not (is_absolute or stat_of(text)):
        return None
    return f"\0{'' if is_absolute else 'relative '}{place}"


def listing(folder: str) -> str:
    """A digest of the names, sizes and times of the files directly in a folder; "" if there are none or many."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file() and not entry.name.startswith((".", "profile-")):
                    state = entry.stat()
                    found.append(f"{entry.name} {state.st_size} {_settled(state)}")
                    if len(found) > _MOST_LISTED:
                        return ""
    except OSError:
        return ""
    return digest_of("\n".join(sorted(found))) if found else ""


def folder_text(folder: str, files: Files, root: str | None, is_left_out: Callable[[str], bool] | None = None) -> str:
    """The text of a folder as a sample: its path, and the paths, sizes and times or contents of all files below it.

    Args:
        is_left_out: Whether the files in a folder below it do not count.

    Raises:
        TooManyFiles: There are more than 100,000.
    """
    absolute = os.path.abspath(folder)  # noqa: PTH100  it must not follow links
    found: list[str] = []
    entered: set[tuple[int, int]] = set()
    for here, folders, names in os.walk(absolute, followlinks=True):
        folders[:] = [name for name in folders if _is_new(f"{here}/{name}", entered)]
        if is_left_out is not None:
            folders[:] = [name for name in folders if not is_left_out(f"{here}/{name}")]
        for name in names:
            if (state := stat_of(f"{here}/{name}")) is not None:
                what = content_of(f"{here}/{name}", state) if files == "content" else _settled(state)
                found.append(f"{here[len(absolute) :]}/{name} {state.st_size} {what}")
        if len(found) > _MOST_BELOW:
            raise TooManyFiles(
                f"the folder {folder!r} has more than {_MOST_BELOW:,} files below it, too many to be examined in each "
                "epoch: make samples of the files"
            )
    return f"{_place(absolute, root, ())[0]} folder of {len(found)} {digest_of(chr(10).join(sorted(found)))}"


def _is_new(folder: str, entered: set[tuple[int, int]]) -> bool:
    """Whether a folder was not entered before, under another name or through a link to a folder above."""
    state = stat_of(folder)
    key = (0, 0) if state is None else (state.st_dev, state.st_ino)
    is_new = key not in entered
    entered.add(key)
    return is_new


def may_be_path(text: str) -> bool:
    """Whether a text could be the path of a file."""
    return 0 < len(text) <= _LONGEST and "\0" not in text and "\n" not in text


def looks_like_path(text: str) -> bool:
    """Whether a text is written as a path is, with a slash or suffix, so that a file may appear there."""
    return len(text) < LONGEST_PATH and may_be_path(text) and ("/" in text or bool(_LIKE_A_NAME.search(text)))


def stamps_of(paths: Iterable[str]) -> list[tuple[int, ...]]:
    """For each path, numbers that change when its file is written to, replaced or removed, or another appears.

    It takes a quarter of the time of `file_text`. A folder has the same numbers whatever is in it.
    """
    return [_stamp(located(path)[1]) for path in paths]


def _stamp(found: os.stat_result | None) -> tuple[int, ...]:
    if found is None:
        return ()
    is_file = stat.S_ISREG(found.st_mode)
    return found.st_dev, found.st_ino, *((found.st_size, found.st_mtime_ns) if is_file else ())


def first_parts(folders: Sequence[str] = (".",)) -> frozenset[str] | None:
    """The first parts of all paths in some folders that exist: "", "~", and the names in these folders.

    None if they cannot be told: a folder cannot be listed, or ignores the case of names.
    """
    found = {"", ".", "..", "~"}
    for folder in folders:
        try:
            names = os.listdir(folder)  # noqa: PTH208  names alone, a million times
        except OSError:
            return None
        other = next((name for name in names if name.swapcase() != name), "")
        if other and other.swapcase() not in names and os.path.lexists(f"{folder}/{other.swapcase()}"):
            return None
        found.update(names)
    return frozenset(found)


def stat_of(path: str | os.PathLike[str]) -> os.stat_result | None:
    """The `os.stat` of a regular file or folder; None for anything else."""
    try:
        found = os.stat(path)  # noqa: PTH116  half the time of Path.stat
    except (OSError, ValueError):
        return None
    return found if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) else None


def file_text(path: str, files: Files, root: str | None, checkouts: tuple[str, ...] = ()) -> str:
    """The text of the file or folder that a path names; "" if there is none.

    An absolute path below `root` or a checkout has a text even if nothing is there.

    Args:
        path: The path. A relative path starts at the working directory, and "~/" at the home folder.
        files: "stat", by size and time; "content", by content.
        root: Paths below this folder count relative to it.
        checkouts: Folders of the program. Their files count by content, and by their path relative to the folder.
    """
    if not may_be_path(path):
        return ""
    path, found = located(path)
    if found is None and not os.path.isabs(path):  # noqa: PTH117  called for every text
        return ""
    absolute = os.path.abspath(path)  # noqa: PTH100  it must not follow links
    place, inside = _place(absolute, root, checkouts)
    if found is None or not stat.S_ISREG(found.st_mode):
        if place != absolute:
            return place
        return f"{place} folder" if found is not None and os.sep in path.strip("./") else ""
    if files == "content" or (inside and found.st_size <= _LARGEST_OF_PROGRAM):
        return f"{place} file {content_of(absolute, found)}"
    return f"{place} file of {found.st_size} bytes at {_settled(found)}"


def located(path: str) -> tuple[str, os.stat_result | None]:
    """A path and the `stat_of` it. A path such as "~/a" is replaced as by code that expands it, if a file is there."""
    found = stat_of(path)
    if found is None and path.startswith("~/"):
        expanded = os.path.expanduser(path)  # noqa: PTH111  a Path would drop a last "/"
        if (named := stat_of(expanded)) is not None:
            return expanded, named
    return path, found


@dataclass(frozen=True)
class FileStamps:
    """Texts of the files that samples name.

    files, root: As in `identify`. folders: Where to look for files that a relative path names. is_left_out: As in
    `folder_text`.
    """

    files: Files = "stat"
    root: str | None = None
    folders: tuple[str, ...] = ()
    is_left_out: Callable[[str], bool] | None = None

    @property
    def moved(self) -> Callable[[str], str | None] | None:
        """`moved_path` for the root; None without one."""
        return None if self.root is None else partial(moved_path, root=self.root)

    def once(self) -> Callable[[str], str]:
        """`stamp` for one pass over samples, of which many may name one folder: it reads each folder once."""
        return partial(self.stamp, known={})

    def stamp(self, text: str, *, is_sample: bool = False, known: dict[str, str] | None = None) -> str:
        """The text of the file or folder that a string names, here and in each of `folders`; "" if it names none.

        Args:
            is_sample: The string is a sample: all files below a folder count.
            known: The string is in a sample: all files below a folder count, unless its path is one word. The texts of
                the folders that were read already.

        Raises:
            TooManyFiles: A folder has too many.
        """
        if not text or len(text) > _LONGEST or "\0" in text or "\n" in text:  # not a call: a million times
            return ""
        if self.folders and not text.startswith("/"):
            stamps, paths = FileStamps(self.files, self.root), [f"{folder}/{text}" for folder in self.folders]
            texts = [stamps.stamp(path, is_sample=is_sample, known=known) for path in (text, *paths)]
            return "\0".join(texts) if any(texts) else ""
        home = ""
        try:
            found = os.stat(text)  # noqa: PTH116  half the time of Path.stat, a million times
        except (OSError, ValueError):
            if not text.startswith("~/"):
                return ""
            text, named = located(text)
            if named is None:
                return ""
            home, found = text, named
        if self.files == "stat" and self.root is None and stat.S_ISREG(found.st_mode):
            place = home or ("" if text.startswith("/") else os.getcwd())  # noqa: PTH109
            return f"{place} {found.st_size} {_settled(found)};"
        is_in_sample = known is not None and os.sep in text.strip("./")
        if not stat.S_ISDIR(found.st_mode) or not (is_sample or is_in_sample):
            return file_text(text, self.files, self.root) + ";"
        known = {} if known is None else known
        if text not in known:
            known[text] = folder_text(text, self.files, self.root, self.is_left_out)
        return known[text] + ";"


def _place(absolute: str, root: str | None, checkouts: tuple[str, ...]) -> tuple[str, bool]:
    if root is not None and _is_below(absolute, root):
        return f"{MOVABLE[0]}{os.path.relpath(absolute, root)}", False
    for checkout in checkouts:
        if _is_below(absolute, checkout):
            return f"{MOVABLE[1]}{os.path.relpath(absolute, checkout)}", True
    return absolute, False


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def content_of(path: str, state: os.stat_result) -> str:
    """The xxh3-128 of the content of a file in the state that `os.stat` returned."""
    return _content(path, state.st_size, _settled(state), state.st_ino)


def _settled(state: os.stat_result) -> int:
    """The time of the last write, once a further write would have another one."""
    settle(state.st_mtime_ns)
    return state.st_mtime_ns


@lru_cache(maxsize=1 << 14)
def _content(path: str, size: int, time: int, inode: int) -> str:
    digest = xxhash.xxh3_128()
    try:
        with Path(path).open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        return f"unreadable {error.strerror}"
    return digest.hexdigest()
