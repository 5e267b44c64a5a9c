"""Small programs with an edit each: what they compute is not the same before and after, or must be.

A program is the text of a module. Where it is edited it says `«before»«after»`. It has a class `Model`, or a function
`root`, or `make`, which returns what is compiled; `calls` returns the arguments of each call, else there is one call
with a tensor.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_EDIT = re.compile(r"«(.*?)»«(.*?)»", re.DOTALL)
_OTHER = "### other\n"
_START = "import torch\nfrom torch import nn\n\n"


@dataclass(frozen=True)
class Case:
    """A program and its edit.

    Attributes:
        theme: what it is about.
        name: also that of its module.
        text: of the module, edits included. What follows a line "### other" is that of a second module, `OTHER`.
        live: statements that make the same change while the program runs. There is `m`, the module; `n`, the module as
            edited; and `root`, what was compiled.
        is_neutral: whether the edit changes nothing, so that the package must be used.
        is_same: whether it only has to be right, since each call has another result.
    """

    theme: str
    name: str
    text: str
    live: str = ""
    is_neutral: bool = False
    is_same: bool = False

    def files(self, version: int) -> dict[str, str]:
        """The modules of a version, 1 or 2, by their names."""
        text, _, other = _EDIT.sub(rf"\{version}", self.text).partition(_OTHER)
        return {self.name: _START + text} | ({f"{self.name}_other": _START + other} if other else {})


def parsed(theme: str, text: str) -> list[Case]:
    """The cases of a text: each begins with a line `=== name`, to which may be added `; neutral` or `; same`.
    What follows a line `### live` are the statements of `Case.live`."""
    found = []
    for part in text.split("\n=== ")[1:]:
        head, _, body = part.partition("\n")
        name, *marks = head.split("; ")
        name = f"{theme}_{name}"
        body, _, live = body.replace("OTHER", f"{name}_other").partition("### live\n")
        found.append(Case(theme, name, body.strip("\n") + "\n", live, "neutral" in marks, "same" in marks))
    return found
