"""Reads HTML that objects show in notebooks."""

from html.parser import HTMLParser


class _Balance(HTMLParser):
    """Collects tags. Raises for those that are not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_html(html: str | None) -> _Balance:
    """The tags and texts of HTML, which must be balanced and must need nothing else."""
    assert html is not None
    for outside in ("<script", "<style", "http:", "https:", "url("):
        assert outside not in html
    parser = _Balance()
    parser.feed(html)
    parser.close()
    assert not parser.open
    return parser


def cells_of(html: str | None) -> list[str]:
    """The texts of HTML, without those that are empty."""
    return [text.strip() for text in read_html(html).text if text.strip()]
