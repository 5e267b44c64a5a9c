"""The parameters of a function: a call's arguments by name, with defaults filled in, however the call passes them."""

import functools
import inspect
from collections.abc import Callable, Collection
from operator import is_
from types import FunctionType
from typing import Any

Argument = tuple[str, Any]
"""A name, such as "x", "args[0]" or "options['x']", and a value."""


class Parameters:
    """Names the arguments of calls. `f(1, b=2)`, `f(a=1, b=2)` and `f(1, 2)` have the same arguments.

    Args:
        function: any callable. The arguments of one without a signature are named by their positions.
        ignore: parameters to leave out.
    """

    def __init__(self, function: Callable[..., Any], ignore: Collection[str]) -> None:
        self._function = function
        self._ignore = frozenset(ignore)
        self._made_of = _made_of(function)
        try:
            self._signature = inspect.signature(function, follow_wrapped=False)
        except ValueError:  # some functions of C have none
            self._signature = inspect.Signature(
                [
                    inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
                    inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD),
                ]
            )
        parameters = self._signature.parameters.values()
        kinds = {parameter.kind for parameter in parameters}
        self.names = frozenset(parameter.name for parameter in parameters)
        self._order: tuple[str, ...] | None = None
        if kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
            self._order = tuple(parameter.name for parameter in parameters)
        self._positional = sum(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)
        self._defaults = {p.name: p.default for p in parameters if p.default is not inspect.Parameter.empty}

    def renewed(self) -> "Parameters":
        """The parameters of the function as it is now. A program may replace its code and its defaults."""
        function, before = self._function, self._made_of
        if type(function) is FunctionType and not function.__kwdefaults__:  # most are, and each call asks
            code, defaults, *others = before
            if function.__code__ is code and function.__defaults__ is defaults and not others:
                return self
        now = _made_of(function)
        if len(now) == len(before) and all(map(is_, now, before)):
            return self
        return Parameters(self._function, self._ignore)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Argument] | None:
        """The arguments of a call without the ignored ones, in the order of the parameters. None: the call does not
        fit the function, which says so itself."""
        order = self._order
        if order is None:
            return self._bind_any(args, kwargs)
        given = len(args)
        if given > self._positional:
            return None
        found = list(zip(order, args, strict=False))
        used = 0
        for name in order[given:]:
            if name in kwargs:
                used += 1
                found.append((name, kwargs[name]))
            elif name in self._defaults:
                found.append((name, self._defaults[name]))
            else:
                return None
        if used != len(kwargs):
            return None
        return [pair for pair in found if pair[0] not in self._ignore] if self._ignore else found

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise TypeError if a call does not fit the function."""
        self._signature.bind(*args, **kwargs)

    def _bind_any(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Argument] | None:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError:
            return None
        bound.apply_defaults()
        found: list[Argument] = []
        for name, value in bound.arguments.items():
            if name in self._ignore:
                continue
            kind = self._signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                found += [(f"{name}[{at}]", item) for at, item in enumerate(value)]
            elif kind is inspect.Parameter.VAR_KEYWORD:
                # In the order of the call, which the function sees.
                found += [(f"{name}[{key!r}]", item) for key, item in value.items() if key not in self._ignore]
            else:
                found.append((name, value))
        return found


def _made_of(function: Any) -> list[Any]:
    """The objects that decide the signature of a function."""
    parts: list[Any] = []
    while isinstance(function, functools.partial):
        parts += [*function.keywords, *function.keywords.values()]
        function = function.func
    code = getattr(function, "__code__", None)
    if code is None:  # a method, or an object that is called
        function = getattr(function, "__func__", None) or type(function).__call__
        code = getattr(function, "__code__", None)
    parts += [code, getattr(function, "__defaults__", None)]
    if of_names := getattr(function, "__kwdefaults__", None):
        parts += [*of_names, *of_names.values()]
    return parts


def name_of(function: Any) -> str:
    """The name of a function in its module, such as "features.Model.embed"; of a partial, that of its function."""
    while isinstance(function, functools.partial):
        function = function.func
    function = getattr(function, "__func__", function)
    kind = type(function)
    name = getattr(function, "__qualname__", None) or f"{kind.__qualname__}.__call__"
    module = getattr(function, "__module__", None) or kind.__module__
    name = str(name).replace("<locals>.", "")
    return name if module in ("__main__", "__mp_main__") else f"{module}.{name}"
