"""HTML of objects in notebooks: cards of figures, tables and bars.

A piece of HTML needs no other file and no script. Styles are inline, because notebooks that are not trusted drop style
sheets, and colours are those of the page, so that dark and light themes both work. All texts are escaped, and cut where
they are long; the whole text is then in the cell's tooltip, which is bounded too.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

_log = logging.getLogger("warmstore")

_LINE = "rgba(128,128,128,.35)"
_FILL = "rgba(66,133,244,.75)"
_ROOT = "font-size:13px;line-height:1.45;max-width:100%;overflow-x:auto"
_CELL = f"padding:2px 10px 2px 0;border:0;border-bottom:1px solid {_LINE};vertical-align:top;background:none"
_TABLE = "border-collapse:collapse;border:0;margin:4px 0;font-size:13px;width:auto;table-layout:auto"
MOST_TEXT = 60
"""Characters of a text that are shown."""
_MOST_TITLE = 600


class Html(str):
    """Text that is HTML already, which `table`, `figures` and `card` do not escape."""

    __slots__ = ()


def shortened(value: object, most: int = MOST_TEXT) -> Html:
    """A text, escaped. What is beyond `most` characters is in its tooltip, up to 600 characters."""
    text = str(value)
    if len(text) <= most:
        return Html(escape(text))
    title = text if len(text) <= _MOST_TITLE else f"{text[:_MOST_TITLE]}…"
    return Html(f'<span title="{escape(title)}">{escape(text[:most])}…</span>')


def faint(text: object, most: int = MOST_TEXT) -> Html:
    """A text of less weight than others."""
    return Html(f'<span style="opacity:.6">{shortened(text, most)}</span>')


def meter(share: float, label: str) -> Html:
    """A bar of which a share from 0 to 1 is filled, and a text beside it."""
    filled = round(100 * min(max(share, 0.0), 1.0))
    return Html(
        f'<span style="display:inline-block;width:120px;height:9px;border:1px solid {_LINE};border-radius:5px;'
        f'overflow:hidden;margin-right:8px"><span style="display:block;width:{filled}%;height:100%;'
        f'background:{_FILL}"></span></span>{shortened(label)}'
    )


def image(source: str, width: int, height: int, description: str, *, pixelated: bool = False) -> Html:
    """An image that is shown at a size in pixels.

    Args:
        source: a data URL.
        pixelated: enlarge pixels without smoothing.
    """
    style = ";image-rendering:pixelated" if pixelated else ""
    return Html(
        f'<img src="{source}" width="{width}" height="{height}" alt="{escape(description)}" '
        f'title="{escape(description)}" style="width:{width}px;height:{height}px;margin:0;max-width:none{style}">'
    )


def figures(pairs: Mapping[str, object]) -> Html:
    """Names and values, one pair a row. Pairs whose value is None are left out."""
    return _rows("", ((faint(name), value) for name, value in pairs.items() if value is not None), (False, False))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """A table. Columns that begin with ">" are numbers, which are aligned right."""
    right = [column.startswith(">") for column in columns]
    names = [column.removeprefix(">") for column in columns]
    head = "".join(
        f'<th style="{_CELL};font-weight:600;text-align:{_side(number)}">{shortened(name)}</th>'
        for name, number in zip(names, right, strict=True)
    )
    return _rows(f'<thead><tr style="background:none">{head}</tr></thead>', rows, right)


def card(title: str, subtitle: str, *parts: str) -> str:
    """The HTML of one object: its class, what it is, and parts below each other."""
    head = f"<div><b>{shortened(title)}</b> {faint(subtitle, 200) if subtitle else ''}</div>"
    return f'<div style="{_ROOT}">{head}{"".join(parts)}</div>'


def heading(text: str) -> Html:
    """A heading of a part of a card."""
    return Html(f'<div style="margin-top:6px;font-weight:600">{shortened(text, 200)}</div>')


def note(text: str) -> Html:
    """A sentence below a part of a card."""
    return Html(f'<div style="opacity:.75">{shortened(text, 300)}</div>')


def folded(summary: str, text: str) -> Html:
    """Preformatted text that is shown when its summary is clicked."""
    pre = f'<pre style="font-size:12px;line-height:1.3;background:none;overflow-x:auto">{escape(text)}</pre>'
    return Html(f"<details><summary>{shortened(summary)}</summary>{pre}</details>")


def html_method(render: Callable[[Any], str]) -> Callable[[Any], str | None]:
    """The method `_repr_html_` of a class, by which notebooks show an object.

    Args:
        render: makes the HTML of an object. Where it fails, the notebook shows the object's `repr` instead.
    """

    def _repr_html_(self: Any) -> str | None:
        try:
            return render(self)
        except Exception:
            _log.debug("a %s could not be shown as HTML", type(self).__name__, exc_info=True)
            return None

    return _repr_html_


def _rows(head: str, rows: Iterable[Sequence[object]], right: Sequence[bool]) -> Html:
    body = "".join(
        '<tr style="background:none">'
        + "".join(
            f'<td style="{_CELL};text-align:{_side(number)}">'
            f"{value if isinstance(value, Html) else shortened(value)}</td>"
            for value, number in zip(row, right, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return Html(f'<table style="{_TABLE}">{head}<tbody>{body}</tbody></table>')


def _side(is_number: bool) -> str:
    return "right" if is_number else "left"
