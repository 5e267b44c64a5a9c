"""Packages: what compiling one frame left, with what must be the same where it is put back.

The key of a package is made of the identity of all that tracing may look at, so most of it is known to be the same
where the package is found. What the key cannot tell is in the package: the installed modules that were traced, and the
objects that guards compare in frames that the program calls with values of its own.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import TYPE_CHECKING, Any

from warmstore.compiling.keys.call_sizes import Sizes
from warmstore.compiling.keys.object_texts import object_text
from warmstore.compiling.keys.operators import unknown_targets
from warmstore.compiling.keys.traced import installed_modules, installed_text
from warmstore.errors import BadArtifact, Incompatible

if TYPE_CHECKING:
    from warmstore.compiling.packages.dynamo import RecordedFrame

_MAGIC = b"warmstore package 6\n"
_CHANGED = {"getrecursionlimit", "get_int_max_str_digits"}
PROVEN = "proven by the key"
"""Stands for an object that the program's own identity leads to."""


@dataclass(frozen=True)
class Package:
    """What is stored.

    Attributes:
        frame: which of the program's frames it is.
        installed: every installed module whose code was traced or that graphs call, with what was in it, as
            `installed_text` says.
        objects: what guards compare by its address: an expression over `L`, the frame's variables, and `G`, its
            globals, and what is known of the object that it leads to.
        sizes: the shape of every tensor among the arguments of the call; None for a size that may be another.
        mutates: whether tensors are changed in place.
        data: what `Question.restore` takes.
    """

    frame: str
    installed: tuple[tuple[str, str], ...]
    objects: tuple[tuple[str, str], ...]
    sizes: Sizes
    mutates: bool
    data: bytes

    def to_bytes(self) -> bytes:
        """As it is stored; the same for equal packages."""
        said = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "data"}
        head = json.dumps(said, sort_keys=True).encode()
        return _MAGIC + struct.pack("<Q", len(head)) + head + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> Package:
        """The opposite of `to_bytes`.

        Raises:
            BadArtifact: these bytes are no package.
        """
        start = len(_MAGIC) + 8
        if not data.startswith(_MAGIC) or len(data) < start:
            raise BadArtifact("not a package of a compiled frame")
        (length,) = struct.unpack_from("<Q", data, len(_MAGIC))
        try:
            head = json.loads(data[start : start + length])
            return cls(
                str(head["frame"]),
                _pairs(head["installed"]),
                _pairs(head["objects"]),
                tuple(tuple(None if size is None else int(size) for size in shape) for shape in head["sizes"]),
                bool(head["mutates"]),
                data[start + length :],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadArtifact(f"not a package of a compiled frame: {error}") from error

    def check_installed(self) -> None:
        """Compare the installed modules that were traced or called with those that are here.

        Raises:
            Incompatible: one is of another version, or was changed.
        """
        for module, said in self.installed:
            if (now := installed_text(module)) != said:
                raise Incompatible(f"{module} is {now or 'not loaded'}, and was {said} when it was compiled")

    def check_objects(self, found: Sequence[object]) -> None:
        """Compare the objects that expressions lead to here.

        Raises:
            Incompatible: one is another object.
        """
        for (expression, said), value in zip(self.objects, found, strict=True):
            if said not in (PROVEN, object_text(value)):
                raise Incompatible(f"{expression} is another one")


def packaged(
    recorded: RecordedFrame,
    frame: str,
    sizes: Sizes,
    identified: Mapping[int, CodeType],
    resumes: Mapping[int, Any],
    *,
    is_root: bool,
) -> Package:
    """What was recorded of a frame, as it is stored.

    Args:
        recorded: what compiling it left.
        frame: which one it is.
        sizes: those that it was compiled for.
        identified: the code that counts in the key, by its addresses.
        resumes: code that Dynamo made of such code, by its addresses.
        is_root: whether it is the frame that the program called, with arguments that are in the key.

    Raises:
        Incompatible: something about it could be another thing in another process, and nobody would see.
    """
    unknown = [*recorded.reasons, *recorded.written.reasons, *unknown_targets(recorded.targets, identified)]
    objects = []
    for guard, value in zip(recorded.written.of_objects, recorded.written.objects, strict=True):
        said = object_text(value) or (PROVEN if is_root else "")
        if not said:
            unknown.append(f"nothing another process could find again: {guard.name}")
        objects.append((guard.name, said))
    asked = {
        name for code in {recorded.written.code, *recorded.traced} for name in code.co_names if id(code) in identified
    }
    unknown += [f"it asks sys.{name}, which compiling itself changes" for name in sorted(asked & _CHANGED)]
    traced = [code for code in recorded.traced if id(code) not in resumes]
    installed = installed_modules(traced, identified, unknown) | recorded.modules
    if unknown:
        raise Incompatible("; ".join(sorted(set(unknown))))
    return Package(
        frame,
        tuple((name, installed_text(name)) for name in sorted(installed)),
        tuple(objects),
        sizes,
        recorded.mutates,
        recorded.to_bytes(),
    )


def _pairs(said: Iterable[Sequence[object]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(a), str(b)) for a, b in said)
