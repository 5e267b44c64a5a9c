"""What counts of values that are neither plain data nor functions, classes or modules: by exact type, one rule each.

Objects without a rule are their class and state: what `__identity__` gives, else what copying and pickling take
(`copyreg`, `__reduce_ex__`), looked at as objects and never as bytes. A type can be given a rule with `register`.
"""

from __future__ import annotations

import copyreg
import ctypes
import dataclasses
import decimal
import enum
import functools
import io
import logging
import mmap
import os
import queue
import random
import re
import struct
import sys
import threading
import types
import typing
import warnings
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from warmstore.identity.code import facts_of
from warmstore.identity.named_files import content_of, stat_of
from warmstore.identity.origin import origin_of_name
from warmstore.identity.plain import (
    attributes_of,
    dtype_text,
    has_identity,
    has_plain_state,
    is_made_in_python,
    layout_text,
    shortened,
    slots_of,
)

if TYPE_CHECKING:
    from warmstore.identity.walk import Place, Walk

Rule = Callable[["Walk", "Place", Any], None]

_registered: dict[type, Callable[[Any], Any]] = {}
_rules: dict[type, Rule] = {}


def register(kind: type, rule: Callable[[Any], Any]) -> None:
    """Say what stands for the objects of a type, exactly this one, wherever an identity is made.

    Args:
        kind: of the objects; subclasses need a registration of their own.
        rule: takes an object, returns a value that differs where objects would make a difference.
    """
    _registered[kind] = rule


def has_rule(kind: type) -> bool:
    """Whether objects of a type count by a rule, and not by their attributes."""
    return kind in _registered or kind in _rules or _family_of(kind) is not None


def is_module(kind: type) -> bool:
    """Whether a type is torch's Module or derived from it."""
    if "torch" not in sys.modules:
        return False
    from warmstore.identity import torch_kinds

    return torch_kinds.is_module(kind)


def is_stateful(value: Any) -> bool:
    """Whether an object that a library has as a global holds settings, or a state that decides results."""
    return type(value) in _STATEFUL or isinstance(value, os._Environ)


def is_value(kind: type) -> bool:
    """Whether objects of a type are told by what they are alone, and not by which of them it is."""
    return kind in _VALUES or (issubclass(kind, enum.Enum)) or kind.__module__ in ("torch", "torch._ops", "torch._C")


def look(walk: Walk, place: Place, value: Any) -> None:
    """Note all of a value."""
    kind = type(value)
    given = _registered.get(kind)
    if given is not None:
        _stands_for(walk, place, value, given)
        return
    if kind not in _rules and has_identity(kind):
        _stands_for(walk, place, value, kind.__identity__)
        return
    rule = _rules.get(kind) or _family_of(kind) or _object
    rule(walk, place, value)


def rule(*kinds: type) -> Callable[[Rule], Rule]:
    """Decorate the rule of some types."""

    def keep(function: Rule) -> Rule:
        _rules.update(dict.fromkeys(kinds, function))
        return function

    return keep


def _family_of(kind: type) -> Rule | None:
    """The rule of types that are known by a base class."""
    for base, family in _BASES:
        if issubclass(kind, base):
            return family
    if kind.__module__ in _INERT_MODULES or kind.__module__.startswith("tqdm."):
        return _inert
    if kind.__module__ == "datasets.arrow_dataset":
        return _hugging_face
    if kind.__module__.partition(".")[0] == "pandas" and hasattr(kind, "to_numpy"):
        return _pandas
    if kind.__module__ == "pyarrow.lib":
        return _arrow_rule(kind)
    if any(base.__module__ in _OF_THIS_PROCESS for base in kind.__mro__):
        return _library_object
    if kind.__name__ == "PjitFunction" and kind.__module__.startswith("jaxlib."):
        return _jitted
    for base in kind.__mro__:
        module = base.__module__
        if isinstance(module, str) and module.partition(".")[0] == "torch":
            from warmstore.identity import torch_kinds

            return torch_kinds.rule_of(kind)
    return None


