"""The paths that a source names: files, folders, and patterns of them; and that of a target."""

import glob
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from warmstore.converting.brace_patterns import expand
from warmstore.errors import NoSource, ReadOnly
from warmstore.remote.location import is_remote
from warmstore.storage.user_paths import user_path


def paths_of(source: Any) -> list[Path] | None:
    """The paths that a source names, or None when it is an object.

    Patterns are expanded: braces such as "train-{000..099}.tar", and "*", "?", "[...]" and "**".

    Raises:
        NoSource: a pattern matches no file, a path that braces expand to does not exist, or a source is a URL.
    """
    if isinstance(source, str | os.PathLike):
        return _expanded(str(user_path(source)) if os.fspath(source).startswith("~") else os.fspath(source))
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return [path for item in source for path in paths_of(item) or []]
    return None


def _expanded(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    if is_remote(pattern):
        url = urlsplit(pattern)  # its name, password and query may be secret
        raise NoSource(
            f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path} is a URL, and sources are local files: fetch "
            "them first. RecordStore.open opens a store at a URL"
        )
    names = expand(pattern)
    if names == [pattern] and not glob.has_magic(pattern):
        return [Path(pattern)]
    paths: list[Path] = []
    missing = []
    for name in names:
        if Path(name).exists():
            paths.append(Path(name))
        elif glob.has_magic(name) and (matches := sorted(glob.glob(name, recursive=True))):  # noqa: PTH207 - absolute too
            paths += _once([Path(match) for match in matches])
        else:
            missing.append(name)
    if missing and len(names) > 1:
        raise NoSource(
            f"{missing[0]} does not exist: {len(missing):,} of the {len(names):,} names that {pattern!r} expands to "
            "are missing"
        )
    if missing:
        raise NoSource(f"no file matches {pattern!r}")
    return paths


def _once(paths: list[Path]) -> list[Path]:
    """The matches of a pattern, without those in a folder that matches too, and without further names that links give
    to a folder or to files in it."""
    folders = {path for path in paths if path.is_dir()}
    outermost = [path for path in paths if folders.isdisjoint(path.parents)]
    real = {parent: parent.resolve() for parent in {path.parent for path in outermost}}
    places = [path.resolve() if path in folders else real[path.parent] / path.name for path in outermost]
    chosen: dict[Path, Path] = {}
    # Names without links first.
    for place, path in sorted(zip(places, outermost, strict=True), key=lambda pair: pair[0] != pair[1].absolute()):
        chosen.setdefault(place, path)
    return [path for place, path in zip(places, outermost, strict=True) if chosen[place] is path]


def files_below(folder: Path, hidden: tuple[str, ...]) -> list[Path]:
    """The files in a folder and the folders in it, sorted. Links to folders are followed; no folder is read twice.

    Args:
        hidden: beginnings of the names of files and folders that are left out.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    roots = [folder]
    while roots:
        links: list[Path] = []
        # All that lies in the folder itself comes before links, which may lead to it.
        for root in roots:
            for below, folders, names in os.walk(root):
                is_new = _number(below) not in seen
                seen.add(_number(below))
                inner = sorted(name for name in folders if is_new and not name.startswith(hidden))
                links += [Path(below, name) for name in inner if Path(below, name).is_symlink()]
                folders[:] = inner  # os.walk does not enter links
                found += [Path(below, name) for name in names if is_new and not name.startswith(hidden)]
        roots = links
    return sorted(found)


def _number(folder: str | Path) -> tuple[int, int]:
    status = Path(folder).stat()
    return status.st_dev, status.st_ino


def root_of(source: Any) -> Path:
    """The folder below which folder names are Hive partitions: the part of a source's path without patterns."""
    if not isinstance(source, str | os.PathLike):
        return Path(os.path.commonpath([root_of(item) for item in source]))
    path = user_path(source).absolute()
    if path.exists():
        return path if path.is_dir() else path.parent
    return Path(re.split(r"[*?\[{]", str(path))[0] + "x").parent


def local_target(path: str | os.PathLike[str]) -> Path:
    """The path of what is written.

    Raises:
        ReadOnly: it is a URL.
    """
    if is_remote(path):
        raise ReadOnly(f"{path!r} is a URL; name a path, and copy what is written: a store with push")
    return user_path(path)
