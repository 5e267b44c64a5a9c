"""The paths that a source names: files, folders, and patterns of them."""

import glob
import os
import re
from pathlib import Path
from typing import Any

from warmstore.converting.brace_patterns import expand
from warmstore.errors import NoSource


def paths_of(source: Any) -> list[Path] | None:
    """The paths that a source names, or None when it is an object.

    Patterns are expanded: braces such as "train-{000..099}.tar", and "*", "?", "[...]" and "**".

    Raises:
        NoSource: a pattern matches no file, or a path that braces expand to does not exist.
    """
    if isinstance(source, str | os.PathLike):
        return _expanded(os.fspath(source))
    if isinstance(source, list | tuple) and source and all(isinstance(item, str | os.PathLike) for item in source):
        return [path for item in source for path in paths_of(item) or []]
    return None


def _expanded(pattern: str) -> list[Path]:
    if Path(pattern).exists():
        return [Path(pattern)]
    names = expand(pattern)
    if names == [pattern] and not glob.has_magic(pattern):
        return [Path(pattern)]
    paths: list[Path] = []
    missing = []
    for name in names:
        if Path(name).exists():
            paths.append(Path(name))
        elif glob.has_magic(name) and (matches := sorted(glob.glob(name, recursive=True))):  # noqa: PTH207 - absolute too
            paths += map(Path, matches)
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


def root_of(source: Any) -> Path:
    """The folder below which folder names are Hive partitions: the part of a source's path without patterns."""
    if not isinstance(source, str | os.PathLike):
        return Path(os.path.commonpath([root_of(item) for item in source]))
    path = Path(source).absolute()
    if path.exists():
        return path if path.is_dir() else path.parent
    return Path(re.split(r"[*?\[{]", str(path))[0] + "x").parent
