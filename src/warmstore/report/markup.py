"""HTML as values: every text is escaped unless it is `Html`, which `tag` makes. Figures say where they come from."""

import html
import math
import re
from typing import Any, NamedTuple

from warmstore.display.html import Html


def tag(name: str, /, *content: Any, **attributes: Any) -> Html:
    """An element. An attribute's name has "_" for "-", and may end with "_"; None and False leave it out, True has no
    value."""
    given = "".join(_attribute(key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items())
    if name in ("br", "col", "hr", "meta", "rect", "line", "path"):
        return Html(f"<{name}{given}/>" if name in ("rect", "line", "path") else f"<{name}{given}>")
    return Html(f"<{name}{given}>{join(*content)}</{name}>")


def join(*content: Any) -> Html:
    """Pieces one after another. None and "" are left out; lists and generators are joined."""
    return Html("".join(map(_text, content)))


class Figure(NamedTuple):
    """A number in the page. value: exact. text: as it is shown. source: what it is in the data, such as
    "c1 use hits": of the cache with the key c1, the sum of `hits` over the records of `use`."""

    value: float
    text: str
    source: str

    def shown(self, **attributes: Any) -> Html:
        """The number as an element, with its exact value and its source."""
        return tag("data", self.text, value=exact(self.value), data_source=self.source, **attributes)


def exact(value: float) -> str:
    """A number with at most six digits behind the point."""
    return f"{value:.6f}".rstrip("0").rstrip(".") if math.isfinite(value) else "0"


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """A text without control characters, which a page may not have, and marks that turn the direction of text."""
    return _CONTROL.sub("\ufffd", text.encode("utf-8", "replace").decode())


def _text(piece: Any) -> str:
    if piece is None:
        return ""
    if isinstance(piece, Html):
        return piece
    if isinstance(piece, Figure):
        return piece.shown()
    if isinstance(piece, str):
        return html.escape(clean(piece))
    return "".join(map(_text, piece))


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{html.escape(clean(str(value)))}"'
