"""The site that `make docs` has built: its links hold, it fetches nothing, it has no errors, it fits a phone."""

import functools
import re
import subprocess
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

import pytest
from tests.site.browser import chromium, measure

SITE = Path(__file__).parents[2] / "build/site"
LOOKED_AT = (
    "index.html",
    "start.html",
    "pipeline.html",
    "benchmarks.html",
    "troubleshooting.html",
    "reference/loading.html",
)

pytestmark = pytest.mark.skipif(not SITE.exists(), reason="make docs builds the site")


class _Page(HTMLParser):
    """The links of a page, what it fetches, and its anchors."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag in ("script", "img", "iframe") and "src" in values:
            self.fetched.append(values["src"])
        if tag == "link" and values.get("rel") in ("stylesheet", "icon", "preload", "modulepreload"):
            self.fetched.append(values["href"])


@functools.cache
def _page(file: Path) -> _Page:
    return _Page(file)


def _files() -> list[Path]:
    return sorted(file for file in SITE.rglob("*.html") if file.name not in ("404.html", "measured.html"))


def test_no_link_leads_nowhere() -> None:
    broken = []
    for file in _files():
        for link in _page(file).links + _page(file).fetched:
            address, anchor = urldefrag(link)
            if urlparse(address).scheme:
                continue
            target = (file.parent / unquote(address)).resolve() if address else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (
                anchor and target.suffix == ".html" and unquote(anchor) not in _page(target).anchors
            ):
                broken.append((str(file.relative_to(SITE)), link))
    assert len(_files()) > 40
    assert broken == []


def test_nothing_is_fetched_from_elsewhere() -> None:
    for file in _files():
        assert [source for source in _page(file).fetched if urlparse(source).scheme not in ("", "data")] == []
    for style in SITE.rglob("*.css"):
        assert not re.findall(r"(?:@import|url\()\s*[\"']?https?:", style.read_text())


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *ignored: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(SITE))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_has_no_errors(name: str, address: str, tmp_path: Path) -> None:
    command = [
        *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path}"),
        *("--enable-logging=stderr", "--virtual-time-budget=5000", "--dump-dom", f"{address}/{name}"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert re.findall(r":CONSOLE.*", done.stderr) == []
    assert "<h1" in done.stdout


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_fits_a_phone(name: str) -> None:
    assert measure(SITE / name, "[innerWidth, document.documentElement.scrollWidth]", width=500)[1] <= 500


def test_the_themes_differ() -> None:
    script = "getComputedStyle(document.body).backgroundColor"
    assert measure(SITE / "index.html", script) != measure(SITE / "index.html", script, dark=True)
