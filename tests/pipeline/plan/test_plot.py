from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.pipeline.plan.test_plan import pipeline
from tests.pipeline.profiles import profile

import warmstore as ws
from warmstore.pipeline.plan.planner import plan
from warmstore.storage.humanize import format_duration


def made(**told: object) -> ws.Plan:
    found = profile([0, 0.002, 0.002], [100, 1000, 4000], squeezed=0.5, read=1e-5)
    given = {"memory": "2.2MB", "disk": "2.2MB", "folder": "cache", "workers": 0, **told}
    return plan(pipeline(1000, 2).chain, found, **given)


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


def test_a_forbidden_step_says_why() -> None:
    found = profile([0, 0.002], [100, 1000])
    assert "no: cache='never'" in str(plan(pipeline(1000, 1, step1="never").chain, found, memory="1GB"))


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
