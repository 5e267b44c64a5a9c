"""Notices that a module changed, without hashing its weights at every call.

Every write to a tensor through torch raises its version; a tensor that was replaced is another object. What was seen
last is kept alive, for a new tensor may else lie where a freed one lay and look the same. In-place writes through
`.data` or NumPy raise no version and go unseen: docs/features.md says so.
"""

from typing import Any

import torch
from torch import nn

from warmstore.features import fingerprint

Fingerprint = dict[str, str]


class Watch:
    """The fingerprint of one module, computed again only when something moved."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._code = ""
        self._settings = ""
        self._weights = ""
        self._seen: Any = None
        self._alive: Any = None
        self._version = -1
        self._list()

    def version(self) -> tuple[int, tuple[bool, ...]]:
        """A value that changes when weights, or the mode of a module whose code looks at it, may have changed."""
        if [_state(part) for holder in self._holders for part in holder.values()] != self._seen:
            self._list()
            parts = [part for holder in self._holders for part in holder.values()]
            self._seen = [_state(part) for part in parts]
            self._alive = parts, [_storage(part) for part in parts]
            self._weights = ""
            self._version += 1
        return self._version, tuple(child.training for child in self._sensitive)

    def fingerprint(self) -> Fingerprint:
        """Hashes by what they cover, named as a message to the user would."""
        if not self._weights:
            self._weights = fingerprint.weights(self._module)
        if not self._code:
            # Once: attributes may be counters that the module's surroundings change.
            self._code, self._settings = fingerprint.code(self._module), fingerprint.settings(self._module)
        modes = "".join("t" if child.training else "e" for child in self._sensitive)
        return {"weights": self._weights, "code": self._code, "settings": self._settings, "train/eval mode": modes}

    def __reduce__(self) -> Any:
        return Watch, (self._module,)

    def _list(self) -> None:
        children = list(self._module.modules())
        self._holders: list[dict[str, Any]] = [
            holder for child in children for holder in (child._parameters, child._buffers, child._modules)
        ]
        self._sensitive = fingerprint.mode_sensitive(self._module)


def _state(part: Any) -> Any:
    if not isinstance(part, torch.Tensor):
        return id(part)
    # Tensors made in inference mode have no version; they cannot be written outside it either.
    version = None if part.is_inference() else part._version
    return id(part), version, part.data_ptr() if part.layout == torch.strided else 0


def _storage(part: Any) -> Any:
    return part.untyped_storage() if isinstance(part, torch.Tensor) and part.layout == torch.strided else None
