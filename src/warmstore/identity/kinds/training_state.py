"""What hangs on tensors and modules of torch without a difference to most results.

This is whether tensors require gradients, their gradients, hooks of the backward pass and of state dicts, which buffers
are saved, and attributes of tensors with an underscore. It counts only where followed code reads it by its name, and
of modules and parameters also where other walks follow the code.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from functools import partial
from itertools import chain
from operator import attrgetter
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import nn

from warmstore.identity.instructions import instructions
from warmstore.identity.kinds.module_modes import with_helpers
from warmstore.identity.object_state import pointers
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

BACKWARD_HOOKS = ("_backward_pre_hooks", "_backward_hooks")
"""Hooks of the backward pass of a module."""

_OF_EVERY_MODULE = (nn.modules.module._global_backward_pre_hooks, nn.modules.module._global_backward_hooks)
"""Hooks of the backward pass of every module."""

HOOKS_OF_TENSORS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_HOOKS_OF_STATES = (
    "_state_dict_pre_hooks", "_state_dict_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks",
)  # fmt: skip

_OF_BACKWARD = frozenset(
    ("grad", "grad_fn", "autograd", "backward", "jacobian", "hessian", "jacrev", "vjp", "_backward_hooks")
)
_OF_GRADIENTS = _OF_BACKWARD | {"requires_grad", "is_leaf"}
_OF_STATES = frozenset(("state_dict", "load_state_dict", "_non_persistent_buffers_set"))
_OF_ALL = frozenset(("vars", "__dict__"))
_TEXTS = {repr(name): name for name in _OF_GRADIENTS | _OF_STATES}

_WITH_FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)
"""Modules that take another path in evaluation mode if no parameter requires a gradient."""

_READS = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM"))
_BY_LIBRARIES = ("_dynamo", "_is_hf_initialized")
"""How attributes begin that libraries set on tensors at various times."""

_flags_of = attrgetter("requires_grad", "is_leaf", *HOOKS_OF_TENSORS)
_is_leaf, _gradient_of = attrgetter("is_leaf"), attrgetter("grad")


def record_training_state(walk: Walk) -> bool:
    """Record what the code that was followed so far reads. Returns whether the walk has more to do now."""
    names, has_more = _names_read(walk), False
    for place, value in walk.tensors:
        for name in _attributes_read(value, names):
            if walk.is_new(value, ("attribute", name), place):
                walk.whole(place + f".{name}", vars(value)[name])
                has_more = True
    counts = walk.settings.tensors == "content"  # otherwise the gradients that compiled code is for are recorded
    elsewhere = walk.settings.read_elsewhere  # plain tensors have all recorded there
    reads_backward = counts and not _OF_BACKWARD.isdisjoint(names)
    is_backward = reads_backward or (counts and elsewhere)
    reads = not _OF_GRADIENTS.isdisjoint(names) or (walk.settings.modes and _has_fast_path(walk))
    if counts and (elsewhere or reads):
        known = [each for each in walk.tensors if (reads or type(each[1]) is not torch.Tensor) and _has_flags(each[1])]
        new = [each for each in known if walk.is_new(each[1], ("gradients", is_backward), each[0])]
        for place, value in new:
            plain = type(value) is torch.Tensor
            _record_gradients(walk, place, value, is_backward=reads_backward if plain else is_backward)
        if new:
            _watch_gradients(walk, [value for _, value in new], is_backward=is_backward)
        has_more |= bool(new)
    reads_states = elsewhere or not _OF_STATES.isdisjoint(names)
    for counted, holders in ((is_backward, BACKWARD_HOOKS), (reads_states, _HOOKS_OF_STATES)):
        for place, module in walk.modules if counted else ():
            if walk.is_new(module, holders, place):
                _record_module(walk, place, vars(module), holders)
                has_more = True
    for at, holder in enumerate(_OF_EVERY_MODULE if is_backward else ()):
        place = walk.root(("settings", "torch"), "settings of torch")[0] + f".<backward hooks {at}>"
        if walk.is_new(holder, BACKWARD_HOOKS, place):
            walk.watch_code(holder)
            walk.items(place, "hooks", holder.values())
            has_more = True
    return has_more


def record_hooks(walk: Walk, place: Place, value: torch.Tensor) -> None:
    """Record the hooks of the backward pass of a tensor."""
    for name in HOOKS_OF_TENSORS:
        for at, hook in enumerate((getattr(value, name, None) or {}).values()):
            walk.whole(place + f".{name}[{at}]", hook)


def _record_gradients(walk: Walk, place: Place, value: torch.Tensor, *, is_backward: bool) -> None:
    if value.requires_grad or not value.is_leaf:
        parts = ["requires gradients"] * value.requires_grad + ["computed"] * (not value.is_leaf)
        walk.fact(place + ".<gradients>", ", ".join(parts))
    if not is_backward:
        return
    if value.grad_fn is not None:
        walk.cannot_tell(place + ".<graph>", "the operations behind a tensor are unknown, along which gradients flow")
    if type(value) is not torch.Tensor:  # of which it was recorded
        record_hooks(walk, place, value)
        if value.is_leaf and value.grad is not None:
            walk.whole(place + ".grad", value.grad)


def _watch_gradients(walk: Walk, tensors: list[torch.Tensor], *, is_backward: bool) -> None:
    walk.watch_cell(partial(_held_by, tensors, of_leaves=is_backward))
    for value in tensors:
        for name in HOOKS_OF_TENSORS:
            if (holder := getattr(value, name, None)) is not None:
                walk.watch(holder)


def _held_by(tensors: list[torch.Tensor], *, of_leaves: bool) -> bytes:
    """The addresses of the flags and hooks of tensors and, if `of_leaves`, of the gradients of leaves."""
    gradients = map(_gradient_of, filter(_is_leaf, tensors)) if of_leaves else ()
    held = [*chain.from_iterable(map(_flags_of, tensors)), *gradients]
    found: bytes = pointers(np.fromiter(held, object, len(held))).tobytes()
    return found


def _record_module(walk: Walk, place: Place, state: dict[str, Any], holders: Collection[str]) -> None:
    for holder in holders:
        walk.watch_code(state[holder])
        for at, hook in enumerate(state[holder].values()):
            walk.whole(place + f".{holder}[{at}]", hook)
    if holders is BACKWARD_HOOKS:
        walk.watch_item(state, "_is_full_backward_hook")
        walk.whole(place + "._is_full_backward_hook", state["_is_full_backward_hook"])
    else:
        walk.watch(state["_non_persistent_buffers_set"])
        walk.fact(place + ".<not saved>", f"{sorted(state['_non_persistent_buffers_set'])}")


def _has_fast_path(walk: Walk) -> bool:
    return any(isinstance(module, _WITH_FAST_PATHS) for _, module in walk.modules)


def _has_flags(value: torch.Tensor) -> bool:
    """Whether a tensor tells whether it requires a gradient. Those of a subclass may not."""
    try:
        _flags_of(value)
    except Exception:
        return False
    return True


def _attributes_read(value: torch.Tensor, names: Collection[str]) -> list[str]:
    """The attributes of a tensor with an underscore that code reads."""
    hidden = [name for name in vars(value) if name.startswith("_")]
    reads_all = bool(hidden) and not _OF_ALL.isdisjoint(names)
    return [name for name in hidden if name in names or (reads_all and not name.startswith(_BY_LIBRARIES))]


def _names_read(walk: Walk) -> set[str]:
    """The names that followed code reads, and those that are values by which it may read."""
    functions = (*walk.functions, *(each for function in walk.library_functions for each in with_helpers(function)))
    found = set[str]().union(*(_names_in(function.__code__) for function in functions))
    return found.union(_TEXTS[text] for text in _TEXTS.keys() & set(walk.facts.values()))


@functools.lru_cache(maxsize=1 << 14)
def _names_in(code: CodeType) -> frozenset[str]:
    return frozenset(_reads(code))


def _reads(code: CodeType) -> Iterator[str]:
    found = list(instructions(code))
    for at, (name, value) in enumerate(found):
        if name in _READS or name == "IMPORT_NAME":
            yield from str(value).split(".")
        elif name == "LOAD_CONST" and not (at + 1 < len(found) and found[at + 1].name == "CALL_KW"):
            yield from (
                text for text in (value if isinstance(value, tuple | frozenset) else (value,)) if type(text) is str
            )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
