"""Edits of small programs: what the step gives is another value, and so is its identity."""

import itertools
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from warmstore.identity import identify

Edit = tuple[str, str, str]
"""A program, a text in it, and what takes its place."""

DOCUMENTATION: dict[str, Edit] = {
    "docstring of a method": (
        """
        class P:
            def summarize(self):
                "prompt A"

        def step(): return P.summarize.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of a bound method": (
        """
        class P:
            def summarize(self):
                "prompt A"

        OBJECT = P()

        def step(): return OBJECT.summarize.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of the function of a partial": (
        """
        from functools import partial

        def f(x):
            "prompt A"

        PARTIAL = partial(f, 1)

        def step(): return PARTIAL.func.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of an object around a function": (
        """
        import functools

        class Timed:
            def __init__(self, function):
                functools.update_wrapper(self, function)

        @Timed
        def f(x):
            "prompt A"

        def step(): return [each.__doc__ for each in (f,)]
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of a member of an enum": (
        """
        import enum

        class P(enum.Enum):
            "prompt A"
            A = 1

        def step(): return P.A.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of a nested function": (
        """
        def step():
            def g():
                "prompt A"
            return g.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "docstring of a nested class": (
        """
        def step():
            class G:
                "prompt A"
            return G.__doc__
        """,
        "prompt A",
        "prompt B",
    ),
    "annotations of a method": (
        """
        class P:
            def f(self, x: int): pass

        def step(): return str(P.f.__annotations__)
        """,
        "x: int",
        "x: float",
    ),
    "line of a function": (
        """
        def g(): pass

        def step(): return g.__code__.co_firstlineno
        """,
        "        def g",
        "\n\n        def g",
    ),
    "locals of a function": (
        """
        def g():
            a = 1
            return a

        def step(f=g): return f.__code__.co_varnames
        """,
        "a = 1\n            return a",
        "b = 1\n            return b",
    ),
    "constants of a function": (
        """
        def g():
            "A"

        def step(): return g.__code__.co_consts
        """,
        '"A"',
        '"B"',
    ),
    "type of a field of a dataclass": (
        """
        import dataclasses

        @dataclasses.dataclass
        class C:
            rate: int = 1

        def step(): return [field.type("3") for field in dataclasses.fields(C)]
        """,
        "rate: int",
        "rate: float",
    ),
    "annotations that a library reads": (
        """
        import pydantic
        from typing_extensions import TypedDict

        class C(TypedDict):
            rate: int

        def step(): return pydantic.TypeAdapter(C).validate_python({"rate": "3"})
        """,
        "rate: int",
        "rate: float",
    ),
    "annotations of a class that an annotation names": (
        """
        from __future__ import annotations
        import pydantic
        from typing_extensions import TypedDict

        class Inner(TypedDict):
            rate: int

        class C(TypedDict):
            inner: list[Inner]

        def step(): return pydantic.TypeAdapter(C).validate_python({"inner": [{"rate": "3"}]})
        """,
        "rate: int",
        "rate: float",
    ),
}

_SETTER = """
class C:
    @property
    def scale(self): return 1

    @scale.setter
    def scale(self, value): FOUND.append(value * 10)

FOUND = []
CONFIG = C()
"""
SETTERS: dict[str, Edit] = {
    "of a global": (_SETTER + "def step():\n    CONFIG.scale = 2\n    return FOUND[-1]", "* 10", "* 20"),
    "of a default": (_SETTER + "def step(c=CONFIG):\n    c.scale = 2\n    return FOUND[-1]", "* 10", "* 20"),
    "that adds": (_SETTER + "def step():\n    CONFIG.scale += 2\n    return FOUND[-1]", "* 10", "* 20"),
    "of a partial": (
        _SETTER + "def run(c):\n    c.scale = 2\n    return FOUND[-1]\n\n"
        "from functools import partial\nstep = partial(run, CONFIG)",
        "* 10",
        "* 20",
    ),
    "of all attributes": (
        """
        class C:
            def __setattr__(self, name, value): FOUND.append(value * 10)

        FOUND = []
        CONFIG = C()

        def step():
            CONFIG.scale = 2
            return FOUND[-1]
        """,
        "* 10",
        "* 20",
    ),
}

_KINDS = """
FACTOR = 1
class Own(KIND):
    def __get__(self, owner, kind=None):
        found = super().__get__(owner, kind)
        return (lambda: found() * FACTOR) if callable(found) else found * FACTOR
class C:
    @Own
    def value(*given): return 2
OBJECT = C()
"""
DESCRIPTORS: dict[str, Edit] = {
    f"{kind} of {of}": (
        _KINDS.replace("KIND", kind) + f"def step(): return {of}.value{'' if kind == 'property' else '()'}",
        "FACTOR = 1",
        "FACTOR = 3",
    )
    for kind in ("property", "staticmethod", "classmethod")
    for of in ("OBJECT", "C")
    if (kind, of) != ("property", "C")
}

_TABLE = "import pandas as pd\nTABLE = pd.DataFrame({'a': [1, 2, 3]})\nLIMIT = 1\ndef scale(x): return x * 2\n"
QUERIES: dict[str, Edit] = {
    "a global": (_TABLE + "def step(): return len(TABLE.query('a > @LIMIT'))", "LIMIT = 1", "LIMIT = 2"),
    "a default": (_TABLE + "def step(limit=1): return len(TABLE.query('a > @limit'))", "limit=1", "limit=2"),
    "a function": (_TABLE + "def step(): return TABLE.eval('@scale(a)').tolist()", "x * 2", "x * 3"),
    "a table": (_TABLE + "def step(): return pd.eval('TABLE.a + LIMIT').tolist()", "2, 3", "2, 4"),
}

SETTINGS: dict[str, Edit] = {
    "attributes of an object": (
        "import pandas as pd\npd.options.display.max_rows = 5\ndef step(): return pd.options.display.max_rows",
        "= 5",
        "= 7",
    ),
    "an item of a mapping": (
        "import matplotlib as mp\nmp.rcParams['figure.dpi'] = 50\ndef step(): return mp.rcParams['figure.dpi']",
        "= 50",
        "= 70",
    ),
    "a mapping by get": (
        "import matplotlib as mp\nmp.rcParams['font.family'] = ['serif']\n"
        "def step(): return mp.rcParams.get('font.family')",
        "serif",
        "cursive",
    ),
    "an attribute of a class, read of its object": (
        "import textwrap\ntextwrap.TextWrapper.rate = 5\nwrapper = textwrap.TextWrapper()\n"
        "def rate_of(of): return of.rate\ndef step(): return rate_of(wrapper)",
        "= 5",
        "= 7",
    ),
    "an import in the body": (
        "import pandas\npandas.options.display.max_rows = 5\n"
        "def step():\n    import pandas as pd\n    return pd.options.display.max_rows",
        "= 5",
        "= 7",
    ),
}

_numbers = itertools.count()


@pytest.fixture
def loaded() -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    for name in names:
        del sys.modules[name]


def load(text: str, names: list[str]) -> ModuleType:
    """A module that has a text; its name is added to `names`."""
    module = ModuleType("small_program")
    sys.modules[module.__name__] = module
    names[:] = [module.__name__]
    exec(compile(textwrap.dedent(text), f"<program {next(_numbers)}>", "exec"), vars(module))
    return module


def assert_counts(edit: Edit, loaded: list[str]) -> None:
    text, old, new = edit
    assert old in text
    results = [repr(load(version, loaded).step()) for version in (text, text.replace(old, new))]
    assert results[0] != results[1]
    before, again, after = (identify(load(version, loaded).step) for version in (text, text, text.replace(old, new)))
    assert before.difference(again) == ""
    assert not before.unknown
    assert not after.unknown
    assert before.digest != after.digest


@pytest.mark.parametrize("name", DOCUMENTATION)
def test_documentation_that_is_read_counts(name: str, loaded: list[str]) -> None:
    assert_counts(DOCUMENTATION[name], loaded)


@pytest.mark.parametrize("name", SETTERS)
def test_a_setter_that_runs_counts(name: str, loaded: list[str]) -> None:
    assert_counts(SETTERS[name], loaded)


@pytest.mark.parametrize("name", DESCRIPTORS)
def test_a_descriptor_of_a_subclass_counts(name: str, loaded: list[str]) -> None:
    assert_counts(DESCRIPTORS[name], loaded)


@pytest.mark.parametrize("name", QUERIES)
def test_what_the_text_of_a_query_names_counts(name: str, loaded: list[str]) -> None:
    assert_counts(QUERIES[name], loaded)


def test_an_attribute_that_a_package_imports_at_its_first_use(
    loaded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site-packages"
    info = site / "lazy-1.0.dist-info"
    for folder in (site / "lazy", info):
        folder.mkdir(parents=True)
    (site / "lazy" / "__init__.py").write_text(
        "def __getattr__(name):\n    if name != 'Adapter': raise AttributeError(name)\n"
        "    class Adapter: pass\n    Adapter.__qualname__ = 'Adapter'\n"
        "    globals()[name] = Adapter\n    return Adapter\n"
    )
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lazy\nVersion: 1.0\n")
    (info / "RECORD").write_text("lazy/__init__.py,sha256=a,1\n")
    monkeypatch.syspath_prepend(site)
    step = load("import lazy\ndef step(): return lazy.Adapter()", loaded).step
    assert identify(step).difference(identify(step)) == ""
    del sys.modules["lazy"]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_of_a_library_that_code_reads_counts(name: str, loaded: list[str]) -> None:
    assert_counts(SETTINGS[name], loaded)
