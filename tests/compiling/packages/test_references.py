"""What Dynamo puts into globals under names of its own: found again, or refused where it is another thing."""

import collections
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch

from warmstore.compiling.packages.references import put, reference_of, referenced
from warmstore.errors import Incompatible

Pair = collections.namedtuple("Pair", "a b")


class Scaled:
    """Of the program, as tests are."""

    factor = 2.0

    def scaled(self, x: float) -> float:
        return x * self.factor


CONSTRUCTING: dict[str, Any] = Pair.__new__.__globals__


@pytest.mark.parametrize("value", [textwrap, torch.nn.functional, Scaled, torch.nn.Linear, collections.OrderedDict])
def test_modules_and_classes_are_found_by_their_names(value: object) -> None:
    reference = reference_of(value)
    assert reference is not None
    assert referenced(reference) is value


def test_what_a_named_tuple_is_constructed_in_is_made_anew() -> None:
    reference = reference_of(CONSTRUCTING)
    assert reference is not None
    made = referenced(reference)
    assert made == CONSTRUCTING
    assert reference_of(made) == reference
    assert reference_of({**CONSTRUCTING, "more": 1}) is None


def test_what_has_no_name_is_not_found() -> None:
    class Local:
        pass

    for value in (Local, Scaled(), lambda x: x, {"__name__": "textwrap"}, torch.ones(2), None):
        assert reference_of(value) is None


def _edited(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scaled, "factor", 3.0)


def _gone(patch: pytest.MonkeyPatch) -> None:
    patch.delitem(globals(), "Scaled")


def _replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "Scaled", Pair)


@pytest.mark.parametrize("change", [_edited, _gone, _replaced])
def test_a_class_that_is_another_one_is_refused(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_of(Scaled)
    assert reference is not None
    change(monkeypatch)
    with pytest.raises(Incompatible, match=r"Scaled is (a different class here|missing)"):
        referenced(reference)


def test_a_name_that_stands_for_something_else_is_not_overwritten() -> None:
    references = {name: reference_of(one) for name, one in (("_1_c0", textwrap), ("_2_c0", CONSTRUCTING))}
    assert None not in references.values()
    known = {name: one for name, one in references.items() if one is not None}
    space: dict[str, Any] = {"_1_c0": textwrap}
    put(known, space)
    assert space == {"_1_c0": textwrap, "_2_c0": CONSTRUCTING}
    put(known, space)  # again, as where two packages have the same name
    with pytest.raises(Incompatible, match="the global variable _2_c0 has another value here"):
        put(known, {"_2_c0": {}})
