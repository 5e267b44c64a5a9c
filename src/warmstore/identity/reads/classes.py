"""Classes: the bases, the metaclass and the current definitions of a class of the program.

An installed class counts by its name and the version of its package, and by methods that the program has put into it.
"""

from __future__ import annotations

import abc
import enum
import re
import sys
import typing
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any

from warmstore.identity.object_state import full_name, is_heap_type
from warmstore.identity.origin import Origin, is_extension, origin_of_class, origin_of_function
from warmstore.identity.places import Place
from warmstore.identity.plain_data import atom_text
from warmstore.identity.reads.code_facts import constant_text, facts_of
from warmstore.identity.reads.refusals import refusal_of
from warmstore.identity.walk import Walk

_NEUTRAL = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate__", "__annotate_func__",
     "__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl",
     "__parameters__", "__qualname__", "__dataclass_params__",
     "__classcell__", "__slotnames__", "__non_callable_proto_members__",
     # The number of an `autograd.Function`, which differs in each process.
     "_autograd_function_id",
     # Pydantic compiles these from fields and methods; their texts have addresses.
     "__pydantic_core_schema__", "__pydantic_validator__", "__pydantic_serializer__")
)  # fmt: skip
_OF_ENUMS = frozenset(
    ("_member_map_", "_member_names_", "_value2member_map_", "_unhashable_values_", "_hashable_values_",
     "_unhashable_values_map_", "_new_member_", "_use_args_", "_member_type_", "_value_repr_", "__new__", "_flag_mask_",
     "_singles_mask_", "_all_bits_", "_inverted_", "__reduce_ex__", "_generate_next_value_", "__new_member__",
     "__getnewargs__", "_order_", "_sort_order_")
)  # fmt: skip

_OF_PROTOCOLS = vars(typing).get("_no_init_or_replace_init")

CONSTRUCTORS = ("__init__", "__new__", "__post_init__")
"""These count only where code may make another object of a class; an existing object has been made already."""

_MAKERS = frozenset(("__init__", "__new__", "__class__", "type", "replace", "copy", "deepcopy"))
_MAKERS_BY_NAME = frozenset(name for name in _MAKERS if name.startswith("__"))  # in a text, as for `getattr`
_WHEN_MADE = ("__init__", "__new__", "__setstate__")


def may_make_others(function: FunctionType) -> bool:
    """Whether code uses a name by which it may construct an object of the class of an existing one, or copy one."""
    facts = facts_of(function.__code__)
    names = facts.names & _MAKERS | _MAKERS_BY_NAME.intersection(facts.strings)
    return bool(names - {"__init__"} if function.__name__ in _WHEN_MADE else names)


def makes_others(cls: type) -> bool:
    """Whether a class has a metaclass or class methods of the program, which may construct objects of the class."""
    return type(cls) is not type or any(
        isinstance(member, classmethod) and _is_of_program(member)
        for base in cls.__mro__
        for member in vars(base).values()
    )


def read_constructors(walk: Walk, place: Place, cls: type) -> None:
    """Record the constructors of a class."""
    for name in CONSTRUCTORS:
        if name in vars(cls) and not _is_of_protocol(cls, name):
            walk.whole(place + f".{name}", vars(cls)[name])


def _is_of_protocol(cls: type, name: str) -> bool:
    """Whether a constructor is that of a base, which `typing` puts into a class that inherits from a protocol as the
    first object of it is made."""
    if name != "__init__" or typing.Protocol not in cls.__mro__:
        return False
    inherited = (vars(base).get(name) for base in cls.__mro__[1:])
    return vars(cls)[name] is next(each for each in inherited if each not in (None, _OF_PROTOCOLS))


def read_class(walk: Walk, place: Place, cls: type, origin: Origin) -> None:
    """Record what a class defines, except for its constructors."""
    reason = refusal_of(cls)
    if reason:
        walk.cannot_tell(place, reason)
        return
    if not origin.is_program:
        walk.fact(place, f"class {full_name(cls)}")
        _read_patches(walk, place, cls)
        _read_registered(walk, place, cls, lambda each: origin_of_class(each).is_program)
        return
    bases = ", ".join(walk.cls(base) for base in cls.__bases__)
    metaclass = f" of {walk.cls(type(cls))}" if type(cls) is not type else ""
    fields = static(cls, "_fields") or static(cls, "__dataclass_fields__")
    order = list(fields) if isinstance(fields, tuple | dict) else ""
    walk.fact(place, f"class ({bases}){metaclass} {order}".rstrip())
    module = sys.modules.get(str(cls.__module__))
    if isinstance(module, ModuleType) and is_extension(module):
        walk.fact(place + ".<module>", walk.module(module))  # the code of its methods is out of reach
    _read_registered(walk, place, cls, lambda each: True)
    walk.described.append((place, cls))
    walk.watch_code(vars(cls))
    walk.watch_cell(partial(getattr, cls, "__bases__"))
    members: Any = {}
    if is_enum := isinstance(cls, enum.EnumMeta):
        members = cls.__members__
        _read_members(walk, place, members)
    walk.order(place, (name for name in vars(cls) if name not in _NEUTRAL))
    for name, value in sorted(vars(cls).items()):
        if name in _NEUTRAL or name in CONSTRUCTORS:
            continue
        if isinstance(value, MemberDescriptorType | GetSetDescriptorType) and value.__name__ == name:
            continue
        if is_enum and ((name in _OF_ENUMS and not _is_of_program(value)) or name in members):
            continue
        walk.whole(place + f".{name}", value)


