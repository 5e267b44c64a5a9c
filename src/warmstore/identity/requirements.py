"""The distributions that others require, by their metadata. Their code may run where a program names the others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from warmstore.identity.origin import Origin, metadata_of, normal_name

_REQUIREMENT = re.compile(r"^Requires-Dist:\s*([A-Za-z0-9._-]+)(.*)$", re.MULTILINE)
_UNDECLARED = {"torch": ("numpy",)}


def required_by(origins: Iterable[Origin]) -> set[str]:
    """The normal names of some distributions, of what they require, and of what this requires in turn.

    Optional requirements count for the distributions themselves: for images, `transformers` has no others.
    """
    found: set[str] = set()
    work = [(normal_name(origin.name), origin.folder, True) for origin in origins]
    for name, folder, is_met in work:  # grows
        if name not in found or is_met:
            found.add(name)
            optional, always = _requirements(name, folder)
            work += [(each, folder, False) for each in (always + optional if is_met else always)]
    return found


@lru_cache(maxsize=512)
def _requirements(name: str, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The optional and the other requirements of a distribution."""
    info = metadata_of(name, folder)
    text = "" if info is None else _head(info / "METADATA") or _head(info / "PKG-INFO")
    found = [(normal_name(each), "extra ==" in rest) for each, rest in _REQUIREMENT.findall(text)]
    optional, always = (tuple(each for each, extra in found if extra is wanted) for wanted in (True, False))
    return optional, always + _UNDECLARED.get(name, ())


def _head(file: Path) -> str:
    try:
        return file.read_text(errors="replace").partition("\n\n")[0]
    except OSError:
        return ""
