"""What was traced: what counts as known, and what makes no package."""

import textwrap

import pytest
import torch

from warmstore.compiling.keys.call_sizes import cover
from warmstore.compiling.keys.traced import installed_modules, installed_text


def traced_here() -> None:
    """Of the program, as tests are."""


def test_what_was_traced_and_is_not_in_the_key_makes_no_package() -> None:
    code = [cover.__code__, textwrap.dedent.__code__, torch.nn.functional.relu.__code__, traced_here.__code__]
    unknown: list[str] = []
    assert installed_modules(code[:-1], {}, unknown) == {
        "warmstore.compiling.keys.call_sizes", "textwrap", "torch.nn.functional"
    }  # fmt: skip
    assert unknown == []
    installed_modules(code, {}, unknown)
    assert [one.partition(" in ")[0] for one in unknown] == ["the code of traced_here"]
    assert installed_modules(code[-1:], {id(traced_here.__code__): traced_here.__code__}, unknown) == set()


def test_an_installed_module_that_was_traced_is_known_by_its_version_and_what_the_program_put_into_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = installed_text("textwrap")
    assert before.startswith("CPython")
    monkeypatch.setattr(textwrap.TextWrapper, "fill", lambda self, text: text)
    patched = installed_text("textwrap")
    assert patched != before
    monkeypatch.setattr(textwrap, "dedent", lambda text: text)
    assert installed_text("textwrap") not in (before, patched)
    assert installed_text("no such module") == ""
