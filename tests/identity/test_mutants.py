"""Programs that are changed in one place: where what they give changes, their key does.

The whole takes minutes and is marked slow. Without it, each program has a sample.
"""

import types
from collections.abc import Callable
from typing import Any

import pytest
import xxhash
from tests.identity.engine import identify
from tests.identity.leaves import reached
from tests.identity.mutants import Engine, Report, code_trials, leaf_trials
from tests.identity.mutations import mutations
from tests.identity.worlds import MODULES, PROGRAMS, World, canonical
from tests.slow import thinned

TRIALS: dict[str, Callable[..., Report]] = {"code": code_trials, "values": leaf_trials}
SAMPLE = {"code": 60, "values": 16}  # one of so many
LARGE = {"backbones": 6}  # programs of which so many times fewer are taken


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def check(report: Report) -> None:
    print(report)
    assert not report.stale, "\n".join(report.stale)
    assert not report.failed, "\n".join(report.failed)
    assert not report.unstable, "\n".join(report.unstable)
    assert len(report.skipped) <= report.trials / 50, "\n".join(report.skipped)


@pytest.mark.parametrize("kind", thinned(3, TRIALS))
@pytest.mark.parametrize("program", thinned(4, PROGRAMS))
def test_a_sample_of_changes_has_other_keys(program: str, kind: str, world: World) -> None:
    every = SAMPLE[kind] * LARGE.get(program, 1)
    first = sum(map(ord, program)) % every
    check(TRIALS[kind](world, program, identify, lambda number: number % every == first, judge_equal=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRIALS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_every_change_has_another_key(program: str, kind: str, world: World) -> None:
    check(TRIALS[kind](world, program, identify))


class Key:
    """What an engine gives that forgets something."""

    def __init__(self, text: str) -> None:
        self.digest = xxhash.xxh3_64_hexdigest(text.encode())
        self.unknown: dict[str, str] = {}


def only_own_code(entry: Any) -> Key:
    """Of a function its bytecode, and nothing that it calls or reads."""
    function = getattr(entry, "func", entry)
    code = getattr(function, "__code__", None) or type(function).__call__.__code__
    return Key(f"{code.co_code.hex()} {_constants(code)}")


def _constants(code: types.CodeType) -> str:
    return repr(
        [_constants(one) if isinstance(one, types.CodeType) else one for one in (*code.co_consts, *code.co_names)]
    )


def all_but_values(entry: Any) -> Key:
    """The code of all functions in reach, and no values."""
    functions = reached(entry).functions
    return Key(repr([(path, only_own_code(functions[path]).digest) for path in sorted(functions)]))


@pytest.mark.parametrize(
    ("engine", "program", "kind"),
    thinned(
        2,
        [
            (only_own_code, "geometry", "code"),
            (only_own_code, "training", "values"),
            (all_but_values, "audio", "values"),
            (lambda entry: identify(entry, ignore=["corpus.settings.SCALE"]), "training", "values"),
            (lambda entry: identify(entry, ignore=["corpus.settings.SCALE"]), "training", "code"),
        ],
    ),
)
def test_an_engine_that_forgets_something_is_found_out(engine: Engine, program: str, kind: str, world: World) -> None:
    report = TRIALS[kind](world, program, engine, lambda number: number < 12, judge_equal=False)
    assert report.stale


def test_mutations_are_many_and_each_is_another_program() -> None:
    count = 0
    for module in MODULES:
        before = compile(canonical(module), "", "exec")
        for mutation in mutations(module, canonical(module), lambda number: number % 60 == 0):
            assert compile(mutation.source, "", "exec") != before, str(mutation)
            count += 60
    assert count > 6000
