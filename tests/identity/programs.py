"""Programs to be edited: texts of modules, with marks where a value, its class and whatever is neutral stand.

The marks: `@V@` the value, `@SETUP@` what defines its class and `reading`, which gives the number that the program
reads from it, `@N@` a number in docstrings and in what nothing uses, `@CALLED@` the line that counts a call.
"""

import os
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.identity.edits.edit import Edit
from tests.identity.edits.programs import ProgramEdit
from tests.identity.places import Place
from tests.identity.systems import CALLED

RUN_STEPS = frozenset(("step", "function"))
"""Systems that run a program's `step`. The others run its `model`."""

_STAMP = 1_700_000_000  # seconds since 1970
_HEAD = '''
"""Program, version @N@."""
import argparse, array, collections, contextlib, copy, dataclasses, datetime, decimal, enum, fractions, functools
import inspect, io, itertools, json, math, operator, os, pathlib, random, re, sys, threading, types, typing, weakref
import numpy as np
'''
_TORCH = """
import torch
from torch import nn
"""
_COMMENTS = """
# A comment that version @N@ has,
# and another.


"""
_UNRELATED = '''

UNRELATED = @N@


def unrelated(x, by=@N@):
    """Nobody calls it, @N@."""
    return x * UNRELATED + @N@


class Unrelated:
    """Nobody uses it, @N@."""
    n = @N@
'''
_READING = '''

def reading(v):
    """The number that is read, @N@."""
    return float(@READING@)
'''
_USE = '''

def use(x, v):
    """What every sample meets, @N@."""
    return x + reading(v)
'''


@dataclass(frozen=True)
class Program:
    """One version of a program.

    Args:
        files: texts by path. environment: variables of the process. cwd: where it runs, in its folder.
        stamped: files that are no code have one and the same time. site, main: see `ProgramEdit`.
    """

    files: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cwd: str = ""
    stamped: bool = False
    site: str = ""
    main: str = ""

    def write(self, folder: Path) -> None:
        """Put the files into a folder. Those that are there already and the same are left alone."""
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            data = text.encode(errors="surrogatepass")
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)
            if self.stamped and path.suffix != ".py":
                os.utime(path, (_STAMP, _STAMP))


def uncounted(program: Program) -> Program:
    """A program that a compiler can take whole, without the line that counts calls."""
    line = f"sys.audit({CALLED!r})"
    return replace(program, files={name: text.replace(line, "pass") for name, text in program.files.items()})


def program_of(edit: Edit, place: Place, system: str, *, edited: bool = False, neutral: bool = False) -> Program:
    """One version of the program that has an edit's value in a place.

    Args:
        edited: the version after the edit.
        neutral: with other comments, docstrings and unrelated code.
    """
    body = place.step if system in RUN_STEPS or place.model is None else ""
    if system not in RUN_STEPS:
        body += place.model if place.model is not None else _MODEL
        body += _END
    top = f"from {place.elsewhere} import reading\n" if place.elsewhere else "@SETUP@"
    texts = {"program.py": top + _USE + body, **place.files}
    files = {}
    for name, text in texts.items():
        alone = name == "program.py" or not place.whole  # all of a module that is passed on counts
        text += _UNRELATED if alone else ""
        if neutral:
            text = text.replace("\n\n\ndef ", _COMMENTS + "def ", 1).replace("\ndef use", _COMMENTS + "def use", 1)
        number = "2" if neutral and alone and "__doc__" not in edit.reading else "1"  # docstrings that are read count
        files[name] = headed(filled_in(text, number, edit, edited=edited), number)
    return Program(files)


def with_model(text: str, system: str) -> str:
    """A program that defines `step`, with the plain model around it where a system wants one."""
    return text + _TORCH + filled_in(_MODEL, "1") if system not in RUN_STEPS else text


def program_of_text(edit: ProgramEdit, system: str, *, edited: bool = False, neutral: bool = False) -> Program:
    """One version of the program that an edit of a whole program is in; see `program_of`."""
    body = edit.text.replace(edit.before, edit.after, 1) if edited and edit.before else edit.text
    texts = {"program.py": body + (_MODEL if system not in RUN_STEPS else ""), **edit.files}
    if edited:
        texts |= edit.files_new
    files = {}
    for name, text in texts.items():
        unrelated = "" if edit.whole else _UNRELATED
        if name == "program.py":
            text = text.replace("\ndef step", (_COMMENTS if neutral else "") + "\ndef step", 1) + unrelated
        elif name.endswith(".py") and neutral and not edit.site:
            text = "# A comment.\n\n" + text + unrelated
        number = "2" if neutral and not edit.whole else "1"
        text = filled_in(text, number)
        files[name] = headed(text, number) if name == "program.py" else text
    environment = edit.environment_new if edited else edit.environment
    cwd = edit.cwd_new if edited else edit.cwd
    return Program(files, environment, cwd, edit.stamped, edit.site, edit.main)


def headed(text: str, number: str) -> str:
    """A program's text beneath its imports. Programs without torch do not load it."""
    head = filled_in(_HEAD, number)
    return head + (_TORCH if "torch" in text or "nn." in text else "") + text


def filled_in(text: str, number: str, edit: Edit | None = None, *, edited: bool = False) -> str:
    """A text with its marks replaced, those of an edit too if one is given."""
    marks = {"@CALLED@": f"sys.audit({CALLED!r})", "@N@": number}
    if edit is not None:
        setup = edit.setup_new if edited and edit.setup_new is not None else edit.setup
        marks = {
            "@SETUP@": textwrap.dedent(setup) + _READING,
            "@READING@": edit.reading,
            "@V@": edit.value(edited),
            **marks,
        }
    for mark, content in marks.items():
        text = text.replace(mark, content)
    return text


_MODEL = """

class Model(nn.Module):
    '''The model, @N@.'''

    def __init__(self):
        super().__init__()
        self.step = step

    def forward(self, x, **arguments):
        @CALLED@
        return self.step(x, **arguments)


model = Model()
"""
_END = """
model.requires_grad_(False)
"""
