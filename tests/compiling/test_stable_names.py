"""Names and summaries: the same in every process, and not the same for two that differ."""

import functools
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from warmstore.compiling.stable_names import stable_name, value_summary


@pytest.mark.parametrize(
    "value", [torch, torch.sin, torch.nn.functional.gelu, torch.nn.Linear, iter, Path, textwrap.dedent, None, True]
)
def test_objects_that_every_process_has_have_names(value: object) -> None:
    assert stable_name(value)


@pytest.mark.parametrize("value", [object(), lambda x: x, [], torch.nn.Linear(1, 1), functools.partial(int)])
def test_others_have_none(value: object) -> None:
    assert stable_name(value) is None


def test_what_is_called_while_tracing_has_no_name() -> None:
    torch.compiler.assume_constant_result(asked)
    assert stable_name(asked) is None


def asked() -> int:
    return 1


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True, "1", None),
        (torch.float32, torch.float64),
        (torch.zeros(2), torch.zeros(3), torch.zeros(2).double(), torch.zeros(2, requires_grad=True)),
        ({"a": 1}, {"b": 1}, {}),
        ([1], [1, 2], (1,)),
        (torch.nn.ReLU(), torch.nn.Tanh()),
        (torch.sin, torch.cos, torch.nn, torch.nn.ReLU),
    ],
)
def test_different_values_have_different_summaries(values: tuple[object, ...]) -> None:
    found = [value_summary(value) for value in values]
    assert None not in found
    assert len(set(found)) == len(found)


def test_what_has_no_name_has_no_summary() -> None:
    nameless: Callable[[], int] = lambda: 1  # noqa: E731
    assert value_summary(nameless) is None
    assert value_summary(functools.partial(int)) == "object of functools:partial"
