"""A key that is never sure keeps nothing: hardly any callable of real programs may be refused."""

from pathlib import Path

from tests.identity.engine import identify
from tests.identity.worlds import PROGRAMS, World

import warmstore.identity


def test_hardly_any_callable_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    count, refused = 0, []
    for program in PROGRAMS:
        with world.entries(program) as entries:
            count += len(entries)
            for name, entry in entries.items():
                unknown = identify(entry).unknown
                refused += [f"{program}.{name}: {dict(unknown)}"] if unknown else []
    assert count >= 150
    assert len(refused) <= 0.05 * count, "\n".join(refused)


def test_what_is_sure_has_facts_that_say_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    for program in PROGRAMS:
        with world.entries(program) as entries:
            for name, entry in entries.items():
                found = identify(entry)
                assert found.facts, f"{program}.{name}"
                assert found.difference(identify(entry)) == ""
                assert not found.unknown or found.unknown.keys() <= found.facts.keys()


def test_trials_use_the_engine_that_everybody_uses(tmp_path: Path) -> None:
    world = World(tmp_path)
    for program in ("geometry", "layers", "training"):
        with world.entries(program) as entries:
            entry = next(iter(entries.values()))
            assert identify(entry) == warmstore.identity.identify(entry)
