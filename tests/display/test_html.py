"""Cells, tables and cards: escaped, cut, self-contained; a class whose HTML fails shows its `repr`."""

import pytest
from tests.display.reading import read_html

from warmstore.display.html import Html, card, figures, folded, html_method, meter, note, shortened, table

NASTY = "</td><script>alert('1\" onload=\"x')</script> & "


def test_all_texts_are_escaped() -> None:
    page = card(
        NASTY, NASTY, table((NASTY, ">" + NASTY), [(NASTY, 1)]), figures({NASTY: NASTY}), note(NASTY * 20),
        folded(NASTY, NASTY), meter(0.5, NASTY), shortened(NASTY * 40),
    )  # fmt: skip
    assert "script" not in read_html(page).tags
    assert page.count('onload="x') == 0


def test_long_texts_are_cut_and_whole_in_the_tooltip() -> None:
    assert shortened("a" * 60) == "a" * 60
    assert shortened("a" * 61) == f'<span title="{"a" * 61}">{"a" * 60}…</span>'
    assert len(shortened("a" * 10**6)) < 800


def test_html_is_not_escaped_again() -> None:
    assert "<b>x</b>" in table(("a",), [(Html("<b>x</b>"),)])
    assert "<b>x</b>" in figures({"a": Html("<b>x</b>"), "left out": None})
    assert "left out" not in figures({"a": 1, "left out": None})


def test_columns_of_numbers_are_aligned_right() -> None:
    assert table((">n",), [(1,)]).count("text-align:right") == 2
    assert table(("n",), [(1,)]).count("text-align:left") == 2


@pytest.mark.parametrize(("share", "width"), [(-1, 0), (0.5, 50), (2, 100)])
def test_a_meter_stays_within_its_frame(share: float, width: int) -> None:
    assert f"width:{width}%" in meter(share, "")


def test_the_colours_are_those_of_the_page() -> None:
    page = card("a", "b", table(("a",), [(1,)]), figures({"a": meter(0.5, "x")}), note("n"), folded("s", "t"))
    assert "color:" not in page.replace("background-color:", "")
    read_html(page)


def test_a_failure_leaves_the_repr_to_the_notebook() -> None:
    class Broken:
        def render(self) -> str:
            raise RuntimeError("no")

        _repr_html_ = html_method(render)

    assert Broken()._repr_html_() is None


def test_an_interrupt_is_not_swallowed() -> None:
    class Slow:
        def render(self) -> str:
            raise KeyboardInterrupt

        _repr_html_ = html_method(render)

    with pytest.raises(KeyboardInterrupt):
        Slow()._repr_html_()
