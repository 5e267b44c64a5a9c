"""The identity of settings: arguments of a call, or parts of them, that are the same for all samples."""

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch

from warmstore.identity import Identity
from warmstore.identity.call_effects import effects_of
from warmstore.identity.identity import walk_over
from warmstore.identity.kinds.torch_objects import tensor_text
from warmstore.identity.named_files import FileStamps
from warmstore.identity.patches import Patches
from warmstore.identity.plain_data import atom_text
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.storage.threads import ANY_THREAD

_STAMPS = FileStamps()


class CallSettings:
    """Identifies the settings of calls. An object is identified once, and again only after a change.

    Args:
        version: replaces the identity of parts that have none.
        ignore: places to leave out.
    """

    def __init__(self, version: str | None, ignore: Collection[str]) -> None:
        self._version = version
        self._ignore = frozenset(ignore)
        self._known: dict[str, tuple[Any, RecordedIdentity]] = {}  # the last object by the name of the argument

    def text(self, name: str, value: Any) -> str:
        """A text that differs if the identities of two settings differ. It is cheap, because every call needs it."""
        text = atom_text(value)
        if text is not None:
            return text + (_STAMPS.stamp(str(value)) if isinstance(value, str | os.PathLike) else "")
        if type(value) is torch.Tensor:
            return tensor_text(value)
        if type(value) is dict:
            return repr([(atom_text(key) or key, self.text(f"{name}[{key!r}]", child)) for key, child in value.items()])
        if type(value) is list or type(value) is tuple:
            kind = "list" if type(value) is list else "tuple"
            return f"{kind} {[self.text(f'{name}[{at}]', child) for at, child in enumerate(value)]}"
        return self._recorded(name, value).refresh(exactly=True).digest

    def identity(self, name: str, value: Any) -> Identity:
        """The identity of a setting.

        Raises:
            NoFingerprint: the setting has none, so its changes would not be noticed.
        """
        recorded = self._recorded(name, value)
        recorded.refresh(again=True)
        found = recorded.found
        return found.identity(self._version if found.unknown else None).require()

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Call the module in this context: its changes of the settings do not change their identity."""
        with ExitStack() as stack:
            for _, recorded in list(self._known.values()):
                stack.enter_context(recorded.calling())
            yield

    def _recorded(self, name: str, value: Any) -> RecordedIdentity:
        known = self._known.get(name)
        if known is None or known[0] is not value:
            look = partial(_look, name, value, self._ignore)
            effects = effects_of(value, (name, self._ignore))
            known = self._known[name] = value, RecordedIdentity(look, effects=effects, caller=ANY_THREAD)
        return known[1]

    def __reduce__(self) -> Any:
        return CallSettings, (self._version, self._ignore)


def _look(name: str, value: Any, ignore: Collection[str], watch: Watch) -> Walk:
    return walk_over(value, name=name, ignore=ignore, called=False, watch=watch, patches=Patches(), read_elsewhere=True)
