"""Checks of encoded objects when they are kept: each is restored and compared, and shares memory as before.

An encoder can hide what an object shares with the rest of the sample, by returning a copy. A later step that writes to
the one would not see it in the other. So the objects that an encoded object refers to are looked at, too.
"""

import enum
import numbers
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.pipeline.encoders.encoder import Encoder
from warmstore.pipeline.encoders.held import held_by
from warmstore.pipeline.tiers.sample_spec import TreeSpec
from warmstore.pipeline.tiers.unflattening import Undecodable, Unflattener
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.tree.shared_buffers import Member

_MOST = 10_000  # objects that an encoded object refers to
_CODE = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, np.ufunc, np.dtype,
)  # fmt: skip
_CONSTANTS = (str, bytes, memoryview, numbers.Number, np.generic, PurePath, enum.Enum, type(None), tuple, frozenset)
_CONTAINERS = (list, dict, set, bytearray, np.ndarray)


@dataclass(frozen=True)
class EncodedPart:
    """An encoded object in a value.

    number: of the part. path: in the value, for messages. parts: kept alive, as other parts are told apart by ids.
    around: numbers of the containers that it is in. own: of the parts below it. arrays: the memory of these.
    """

    value: Any
    number: int
    path: str
    encoder: Encoder
    parts: Any
    around: frozenset[int]
    own: frozenset[int]
    arrays: Sequence[np.ndarray[Any, Any]]

    def hidden_memory(self, numbers_by_id: dict[int, int], at: int) -> list[Member]:
        """The memory of the object that its parts do not have.

        Args:
            numbers_by_id: of all parts of the value. at: the number of its leaves.
        """
        arrays = self.encoder.memory(self.value)
        known = list(self.arrays)
        for part in [] if self.encoder.is_own else _reached(self.value) or []:
            if isinstance(part, np.ndarray | bytearray) or (is_tensor(part) and part.device.type == "cpu"):
                (known if numbers_by_id.get(id(part)) in self.own else arrays).append(to_numpy(part))
        # What the parts have as well is shared through them.
        return [
            Member(["memory", not self.encoder.is_own], at, array, self.path)
            for array in arrays
            if array.size and not any(np.may_share_memory(array, other) for other in known)
        ]


def check_encoded(
    spec: TreeSpec, leaves: Sequence[Any], encoded: Sequence[EncodedPart], numbers_by_id: dict[int, int]
) -> None:
    """Check that the encoded objects of a flattened value are restored, and share what they shared.

    Raises:
        UnsupportedType: one is not the same, or an encoder hides what it shares with another part.
    """
    state = Unflattener(iter([leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in leaves]).__next__)
    try:
        state.join(spec)
    except Undecodable as error:
        raise UnsupportedType(str(error)) from error
    restored = {key: state.parts[number] for key, number in numbers_by_id.items()}
    for part in encoded:
        again = state.parts[part.number]
        if wrong := part.encoder.why_wrong(part.value, again):
            raise UnsupportedType(
                f"{part.path}: what the encoder of {part.encoder.name} decodes differs from the value: {wrong}; mend "
                "the encoder, or pass equal= if no step can tell them apart"
            )
        if not part.encoder.is_own:
            is_alone = len(encoded) == 1 and (part.own | part.around).issuperset(numbers_by_id.values())
            _check_shared(part, again, restored, is_alone)


def _check_shared(part: EncodedPart, again: Any, restored: dict[int, Any], is_alone: bool) -> None:
    """Check that what an object shares with other parts is shared by the restored ones.

    Args:
        again: the object as restored. restored: by the id of each original; those of this object are added.
        is_alone: there is nothing else that it can share.
    """
    before, after = _reached(part.value), _reached(again)
    if before is None or after is None:
        if is_alone:
            return
        raise UnsupportedType(
            f"{part.path} refers to more than {_MOST:,} objects, so it is unknown what it shares with other parts of "
            "the sample; return it alone"
        )
    if len(before) != len(after):
        after = [object() for _ in before]  # nothing tells which is which
    for held, made in zip(before, after, strict=True):
        if restored.setdefault(id(held), made) is not made:
            raise UnsupportedType(
                f"{part.path} shares a {type(held).__name__} with another part of the sample; the encoder of "
                f"{part.encoder.name} must return it among the parts, and not a copy of it"
            )


def _reached(value: Any) -> list[Any] | None:
    """The mutable objects that an object refers to, directly or through others, in order; None for too many."""
    seen = {id(value)}
    found: list[Any] = []
    todo = held_by(value)[::-1]
    while todo:
        part = todo.pop()
        if id(part) in seen or isinstance(part, _CODE):
            continue
        seen.add(id(part))
        if len(seen) > _MOST:
            return None
        held = [] if isinstance(part, bytearray) or is_tensor(part) else held_by(part)
        if isinstance(part, np.ndarray) and part.dtype == object:
            held += part.flat
        if isinstance(part, _CONTAINERS) or is_tensor(part) or (held and not isinstance(part, _CONSTANTS)):
            found.append(part)
        todo += held[::-1]
    return found