def _stands_for(walk: Walk, place: Place, value: Any, rule: Callable[[Any], Any]) -> None:
    try:
        given = rule(value)
    except Exception as error:
        walk.cannot_tell(place, f"its __identity__ or rule raised {type(error).__name__}: {error}")
        return
    walk.fact(place, f"stands for {type(value).__qualname__}")
    walk.whole(place + ".__identity__", given)
    watch_attributes(walk, value)
    if walk.settings.watch is not None:
        walk.watch_probe(lambda: walk.apart(rule(value)))


def _state(walk: Walk, place: Place, text: Callable[[], str]) -> None:
    """Note a state that changes in place."""
    walk.fact(place, text())
    walk.watch_probe(text)


# Containers.


@rule(tuple)
def _tuple(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "tuple", value)


@rule(list)
def _list(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.items(place, "list", value)


@rule(deque)
def _deque(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.items(place, f"deque with at most {value.maxlen}", list(value))


@rule(dict, OrderedDict, Counter, types.MappingProxyType)
def _dict(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.keys())
    walk.watch(value)
    walk.pairs(place, type(value).__name__, value.items())


@rule(defaultdict)
def _defaultdict(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.watch_cell(functools.partial(getattr, value, "default_factory"))
    walk.pairs(place, "defaultdict", value.items())
    walk.whole(place + ".default_factory", value.default_factory)


@rule(ChainMap)
def _chain_map(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value.maps)
    walk.items(place, "ChainMap", value.maps)


@rule(set, frozenset)
def _set(walk: Walk, place: Place, value: Any) -> None:
    walk.watch(value)
    walk.unordered(place, type(value).__name__, value)


@rule(type({}.keys()), type({}.values()), type({}.items()))
def _view(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, type(value).__name__, list(value))


@rule(types.SimpleNamespace)
def _namespace(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "SimpleNamespace")
    walk.watch(vars(value))
    _attributes(walk, place, vars(value))


@rule(weakref.ref)
def _weak_reference(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "weak reference")
    walk.whole(place + ".<target>", value())


@rule(weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
def _weak_dict(walk: Walk, place: Place, value: Any) -> None:
    walk.pairs(place, type(value).__name__, value.items())


@rule(weakref.WeakSet)
def _weak_set(walk: Walk, place: Place, value: Any) -> None:
    walk.unordered(place, "WeakSet", list(value))


@rule(slice)
def _slice(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "slice", (value.start, value.stop, value.step))


# Bytes and numbers.


@rule(bytearray)
def _bytearray(walk: Walk, place: Place, value: Any) -> None:
    _state(walk, place, lambda: f"bytearray {shortened(bytes(value).hex())}")


@rule(memoryview)
def _memoryview(walk: Walk, place: Place, value: Any) -> None:
    _state(walk, place, lambda: f"memoryview {value.format} {value.shape} {shortened(value.tobytes().hex())}")


@rule(io.BytesIO, io.StringIO)
def _memory_file(walk: Walk, place: Place, value: Any) -> None:
    _state(walk, place, lambda: f"{type(value).__name__} {shortened(repr(value.getvalue()))} {value.tell()}")


@rule(struct.Struct)
def _struct(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"struct.Struct {value.format!r}")


@rule(re.Pattern)
def _pattern(walk: Walk, place: Place, value: Any) -> None:
    walk.items(place, "re.Pattern", (value.pattern, value.flags))


@rule(random.Random)
def _random(walk: Walk, place: Place, value: Any) -> None:
    if not walk.settings.draws and value is vars(random)["_inst"]:
        walk.fact(place, "default generator of random")
        return
    _state(walk, place, lambda: f"random.Random {shortened(repr(value.getstate()))}")


@rule(np.random.Generator)
def _generator(walk: Walk, place: Place, value: Any) -> None:
    _state(walk, place, lambda: f"numpy.random.Generator {shortened(_with_arrays(value.bit_generator.state))}")


@rule(np.random.RandomState)
def _random_state(walk: Walk, place: Place, value: Any) -> None:
    if not walk.settings.draws and value is vars(np.random.mtrand)["_rand"]:
        walk.fact(place, "default generator of numpy")
        return
    _state(walk, place, lambda: f"numpy.random.RandomState {shortened(_with_arrays(value.get_state(legacy=False)))}")


def _with_arrays(state: Any) -> str:
    """A text of a generator's state, whose arrays a `repr` would shorten."""
    if isinstance(state, dict):
        return repr({key: _with_arrays(value) for key, value in state.items()})
    return state.tobytes().hex() if isinstance(state, np.ndarray) else repr(state)


# Arrays.


@rule(np.ndarray)
def _array(walk: Walk, place: Place, value: Any) -> None:
    if value.dtype.hasobject:
        walk.fact(place, f"array {dtype_text(value.dtype)} {value.shape}")
        walk.watch(value.flat)
        walk.whole(place + ".<elements>", value.reshape(-1).tolist())
        return
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    known = walk.memory.setdefault(id(base), place)
    if known != place:
        walk.fact(place + ".<memory>", f"same as {walk.said(known)}")
    walk.fact(place, layout_text(value) if walk.settings.tensors == "layout" else walk.array_text(place, value))


@rule(np.memmap)
def _mapped(walk: Walk, place: Place, value: Any) -> None:
    if value.mode == "r" and isinstance(value.base, mmap.mmap) and (found := stat_of(str(value.filename))):
        # What cannot be written through the mapping is the file, which need not be read.
        walk.fact(place, f"mapped {dtype_text(value.dtype)} {value.shape} {value.strides} {value.offset}")
        if walk.settings.files == "content":
            walk.fact(
                place + ".<file>", content_of(str(value.filename), found.st_size, found.st_mtime_ns, found.st_ino)
            )
        else:
            walk.file(place + ".filename", str(value.filename))
        return
    walk.fact(place, walk.array_text(place, np.asarray(value)))


def _content(walk: Walk, place: Place, value: Any) -> None:
    """Note what arrays hold that are no inputs of compiled code: it cannot be told what is made of them there."""
    if walk.settings.tensors == "layout":
        walk.fact(place + ".<content>", walk.apart(value, tensors="content"))


def _array_subclass(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"object of {walk.cls(type(value))}")
    _content(walk, place, value)
    watch_attributes(walk, value)
    if isinstance(value, np.ma.MaskedArray):
        parts = {"data": value.data, "mask": np.ma.getmaskarray(value), "fill_value": value.fill_value}
    else:
        parts = {"<array>": value.view(np.ndarray)}
    _attributes(walk, place, {**{k: v for k, v in vars(value).items() if not k.startswith("_")}, **parts})


@rule(*{type(np.dtype(name)) for name in np.sctypeDict.values()}, type(np.dtype([("a", "i4")])))
def _dtype(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"dtype {dtype_text(value)}")


@rule(np.ufunc)
def _ufunc(walk: Walk, place: Place, value: Any) -> None:
    name: str = value.__name__
    found = "numpy" if getattr(np, name, None) is value else _holder_of(value)
    if found is not None:
        walk.origin(origin_of_name(found))
        walk.fact(place, f"{found}.{name}")
    else:
        walk.cannot_tell(place, "a ufunc that was made from a Python function does not give it back")


def _holder_of(value: Any) -> str | None:
    for name in ("scipy.special", "scipy.special._ufuncs", "numpy.linalg._umath_linalg", "ml_dtypes"):
        module = sys.modules.get(name)
        if module is not None and any(one is value for one in vars(module).values()):
            return name
    return None


@rule(np.vectorize)
def _vectorize(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"object of {walk.cls(type(value))}")
    # What it makes of the function when it is called first follows from the rest.
    _attributes(walk, place, {name: one for name, one in vars(value).items() if name not in ("_ufunc", "__doc__")})


@dataclasses.dataclass(frozen=True)
class Versioned:
    """What `__identity__` may give: a name that something keeps for good, and the state that it is in now."""

    name: Any
    state: Any


@rule(Versioned)
def _versioned(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "versioned")
    walk.whole(place + ".name", value.name)
    walk.whole(place + ".<state>", value.state)


# Callables.


@rule(functools.partial)
def _partial(walk: Walk, place: Place, value: Any) -> None:
    from warmstore.identity.reads import read_call

    walk.fact(place, f"partial of {len(value.args)} and {sorted(value.keywords)}")
    walk.watch(value.keywords)
    watch_attributes(walk, value)
    read_call(walk, place, value.func, value.args, value.keywords)
    walk.watch(vars(value))
    walk.watch(value.keywords)
    _attributes(walk, place, vars(value))


@rule(functools.partialmethod)
def _partial_method(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "partialmethod")
    _attributes(walk, place, {"func": value.func, "args": value.args, "keywords": value.keywords})


@rule(types.MethodType)
def _method(walk: Walk, place: Place, value: Any) -> None:
    from warmstore.identity.reads import read_method

    read_method(walk, place, value.__func__, value.__self__)


@rule(functools._lru_cache_wrapper)
def _lru_cache(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(
        place, f"lru_cache {sorted(value.cache_parameters().items(), key=str)}"
    )  # its contents follow from the rest
    walk.whole(place + ".__wrapped__", value.__wrapped__)


@rule(functools.cached_property)
def _cached_property(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"cached_property {value.attrname}")
    walk.whole(place + ".func", value.func)


@rule(property)
def _property(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "property")
    _attributes(walk, place, {"fget": value.fget, "fset": value.fset, "fdel": value.fdel})


@rule(staticmethod, classmethod)
def _static(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, type(value).__name__)
    walk.whole(place + ".__func__", value.__func__)


@rule(types.BuiltinFunctionType)
def _builtin(walk: Walk, place: Place, value: Any) -> None:
    from warmstore.identity.reads import refusal_of

    reason = refusal_of(value)
    if reason:
        walk.cannot_tell(place, reason)
        return
    owner = value.__self__
    module = str(value.__module__ or getattr(owner, "__name__", ""))
    name = str(getattr(value, "__qualname__", value.__name__))
    if owner is None or isinstance(owner, types.ModuleType | type) or type(owner).__name__ == "PyCapsule":
        if isinstance(owner, type):
            walk.cls(owner)
        if module:
            walk.origin(origin_of_name(module))
        walk.fact(place, f"builtin {module}.{name}")
        if name in ("getcwd", "getcwdb") and module in ("posix", "nt"):
            walk.fact(walk.root(("settings", "cwd"), "working directory")[0], os.getcwd())  # noqa: PTH109
        if module == "torch" or name.startswith("_VariableFunctionsClass."):
            from warmstore.identity import torch_kinds

            if walk.settings.draws and torch_kinds.draws(name.rpartition(".")[2]):
                state, _ = walk.root(("settings", "generator"), "default generator of torch")
                walk.fact(state, torch_kinds.default_generator_text())
        return
    walk.fact(place, f"builtin method {value.__name__}")
    walk.whole(place + ".__self__", owner)


@rule(types.MethodWrapperType)
def _method_wrapper(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"method {value.__name__}")
    walk.whole(place + ".__self__", value.__self__)


@rule(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType)
def _descriptor_in_c(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"{type(value).__name__} {value.__name__} of {walk.cls(value.__objclass__)}")


@rule(types.GetSetDescriptorType, types.MemberDescriptorType)
def _member(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"{type(value).__name__} {value.__name__}")


@rule(types.CodeType)
def _code(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"code {facts_of(value).digest}")


@rule(types.CellType)
def _cell(walk: Walk, place: Place, value: Any) -> None:
    try:
        walk.whole(place, value.cell_contents)
    except ValueError:
        walk.fact(place, "empty cell")


@rule(types.GenericAlias, types.UnionType)
def _alias(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, type(value).__name__)
    origin = getattr(value, "__origin__", None)
    _attributes(walk, place, {"origin": origin, "args": value.__args__})


def _typing(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"{type(value).__qualname__} {getattr(value, '__name__', '')}")
    args = getattr(value, "__args__", ())
    _attributes(
        walk, place, {"args": args if isinstance(args, tuple) else (), "of": getattr(value, "__origin__", None)}
    )


@rule(os._Environ)
def _environ(walk: Walk, place: Place, value: Any) -> None:
    walk.cannot_tell(place, "the whole environment is another in every process; read variables by constant names")


@rule(decimal.Context)
def _decimal_context(walk: Walk, place: Place, value: Any) -> None:
    _state(walk, place, lambda: repr(value).partition(", flags")[0])


# Inert: what makes no difference to values.


def _inert(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"any {type(value).__qualname__}")


rule(
    type(threading.Lock()), type(threading.RLock()), threading.Condition, threading.Event, threading.Semaphore,
    threading.BoundedSemaphore, threading.Barrier, threading.Thread, logging.Logger, logging.RootLogger,
    logging.LoggerAdapter, type(warnings.catch_warnings()), types.TracebackType,
)(_inert)  # fmt: skip


# What cannot be told.


def _refused(reason: str) -> Rule:
    def refuse(walk: Walk, place: Place, value: Any) -> None:
        walk.cannot_tell(place, reason)

    return refuse


rule(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)(
    _refused("a generator does not tell what it will give")
)
rule(types.FrameType)(_refused("a frame changes as the program runs"))
rule(io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)(
    _refused("an open file has a position and a content that change; pass its path")
)
rule(queue.Queue, queue.SimpleQueue, queue.LifoQueue, queue.PriorityQueue)(_refused("a queue changes as it is used"))
rule(threading.local)(_refused("it is another in every thread"))
rule(mmap.mmap)(_refused("what is mapped may change; pass the path of the file"))


# Objects in general.


def _enum_member(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"member {value._name_!r} of {walk.cls(type(value))}")
    if value._name_ is None or value._name_ not in type(value).__members__:
        walk.whole(place + ".value", value._value_)  # a combination of flags


def _native_library(walk: Walk, place: Place, value: Any) -> None:
    found = stat_of(str(value._name))
    if found is None:
        walk.fact(place, f"library {value._name}")
    else:
        walk.fact(place, f"library {content_of(str(value._name), found.st_size, found.st_mtime_ns, found.st_ino)}")


def _path(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"path of {walk.cls(type(value))} {str(value)!r}")
    walk.file(place, value)
    _attributes(walk, place, getattr(value, "__dict__", {}))


def _library_object(walk: Walk, place: Place, value: Any) -> None:
    """An object of a library that notes numbers of this process in it."""
    left = {_OF_THIS_PROCESS.get(base.__module__) for base in type(value).__mro__}
    walk.fact(place, f"object of {walk.cls(type(value))}")
    watch_attributes(walk, value)
    _attributes(walk, place, {name: one for name, one in attributes_of(value).items() if name not in left})


def _jitted(walk: Walk, place: Place, value: Any) -> None:
    """What `jax.jit` gives computes what its function does; which arguments are static makes no difference to that."""
    walk.fact(place, "function of jax.jit")
    walk.origin(origin_of_name("jax"))
    walk.whole(place + ".__wrapped__", value.__wrapped__)


def _hugging_face(walk: Walk, place: Place, value: Any) -> None:
    """A data set by its fingerprint, and by the function that makes samples as they are read."""
    walk.fact(place, f"data set {getattr(value, '_fingerprint', None)!r} {getattr(value, '_format_type', None)!r}")
    walk.whole(place + ".format", getattr(value, "_format_kwargs", None))


def _pandas(walk: Walk, place: Place, value: Any) -> None:
    """A frame, series or index by its state, and by the files that its texts name."""
    _object(walk, place, value)
    _content(walk, place, value)
    found = value.to_numpy()
    if found.dtype.kind in "OUT":
        walk.strings(place, [one for one in found.ravel().tolist() if isinstance(one, str)])


def _arrow_rule(kind: type) -> Rule | None:
    if hasattr(kind, "to_batches"):
        return _arrow_table
    return _arrow_array if hasattr(kind, "to_pylist") else _arrow_buffer if kind.__name__ == "Buffer" else None


def _arrow_table(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"{type(value).__name__} {shortened(repr(value.schema))} of {value.num_rows}")
    for name, column in zip(value.schema.names, value.columns, strict=True):
        walk.whole(place + f".<{name}>", column)


def _arrow_array(walk: Walk, place: Place, value: Any) -> None:
    """An array by its elements: buffers may hold more than a slice of them shows."""
    import pyarrow as pa

    arrays = value.chunks if isinstance(value, pa.ChunkedArray) else [value] if isinstance(value, pa.Array) else None
    if arrays is None:
        walk.items(place, f"arrow {value.type}", (value.as_py(),))
        return
    joined = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0] if arrays else pa.array([], value.type)
    sink = pa.BufferOutputStream()
    table = pa.table({"": pa.concat_arrays([joined, joined.slice(0, 0)])})  # into memory of its own, from its beginning
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    walk.fact(place, f"arrow {value.type} of {len(joined)} {xxhash.xxh3_128_hexdigest(sink.getvalue())}")
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        walk.strings(place, [one for one in joined.to_pylist() if one is not None])


def _arrow_buffer(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"buffer of {value.size} {xxhash.xxh3_128_hexdigest(value)}")


def _dataclass_field(walk: Walk, place: Place, value: Any) -> None:
    names = ("name", "default", "default_factory", "init", "repr", "hash", "compare", "metadata", "kw_only")
    walk.fact(place, "field of a dataclass")
    _attributes(walk, place, {name: getattr(value, name) for name in names})


def _attributes(walk: Walk, place: Place, attributes: Any) -> None:
    for name in sorted(attributes, key=str):
        walk.whole(place + f".{name}", attributes[name])


def _object(walk: Walk, place: Place, value: Any) -> None:
    """An object by its class, its state and, in subclasses of builtin containers, what it contains."""
    kind = type(value)
    if has_plain_state(kind):
        walk.fact(place, f"object of {walk.cls(kind)}")
        watch_attributes(walk, value)
        _attributes(walk, place, attributes_of(value))
        return
    watch_attributes(walk, value)
    base = next((base for base in _EXTENDED if isinstance(value, base)), None)
    reducer = copyreg.dispatch_table.get(kind)
    if base is not None and reducer is None and not _says_how(kind, base):
        walk.fact(place, f"object of {walk.cls(kind)}")
        _attributes(walk, place, attributes_of(value))
        walk.whole(place + f".<{base.__name__}>", _EXTENDED[base](value))
        return
    if kind is not object and not is_made_in_python(kind) and reducer is None and _reduces_as_objects_do(kind):
        walk.cannot_tell(place, f"a {kind.__module__}.{kind.__qualname__} of C does not tell its state")
        return
    if type(value).__module__ == "builtins" and kind.__name__ == "PyCapsule":
        walk.cannot_tell(place, "a capsule of C does not tell what is in it")
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reduced = reducer(value) if reducer is not None else value.__reduce_ex__(4)
    except Exception as error:
        walk.cannot_tell(place, f"a {kind.__module__}.{kind.__qualname__} does not tell its state ({error})")
        return
    if isinstance(reduced, str):
        _global_name(walk, place, value, reduced)
        return
    walk.fact(place, f"object of {walk.cls(kind)}")
    if not isinstance(reduced, tuple) or not 2 <= len(reduced) <= 6:
        walk.cannot_tell(place, f"__reduce_ex__ of a {kind.__qualname__} gave {type(reduced).__name__}")
        return
    make, args, state, items, pairs = (*reduced, None, None, None)[:5]
    if make is _NEW_OBJECT and args and args[0] is kind:
        args = args[1:]
    else:
        walk.whole(place + ".<made by>", make)
    for at, one in enumerate(args):
        walk.whole(place + f".<argument {at}>", one)
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state = {**(state[0] or {}), **state[1]}
    if isinstance(state, dict) and all(type(name) is str for name in state):
        _attributes(walk, place, state)
    elif state is not None:
        walk.whole(place + ".<reduced>", state)
    if items is not None:
        walk.whole(place + ".<items>", list(items))
    if pairs is not None:
        walk.pairs(place + ".<items>", "pairs", list(pairs))


def _reduces_as_objects_do(kind: type) -> bool:
    """Whether nothing says how objects of a class are to be copied: their state may be out of Python's sight."""
    plain = vars(object)
    return all(
        next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None) is plain.get(name)
        for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    )


def _global_name(walk: Walk, place: Place, value: Any, name: str) -> None:
    """What pickles as the name of a global: told where that is an installed module's own."""
    module = str(getattr(value, "__module__", None) or "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    origin = origin_of_name(module)
    if found is not value or origin.is_program:
        walk.cannot_tell(place, f"a {type(value).__qualname__} gives its name, {name!r}, instead of its state")
        return
    walk.origin(origin)
    walk.fact(place, f"object {module}.{name}")


def watch_attributes(walk: Walk, value: Any) -> None:
    """Have the attributes of an object watched and, in subclasses of builtin containers, what it contains."""
    own = getattr(value, "__dict__", None)
    walk.watch_object(value)
    if type(own) is dict:
        walk.watch(own)
    for name in slots_of(type(value)):
        walk.watch_cell(functools.partial(getattr, value, name, _MISSING))
    if isinstance(value, dict):
        walk.watch(dict.values(value))
    elif isinstance(value, list | deque | set):
        walk.watch(value)


def _says_how(kind: type, base: type) -> bool:
    """Whether a subclass of a builtin type, or a class between, says how it is to be copied."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__", "__getnewargs__", "__getnewargs_ex__")
    between = kind.__mro__[: kind.__mro__.index(base)]
    return any(name in vars(one) for one in between for name in names if one.__flags__ & (1 << 9)) and not (
        issubclass(kind, tuple) and hasattr(kind, "_fields")
    )


_EXTENDED: dict[type, Callable[[Any], Any]] = {
    defaultdict: lambda value: (value.default_factory, dict(dict.items(value))),
    OrderedDict: lambda value: dict(dict.items(value)),
    dict: lambda value: dict(dict.items(value)),
    list: lambda value: list(list.__iter__(value)),
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    deque: lambda value: list(deque.__iter__(value)),
    str: lambda value: str.__str__(value),
    bytes: lambda value: bytes(memoryview(value)),
    int: lambda value: int.__int__(value),
    float: lambda value: float.__float__(value),
    complex: lambda value: complex(value.real, value.imag),
}

_BASES: tuple[tuple[Any, Rule], ...] = (
    (enum.Enum, _enum_member),
    (np.ndarray, _array_subclass),
    (ctypes.CDLL, _native_library),
    (Path, _path),
    (vars(typing)["_Final"], _typing),
    (np.dtype, _dtype),
)
_rules[dataclasses.Field] = _dataclass_field
_OF_THIS_PROCESS = {
    "pydantic._internal._decorators": "cls_ref",  # names the class of a validator with an address
    "transformers.generation.configuration_utils": "_original_object_hash",  # of texts, by which changes are noticed
}
"""Attributes of libraries' objects that are others in each process, by the modules of their classes."""
_INERT_MODULES = frozenset(
    ("multiprocessing.synchronize", "concurrent.futures.thread", "concurrent.futures.process", "logging.handlers")
)
_NEW_OBJECT = vars(copyreg)["__newobj__"]
_MISSING = object()
_VALUES = frozenset(
    (tuple, slice, types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodDescriptorType,
     types.ClassMethodDescriptorType, types.MethodType, types.MethodWrapperType, types.CodeType, np.ufunc, re.Pattern)
)  # fmt: skip
_STATEFUL = frozenset(
    (list, dict, tuple, set, frozenset, OrderedDict, defaultdict, Counter, deque, random.Random, np.random.Generator,
     np.random.RandomState, np.ndarray)
)  # fmt: skip
