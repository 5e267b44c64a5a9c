"""A key that is never sure keeps nothing: hardly any callable of real programs may be refused."""

from pathlib import Path
from typing import Any

import pytest
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


LOOK_UPS = {
    "a variable by os.getenv": ("import os\ndef step(): return os.getenv('A', default='B')", True),
    "a variable by a bound method": ("import os\nget = os.environ.get\ndef step(): return get('A')", True),
    "a variable by another name": ("from os import environ as E\ndef step(): return E.get('A')", True),
    "a variable by a name of the body": ("def step():\n    from os import getenv as get\n    return get('A')", True),
    "a variable by a partial": (
        "import os, functools\nget = functools.partial(os.getenv, 'A')\ndef step(): return get()",
        True,
    ),
    "a variable in a condition": ("import os\nB = 1\ndef step(): return B and 'A' in os.environ", True),
    "a variable by a keyword": ("import os\ndef step(): return os.getenv(default='B', key='A')", False),
    "one of two variables": ("import os\nB = 1\ndef step(): return (B or 'A') in os.environ", False),
    "a variable by a default": ("import os\ndef step(get=os.getenv): return get('A')", False),
    "a variable by an item": ("import os\nD = {'get': os.getenv}\ndef step(): return D['get']('A')", False),
    "a variable by a local name": ("import os\ndef step():\n    o = os\n    return o.environ['A']", False),
    "a variable by an argument": ("import os\ndef get(o): return o.getenv('A')\ndef step(): return get(os)", False),
    "a variable by a helper": (
        "import os\ndef get(o, of): return o[of + '_A']\ndef step(): return get(os.environ, 'A')",
        False,
    ),
    "variables by a map": ("import os\ndef step(): return list(map(os.getenv, 'AB'))", False),
    "a variable by a letter": ("import os\nN = 1\ndef step(): return os.environ['BA'[N]]", False),
    "a module by pydoc": ("import pydoc\ndef step(): return pydoc.locate('json.loads')", True),
    "a module by a default": ("import importlib\ndef step(get=importlib.import_module): return get('json')", False),
    "a module by an item": ("D = {'get': __import__}\ndef step(): return D['get']('json')", False),
    "a module by a local name": ("import sys\ndef step():\n    s = sys\n    return s.modules['json']", False),
    "modules of a network": (
        "import sys\ndef inner(net): return list(net.modules())\n"
        "def step(net=0): return inner(net), getattr(sys, 'a', 0)",
        True,
    ),
}


@pytest.mark.parametrize("name", LOOK_UPS)
def test_what_is_looked_up_by_a_name_is_known_or_refused(name: str) -> None:
    text, is_known = LOOK_UPS[name]
    namespace: dict[str, Any] = {}
    exec(text, namespace)
    found = identify(namespace["step"])
    assert bool(found.unknown) is not is_known
    assert is_known <= any(word in place for place in found.facts for word in ("variable A", "import", "net"))
