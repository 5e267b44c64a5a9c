import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.display.reading import read_html
from tests.pipeline.plan.test_plan import pipeline
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.pipeline.plan.planner import plan
from warmstore.storage.humanize import format_duration


def made(**told: object) -> ws.Plan:
    found = profile([0, 0.002, 0.002], [100, 1000, 4000], squeezed=0.5, read=1e-5)
    given = {"memory": "2.2MB", "disk": "2.2MB", "folder": "cache", "workers": 0, **told}
    return plan(pipeline(1000, 2)._chain, found, **given)


def test_the_table_says_what_is_kept_where_and_what_an_epoch_takes() -> None:
    one = made()
    text = str(one)
    for number, place in enumerate(one.placements):
        assert f"{one.samples_in(number):,} (" in text
        assert ("in memory" if place.tier == "memory" else "on disk") in text
    assert "Memory:" in text
    assert "of 2.2 MB in cache" in text
    assert format_duration(one.epoch_seconds) + " predicted" in text
    assert "Measured" not in text
    one.measured.append(one.epoch_seconds * 1.1)
    assert "+10% of what was predicted" in str(one)


@pytest.mark.parametrize("folder", ["cache [v2]", "[red]", "runs [/x]"])
def test_the_table_names_a_folder_as_it_is(folder: str) -> None:
    assert f"of 2.2 MB in {folder}." in str(made(folder=folder))


def test_a_forbidden_step_says_why() -> None:
    found = profile([0, 0.002], [100, 1000])
    assert "no: cache='never'" in str(plan(pipeline(1000, 1, step1="never")._chain, found, memory="1GB"))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_drawn(ending: str, tmp_path: Path) -> None:
    one = made()
    one.measured.append(1.0)
    path = one.plot(tmp_path / f"plan.{ending}")
    assert path.stat().st_size > 5000


def test_a_picture_has_a_bar_for_all_that_is_kept(tmp_path: Path) -> None:
    one = made()
    content = one.plot(tmp_path / "plan.svg").read_text()
    ElementTree.fromstring(content)
    for text in ("step1", "step2", "source", "times faster", "predicted"):
        assert f"<!-- {text}" in content or text in content, text
    for tier, colour in (("memory", "#0f8b8d"), ("disk", "#ec9a29")):
        bars = sum(place.tier == tier and place.codec == "raw" for place in one.placements)
        assert content.count(f"fill: {colour}") >= bars + 1  # and one in the legend


class TestInNotebooks:
    """`_repr_html_`: the picture, or the table where there is no picture."""

    def test_shows_the_picture_notes_and_table(self) -> None:
        one = made(memory="2kB")
        html = one._repr_html_()
        shown = read_html(html)
        assert shown.tags.count("img") == 1
        assert "data:image/png;base64," in html
        for note in one.notes:
            assert any(text.startswith(note[:100]) for text in shown.text), note
        assert str(one) in shown.text
        assert len(html) < 200_000

    def test_without_matplotlib_the_table_is_open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
        html = made()._repr_html_()
        shown = read_html(html)
        assert "img" not in shown.tags
        assert "<details open>" in html
        assert any("in memory" in text for text in shown.text)

    def test_a_long_chain_is_a_table(self) -> None:
        found = profile([0, *[0.002] * 50], [100] * 51)
        long = plan(pipeline(1000, 50)._chain, found, memory="1MB", workers=0)
        assert "img" not in read_html(long._repr_html_()).tags