def _read_registered(walk: Walk, place: Place, cls: type, counts: Callable[[type], bool]) -> None:
    """Record the virtual subclasses of an abstract class that count."""
    if isinstance(cls, abc.ABCMeta):
        walk.watch_probe(lambda: list(map(id, _registered(cls))))
        if registered := list(filter(counts, _registered(cls))):
            # The set has another order in each process, and the walk numbers modules as it meets them.
            walk.fact(place + " registered", ", ".join(map(walk.cls, sorted(registered, key=full_name))))


def _registered(cls: abc.ABCMeta) -> list[type]:
    """The virtual subclasses of an abstract class, by `ABCMeta.register`."""
    found = (reference() for reference in abc._get_dump(cls)[0])  # type: ignore[attr-defined]
    return [cls for cls in found if cls is not None]


def static(cls: type, name: str) -> Any:
    """An attribute of a class, found in the class or its bases without calling descriptors; None if it has none."""
    for base in cls.__mro__:
        if name in vars(base):
            return vars(base)[name]
    return None


def _read_members(walk: Walk, place: Place, members: Any) -> None:
    """Record the names, values and attributes of the members of an enum, in order."""
    walk.fact(place + ".<members>", f"{list(members)}")
    for name, member in members.items():
        at = place + f".{name}"
        walk.whole(at, member._value_)
        walk.watch(vars(member))
        for attribute, value in sorted(vars(member).items()):
            if attribute not in ("_value_", "_name_", "__objclass__", "_sort_order_"):
                walk.whole(at + f".{attribute}", value)


def _is_of_program(value: Any) -> bool:
    function = getattr(value, "__func__", value)
    return isinstance(function, FunctionType) and origin_of_function(function).is_program


def _read_patches(walk: Walk, place: Place, cls: type) -> None:
    """Record methods that the program has put into an installed class or one of its bases, and the settings in these
    whose names followed code uses."""
    for base in cls.__mro__:
        if not is_heap_type(base) or origin_of_class(base).is_program:
            continue
        walk.watch_items(vars(base), ())  # new methods are noticed at once, other methods by exact checks
        for name, value in sorted(vars(base).items()):
            if isinstance(value, FunctionType) or isinstance(getattr(value, "__func__", None), FunctionType):
                if _is_of_program(value) and not _is_generated(value):
                    walk.whole(place + f".{name}", value)
            elif not name.startswith("__") and atom_text(value) is not None:
                walk.if_named((name,), place, partial(_read_setting, walk, base, name, value))
            elif isinstance(value, property) and _is_of_program(value.fget) and not _is_generated(value.fget):
                walk.whole(place + f".{name}", value)


def _read_setting(walk: Walk, cls: type, name: str, value: Any) -> None:
    named, module = walk.name_of(cls)
    walk.whole(walk.root(("attribute", id(cls), name), f"{named}.{name}", module, cls)[0], value)


def _is_generated(value: Any) -> bool:
    """Whether the code of a method was generated from text, as in dataclasses and named tuples."""
    function = getattr(value, "__func__", value)
    return bool(function.__code__.co_filename.startswith("<"))


def documentation(thing: Any, parts: set[str]) -> str:
    """The text of the docstring, name or annotations of a function or class, as far as code asks for them."""
    found = []
    if "doc" in parts:
        found.append(f"doc {getattr(thing, '__doc__', None)!r}")
        if isinstance(thing, FunctionType):
            found += _strings_of_nested(thing.__code__)  # docstrings of the functions and classes that it makes
    if "name" in parts:
        found.append(f"name {thing.__name__} {thing.__qualname__}")
    if "annotations" in parts:
        found.append(f"annotations {[(name, _annotation(value)) for name, value in _annotations_of(thing).items()]}")
    if isinstance(thing, FunctionType):
        found += [f"{part} {_part_of_code(thing.__code__, part)}" for part in sorted(parts) if part.startswith("co_")]
    return "; ".join(found)


def _part_of_code(code: CodeType, name: str) -> str:
    part = getattr(code, name)
    values = part if isinstance(part, tuple) else list(part()) if callable(part) else (part,)
    return repr([facts_of(value).digest if isinstance(value, CodeType) else constant_text(value) for value in values])


def document(walk: Walk, thing: Any) -> None:
    """Note a function or class of the program whose documentation installed code may read, with what its annotations
    name."""
    if id(thing) in walk.documented:
        return
    if isinstance(thing, FunctionType) and origin_of_function(thing).is_program:
        walk.function(thing)
        annotated: list[Any] = [thing]
    elif isinstance(thing, type) and origin_of_class(thing).is_program:
        walk.cls(thing)
        annotated = [base for base in thing.__mro__ if origin_of_class(base).is_program]
    else:
        wrapped = getattr(thing, "__dict__", {}).get("__wrapped__")  # its documentation is that of the object
        parts = [*(getattr(thing, "__args__", ()) or ()), *([wrapped] if isinstance(wrapped, FunctionType) else ())]
        for part in parts:
            document(walk, part)
        return
    walk.documented |= {id(base): base for base in annotated}
    for base in annotated:
        globals_ = vars(sys.modules.get(base.__module__) or object)
        for value in _annotations_of(base).values():
            text = getattr(value, "__forward_arg__", value)
            names = re.findall(r"[^\W\d]\w*", text) if isinstance(text, str) else ()
            for part in (value, *map(globals_.get, names)):
                document(walk, part)


def _strings_of_nested(code: CodeType) -> list[str]:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    strings = [repr(text) for inner in nested for text in inner.co_consts if isinstance(text, str)]
    return strings + [text for inner in nested for text in _strings_of_nested(inner)]


def _annotations_of(thing: Any) -> dict[str, Any]:
    found: dict[str, Any] = vars(thing).get("__annotations__", {}) if isinstance(thing, type) else thing.__annotations__
    return found


def _annotation(value: Any) -> str:
    text = atom_text(value)
    if text is not None:
        return text
    return full_name(value) if isinstance(value, type) else repr(value)
