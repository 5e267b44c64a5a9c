"""Edits of a function, of what it calls and of what it reads: each changes the answers."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any

from benchmarks.programs.case import SITE, Case, program


def _edit(name: str, main: str, *changes: tuple[str, str], files: Mapping[str, str] | None = None, **how: Any) -> Case:
    return Case(name, program(main, files), changes, **how)


def _installed(source: str) -> dict[str, str]:
    """A distribution `toolbox` of one file, as pip installs it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(source.encode()).digest()).rstrip(b"=").decode()
    record = f"toolbox/__init__.py,sha256={digest},{len(source)}\n"
    return {f"{SITE}/toolbox/__init__.py": source, f"{SITE}/toolbox.dist-info/RECORD": record}


_OLD, _NEW = (f"def scale(value):\n    return value * {factor}\n" for factor in (3, 4))
_METADATA = {f"{SITE}/toolbox.dist-info/METADATA": "Metadata-Version: 2.1\nName: toolbox\nVersion: 1.0\n"}

CODE = (
    _edit(
        "a constant in the step",
        """
        def step(value):
            return {"y": value * 3}
        """,
        ("* 3", "* 4"),
        quick=True,
    ),
    _edit(
        "a default of the step",
        """
        def step(value, factor=3):
            return {"y": value * factor}
        """,
        ("=3", "=4"),
    ),
    _edit(
        "a keyword-only default of a helper",
        """
        def scale(value, *, factor=3):
            return value * factor


        def step(value):
            return {"y": scale(value)}
        """,
        ("=3", "=4"),
    ),
    _edit(
        "a helper in the same file",
        """
        def scale(value):
            return value * 3


        def step(value):
            return {"y": scale(value)}
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "a helper in another module",
        """
        from helpers import scale


        def step(value):
            return {"y": scale(value)}
        """,
        ("* 3", "* 4"),
        files={
            "helpers.py": """
            def scale(value):
                return value * 3
            """
        },
        quick=True,
    ),
    _edit(
        "a helper two modules away",
        """
        import helpers


        def step(value):
            return {"y": helpers.scale(value)}
        """,
        ("* 3", "* 4"),
        files={
            "helpers.py": """
            import numbers_of_ours


            def scale(value):
                return numbers_of_ours.times(value)
            """,
            "numbers_of_ours.py": """
            def times(value):
                return value * 3
            """,
        },
    ),
    _edit(
        "the step itself, imported from another module",
        """
        from steps import step
        """,
        ("* 3", "* 4"),
        files={
            "steps.py": """
            def step(value):
                return {"y": value * 3}
            """
        },
    ),
    _edit(
        "a lambda as the step",
        """
        step = lambda value: {"y": value * 3}
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "a function in a dict",
        """
        SCALES = {"large": lambda value: value * 3, "small": lambda value: value / 3}


        def step(value, key):
            return {"y": SCALES[key](value)}


        ARGUMENTS = {"key": "large"}
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "a nested function",
        """
        def step(value):
            def scale(value):
                return [part * 3 for part in (value, value + 1)]

            return {"y": sum(scale(value))}
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "the value in a closure",
        """
        def scaled(factor):
            def step(value):
                return {"y": value * factor}

            return step


        step = scaled(3)
        """,
        ("(3)", "(4)"),
    ),
    _edit(
        "the function in a closure",
        """
        from helpers import scale


        def applied(function):
            def step(value):
                return {"y": function(value)}

            return step


        step = applied(scale)
        """,
        ("* 3", "* 4"),
        files={
            "helpers.py": """
            def scale(value):
                return value * 3
            """
        },
    ),
    _edit(
        "a decorator's argument",
        """
        import functools


        def times(factor):
            def decorate(function):
                @functools.wraps(function)
                def decorated(value):
                    return {"y": function(value)["y"] * factor}

                return decorated

            return decorate


        @times(3)
        def step(value):
            return {"y": value}
        """,
        ("@times(3)", "@times(4)"),
    ),
    _edit(
        "a decorator in another module",
        """
        from decorators import scaled


        @scaled
        def step(value):
            return {"y": value}
        """,
        ("* 3", "* 4"),
        files={
            "decorators.py": """
            import functools


            def scaled(function):
                @functools.wraps(function)
                def decorated(value):
                    return {"y": function(value)["y"] * 3}

                return decorated
            """
        },
    ),
    _edit(
        "the argument of a partial",
        """
        from functools import partial


        def scale(value, factor):
            return {"y": value * factor}


        step = partial(scale, factor=3)
        """,
        ("factor=3", "factor=4"),
    ),
    _edit(
        "the function under a partial",
        """
        from functools import partial

        from helpers import scale

        step = partial(scale, factor=3)
        """,
        ("value * factor", "value + factor"),
        files={
            "helpers.py": """
            def scale(value, factor):
                return {"y": value * factor}
            """
        },
    ),
    _edit(
        "an attribute of a function",
        """
        def scale(value):
            return value * scale.factor


        scale.factor = 3


        def step(value):
            return {"y": scale(value)}
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "an implementation of a singledispatch function",
        """
        from functools import singledispatch


        @singledispatch
        def scale(value):
            raise TypeError(value)


        @scale.register
        def _(value: int):
            return value * 3


        def step(value):
            return {"y": scale(value)}
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "a library's function, patched",
        """
        import statistics


        def step(value):
            return {"y": statistics.mean([value, value, value + 9])}
        """,
        ("import statistics\n", "import statistics\n\nstatistics.mean = statistics.median\n"),
    ),
    _edit(
        "an installed package, upgraded",
        """
        import toolbox


        def step(value):
            return {"y": toolbox.scale(value)}
        """,
        ("Version: 1.0", "Version: 1.1"),
        *zip(_installed(_OLD).values(), _installed(_NEW).values(), strict=True),
        files=_METADATA | _installed(_OLD),
    ),
    _edit(
        "the method that is the step",
        """
        class Scaler:
            def __init__(self, factor):
                self.factor = factor

            def apply(self, value):
                return {"y": value * self.factor}


        step = Scaler(3).apply
        """,
        ("value * self.factor", "value + self.factor"),
    ),
    _edit(
        "the object whose method is the step",
        """
        class Scaler:
            def __init__(self, factor):
                self.factor = factor

            def apply(self, value):
                return {"y": value * self.factor}


        step = Scaler(3).apply
        """,
        ("Scaler(3)", "Scaler(4)"),
    ),
    _edit(
        "`__call__` of the object that is the step",
        """
        class Scaler:
            def __call__(self, value):
                return {"y": value * 3}


        step = Scaler()
        """,
        ("* 3", "* 4"),
    ),
    _edit(
        "a base class's method",
        """
        from base import Base


        class Scaler(Base):
            def apply(self, value):
                return {"y": self.scale(value)}


        step = Scaler().apply
        """,
        ("* 3", "* 4"),
        files={
            "base.py": """
            class Base:
                def scale(self, value):
                    return value * 3
            """
        },
    ),
    _edit(
        "a class attribute",
        """
        class Scaler:
            factor = 3

            def apply(self, value):
                return {"y": value * self.factor}


        step = Scaler().apply
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "a class attribute, set from outside",
        """
        from scalers import Scaler

        Scaler.factor = 3


        def step(value):
            return {"y": Scaler().apply(value)}
        """,
        ("= 3", "= 4"),
        files={
            "scalers.py": """
            class Scaler:
                factor = 1

                def apply(self, value):
                    return value * self.factor
            """
        },
    ),
    _edit(
        "a property",
        """
        class Scaler:
            @property
            def factor(self):
                return 3

            def apply(self, value):
                return value * self.factor


        def step(value, scaler):
            return {"y": scaler.apply(value)}


        ARGUMENTS = {"scaler": Scaler()}
        """,
        ("return 3", "return 4"),
    ),
    _edit(
        "an attribute of an object, an argument",
        """
        class Scaler:
            def __init__(self, factor):
                self.factor = factor

            def apply(self, value):
                return value * self.factor


        def step(value, scaler):
            return {"y": scaler.apply(value)}


        ARGUMENTS = {"scaler": Scaler(3)}
        """,
        ("Scaler(3)", "Scaler(4)"),
        quick=True,
    ),
    _edit(
        "the class of an argument, in another module",
        """
        from scalers import Scaler


        def step(value, scaler):
            return {"y": scaler.apply(value)}


        ARGUMENTS = {"scaler": Scaler()}
        """,
        ("* 3", "* 4"),
        files={
            "scalers.py": """
            class Scaler:
                def apply(self, value):
                    return value * 3
            """
        },
    ),
)

DATA = (
    _edit(
        "a global constant",
        """
        FACTOR = 3


        def step(value):
            return {"y": value * FACTOR}
        """,
        ("= 3", "= 4"),
        quick=True,
    ),
    _edit(
        "a constant of another module, `cfg.N`",
        """
        import cfg


        def step(value):
            return {"y": value * cfg.N}
        """,
        ("= 3", "= 4"),
        files={"cfg.py": "N = 3\n"},
    ),
    _edit(
        "a constant of another module, `from cfg import N`",
        """
        from cfg import N


        def step(value):
            return {"y": value * N}
        """,
        ("= 3", "= 4"),
        files={"cfg.py": "N = 3\n"},
    ),
    _edit(
        "a constant of another module, `getattr(cfg, key)`",
        """
        import cfg


        def step(value, key):
            return {"y": value * getattr(cfg, key)}


        ARGUMENTS = {"key": "N"}
        """,
        ("= 3", "= 4"),
        files={"cfg.py": "N = 3\n"},
    ),
    _edit(
        "a constant of a module that is an argument",
        """
        import cfg


        def step(value, settings):
            return {"y": value * settings.N}


        ARGUMENTS = {"settings": cfg}
        """,
        ("= 3", "= 4"),
        files={"cfg.py": "N = 3\n"},
    ),
    _edit(
        "a global read as `globals()[key]`",
        """
        FACTOR = 3


        def step(value, key):
            return {"y": value * globals()[key]}


        ARGUMENTS = {"key": "FACTOR"}
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "a global read by `eval`",
        """
        FACTOR = 3


        def step(value, formula):
            return {"y": eval(formula)}


        ARGUMENTS = {"formula": "value * FACTOR"}
        """,
        ("FACTOR = 3", "FACTOR = 4"),
    ),
    _edit(
        "an attribute of a global `argparse.Namespace`",
        """
        import argparse

        args = argparse.Namespace(factor=3)


        def step(value):
            return {"y": value * args.factor}
        """,
        ("factor=3", "factor=4"),
    ),
    _edit(
        "a field of a dataclass, an argument",
        """
        from dataclasses import dataclass


        @dataclass
        class Config:
            factor: int


        def step(value, config):
            return {"y": value * config.factor}


        ARGUMENTS = {"config": Config(3)}
        """,
        ("Config(3)", "Config(4)"),
    ),
    _edit(
        "a default of a dataclass",
        """
        from config import Config


        def step(value):
            return {"y": value * Config().factor}
        """,
        ("= 3", "= 4"),
        files={
            "config.py": """
            from dataclasses import dataclass


            @dataclass
            class Config:
                factor: int = 3
            """
        },
    ),
    _edit(
        "the value of an enum's member",
        """
        from enum import Enum


        class Size(Enum):
            SMALL = 1
            LARGE = 3


        def step(value, size):
            return {"y": value * size.value}


        ARGUMENTS = {"size": Size.LARGE}
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "a method of an enum",
        """
        from sizes import Size


        def step(value, size):
            return {"y": size.scale(value)}


        ARGUMENTS = {"size": Size.LARGE}
        """,
        ("* 3", "* 4"),
        files={
            "sizes.py": """
            from enum import Enum


            class Size(Enum):
                SMALL = "small"
                LARGE = "large"

                def scale(self, value):
                    return value * 3
            """
        },
    ),
    _edit(
        "the order of the fields of a NamedTuple",
        """
        from typing import NamedTuple


        class Size(NamedTuple):
            width: int
            height: int


        def step(value, size):
            return {"y": value * size.width}


        ARGUMENTS = {"size": Size(3, 4)}
        """,
        ("    width: int\n    height: int\n", "    height: int\n    width: int\n"),
    ),
    _edit(
        "`__missing__` of a subclass of dict",
        """
        class Factors(dict):
            def __missing__(self, key):
                return 3


        def step(value, factors):
            return {"y": value * factors["unknown"]}


        ARGUMENTS = {"factors": Factors(known=1)}
        """,
        ("return 3", "return 4"),
    ),
    _edit(
        "a list that becomes a tuple",
        """
        def step(value, sizes):
            return {"y": value * (3 if isinstance(sizes, list) else 4)}


        ARGUMENTS = {"sizes": [1, 2]}
        """,
        ("[1, 2]", "(1, 2)"),
    ),
    _edit(
        "the order of a dict",
        """
        def step(value, weights):
            return {"y": value * next(iter(weights.values()))}


        ARGUMENTS = {"weights": {"first": 3, "second": 4}}
        """,
        ('"first": 3, "second": 4', '"second": 4, "first": 3'),
    ),
    _edit(
        "one element of a long array",
        """
        import numpy as np

        WEIGHTS = np.zeros(10_000)
        WEIGHTS[5_000] = 3


        def step(value):
            return {"y": value * float(WEIGHTS.sum())}
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "the dtype of an array",
        """
        import numpy as np


        def step(value, table):
            return {"y": value * table.itemsize}


        ARGUMENTS = {"table": np.arange(4, dtype=np.int32)}
        """,
        ("int32", "int64"),
    ),
    _edit(
        "the memory layout of an array",
        """
        import numpy as np


        def step(value, table):
            return {"y": value * int(table.ravel(order="K")[1])}


        ARGUMENTS = {"table": np.array([[1, 3], [4, 5]], order="C")}
        """,
        ('order="C"', 'order="F"'),
    ),
    _edit(
        "a regular expression",
        r"""
        import re

        WORDS = re.compile("[a-z]+")


        def step(value):
            return {"y": value * len(WORDS.findall("one 2 three_4"))}
        """,
        ("[a-z]+", "[a-z]"),
    ),
    _edit(
        "the flags of a regular expression",
        """
        import re

        WORDS = re.compile("[a-z]+", re.ASCII)


        def step(value):
            return {"y": value * len(WORDS.findall("One Two"[value % 2 :].upper()))}
        """,
        ("re.ASCII", "re.IGNORECASE"),
    ),
    _edit(
        "the seed of a generator",
        """
        import copy

        import numpy as np

        GENERATOR = np.random.default_rng(3)


        def step(value):
            return {"y": value + copy.deepcopy(GENERATOR).random()}
        """,
        ("(3)", "(4)"),
    ),
    _edit(
        "the precision of `decimal`",
        """
        import decimal

        decimal.getcontext().prec = 3


        def step(value):
            return {"y": float(decimal.Decimal(value) / 7)}
        """,
        ("= 3", "= 4"),
    ),
    _edit(
        "an environment variable",
        """
        import os


        def step(value):
            return {"y": value * int(os.environ["FACTOR"])}
        """,
        environment=({"FACTOR": "3"}, {"FACTOR": "4"}),
    ),
    _edit(
        "a configuration read from JSON at import",
        """
        import json
        from pathlib import Path

        CONFIG = json.loads(Path(__file__).with_name("config.json").read_text())


        def step(value):
            return {"y": value * CONFIG["factor"]}
        """,
        (": 3", ": 4"),
        files={"config.json": '{"factor": 3}\n'},
    ),
    _edit(
        "a file named by an argument, a str",
        """
        from pathlib import Path


        def step(value, path):
            return {"y": value * int(open(path).read())}


        ARGUMENTS = {"path": str(Path(__file__).with_name("factor.txt"))}
        """,
        ("3\n", "4\n"),
        files={"factor.txt": "3\n"},
    ),
    _edit(
        "a file named by an argument, a Path",
        """
        from pathlib import Path


        def step(value, path):
            return {"y": value * int(path.read_text())}


        ARGUMENTS = {"path": Path(__file__).with_name("factor.txt")}
        """,
        ("3\n", "4\n"),
        files={"factor.txt": "3\n"},
    ),
    _edit(
        "a file beside the program, named by the step",
        """
        from pathlib import Path


        def step(value):
            return {"y": value * int(Path(__file__).with_name("factor.txt").read_text())}
        """,
        ("3\n", "4\n"),
        files={"factor.txt": "3\n"},
    ),
    _edit(
        "a relative path, in another working directory",
        """
        def step(value, path):
            return {"y": value * int(open(path).read())}


        ARGUMENTS = {"path": "factor.txt"}
        """,
        files={"monday/factor.txt": "3\n", "friday/factor.txt": "4\n"},
        folders=("monday", "friday"),
    ),
)

EDITS = CODE + DATA
