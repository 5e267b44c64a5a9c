"""Packages that were installed, as against the program itself: they change as a whole, and their metadata say how.

Following the code of such a package into all that it uses would hash most of a library for one of its classes, and
find something else in every process: what was imported so far, which devices are there.
"""

import functools
import importlib.metadata
import sys
from pathlib import Path

import xxhash

_FOLDERS = frozenset(("site-packages", "dist-packages"))


@functools.cache
def installation_of(package: str) -> str:
    """A text that differs between installations of a top-level package with other code; "" where it is not installed.

    Of each distribution the version, and the hashes that the installer recorded of its Python files. Packages in
    editable mode, and whatever else lies outside of site-packages, are part of the program.
    """
    if not _in_site_packages(package):
        return ""
    names = sorted(set(importlib.metadata.packages_distributions().get(package, ())))
    return " ".join(_describe(importlib.metadata.distribution(name)) for name in names)


def _in_site_packages(package: str) -> bool:
    module = sys.modules.get(package)
    file = getattr(module, "__file__", None)
    folders = [file] if file else list(getattr(module, "__path__", ()))
    return bool(folders) and all(_FOLDERS & set(Path(folder).parts) for folder in folders)


def _describe(distribution: importlib.metadata.Distribution) -> str:
    lines = (distribution.read_text("RECORD") or "").splitlines()
    files = sorted(line for line in lines if line.partition(",")[0].endswith(".py"))
    return f"{distribution.name} {distribution.version} {xxhash.xxh3_128_hexdigest(chr(10).join(files).encode())}"
