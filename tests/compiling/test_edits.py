"""Programs that were edited after another process had compiled them: nothing of the version before may be used."""

from pathlib import Path

import pytest
from tests.compiling.edits.harness import Verdict, corpus, judged
from tests.slow import either, is_fresh

CORPUS = {one.name: one for one in corpus()}
THEMES = sorted({one.theme for one in CORPUS.values()})
_KNOWN = {  # where something is traced anew that need not be; nothing of this is wrong
    "a weak reference": "objects_weakref",
    "guards of a number of NumPy's, which torch cannot read back": "objects_numpy_scalar",
    "a frame after a generator was begun": "breaks_generator_across",
    "an attribute that nothing reads is in the key": "neutral_attribute_not_read",
    "addresses as the keys of a dict are in the key": "process_id_branch",
    "the change is one that Python itself does not see": "objects_instancecheck",
}


def _said(verdicts: list[Verdict]) -> list[str]:
    """What is not as it must be."""
    known = " ".join(_KNOWN.values()).split()
    said = []
    for one in verdicts:
        for what in ("wrong", "errors", "missed"):
            if what == "missed" and one.case.name in known:
                continue
            said += [f"{one.case.name}, {kind}, {what}: {text}" for kind, text in getattr(one, what).items()]
        if one.shows_nothing and one.case.name not in known:
            said.append(f"{one.case.name} shows nothing: {one.shows_nothing}")
    return said


@pytest.mark.slow
def test_an_edit_of_most_kinds_is_seen(tmp_path: Path) -> None:
    themes = ("grid", "objects", "functions")[: either(1, 3)]
    some = [next(one for one in CORPUS.values() if one.theme == theme) for theme in themes]
    assert _said(judged(some, tmp_path, kernels=True)) == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_every_edit_is_seen(theme: str, tmp_path: Path) -> None:
    """In the next process and, where it can be made there, in the one that runs."""
    some = [one for one in CORPUS.values() if one.theme == theme]
    assert _said(judged(some, tmp_path, live=True, kernels=is_fresh())) == []


@pytest.mark.slow
def test_a_key_without_identities_would_be_noticed(tmp_path: Path) -> None:
    """What the corpus shows: with nothing but torch's guards, edited code is answered with what was compiled before."""
    literal = [one for name, one in CORPUS.items() if name.startswith(("grid_own_literal", "grid_root_literal"))]
    assert all("second" in one.wrong for one in judged(literal, tmp_path, blind=True))
