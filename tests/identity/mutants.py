"""Trials of changed programs: does the key change wherever what a callable gives changes?

A trial takes an engine, any function from a callable to what has a `digest` and `unknown`, so that one that forgets
something can be tried as well. `python -m tests.identity.mutants [program ...]` tries everything and prints a table.
"""

import argparse
import collections
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.identity.engine import identify
from tests.identity.leaves import Leaf, changed, reached
from tests.identity.mutations import Mutation, mutations
from tests.identity.worlds import (
    PROGRAMS,
    Examples,
    TimedOut,
    World,
    canonical,
    is_program_code,
    quiet,
    requirements,
    run,
    time_limit,
)


class Found(Protocol):
    """What an engine gives."""

    @property
    def digest(self) -> str: ...

    @property
    def unknown(self) -> Any: ...


Engine = Callable[[Any], Found]


@dataclass
class Report:
    """What trials came to.

    stale: the output differs, and the key does not. failed: the engine raised. skipped: the run has no end. unstable:
    the key is another one when a change was taken back. cautious: the key differs, and the output does not, at least
    for the example. broken: the program does not start, or has no such callable.
    """

    trials: int = 0
    stale: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)
    differ: int = 0
    unknown: int = 0
    cautious: int = 0
    broken: int = 0
    kinds: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, other: "Report") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        equal = self.trials - self.differ - self.broken - len(self.skipped)
        return (
            f"{self.trials} trials, {self.differ} other outputs, {equal} equal ones of which {self.cautious} with "
            f"another key ({self.cautious / max(equal, 1):.0%}), {self.unknown} unknown, {self.broken} broken, "
            f"{len(self.skipped)} without an end, {len(self.failed)} failed, {len(self.unstable)} unstable, "
            f"{len(self.stale)} STALE"
        )


@dataclass(frozen=True)
class Baseline:
    """A program as it is: for each callable what it gives, its key, and the functions that ran, by module and line."""

    outputs: dict[str, str]
    found: dict[str, Found]
    ran: dict[str, frozenset[tuple[str, int]]]
    ran_at_import: frozenset[tuple[str, int]]


def baseline(world: World, program: str, engine: Engine, examples: Examples) -> Baseline:
    outputs, found, ran = {}, {}, {}
    starting: set[tuple[str, int]] = set()
    with traced(starting):
        context = world.entries(program)
        entries = context.__enter__()
    try:
        for name, entry in entries.items():
            found[name] = engine(entry)
            seen: set[tuple[str, int]] = set()
            with traced(seen):
                outputs[name] = run(entry, examples(name))
            ran[name] = frozenset(seen)
    finally:
        context.__exit__(None, None, None)
    return Baseline(outputs, found, ran, frozenset(starting))


