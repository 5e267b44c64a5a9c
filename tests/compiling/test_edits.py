"""Programs that were edited after another process had compiled them: nothing of the version before may be used."""

from pathlib import Path

import pytest
from tests.compiling.edits.cases import Case
from tests.compiling.edits.harness import Verdict, corpus, judged

CORPUS = {one.name: one for one in corpus()}
THEMES = sorted({one.theme for one in CORPUS.values()})
_SPREAD = 250  # every so many cases of the corpus, and a case of each theme
_KNOWN = {  # what is not yet as it must be
    "stale: defaults and code of torch's own functions": """installed_default_of_installed_function
        installed_code_of_installed_function""",
    "stale: what sys tells while it is traced": "process_python_flag",
    "stale while the program runs: one of two equal objects": "process_id_branch",
    "stale graph: operators made with torch.library.Library": """autograd_library_define_and_impl
        autograd_library_decomposed_helper""",
    "stale graph: the shape that the fake of an operator tells": "autograd_custom_op_fake",
    "no package is ever used: names in globals that are numbered": """objects_named_tuple_default
        autograd_torch_function_subclass""",
    "no package is ever used: weak references": "objects_weakref",
    "traced anew: a function of dynamo.py": "functions_singledispatch functions_singledispatch_registered",
    "traced anew, and nothing said": "breaks_generator_across objects_decimal",
    "another key: an attribute that nothing reads": "neutral_attribute_not_read",
    "torch's own": "objects_instancecheck",
}


def _said(verdicts: list[Verdict]) -> list[str]:
    """What is not as it must be."""
    known = " ".join(_KNOWN.values()).split()
    said = []
    for one in verdicts:
        if one.case.name in known:
            continue
        for what in ("wrong", "errors", "missed"):
            said += [f"{one.case.name}, {kind}, {what}: {text}" for kind, text in getattr(one, what).items()]
        if one.shows_nothing:
            said.append(f"{one.case.name} shows nothing: {one.shows_nothing}")
    return said


def _spread() -> list[Case]:
    return list(CORPUS.values())[::_SPREAD] + [
        next(one for one in CORPUS.values() if one.theme == theme) for theme in THEMES
    ]


def test_a_few_edits_are_seen(tmp_path: Path) -> None:
    assert _said(judged(list({one.name: one for one in _spread()}.values()), tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize("theme", THEMES)
def test_every_edit_is_seen(theme: str, tmp_path: Path) -> None:
    """In the next process and, where it can be made there, in the one that runs."""
    assert _said(judged([one for one in CORPUS.values() if one.theme == theme], tmp_path, live=True)) == []


@pytest.mark.slow
def test_a_key_without_identities_would_be_noticed(tmp_path: Path) -> None:
    """What the corpus shows: with nothing but torch's guards, edited code is answered with what was compiled before."""
    literal = [one for name, one in CORPUS.items() if name.startswith(("grid_own_literal", "grid_root_literal"))]
    assert all("second" in one.wrong for one in judged(literal, tmp_path, blind=True))
