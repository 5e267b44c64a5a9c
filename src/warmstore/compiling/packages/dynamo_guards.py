"""How guards are written down and made anew in another process, where torch does it by half.

Torch writes down most guards, with the values that they compare. It does not write down those that compare which object
something is, since an address means nothing to another process; and where the way to a value leads over a class, module
or function, it writes down the name of that, so that the guard would compare what it finds with itself. Guards of both
kinds are kept here without what they compare, and are made anew there, for what is found at the same place, once that
was seen to be the same.

Like `dynamo`, this stands on private parts of torch.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial, wraps
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch._dynamo.guards import CheckFunctionManager, GuardsStatePickler
from torch.utils._device import DeviceContext

from warmstore.compiling.packages.references import Reference, reference_of

_UNWRITABLE = frozenset(CheckFunctionManager.UNSUPPORTED_SERIALIZATION_GUARD_TYPES)
_OF_CODE = frozenset(("CLOSURE_MATCH",))
_OF_TYPE = frozenset(("TYPE_MATCH", "BUILTIN_MATCH"))
_OF_KEYS = frozenset(("DICT_VERSION", "DICT_KEYS_MATCH", "MAPPING_KEYS_CHECK", "DICT_CONST_KEYS"))
_OF_LENGTH = frozenset(("SEQUENCE_LENGTH", "LIST_LENGTH", "TUPLE_ITERATOR_LEN", "SET_LENGTH"))
_OF_LIVE = frozenset(("DICT_VERSION", "HASATTR"))  # compare what an object is now, and not what was written of it
_OF_PRESENCE = frozenset(("DICT_CONTAINS", "DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT"))
_OF_THIS_PROCESS = re.compile(r"G\['(\w*_\d{9,}_c\d+)'\]")
"""A name that Dynamo makes up of an address."""
_BY_NAME = (torch.Tensor, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, MappingProxyType, CellType)

_here = threading.local()


@dataclass
class Written:
    """The guards of one frame.

    Attributes:
        code: of the frame.
        of_objects: guards of objects, and of what is reached over names.
        objects: what each of those compares.
        references: what their ways begin at, where that is no variable of the program's, by the names that it has.
        reasons: why they cannot be made anew in another process.
    """

    code: CodeType
    of_objects: list[Any] = field(default_factory=list)
    objects: list[object] = field(default_factory=list)
    references: dict[str, Reference] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@contextmanager
def writing(written: Written) -> Iterator[None]:
    """While this lasts, guards that torch makes and writes down in this thread are written down like this."""
    _prepare()
    before = getattr(_here, "written", None)
    _here.written = written
    try:
        yield
    finally:
        _here.written = before


@contextmanager
def restoring(
    guards: Sequence[Any], scope: dict[str, Any], check: Callable[[Sequence[object]], None]
) -> Iterator[None]:
    """While this lasts, guards that torch makes in this thread of what it has written down get these beside them.

    Args:
        guards: `Written.of_objects`.
        scope: the variables `L` and globals `G` of the frame.
        check: is given what stands in this process for `Written.objects`, and raises what stops this.
    """
    _prepare()
    _here.restoring = _Restoring(guards, scope, check)
    log = logging.getLogger("torch._guards")
    before, log.disabled = log.disabled, True  # it tells of every guard that cannot be made, at length
    try:
        yield
    finally:
        log.disabled = before
        _here.restoring = None


@dataclass
class _Restoring:
    """Guards of objects to be made for what is found in this process."""

    guards: Sequence[Any]
    scope: dict[str, Any]
    check: Callable[[Sequence[object]], None]

    def make(self, builder: Any) -> None:
        builder.scope.update(self.scope)
        builder.src_get_value_cache.clear()
        ordered = builder.check_fn_manager.output_graph.guard_on_key_order
        builder.key_order_guarded_dict_ids.update(id(builder.get(source)) for source in ordered)
        self.check([_compared(guard, builder) for guard in self.guards])
        for guard in self.guards:
            guard.create(builder)


@cache
def _prepare() -> None:
    """Have torch write and make guards as it is described above, where that is asked for; once."""
    write, build = CheckFunctionManager.serialize_guards, CheckFunctionManager.build_guards
    reduce = GuardsStatePickler.reducer_override

    def serialize_guards(self: Any, builder: Any, sorted_guards: Any, output_graph: Any) -> bytes:
        written: Written | None = getattr(_here, "written", None)
        if written is None:
            return write(self, builder, sorted_guards, output_graph)
        try:
            return _write(written, partial(write, self), self, builder, sorted_guards, output_graph)
        except Exception as error:  # torch would end the program's call with it
            written.reasons.append(f"its guards cannot be written down: {error}")
            return b""

    def build_guards(self: Any, *args: Any, **kwargs: Any) -> Any:
        builder, manager = build(self, *args, **kwargs)
        restoring: _Restoring | None = getattr(_here, "restoring", None)
        if restoring is not None:
            restoring.make(builder)
        return builder, manager

    def reducer_override(self: Any, value: Any) -> Any:
        found = reduce(self, value)
        if found is NotImplemented and isinstance(value, torch.nn.Module) and not _has_a_name(type(value)):
            return self._unpickle_module, (vars(value).copy(),)  # its class has a guard of its own
        if isinstance(value, torch.Tensor) and isinstance(found, tuple) and found[0] == self._unpickle_tensor:
            make, (*said, grad) = found
            return make, (*said, grad if id(grad) in self.guard_tree_values else None)  # else torch cannot read it
        return found

    for holder, function in (
        (CheckFunctionManager, serialize_guards),
        (CheckFunctionManager, build_guards),
        (GuardsStatePickler, reducer_override),
    ):
        setattr(holder, function.__name__, wraps(getattr(holder, function.__name__))(function))


def _write(
    written: Written, write: Callable[..., bytes], manager: Any, builder: Any, guards: Sequence[Any], graph: Any
) -> bytes:
    """Write down the guards that torch can, and keep the others."""
    kept = []
    for mode in graph.torch_function_mode_stack or ():
        if type(mode) is not DeviceContext:
            written.reasons.append(f"the mode {type(mode).__qualname__} sees every function of torch")
    for guard in guards:
        kinds = _kinds(guard)
        if "WEAKREF_ALIVE" in kinds or not _refers(written, guard, builder.scope["G"]):
            written.reasons.append(f"a guard looks at {guard.name}, an object of this process")
        elif (
            kinds & (_UNWRITABLE | _OF_LIVE)
            or (kinds & _OF_TYPE and not _has_a_name(type(builder.get(guard))))
            or _leads_over_a_name(guard.originating_source, builder)
        ):
            written.of_objects.append(replace(guard, obj_weakref=None, guarded_class_weakref=None, user_stack=None))
            written.objects.append(_compared(guard, builder))
        else:
            kept.append(guard)
    manager.torch_function_mode_stack = graph.torch_function_mode_stack  # taken away when guards were made first
    try:
        with torch._C.DisableTorchFunction(), catch_warnings():
            simplefilter("ignore")  # torch looks at the gradients of tensors that have none
            reduced, _ = manager.build_guards(kept, set(), written.code, graph, True)
            return write(reduced, kept, graph)
    finally:
        manager.torch_function_mode_stack = None


def _refers(written: Written, guard: Any, space: dict[str, Any]) -> bool:
    """Whether another process finds what the way to what a guard looks at begins at."""
    for name in _OF_THIS_PROCESS.findall(guard.name):
        if (found := reference_of(space.get(name))) is None:
            return False
        written.references[name] = found
    return True


def _has_a_name(kind: type) -> bool:
    """Whether another process finds a class by its name, as pickles do."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _kinds(guard: Any) -> set[str]:
    return {guard.create_fn_name(), *(guard.guard_types or ())}


def _leads_over_a_name(source: Any, builder: Any) -> bool:
    while (source := getattr(source, "base", None)) is not None:
        try:
            value = builder.get(source)
        except Exception:
            return True  # what cannot be looked at is not believed
        if isinstance(value, _BY_NAME):
            return True
    return False


def _compared(guard: Any, builder: Any) -> object:
    """What a guard compares of what it looks at."""
    kinds = _kinds(guard)
    try:
        value = builder.get(guard)
    except Exception:
        return "nothing"
    if "HASATTR" in kinds:
        return hasattr(value, guard.create_fn.keywords["attr"])
    if kinds & _OF_PRESENCE:
        return "something"
    if kinds & _OF_CODE:
        return value.__code__
    if kinds & _UNWRITABLE:
        return value
    if kinds & _OF_KEYS:
        return tuple(value)
    if kinds & _OF_LENGTH:
        return len(value)
    return type(value) if kinds & _OF_TYPE else value
