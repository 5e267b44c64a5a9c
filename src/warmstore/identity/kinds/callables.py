"""Rules of callables and of the parts of classes and code: methods, builtins, descriptors, cells, typing aliases.

Functions, classes and modules themselves have places of their own; `warmstore.identity.reads` records them.
"""

from __future__ import annotations

import functools
import sys
import types
import typing
from typing import Any

from warmstore.identity.kinds.objects import without_documentation
from warmstore.identity.kinds.registry import attribute_rule, rule
from warmstore.identity.object_state import MISSING, attributes_of, content_of
from warmstore.identity.origin import origin_of, origin_of_name
from warmstore.identity.places import Place
from warmstore.identity.reads import read_call, read_method, refusal_of
from warmstore.identity.reads.code_facts import facts_of
from warmstore.identity.walk import Walk

_OF_TYPING = (
    "__forward_arg__", "__forward_module__", "__metadata__", "__supertype__", "__default__", "__bound__",
    "__constraints__", "__covariant__", "__contravariant__", "__infer_variance__",
)  # fmt: skip


@rule(functools.partial)
def _partial(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"partial of {len(value.args)} and {sorted(value.keywords)}")
    walk.watch(value.keywords)
    walk.watch_attributes(value)
    read_call(walk, place, value.func, value.args, value.keywords)
    walk.attributes(place, without_documentation(walk, place, vars(value)))


@rule(functools.partialmethod)
def _partial_method(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, "partialmethod")
    walk.watch_attributes(value)
    walk.attributes(place, {name: getattr(value, name) for name in ("func", "args", "keywords")})


rule(property)(attribute_rule("fget", "fset", "fdel"))
rule(staticmethod, classmethod)(attribute_rule("__func__"))


def descriptor(walk: Walk, place: Place, value: Any) -> None:
    """Record a property, static method or class method of a subclass, which may define `__get__`."""
    walk.fact(place, f"object of {walk.cls(type(value))}")
    walk.watch_attributes(value)
    names = ("fget", "fset", "fdel") if isinstance(value, property) else ("__func__",)
    own = {name: part for name, part in attributes_of(value).items() if not name.startswith("__")}
    walk.attributes(place, own | {name: getattr(value, name) for name in names})


@rule(types.MethodType)
def _method(walk: Walk, place: Place, value: Any) -> None:
    read_method(walk, place, value.__func__, value.__self__)


@rule(functools._lru_cache_wrapper)
def _lru_cache(walk: Walk, place: Place, value: Any) -> None:
    # The cached results follow from the function.
    walk.fact(place, f"lru_cache {sorted(value.cache_parameters().items(), key=str)}")
    walk.watch_cell(functools.partial(getattr, value, "__wrapped__", None))
    walk.whole(place + ".__wrapped__", value.__wrapped__)


@rule(functools.cached_property)
def _cached_property(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"cached_property {value.attrname}")
    walk.watch_attributes(value)
    walk.whole(place + ".func", value.func)


@rule(types.BuiltinFunctionType)
def _builtin(walk: Walk, place: Place, value: Any) -> None:
    reason = refusal_of(value)
    if reason:
        walk.cannot_tell(place, reason)
        return
    owner = value.__self__
    if owner is not None and not isinstance(owner, types.ModuleType | type) and type(owner).__name__ != "PyCapsule":
        walk.fact(place, f"builtin method {value.__name__}")
        walk.whole(place + ".__self__", owner)
        return
    module = str(value.__module__ or getattr(owner, "__name__", ""))
    name = str(getattr(value, "__qualname__", value.__name__))
    if isinstance(owner, type):
        walk.cls(owner)
    if module == "decimal":
        walk.decimal_context()
    if module == "builtins":
        walk.named.add(name)
    if module:
        walk.origin(origin_of_name(module))
    walk.fact(place, f"builtin {module}.{name}")
    holder = owner if isinstance(owner, types.ModuleType) else sys.modules.get(module)
    if isinstance(holder, types.ModuleType) and origin_of(holder).is_program:
        walk.fact(place + ".<module>", walk.module(holder))  # the code of the function is out of reach
    if name in ("getcwd", "getcwdb") and module in ("posix", "nt"):
        walk.working_directory()
    if module == "torch" or name.startswith("_VariableFunctionsClass."):
        from warmstore.identity.kinds import torch_objects

        if walk.settings.draws and torch_objects.draws(name.rpartition(".")[2]):
            state, _ = walk.root(("settings", "generator"), "default generator of torch")
            walk.state(state, torch_objects.generator_text)


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
    walk.watch_cell(functools.partial(content_of, value))
    content = content_of(value)
    if content is MISSING:
        walk.fact(place, "empty cell")
    else:
        walk.whole(place, content)


@rule(types.GenericAlias, types.UnionType)
def _alias(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, type(value).__name__)
    walk.attributes(place, {"origin": getattr(value, "__origin__", None), "args": value.__args__})


@rule(typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, typing.NewType, typing.ForwardRef)
def typing_form(walk: Walk, place: Place, value: Any) -> None:
    """Record a special form, an alias, a variable or a new type of `typing`."""
    walk.fact(place, f"{type(value).__qualname__} {getattr(value, '__name__', '')}")
    args = getattr(value, "__args__", ())
    origin = getattr(value, "__origin__", None)
    walk.attributes(place, {"args": args if isinstance(args, tuple) else (), "of": origin})
    for name in _OF_TYPING:
        if (part := getattr(value, name, None)) is not None:
            walk.whole(place + f".{name}", part)


def jitted(walk: Walk, place: Place, value: Any) -> None:
    """Record a result of `jax.jit` as its function: which arguments are static makes no difference to results."""
    walk.fact(place, "function of jax.jit")
    walk.origin(origin_of_name("jax"))
    walk.whole(place + ".__wrapped__", value.__wrapped__)
