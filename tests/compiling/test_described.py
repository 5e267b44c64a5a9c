"""Words for code and objects: the same in every process, and not the same for two that differ."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from warmstore.compiling.described import (
    code_digest,
    describe,
    describe_bound,
    find_function,
    function_digest,
)


@pytest.mark.parametrize(
    "value", [torch, torch.sin, torch.nn.functional.gelu, torch.nn.Linear, iter, Path, textwrap.dedent, None, True]
)
def test_objects_that_every_process_has_are_described(value: object) -> None:
    assert describe(value)


@pytest.mark.parametrize("value", [object(), lambda x: x, [], torch.nn.Linear(1, 1)])
def test_others_are_not(value: object) -> None:
    assert describe(value) is None


def test_code_is_found_by_name_and_digested_by_what_it_does() -> None:
    def inner(x: int) -> int:
        return x + 1

    assert find_function(__name__, inner.__code__.co_qualname) == (inner.__code__, None)
    assert find_function(__name__, "scaled") == (scaled.__code__, scaled)
    assert find_function(__name__, "nothing") == (None, None)
    spaces: list[dict[str, object]] = [{}, {}, {}]
    for space, source in zip(
        spaces, ["def f(x): return x + 1", "# same\n\ndef f(x):\n  return x + 1", "def f(x): return x + 2"], strict=True
    ):
        exec(source, space)
    digests = [code_digest(space["f"].__code__) for space in spaces]  # type: ignore[attr-defined]
    assert digests[0] == digests[1] != digests[2]


def test_the_digest_of_code_is_the_same_in_every_process() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(Path.cwd())!r})\nfrom warmstore.compiling.described import code_digest\n"
    )
    code += "def f(x):\n  return x in {'a', 'b', 'c', (1, 'd')}\nprint(code_digest(f.__code__))"
    said = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1


def scaled(x: float, by: float = 2.0) -> float:
    return x * by


def closed_over(value: object) -> Callable[[], object]:
    return lambda: value


def test_defaults_are_part_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    before, digest = describe(scaled), function_digest(scaled.__code__, scaled)
    monkeypatch.setattr(scaled, "__defaults__", (3.0,))
    assert describe(scaled) != before
    assert function_digest(scaled.__code__, scaled) != digest
    monkeypatch.setattr(scaled, "__defaults__", (object(),))
    assert describe(scaled) is None
    assert function_digest(scaled.__code__, scaled) is None


def test_what_a_function_closes_over_is_told_apart() -> None:
    values = [1, 2, 1.0, "1", b"1", None, (1,), [1], {"a": 1}, {"a": 2}, torch.float32, torch.sin, torch, scaled, Path]
    found = [describe_bound(closed_over(value)) for value in values]  # type: ignore[arg-type]
    assert None not in found
    assert len(set(found)) == len(values)
    for value in (object(), partial(scaled, by=1), torch.ones(1), [object()]):
        assert describe_bound(closed_over(value)) is None  # type: ignore[arg-type]


def test_names_of_locals_and_docstrings_do_not_count_and_names_of_parameters_can() -> None:
    def of(source: str, **options: bool) -> str:
        space: dict[str, Callable[[], None]] = {}
        exec(textwrap.dedent(source), space)
        return code_digest(space["f"].__code__, **options)

    one = of("def f(x, *, b):\n  'Doc.'\n  y = [x + i for i in b]\n  return y")
    assert one == of("def f(x, *, b):\n  z = [x + j for j in b]\n  return z")
    other = "def f(b, *, x):\n  z = [b + j for j in x]\n  return z"
    assert one != of(other)
    assert of("def f(x): return x", parameters=False) == of("def f(z): return z", parameters=False)
    assert of("def f(x): return 'a'") != of("def f(x): return 'b'")
