"""The rule of bars of tqdm: a bar is what it iterates over, and those other attributes that followed code names.

So a bar that a step only updates does not change the identity at every call.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from warmstore.identity.origin import origin_of_class
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_ITERABLE = "iterable"
_OF_DISPLAY = frozenset(
    ("fp", "sp", "pos", "gui", "ascii", "ncols", "nrows", "dynamic_ncols", "lock_args", "delay", "smoothing",
     "miniters", "dynamic_miniters", "mininterval", "maxinterval", "bar_format", "colour", "_time", "start_t",
     "last_print_t", "last_print_n", "_ema_dn", "_ema_dt", "_ema_miniters", "container", "displayed", "disp", "_prog",
     "_task_id")
)  # fmt: skip


def is_bar_class(kind: type) -> bool:
    """Whether a class is one of bars of tqdm."""
    base = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return base is not None and issubclass(kind, base)


def bar(walk: Walk, place: Place, value: Any) -> None:
    """Record a bar. Which of tqdm's own classes it has depends on the terminal, and counts for nothing."""
    kind, own = type(value), vars(value)
    walk.fact(place, f"bar of {walk.cls(kind)}" if origin_of_class(kind).is_program else "bar of tqdm")
    for name in sorted(own.keys() - _OF_DISPLAY):
        record = partial(_attribute, walk, place, own, name)
        if name == _ITERABLE:
            record()
        else:
            walk.if_named((name, "format_dict", *(("len",) if name == "total" else ())), place, record)


def _attribute(walk: Walk, place: Place, own: dict[str, Any], name: str) -> None:
    walk.watch_item(own, name)
    walk.whole(place + f".{name}", own[name])
