"""The report in a browser: it fits a phone, texts have contrast in both themes, nothing is fetched, it prints."""

from pathlib import Path

import pytest
from tests.report.histories import NOW, epochs, feature_cache, write
from tests.report.test_page import HOSTILE, whole
from tests.site.browser import measure, run

from warmstore.report.page import page
from warmstore.report.report_data import collect

_CONTRAST = """(() => {
  const parse = (color) => color.match(/[0-9.]+/g).map(Number);
  const light = (part) => { part /= 255; return part <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4; };
  const luminance = ([r, g, b]) => .2126 * light(r) + .7152 * light(g) + .0722 * light(b);
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color.length < 4 || color[3] > .5) return color;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || ["SCRIPT", "STYLE", "title"].includes(element.tagName)) continue;
    const [a, b] = [luminance(parse(getComputedStyle(element).color)), luminance(behind(element))];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) bad.push([element.textContent.slice(0, 40), ratio]);
  }
  return bad;
})()"""
_WIDE = """[...document.querySelectorAll("body *")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1)
  .map((each) => each.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    whole(folder / "caches")
    for number, name in enumerate(HOSTILE):
        write(feature_cache(folder / "caches" / "named", name[:60]), epochs(2, f"h{number}", program=name))
    path = folder / "report.html"
    path.write_text(page(collect([folder / "caches"], NOW)))
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_texts_have_contrast(report: Path, dark: bool) -> None:
    assert measure(report, _CONTRAST, dark=dark) == []


def test_the_themes_differ(report: Path) -> None:
    script = "getComputedStyle(document.documentElement).getPropertyValue('--page')"
    assert measure(report, script) != measure(report, script, dark=True)


@pytest.mark.parametrize("width", [360, 800, 1600])
def test_nothing_is_wider_than_the_window(report: Path, width: int) -> None:
    framed = report.with_name("framed.html")  # a window has a least width, a frame has none
    content = report.read_text().replace("<body>", f"<body><style>html {{ width: {width}px; }}</style>")
    framed.write_text(content)
    script = _WIDE if width > 500 else _WIDE.replace("innerWidth", str(width))
    assert measure(framed, script, width=max(width, 500)) == []


def test_nothing_is_fetched_and_nothing_fails(report: Path) -> None:
    assert measure(report, "performance.getEntriesByType('resource').length") == 0
    assert measure(report, "document.querySelectorAll('script').length") == 2  # one of them is the measurement


def test_it_prints_and_is_seen(report: Path) -> None:
    printed, seen = report.with_name("report.pdf"), report.with_name("report.png")
    run(report, "--no-pdf-header-footer", f"--print-to-pdf={printed}")
    run(report, f"--screenshot={seen}")
    assert printed.read_bytes().startswith(b"%PDF")
    assert len(seen.read_bytes()) > 20_000


def test_the_measurements_notice_faults(report: Path) -> None:
    bad = report.with_name("bad.html")
    bad.write_text(report.read_text().replace("<header>", "<header><p style='color:#aaa;width:3000px'>pale, wide</p>"))
    assert [text for text, _ in measure(bad, _CONTRAST)] == ["pale, wide"]
    assert any("pale, wide" in element for element in measure(bad, _WIDE))
