"""Detects changes of a module without hashing its weights at every call.

All users of a module share one `RecordedIdentity` while the module exists. Changes that calls through warmstore make in
the module do not change its identity.
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
from warmstore.storage.threads import ANY_THREAD

_live: WeakValueDictionary[tuple[int, str | None, frozenset[str]], ModuleChangeDetector] = WeakValueDictionary()


class ModuleChangeDetector:
    """The identity of one module, computed again only after a change. Use `detector_of`.

    Args:
        version: replaces the identity of parts that have none.
        ignore: places to leave out.
        recorded: the identity of the module that this one is a copy of.
        clock: returns seconds.
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
        self.module = module
        self._version = version
        self._ignore = ignore
        if recorded is None:
            look, effects = partial(_look, module, ignore), effects_of(module, ignore)
            recorded = RecordedIdentity(look, version, effects, is_strict=True, caller=ANY_THREAD, clock=clock)
        else:
            effects_of(module, ignore, recorded.effects)
        self._recorded = recorded

    def identity(self, *, again: bool = False, exactly: bool = False) -> Identity:
        """The current identity of the module.

        Args:
            again: hash all weights again, which finds every write.
            exactly: also check small arrays, large containers, and parts that take longer.

        Raises:
            NoFingerprint: some part has no identity.
        """
        return self._recorded.refresh(again=again, exactly=exactly).require()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Call the module in this context: its changes of itself, except of weights, do not change its identity."""
        with ExitStack() as stack:
            for (number, _, _), detector in list(_live.items()):
                if number == id(self.module):
                    stack.enter_context(detector._recorded.calling())
            yield

    def of(self, module: nn.Module) -> ModuleChangeDetector:
        """The detector of another module with the same options."""
        return detector_of(module, self._version, self._ignore)

    @property
    def window(self) -> float:
        """Seconds within which a check finds a write to a tensor that only hashing shows."""
        return self._recorded.window

    def __reduce__(self) -> Any:
        return detector_of, (self.module, self._version, self._ignore, self._recorded)


def detector_of(
    module: nn.Module,
    version: str | None = None,
    ignore: Collection[str] = (),
    recorded: RecordedIdentity | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> ModuleChangeDetector:
    """The detector of a module: one for each combination of `version` and `ignore`.

    Args:
        recorded, clock: for a new detector, see `ModuleChangeDetector`.
    """
    ignored = frozenset([ignore] if isinstance(ignore, str) else ignore)
    key = (id(module), version, ignored)
    found = _live.get(key)
    if found is None:
        found = _live[key] = ModuleChangeDetector(module, version, ignored, recorded, clock=clock)
    return found


def _look(module: nn.Module, ignore: frozenset[str], watch: Watch) -> Walk:
    # Random modules are refused elsewhere. Random numbers in an `__init__` do not matter: it is not called.
    return walk_over(module, is_called_here=True, name="module", ignore=ignore, watch=watch, called=False, draws=False)
