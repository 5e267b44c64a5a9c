"""Tables and a console of rich that show control characters of names as escapes.

Names of fields, folders and jobs come from files. Raw, such characters would move the cursor of the terminal, or
change the title of its window.
"""

from rich.console import Console, ConsoleRenderable, RenderableType, RenderHook
from rich.style import StyleType
from rich.table import Table
from rich.text import Text

from warmstore.storage.humanize import printable


class EscapedTable(Table):
    """A table whose cells have no control characters but line ends. Texts are no markup."""

    def add_row(
        self, *renderables: RenderableType | None, style: StyleType | None = None, end_section: bool = False
    ) -> None:
        """Add a row of text."""
        super().add_row(*map(_escaped, renderables), style=style, end_section=end_section)


class EscapedTexts(RenderHook):
    """Escapes the control characters of the text that a console prints."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """The same renderables with escaped text."""
        return [_escaped_text(each) if isinstance(each, Text) else each for each in renderables]


def escaping_console(width: int | None) -> Console:
    """A console that escapes control characters. width: in characters; None for that of the terminal."""
    console = Console(highlight=False, width=width)
    console.push_render_hook(EscapedTexts())
    return console


def _escaped(cell: RenderableType | None) -> RenderableType | None:
    if isinstance(cell, Text):
        return _escaped_text(cell)
    return Text(printable(cell)) if isinstance(cell, str) else cell


def _escaped_text(text: Text) -> Text:
    shown = printable(text.plain)
    if shown != text.plain:
        text = text.copy()
        text.plain = shown
    return text
