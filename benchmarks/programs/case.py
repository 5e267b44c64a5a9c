"""One program in two versions, and how each version is run.

`main.py` runs as a script. It defines `step`, a function of a value that returns `{"y": ...}`. `ARGUMENTS` are further
arguments of `step` by name, `VALUES` the values it is called with; a program about a module also defines `model`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent

CHECKOUT = "checkout"
SITE = ".venv/lib/site-packages"  # in the checkout; on sys.path where it exists
_UNMOVED, _MOVED = Path(CHECKOUT), Path("elsewhere") / CHECKOUT


@dataclass(frozen=True)
class Case:
    """A program and what happens to it between two runs.

    files: of version 1, texts by path. changes: pairs of a text that stands in one file once, and the text in its
    place in version 2. environment: variables of version 1 and of version 2. folders: the working directories of both,
    relative to the checkout. moved: version 2 lies in another folder. touched: version 2 has newer files.
    neutral: both versions give the same answers. module: the program is about a `model`. quick: part of quick runs.
    """

    name: str
    files: Mapping[str, str]
    changes: tuple[tuple[str, str], ...] = ()
    environment: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))
    folders: tuple[str, str] = (".", ".")
    moved: bool = False
    touched: bool = False
    neutral: bool = False
    module: bool = False
    quick: bool = False

    def texts(self, version: int) -> dict[str, str]:
        """The files of version 1 or 2.

        Raises:
            ValueError: a text to be replaced does not stand in exactly one place.
        """
        texts = dict(self.files)
        for old, new in self.changes if version == 2 else ():
            places = [path for path, text in texts.items() for _ in range(text.count(old))]
            if len(places) != 1:
                raise ValueError(f"{self.name}: {old!r} stands in {len(places)} places, and must stand in one")
            texts[places[0]] = texts[places[0]].replace(old, new)
        return texts

    def checkout(self, version: int) -> Path:
        """Where that version lies, relative to the case's folder."""
        return _MOVED if self.moved and version == 2 else _UNMOVED

    def write(self, folder: Path, version: int) -> None:
        """Bring the checkout in `folder` to that version; files that stay as they are keep their times."""
        checkout = folder / self.checkout(version)
        if self.moved and version == 2 and not checkout.exists():
            checkout.parent.mkdir(parents=True)
            (folder / _UNMOVED).rename(checkout)
        for name, text in self.texts(version).items():
            path = checkout / name
            if not path.exists() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            elif self.touched and version == 2:
                os.utime(path)


def program(main: str, files: Mapping[str, str] | None = None) -> dict[str, str]:
    """The files of a program, their texts without the indentation they have here."""
    return {name: dedent(text).lstrip("\n") for name, text in {"main.py": main, **(files or {})}.items()}
