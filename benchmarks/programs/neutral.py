"""What happens to a program every day and leaves its answers as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.programs.case import Case, program


def _neutral(
    name: str, main: str, *changes: tuple[str, str], files: Mapping[str, str] | None = None, **how: Any
) -> Case:
    return Case(name, program(main, files), changes, neutral=True, **how)


_PLAIN = """
def step(value):
    return {"y": value * 3}
"""
_HELPERS = """
def scale(value):
    return value * 3


def summary(values):
    return min(values)
"""
_WITH_HELPERS = """
from helpers import scale


def step(value):
    return {"y": scale(value)}
"""

TEXT = (
    _neutral("nothing: the same program again", _PLAIN, quick=True),
    _neutral("a comment in the step", _PLAIN, ("    return", "    # three times as much\n    return"), quick=True),
    _neutral("lines above the step", _PLAIN, ("def step", "# A constant of nature.\n\n\ndef step")),
    _neutral("a docstring of the step", _PLAIN, ("    return", '    """Three times the value."""\n    return')),
    _neutral("another format", _PLAIN, ('{"y": value * 3}', "{\n        'y': (value * 3),\n    }")),
    _neutral("annotations", _PLAIN, ("step(value)", "step(value: int) -> dict[str, int]")),
    _neutral("another line for a lambda", 'step = lambda value: {"y": value * 3}\n', ("step =", "\n\nstep =")),
    _neutral(
        "a docstring of a helper in another module",
        _WITH_HELPERS,
        ("    return value", '    """Three times the value."""\n    return value'),
        files={"helpers.py": _HELPERS},
    ),
    _neutral(
        "another function of the same file",
        _PLAIN + "\n\ndef summary(values):\n    return min(values)\n",
        ("min(values)", "max(values)"),
        quick=True,
    ),
    _neutral(
        "another function of the helper's module",
        _WITH_HELPERS,
        ("min(values)", "max(values)"),
        files={"helpers.py": _HELPERS},
    ),
    _neutral(
        "another constant of the module of constants",
        """
        import cfg


        def step(value):
            return {"y": value * cfg.N}
        """,
        ("EPOCHS = 10", "EPOCHS = 20"),
        files={"cfg.py": "N = 3\nEPOCHS = 10\n"},
    ),
    _neutral(
        "another attribute of a global `argparse.Namespace`",
        """
        import argparse

        args = argparse.Namespace(factor=3, run="monday")


        def step(value):
            return {"y": value * args.factor}
        """,
        ("monday", "friday"),
    ),
    _neutral(
        "another method of the class",
        """
        class Scaler:
            def apply(self, value):
                return {"y": value * 3}

            def summary(self):
                return "three times"


        step = Scaler().apply
        """,
        ("three times", "thrice"),
    ),
    _neutral("an import that nobody uses", _PLAIN, ("def step", "import json\n\n\ndef step")),
)

PLACE = (
    _neutral("newer times of the files", _WITH_HELPERS, files={"helpers.py": _HELPERS}, touched=True),
    _neutral("a moved checkout", _WITH_HELPERS, files={"helpers.py": _HELPERS}, moved=True, quick=True),
    _neutral(
        "a moved checkout, with a file beside the program",
        """
        from pathlib import Path


        def step(value):
            return {"y": value * int(Path(__file__).with_name("factor.txt").read_text())}
        """,
        files={"factor.txt": "3\n"},
        moved=True,
    ),
    _neutral(
        "another working directory",
        _WITH_HELPERS,
        files={"helpers.py": _HELPERS, "notebooks/notes.txt": ""},
        folders=(".", "notebooks"),
    ),
    _neutral(
        "another hash seed, a global set",
        """
        STOP = {"the", "a", "an", "of", "to", "and"}


        def step(value):
            return {"y": value * len(STOP)}
        """,
    ),
    _neutral(
        "another hash seed, a frozenset as an argument",
        """
        def step(value, stop):
            return {"y": value * len(stop)}


        ARGUMENTS = {"stop": frozenset(["the", "a", "an", "of", "to", "and"])}
        """,
    ),
)

UNREAD = (
    _neutral(
        "a closure over self with a UUID",
        """
        import uuid


        class Job:
            def __init__(self):
                self.id = uuid.uuid4()
                self.factor = 3

            def step(self):
                return lambda value: {"y": value * self.factor}


        step = Job().step()
        """,
    ),
    _neutral(
        "a closure over self with a lock",
        """
        import threading


        class Job:
            def __init__(self):
                self.lock = threading.Lock()
                self.factor = 3

            def step(self):
                return lambda value: {"y": value * self.factor}


        step = Job().step()
        """,
    ),
    _neutral(
        "a closure over self with a logger",
        """
        import logging


        class Job:
            def __init__(self):
                self.log = logging.getLogger("job")
                self.factor = 3

            def step(self):
                return lambda value: {"y": value * self.factor}


        step = Job().step()
        """,
    ),
    _neutral(
        "a closure over self with an open file",
        """
        import os


        class Job:
            def __init__(self):
                self.log = open(os.devnull, "w")
                self.factor = 3

            def step(self):
                return lambda value: {"y": value * self.factor}


        step = Job().step()
        """,
    ),
    _neutral(
        "an argument with the time of the start",
        """
        import argparse
        import time


        def step(value, args):
            return {"y": value * args.factor}


        ARGUMENTS = {"args": argparse.Namespace(factor=3, started=time.time())}
        """,
    ),
    _neutral(
        "a logger that the step writes to",
        """
        import logging

        log = logging.getLogger(__name__)


        def step(value):
            log.debug("value %s", value)
            return {"y": value * 3}
        """,
    ),
)

MEMORY = (
    _neutral(
        "a memo that the step fills",
        """
        MEMO = {}


        def step(value):
            if value not in MEMO:
                MEMO[value] = value * 3
            return {"y": MEMO[value]}
        """,
    ),
    _neutral(
        "a helper under lru_cache",
        """
        from functools import lru_cache


        @lru_cache
        def scale(value):
            return value * 3


        def step(value):
            return {"y": scale(value)}
        """,
    ),
    _neutral(
        "an attribute that is set at its first use",
        """
        class Scaler:
            factor = None

            def apply(self, value):
                if self.factor is None:
                    self.factor = 3
                return {"y": value * self.factor}


        step = Scaler().apply
        """,
    ),
    _neutral(
        "a counter that the step advances",
        """
        import collections

        COUNTS = collections.Counter()


        def step(value):
            COUNTS["calls"] += 1
            return {"y": value * 3}
        """,
    ),
)

EQUAL = (
    _neutral(
        "an object without `__eq__`",
        """
        class Scaler:
            def __init__(self, factor):
                self.factor = factor


        def step(value, scaler):
            return {"y": value * scaler.factor}


        ARGUMENTS = {"scaler": Scaler(3)}
        """,
        quick=True,
    ),
    _neutral(
        "`object()` as a default",
        """
        MISSING = object()


        def step(value, factor=MISSING):
            return {"y": value * (3 if factor is MISSING else factor)}
        """,
    ),
    _neutral(
        "a member of an enum",
        """
        from enum import Enum


        class Size(Enum):
            SMALL = 1
            LARGE = 3


        def step(value, size):
            return {"y": value * size.value}


        ARGUMENTS = {"size": Size.LARGE}
        """,
    ),
    _neutral(
        "an equal array, a slice of a longer one",
        """
        import numpy as np


        def step(value, table):
            return {"y": value * int(table.sum())}


        ARGUMENTS = {"table": np.arange(4)}
        """,
        ("np.arange(4)", "np.arange(9)[:4]"),
    ),
    _neutral(
        "equal settings, from JSON",
        """
        import json


        def step(value, settings):
            return {"y": value * len(settings["names"])}


        SETTINGS = {"names": ["left", "right", "left"], "left": {"size": 3}}
        ARGUMENTS = {"settings": SETTINGS}
        """,
        ('"settings": SETTINGS', '"settings": json.loads(json.dumps(SETTINGS))'),
    ),
)

NEUTRAL = TEXT + PLACE + UNREAD + MEMORY + EQUAL
