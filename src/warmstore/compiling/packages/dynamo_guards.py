"""Serialisation of the guards that torch does not serialise, or serialises in a form that always holds.

torch serialises most guards with the values that they compare. Two kinds need more. A guard that compares the address
of an object has no meaning in another process. A guard whose source leads through a class, module or function is
serialised with the name of that object, so that it would compare the value found there with itself. Guards of both
kinds are stored without their values. Another process first checks that the objects at their sources are the same, and
then creates the guards for these objects.

Like `dynamo`, this module depends on private parts of torch.
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
_OF_LIVE = frozenset(("DICT_VERSION", "HASATTR"))  # compare the live object, and not its serialised form
_OF_PRESENCE = frozenset(("DICT_CONTAINS", "DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT"))
_OF_THIS_PROCESS = re.compile(r"G\['(\w*_\d{9,}_c\d+)'\]")
"""A name that Dynamo makes from an address."""
_BY_NAME = (torch.Tensor, type, ModuleType, FunctionType, MethodType, BuiltinFunctionType, MappingProxyType, CellType)

_thread = threading.local()


@dataclass
class Written:
    """The guards of one frame that torch does not serialise, `of_objects`, and the value that each of them compares.

    `references` has the objects that sources begin at, by name, if these are no variables of the program. `reasons`
    says why another process cannot create the guards.
    """

    code: CodeType
    of_objects: list[Any] = field(default_factory=list)
    objects: list[object] = field(default_factory=list)
    references: dict[str, Reference] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)


@contextmanager
def writing(written: Written) -> Iterator[None]:
    """Within this context, guards that torch serialises in this thread are recorded in `written` too."""
    _prepare()
    before = getattr(_thread, "written", None)
    _thread.written = written
    try:
        yield
    finally:
        _thread.written = before


@contextmanager
def restoring(
    guards: Sequence[Any], scope: dict[str, Any], check: Callable[[Sequence[object]], None]
) -> Iterator[None]:
    """Within this context, guards that torch creates from a serialised state in this thread are joined by `guards`,
    which are `Written.of_objects`.

    `scope` has the variables `L` and globals `G` of the frame. `check` is called with the values of this process for
    `Written.objects`, and raises an error if the guards must not be created.
    """
    _prepare()

    def create(builder: Any) -> None:
        builder.scope.update(scope)
        builder.src_get_value_cache.clear()
        ordered = builder.check_fn_manager.output_graph.guard_on_key_order
        builder.key_order_guarded_dict_ids.update(id(builder.get(source)) for source in ordered)
        check([_compared(guard, builder) for guard in guards])
        for guard in guards:
            guard.create(builder)

    _thread.create = create
    log = logging.getLogger("torch._guards")
    before, log.disabled = log.disabled, True  # long messages about each guard that cannot be created
    try:
        yield
    finally:
        log.disabled = before
        _thread.create = None


@cache
def _prepare() -> None:
    """Replace torch's functions once. Outside of the two contexts above they do what torch does."""
    write, build = CheckFunctionManager.serialize_guards, CheckFunctionManager.build_guards
    reduce = GuardsStatePickler.reducer_override

    def serialize_guards(self: Any, builder: Any, sorted_guards: Any, output_graph: Any) -> bytes:
        written: Written | None = getattr(_thread, "written", None)
        if written is None:
            return write(self, builder, sorted_guards, output_graph)
        try:
            return _write(written, partial(write, self), self, builder, sorted_guards, output_graph)
        except Exception as error:  # otherwise torch raises it in the program's call
            written.reasons.append(f"its guards cannot be serialised: {error}")
            return b""

    def build_guards(self: Any, *args: Any, **kwargs: Any) -> Any:
        builder, manager = build(self, *args, **kwargs)
        create: Callable[[Any], None] | None = getattr(_thread, "create", None)
        if create is not None:
            create(builder)
        return builder, manager

    def reducer_override(self: Any, value: Any) -> Any:
        found = reduce(self, value)
        if found is NotImplemented and isinstance(value, torch.nn.Module) and not _has_a_name(type(value)):
            return self._unpickle_module, (vars(value).copy(),)  # another guard checks the class
        if isinstance(value, torch.Tensor) and isinstance(found, tuple) and found[0] == self._unpickle_tensor:
            make, (*parts, grad) = found
            return make, (*parts, grad if id(grad) in self.guard_tree_values else None)  # torch cannot load others
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
    """Serialise the guards that torch can serialise, and record the others."""
    kept = []
    for mode in graph.torch_function_mode_stack or ():
        if type(mode) is not DeviceContext:
            written.reasons.append(f"the mode {type(mode).__qualname__} sees every function of torch")
    for guard in guards:
        kinds = _kinds(guard)
        if "WEAKREF_ALIVE" in kinds or not _refers(written, guard, builder.scope["G"]):
            written.reasons.append(f"a guard checks {guard.name}, an object that only this process has")
        elif (
            kinds & (_UNWRITABLE | _OF_LIVE)
            or (kinds & _OF_TYPE and not _has_a_name(type(builder.get(guard))))
            or _leads_over_a_name(guard.originating_source, builder)
        ):
            written.of_objects.append(replace(guard, obj_weakref=None, guarded_class_weakref=None, user_stack=None))
            written.objects.append(_compared(guard, builder))
        else:
            kept.append(guard)
    manager.torch_function_mode_stack = graph.torch_function_mode_stack  # torch deletes it after creating guards
    try:
        with torch._C.DisableTorchFunction(), catch_warnings():
            simplefilter("ignore")  # torch reads the gradients of tensors without one
            reduced, _ = manager.build_guards(kept, set(), written.code, graph, True)
            return write(reduced, kept, graph)
    finally:
        manager.torch_function_mode_stack = None


def _refers(written: Written, guard: Any, variables: dict[str, Any]) -> bool:
    """Record references to the objects that a guard's source begins at. Returns whether there is one for each."""
    for name in _OF_THIS_PROCESS.findall(guard.name):
        if (reference := reference_of(variables.get(name))) is None:
            return False
        written.references[name] = reference
    return True


def _has_a_name(kind: type) -> bool:
    """Whether pickle can find a class by its name."""
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
            return True
        if isinstance(value, _BY_NAME):
            return True
    return False


def _compared(guard: Any, builder: Any) -> object:
    """The value that a guard compares: a part or property of the value at its source."""
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
