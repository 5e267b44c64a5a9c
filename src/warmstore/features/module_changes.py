"""Notices that a module changed, without hashing its weights at every call.

All who wrap or fill with one module share what is known of it: what it was when it was first identified, and what only
calls of ours have changed since. That is kept as long as the module lives. See `warmstore.identity.recorded_identity`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from torch import nn

from warmstore.identity import Identity
from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import walk_over
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch

_live: WeakValueDictionary[tuple[int, str | None, frozenset[str]], ModuleChangeDetector] = WeakValueDictionary()


class ModuleChangeDetector:
    """The identity of one module, made again only when something moved. Use `detector_of`.

    Args:
        version: stands for what cannot be told of the module.
        ignore: places that do not count.
        recorded: of the module that this one is a copy of.
    """

    def __init__(
        self,
        module: nn.Module,
        version: str | None,
        ignore: frozenset[str],
        recorded: RecordedIdentity | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._module = module
        self._version = version
        self._ignore = ignore
        if recorded is None:
            look, effects = partial(_look, module, ignore), effects_of(module, ignore)
            recorded = RecordedIdentity(look, version, effects, is_strict=True, clock=clock)
        else:
            effects_of(module, ignore, recorded.effects)
        self._recorded = recorded

    def identity(self, *, again: bool = False, exactly: bool = False) -> Identity:
        """What decides the module's outputs, as it is now.

        Args:
            again: hash all weights again, so that no write without a trace is missed.
            exactly: look also at small arrays, into large containers, and at what takes longer to see.

        Raises:
            NoFingerprint: of some of it, that cannot be told.
        """
        return self._recorded.refresh(again=again, exactly=exactly).require()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """While the module is called by us: what it changes of itself meanwhile is its memory, but for weights."""
        with ExitStack() as stack:
            for (number, _, _), detector in list(_live.items()):
                if number == id(self._module):
                    stack.enter_context(detector._recorded.calling())
            yield

    @property
    def window(self) -> float:
        """Seconds within which a write that leaves no trace is found."""
        return self._recorded.window

    def __reduce__(self) -> Any:
        return _copy, (self._module, self._version, self._ignore, self._recorded)


def detector_of(
    module: nn.Module,
    version: str | None = None,
    ignore: Collection[str] = (),
    *,
    clock: Callable[[], float] = time.monotonic,
) -> ModuleChangeDetector:
    """The detector of a module, which all share who vouch for and leave out the same.

    Args:
        clock: seconds that pass, for who makes the first.
    """
    left_out = frozenset([ignore] if isinstance(ignore, str) else ignore)
    key = (id(module), version, left_out)
    found = _live.get(key)
    if found is None:
        found = _live[key] = ModuleChangeDetector(module, version, left_out, clock=clock)
    return found


def _copy(
    module: nn.Module, version: str | None, ignore: frozenset[str], recorded: RecordedIdentity
) -> ModuleChangeDetector:
    key = (id(module), version, ignore)
    found = _live.get(key)
    if found is None:
        found = _live[key] = ModuleChangeDetector(module, version, ignore, recorded)
    return found


def _look(module: nn.Module, ignore: frozenset[str], watch: Watch) -> Walk:
    # Modules that are random are refused. Code that draws, as in an `__init__`, does so when it is not called.
    return walk_over(module, name="module", ignore=ignore, watch=watch, called=False, draws=False)
