"""A pipeline in a notebook: its steps and filters. Nothing is run to show it."""

from typing import Any

import pytest
from tests.display.reading import cells_of

import warmstore as ws


def never(value: Any, **arguments: Any) -> Any:
    raise AssertionError("shown, not run")


def test_shows_steps_and_filters_in_order() -> None:
    pipe = ws.Pipeline(range(7)).step(never, radius=3, name="blur").filter(never, name="large")
    pipe = pipe.step(never, name="crop", cache="never").step(never, name="flip", random=True).step(never, name="<last>")
    cells = cells_of(pipe._repr_html_())
    assert cells[:2] == ["Pipeline", "some of 7 samples of range"]
    assert [cells.index(name) for name in ("blur", "large", "crop", "flip", "<last>")] == sorted(
        cells.index(name) for name in ("blur", "large", "crop", "flip", "<last>")
    )
    assert "radius=3" in cells
    assert "are not cached" in cells
    assert "random: differ in every epoch" in cells
    assert "come after a random step" in cells


@pytest.mark.parametrize("count", [0, 70])
def test_no_step_and_many_steps(count: int) -> None:
    pipe = ws.Pipeline(range(7))
    for _ in range(count):
        pipe = pipe.step(never, text="x" * 1000)
    html = pipe._repr_html_()
    assert ("no steps" if not count else "and 10 more steps") in cells_of(html)
    assert len(html) < 80_000