class traced:  # noqa: N801
    """Inside, notes the functions of the corpus that run, by module and first line."""

    def __init__(self, seen: set[tuple[str, int]]) -> None:
        self._seen = seen

    def __enter__(self) -> None:
        self._before = sys.getprofile()
        sys.setprofile(self._note)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._before)

    def _note(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if event == "call" and is_program_code(frame.f_code):
            self._seen.add((Path(frame.f_code.co_filename).stem, frame.f_code.co_firstlineno))


def code_trials(
    world: World,
    program: str,
    engine: Engine,
    keep: Callable[[int], bool] = lambda number: True,
    judge_equal: bool = True,
) -> Report:
    """Change the source of a program, and of what it imports, in one place after the other.

    judge_equal: also run where the key differs, to tell how often it differs without need.
    """
    report = Report()
    examples = Examples(world, program)
    base = baseline(world, program, engine, examples)
    for module in requirements(program):
        for mutation in mutations(module, canonical(module), keep):
            names = _in_reach(base, mutation)
            if names:
                with world.changed(module, mutation.source):
                    _try_code(world, program, engine, base, examples, mutation, names, report, judge_equal)
    return report


def _in_reach(base: Baseline, mutation: Mutation) -> list[str]:
    place = mutation.module, mutation.scope
    if not mutation.scope or place in base.ran_at_import:
        return list(base.outputs)
    return [name for name, ran in base.ran.items() if place in ran]


def _try_code(
    world: World,
    program: str,
    engine: Engine,
    base: Baseline,
    examples: Examples,
    mutation: Mutation,
    names: list[str],
    report: Report,
    judge_equal: bool,
) -> None:
    report.kinds[mutation.kind] += 1
    try:
        context = world.entries(program)
        entries = context.__enter__()
    except (Exception, SystemExit):
        report.trials += len(names)
        report.broken += len(names)
        return
    except TimedOut:
        report.trials += len(names)
        report.skipped += [f"{mutation}: {program} does not start" for _ in names]
        return
    try:
        for name in names:
            report.trials += 1
            if name not in entries:
                report.broken += 1
                continue
            _judge(
                f"{mutation} [{program}.{name}]",
                base.found[name],
                base.outputs[name],
                lambda name=name: engine(entries[name]),  # type: ignore[misc]
                lambda name=name: run(entries[name], examples(name)),  # type: ignore[misc]
                report,
                judge_equal,
            )
    finally:
        context.__exit__(None, None, None)


def _judge(
    words: str,
    found: Found,
    output: str,
    identify: Callable[[], Found],
    again: Callable[[], str],
    report: Report,
    judge_equal: bool,
) -> None:
    try:
        with quiet(), time_limit():
            other = identify()
    except (Exception, TimedOut, SystemExit) as error:
        report.failed.append(f"{words}: {type(error).__name__}: {error}")
        return
    told = other.digest != found.digest or bool(other.unknown)
    report.unknown += bool(other.unknown)
    if told and not judge_equal:
        return
    try:
        differs = (now := again()) != output
    except TimedOut:
        report.skipped.append(words)
        return
    report.differ += differs
    if differs and not told:
        report.stale.append(f"{words}: {_apart(output, now)}")
    report.cautious += told and not differs


def _apart(before: str, after: str) -> str:
    at = next((at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), 0)
    start = max(0, at - 20)
    return f"{before[start : at + 40]!r} -> {after[start : at + 40]!r}"


def leaf_trials(
    world: World,
    program: str,
    engine: Engine,
    keep: Callable[[int], bool] = lambda number: True,
    judge_equal: bool = True,
) -> Report:
    """Change the live values that a callable can reach, one after the other.

    Each is changed twice: in one process after the first identity was made, and put back; and in a program that is
    imported anew, which is then run.
    """
    report = Report()
    examples = Examples(world, program)
    base = baseline(world, program, engine, examples)
    total = 0
    for name in base.outputs:
        with world.entries(program) as entries:
            count = len(reached(entries[name]).leaves)
            wanted = [at for at in range(count) if keep(total + at)]
            total += count
            keys = _keys_in_place(entries[name], engine, wanted, f"{program}.{name}", report)
        for at in wanted:
            report.trials += 1
            if not judge_equal and keys[at] != base.found[name].digest:
                continue
            with world.entries(program) as entries:
                entry = entries[name]
                leaf = reached(entry).leaves[at]
                if _put(leaf, changed(leaf.value)) is not None:
                    report.broken += 1
                    continue
                _judge(
                    f"{program}.{name}{leaf.path} = {changed(leaf.value)!r}, was {leaf.value!r}",
                    base.found[name],
                    base.outputs[name],
                    lambda entry=entry: engine(entry),  # type: ignore[misc]
                    lambda entry=entry, name=name: run(entry, examples(name)),  # type: ignore[misc]
                    report,
                    judge_equal,
                )
    return report


def _keys_in_place(entry: Any, engine: Engine, wanted: list[int], words: str, report: Report) -> dict[int, str]:
    """The digest with each leaf changed, all in one process. When a change was taken back, it is the old one."""
    before = engine(entry).digest
    leaves = reached(entry).leaves
    keys = {}
    for at in wanted:
        leaf = leaves[at]
        keys[at] = "broken"
        if _put(leaf, changed(leaf.value)) is not None:
            continue
        try:
            with quiet(), time_limit():
                keys[at] = engine(entry).digest
        except (Exception, TimedOut) as error:
            report.failed.append(f"{words}{leaf.path}: {type(error).__name__}: {error}")
        _put(leaf, leaf.value)
        if engine(entry).digest != before:
            report.unstable.append(f"{words}{leaf.path}: changed and put back, it has another key")
            before = engine(entry).digest
    return keys


def _put(leaf: Leaf, value: Any) -> Exception | None:
    """Change a leaf; the exception where it cannot be changed."""
    try:
        leaf.put(value)
    except (TypeError, AttributeError, ValueError, RuntimeError, OverflowError) as error:
        return error
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", nargs="*", default=PROGRAMS, help=f"of {', '.join(PROGRAMS)}")
    parser.add_argument("--every", type=int, default=1, help="take each so many-th change alone")
    parser.add_argument("--only", choices=["code", "leaves"])
    options = parser.parse_args()
    totals = {"code": Report(), "leaves": Report()}
    trials = {"code": code_trials, "leaves": leaf_trials}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for program in options.programs:
            for kind, attempt in trials.items():
                if options.only in (None, kind):
                    report = attempt(world, program, identify, lambda number: number % options.every == 0)
                    totals[kind].add(report)
                    print(f"{program} {kind}: {report}", flush=True)
                    for line in (*report.stale, *report.failed, *report.skipped, *report.unstable):
                        print(f"    {line}")
    for kind, report in totals.items():
        print(f"all {kind}: {report}")


if __name__ == "__main__":
    main()
