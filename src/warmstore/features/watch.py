"""Notices that a module changed, without hashing its weights at every call.

Every write to a tensor through torch raises its version; a tensor that was replaced is another object. What was seen
last is kept alive, for a new tensor may else lie where a freed one lay and look the same. In-place writes through
`.data` or NumPy raise no version and go unseen: docs/features.md says so.
"""

from itertools import chain
from operator import attrgetter, is_, methodcaller
from typing import Any

import torch
from torch import nn

from warmstore.features import fingerprint

Fingerprint = dict[str, str]
_version_of, _values = attrgetter("_version"), methodcaller("values")


class Watch:
    """The fingerprint of one module, computed again only when something moved."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._code = ""
        self._settings = ""
        self._weights = ""
        self._version = 0
        self._list()

    def version(self) -> tuple[int, tuple[bool, ...]]:
        """A value that changes when weights, or the mode of a module whose code looks at it, may have changed."""
        if not self._is_same():
            self._list()
            self._weights = ""
            self._version += 1
        return self._version, tuple([child.training for child in self._sensitive])

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

    def _is_same(self) -> bool:
        parts = [*chain.from_iterable(map(_values, self._holders))]
        if len(parts) != len(self._parts) or not all(map(is_, parts, self._parts)):
            return False
        try:
            return self._state() == self._seen
        except RuntimeError:
            return False  # another kind of tensor was put in a tensor's place through `.data`

    def _list(self) -> None:
        children = list(self._module.modules())
        self._holders: list[dict[str, Any]] = [
            holder for child in children for holder in (child._parameters, child._buffers, child._modules)
        ]
        self._sensitive = fingerprint.mode_sensitive(self._module)
        self._parts = [part for holder in self._holders for part in holder.values()]
        tensors = [part for part in self._parts if isinstance(part, torch.Tensor)]
        # Tensors made in inference mode have no version; they cannot be written outside it either.
        self._versioned = [tensor for tensor in tensors if not tensor.is_inference()]
        self._strided = [tensor for tensor in tensors if tensor.layout == torch.strided]
        self._alive = [tensor.untyped_storage() for tensor in self._strided]
        self._seen = self._state()

    def _state(self) -> tuple[list[int], list[int]]:
        # Runs at every call over hundreds of tensors, so all loops are in C.
        return [*map(_version_of, self._versioned)], [*map(torch.Tensor.data_ptr, self._strided)]
