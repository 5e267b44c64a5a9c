"""What the code of an installed module binds to its names, as its compiled code says.

A module is executed once, and its code is not kept. Its loader has the code still, in the file of byte code that Python
wrote. A statement such as `mean = partial(_mean, axis=0)` binds a name to what it loads: names, constants, imports,
functions. A value that no statement of the module can have bound was put there by somebody else.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import resolve_name
from types import (
    CodeType,
    FunctionType,
    ModuleType,
)
from typing import Any

from warmstore.identity.instructions import decoded
from warmstore.identity.origin import is_found
from warmstore.identity.patches.parts import WRAPPERS, attributes_in, has_name, names_of, wrapped_by
from warmstore.identity.plain_data import atom_text

_LOADS = frozenset(
    ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_CLASSDEREF",
     "LOAD_FROM_DICT_OR_DEREF", "LOAD_DEREF")
)  # fmt: skip
_CONSTANTS = frozenset(("LOAD_CONST", "KW_NAMES", "LOAD_SMALL_INT"))
_STORES = frozenset(("STORE_NAME", "STORE_GLOBAL"))
_MAKES_FUNCTION = frozenset(("MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE"))
_CALLS = frozenset(("CALL", "CALL_FUNCTION_EX", "CALL_KW"))
_OPEN = frozenset(("FOR_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "BEFORE_WITH", "LOAD_SPECIAL", "IMPORT_STAR"))
_LOOKS_UP = frozenset(("getattr", "globals", "vars", "import_module"))
_COPIES = frozenset(("COPY", "SWAP"))
_ENDS = frozenset(("POP_TOP", "STORE_SUBSCR", "STORE_ATTR", "DELETE_NAME"))
_SUBSCRIPTS = frozenset(("BINARY_SUBSCR", "BINARY_SLICE", "BINARY_OP"))
_MAKERS: dict[str, Any] = {"int": int, "float": float, "bool": bool}
_MISSING = object()


@dataclass(frozen=True)
class Binding:
    """A statement that binds a name.

    words: names and attributes that the statement loads, and names of the functions in it. constants: texts of its
    constants. codes: the functions in it. source: the module and name of `from module import name`. is_plain: whether
    it is a `def` without decorators. calls: whether it calls anything. is_open: whether it may
    bind any value, as a loop does.
    """

    words: frozenset[str]
    constants: tuple[Any, ...]
    codes: tuple[CodeType, ...] = ()
    source: tuple[str, str] | None = None
    is_plain: bool = False
    calls: bool = False
    is_open: bool = False


class Bindings:
    """The statements of a module and of its classes that bind names.

    Args:
        code: The code of the module.
        own: The namespace of the module.
    """

    def __init__(self, code: CodeType, own: dict[str, Any]) -> None:
        self._code = code
        self._own = own
        self._package = str(own.get("__package__") or "")
        self._places: dict[str, list[Binding]] = {}  # by name, or class and name
        self._classes: dict[str, list[CodeType]] = {}  # that were not read so far
        self._read(code, "")

    def explain(self, place: str, value: Any) -> bool:
        """Whether the module may have bound a value: one of its statements can have, or none binds this name.

        Args:
            place: The name, or the class and name: "f", "Linear.forward".
        """
        found = self._at(place)
        if not found:
            return True
        own = self._own
        for part in place.split(".")[:-1]:
            own = {**own, **vars(own[part])} if isinstance(own.get(part), type) else own
        return any(_explains(binding, value, own) for binding in found) or binds_globally(self._code, place)

    def explains_constant(self, name: str, value: Any) -> bool:
        """Whether a global constant has a value that the module has given it, as far as its statements tell.

        They do not tell if they bind the name to anything else than a constant, or if a function binds it again.
        """
        found = self._at(name)
        constants = [_constant(binding) for binding in found]
        if not found or _MISSING in constants or any(_equal(constant, value) for constant in constants):
            return True
        return binds_globally(self._code, name)

    def _at(self, place: str) -> list[Binding]:
        scope = ""
        for part in place.split(".")[:-1]:
            scope += f"{part}."
            for code in self._classes.pop(scope, ()):
                self._read(code, scope)
        return self._places.get(place, [])

    def _read(self, code: CodeType, scope: str) -> None:
        words: set[str] = set()
        constants: list[Any] = []
        codes: list[CodeType] = []
        source: tuple[str, str] | None = None
        calls = is_class = is_open = False
        imports = ""
        before = ""
        binding = Binding(frozenset(), ())
        for name, value in decoded(code):
            if name in _STORES:
                if before not in _STORES:  # `a = b = 1` and `a, b = f()` are single statements
                    is_plain = before in _MAKES_FUNCTION
                    binding = Binding(
                        frozenset((*words, *(each.co_name for each in codes))),
                        tuple(constants), tuple(codes), source, is_plain, calls,
                        not is_plain and (is_open or before in _OPEN),
                    )  # fmt: skip
                    if is_class:
                        self._classes.setdefault(f"{scope}{codes[0].co_name}.", []).append(codes[0])
                self._places.setdefault(f"{scope}{value}", []).append(binding)
                words, constants, codes, source, calls, is_class, is_open = set(), [], [], None, False, False, False
            elif name in _LOADS:
                words.add(str(value))
            elif name in _CONSTANTS:
                if isinstance(value, CodeType):
                    codes.append(value)
                elif name == "KW_NAMES" or not codes or before != "LOAD_CONST":
                    constants.append(value)
            elif name == "IMPORT_NAME":
                imports = self._absolute(str(value), constants)
                words, constants = set(), []
            elif name == "IMPORT_FROM":
                source = imports, str(value)
            elif name == "LOAD_BUILD_CLASS":
                is_class = True
            elif name in _CALLS:
                calls = True
            elif name in _SUBSCRIPTS:
                is_open = True
            elif name in _ENDS:
                words, constants, codes, source, calls, is_class, is_open = set(), [], [], None, False, False, False
            if name not in _COPIES:  # `a = b = 1`
                before = name

    def _absolute(self, name: str, constants: list[Any]) -> str:
        level = constants[-2] if len(constants) > 1 and type(constants[-2]) is int else 0
        try:
            return resolve_name("." * level + name, self._package) if level else name
        except ImportError:
            return name


@functools.lru_cache(maxsize=16)  # a module that changes is asked again and again
def bindings_of(module: ModuleType) -> Bindings | None:
    """What the code of a module binds; None for a module without Python code."""
    code = code_of(module)
    return None if code is None else Bindings(code, vars(module))


def code_of(module: ModuleType) -> CodeType | None:
    """The code of a module; None for a module without Python code."""
    spec: Any = vars(module).get("__spec__")
    get_code = getattr(getattr(spec, "loader", None), "get_code", None)
    if get_code is None:
        return None
    try:
        code = get_code(spec.name)
    except Exception:  # a loader may raise anything
        return None
    return code if isinstance(code, CodeType) else None


def binds_globally(code: CodeType, name: str) -> bool:
    """Whether a function in some code binds a global name when it runs: by `global`, or by `globals().update(locals())`
    as `pkg_resources` does."""
    return any(
        (name in inner.co_names and ("STORE_GLOBAL", name) in decoded(inner))
        or (name in inner.co_varnames and {"globals", "update", "locals"} <= {*inner.co_names})
        or binds_globally(inner, name)
        for inner in code.co_consts
        if isinstance(inner, CodeType)
    )


def _explains(binding: Binding, value: Any, own: Mapping[str, Any]) -> bool:
    """Whether a statement can have bound a value."""
    if binding.is_open:
        return True
    if issubclass(type(value), WRAPPERS):
        return _is_loaded(binding, value, own) or all(_explains(binding, part, own) for part in wrapped_by(value))
    if binding.source is not None:
        module = sys.modules.get(binding.source[0])
        here = _MISSING if module is None else vars(module).get(binding.source[1], _MISSING)
        return here is value or here is _MISSING or binding.source[1] in names_of(value)
    if (
        type(value) is FunctionType
        and value.__globals__.get("__name__") == own.get("__name__")
        and value.__code__ in binding.codes
    ):
        return True
    if binding.is_plain:
        return False
    if binding.constants == (None,) and not binding.words:
        return True  # a place for a function that the library sets later
    if "_torchdynamo_orig_callable" in attributes_in(value):
        return "compile" in binding.words
    if issubclass(type(value), functools.partial) and binding.calls:
        parts = (value.func, *value.args, *value.keywords.values())
        return all(_is_part(binding, part, own) for part in parts)
    if _is_named(binding, value) or _is_loaded(binding, value, own):
        return True
    return binding.calls and _may_return(binding, value, own)


def _may_return(binding: Binding, value: Any, own: Mapping[str, Any]) -> bool:
    """Whether the calls in a statement may return a value that the statement does not name."""
    if issubclass(type(value), type) and binding.codes:
        return value.__name__ in {code.co_name for code in binding.codes} or not is_found(value)
    if issubclass(type(value), type) or not has_name(value) or not _LOOKS_UP.isdisjoint(binding.words):
        return True
    if not binding.codes:
        return not is_found(value)  # the function that is called has made it
    if type(value) is FunctionType and value.__globals__.get("__name__") == own.get("__name__"):
        return "<locals>" in value.__qualname__
    return own.get(value.__name__) is not value  # a decorator returns no other function of the module


def _is_part(binding: Binding, part: Any, own: Mapping[str, Any]) -> bool:
    """Whether a statement can have passed an argument."""
    if atom_text(part) is not None:
        known = (*binding.constants, *(own.get(word) for word in binding.words))
        return any(_equal(each, part) for each in known)
    return part is functools.partial or not has_name(part) or _is_named(binding, part) or _is_loaded(binding, part, own)


def _is_named(binding: Binding, value: Any) -> bool:
    names = names_of(value)
    return not names.isdisjoint(binding.words) or not names.isdisjoint(filter(_is_text, binding.constants))


def _is_loaded(binding: Binding, value: Any, own: Mapping[str, Any]) -> bool:
    """Whether a statement loads a value: `mean`, or `package.module.mean`."""
    if binding.codes:
        return False
    spaces = [own]
    for space in spaces:  # grows
        for word in binding.words:
            found = space.get(word, _MISSING)
            if found is value:
                return True
            if issubclass(type(found), ModuleType):
                if not any(vars(found) is known for known in spaces):
                    spaces.append(vars(found))
            elif found is not _MISSING and len(binding.words) > 1 and not binding.calls:
                return True  # an attribute of a class or object may be anything
    return False


def _is_text(value: Any) -> bool:
    return type(value) is str


def _constant(binding: Binding) -> Any:
    """The constant that a statement binds: `4`, or `int(4.5)`. `_MISSING` if it binds anything else."""
    if len(binding.constants) != 1 or binding.is_open or binding.source is not None:
        return _MISSING
    if not binding.words and not binding.calls:
        return binding.constants[0]
    (word,) = binding.words if len(binding.words) == 1 else ("",)
    return _MAKERS[word](binding.constants[0]) if word in _MAKERS else _MISSING


def _equal(one: Any, other: Any) -> bool:
    """Whether two constants are the same. A number that is none is the same as any other."""
    return type(one) is type(other) and (one == other or repr(one) == repr(other))
