"""Encoder: takes the values of one type apart into parts that can be kept, and makes them again.

An encoder has a digest. A kept value is decoded only by an encoder with the digest of the one that encoded it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.identity.identity import reasons, walk_over
from warmstore.identity.recorded_identity import RecordedIdentity
from warmstore.identity.walk import Walk
from warmstore.identity.watch import Watch
from warmstore.pipeline.encoders.comparison import difference
from warmstore.storage.cached_property import cached_property
from warmstore.tree.type_names import type_name

Bits = np.ndarray[Any, np.dtype[np.uint8]]


def _no_memory(value: Any) -> list[Bits]:
    return []


@dataclass(frozen=True)
class Encoder:
    """The encoder of one type; a subclass of the type has none.

    cls: the type. encode: returns the parts of a value, themselves of types that can be kept. decode: makes the value
    of its parts. equal: whether two values are the same to any step; None compares all that pickle would write.
    version: stands for what is unknown in the code; for an encoder of warmstore, its whole digest.
    is_own: whether it is an encoder of warmstore. is_mutable: whether a step can change a value in place.
    memory: arrays over the memory of a value that its parts do not have.
    """

    cls: type
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    equal: Callable[[Any, Any], bool] | None = None
    version: str | None = None
    is_own: bool = False
    is_mutable: bool = True
    memory: Callable[[Any], list[Bits]] = _no_memory

    @property
    def name(self) -> str:
        """Module and name of the type, for messages."""
        return ".".join(type_name(self.cls))

    @cached_property
    def recorded(self) -> RecordedIdentity:
        """The identity of the functions, with all that they call and read."""
        return RecordedIdentity(partial(_look, self.encode, self.decode, self.name), self.version)

    @property
    def digest(self) -> str:
        """Identifies the form in which values are kept, at the last check.

        Raises:
            UnsupportedType: it is unknown whether the functions change.
        """
        if self.is_own:
            return str(self.version)
        identity = self.recorded.identity
        if identity.unknown:
            raise UnsupportedType(
                f"the encoder of {self.name} has no identity: {reasons(identity.unknown)}; pass version='1' to "
                "register_encoder, and another one whenever that changes"
            )
        return identity.digest

    def why_wrong(self, value: Any, again: Any) -> str:
        """How a decoded value differs from the original; "" if it does not."""
        if type(again) is not self.cls:
            return f"it is a {'.'.join(type_name(type(again)))}"
        if self.equal is None:
            return difference(value, again, by_order=True)
        return "" if self.equal(value, again) else "`equal` is false"


def _look(encode: Any, decode: Any, name: str, watch: Watch | None = None) -> Walk:
    return walk_over(partial(_both, encode=encode, decode=decode), name=name, watch=watch)


def _both(value: Any, encode: Any, decode: Any) -> Any:
    return decode(encode(value))
