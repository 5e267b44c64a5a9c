"""The source of functions and classes, as far as it is what runs."""

import ast
import contextlib
import functools
import gc
import inspect
import os
import sys
import textwrap
import threading
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_ONE_AT_A_TIME = sys.version_info < (3, 11, 8)
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def source_of(thing: Any) -> str | None:
    """Source without comments, formatting and docstrings; None where there is none, and for lambdas.

    None too where the file was edited after the program had read it: it no longer says what runs.
    """
    tree = None if getattr(thing, "__name__", "") == "<lambda>" or not _is_current(thing) else tree_of(thing)
    if tree is None:
        return None
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node) is not None
        ):
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def tree_of(thing: Any) -> ast.AST | None:
    """The source of a function or class, parsed; None where there is none."""
    try:
        with _undisturbed():
            source = inspect.getsource(thing)  # finds a class by parsing the file
        return parse(textwrap.dedent(source))
    except (OSError, TypeError, SyntaxError):
        return None


def parse(source: str) -> ast.Module:
    """`ast.parse`, in any number of threads at once.

    Raises:
        SyntaxError: the source is none.
    """
    with _undisturbed():
        return ast.parse(source)


def functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """A function, or the methods of a class, as they were before they were decorated."""
    for value in callables_of(thing):
        value = inspect.unwrap(value)
        if isinstance(value, types.FunctionType):
            yield value


def callables_of(thing: Any) -> Iterator[Any]:
    """A function, or the methods of a class."""
    candidates = list(vars(thing).values()) if isinstance(thing, type) else [thing]
    for value in candidates:
        if isinstance(value, functools.cached_property | functools.partialmethod):
            value = value.func
        value = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if callable(value):
            yield value


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    """Code, and that of the functions which are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    # Python's parser counted its depth over all threads before 3.11.8, and fails when another parses in the middle
    # (python/cpython#106905): the garbage collector is what lets one in.
    if not _ONE_AT_A_TIME:
        yield
        return
    with _lock:
        collecting = gc.isenabled()
        gc.disable()
        try:
            yield
        finally:
            if collecting:
                gc.enable()


def _is_current(thing: Any) -> bool:
    """Whether the code that runs is that of the file."""
    try:
        with _undisturbed():
            text = "".join(inspect.findsource(thing)[0])
        with _lock:  # the filters of warnings are one list for all threads
            known = _compiled(text)
        file = Path(inspect.getfile(thing)).name
    except (OSError, TypeError, SyntaxError, ValueError):
        return False
    inside = f"{thing.__qualname__}." if isinstance(thing, type) else ""
    own = [function.__code__ for function in functions_of(thing) if function.__qualname__.startswith(inside)]
    return all(code in known for code in own if Path(code.co_filename).name == file)


@functools.lru_cache(maxsize=64)
def _compiled(text: str) -> frozenset[types.CodeType]:
    """All the code in a text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # who imported it has been told
        return frozenset(nested(compile(text, "", "exec", dont_inherit=True)))
