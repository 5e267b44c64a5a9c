"""`ws.cached`: keep the results of a pure function on disk."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection
from typing import Any, ParamSpec, Protocol, TypeVar

from warmstore.errors import UnsupportedType
from warmstore.functions.function_cache import FunctionCache
from warmstore.identity.reads.functions import CACHED

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F")


class CachedFunction(Protocol[P, R_co]):
    """What `cached` makes of a function.

    cache: the kept results, with `stats`, `flush`, `clear` and `close`. call: computes a call even if its result is
    kept. check_call_in_cache: whether the result of a call is kept. Of a method, both take its object first:
    `Model.embed.call(model, batch)`.
    """

    cache: FunctionCache
    __wrapped__: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def __get__(self, instance: Any, owner: Any = None) -> Any: ...

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...

    def check_call_in_cache(self, *args: P.args, **kwargs: P.kwargs) -> bool: ...


def cached(
    folder: str | os.PathLike[str],
    version: str | None = None,
    ignore: Collection[str] = (),
    *,
    max_size: int | str | None = None,
    allow_pickle: bool = False,
) -> Callable[[Callable[P, R_co]], CachedFunction[P, R_co]]:
    """A decorator that keeps the results of a pure function in a folder, for this run and later ones.

    A result is found again by all processes if the function computes the same: its code, what it calls and reads, and
    its arguments have the same identity (docs/identity.md). Exceptions are not kept. A hit is a new object, whatever
    callers do with earlier ones.

    The function can be a function, lambda, method, partial, static method or class method, also of a notebook. It has
    the attributes of `CachedFunction`.

    Args:
        folder: the folder of any number of functions. Each has a folder in it, named after the function.
        version: stands for parts of the function that have no identity. Change it when these change.
        ignore: parameters that make no difference to the result, such as "verbose", and places to leave out of the
            identity, as errors name them.
        max_size: the most bytes that the results of this function take on the disk, such as "10GB". The oldest are
            evicted for new ones.
        allow_pickle: pickle results that are no arrays, tensors, strings, numbers, None, dicts, lists, tuples,
            namedtuples, dataclasses or values of a type of `register_encoder`. Unpickling runs code chosen by whoever
            wrote the folder.

    Calls raise:
        NoFingerprint: it is unknown whether a part of the function or of an argument changes. The message names it.
        NotStateless: the function draws random numbers from a generator that it does not make itself.
        UnsupportedType: a result cannot be restored exactly.
        ReadOnly: the folder does not exist, and cannot be created.

    Raises:
        TypeError: `folder` is no path.
        UnsupportedType: a generator function, a coroutine function, or a class.
    """
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"ws.cached takes a folder, as in @ws.cached('cache'); got {folder!r:.80}")

    def decorate(function: Any) -> Any:
        if isinstance(function, staticmethod | classmethod):
            return type(function)(decorate(function.__func__))
        _check(function)
        cache = FunctionCache(function, folder, version, ignore, max_size=max_size, allow_pickle=allow_pickle)
        get = cache._get

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return get(args, kwargs)

        made: Any = wrapper
        made.cache, made.call, made.check_call_in_cache = cache, cache.call, cache.check_call_in_cache
        setattr(made, CACHED, function)
        return made

    return decorate


def _check(function: Any) -> None:
    """Raise UnsupportedType for what has no results that can be kept."""
    if not callable(function):
        raise TypeError(f"ws.cached keeps the results of a function; got {function!r:.80}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    if isinstance(inner, type):
        raise UnsupportedType(f"{inner.__qualname__} is a class; cache a function that makes what you need of it")
    for test, what in (
        (inspect.iscoroutinefunction, "a coroutine function: cache a function that it awaits in a thread"),
        (inspect.isasyncgenfunction, "an asynchronous generator: cache a function that returns a list"),
        (inspect.isgeneratorfunction, "a generator, whose items are computed later: return a list"),
    ):
        if test(inner) or test(getattr(inner, "__call__", None)):  # noqa: B004  it is not asked whether it is callable
            raise UnsupportedType(f"{getattr(inner, '__qualname__', inner)} is {what}")
