"""Packages: the result of compiling one frame, and the conditions for using it in another process.

The key of a package covers all code and values that tracing may read. The package records what the key does not cover:
the installed modules that were traced, and the objects that guards compare by address.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from warmstore.compiling.keys.call_sizes import Sizes
from warmstore.compiling.keys.object_texts import object_text
from warmstore.compiling.keys.operators import unknown_targets
from warmstore.compiling.keys.traced import installed_modules, installed_text
from warmstore.compiling.keys.vector_isa import vector_isa
from warmstore.errors import BadArtifact, Incompatible
from warmstore.identity.origin import origin_of

if TYPE_CHECKING:
    from warmstore.compiling.packages.dynamo import RecordedFrame

_MAGIC = b"warmstore package 7\n"
_CHANGED = {"getrecursionlimit", "get_int_max_str_digits"}
PROVEN = "proven by the key"
"""Stands for the text of an object that the key covers."""


@dataclass(frozen=True)
class Package:
    """A stored package of the frame of that name, compiled for `sizes`. `data` is the argument of `Question.restore`.

    `installed` has the name and `installed_text` of every installed module whose code was traced or that graphs call.
    `objects` are those that guards compare by address: an expression over `L`, the frame's variables, and `G`, its
    globals; and the `object_text` of its value. `mutates`: the frame changes tensors in place.
    `vectors`: the `vector_isa` that graphs on the CPU were compiled for; "" without such graphs.
    """

    frame: str
    installed: tuple[tuple[str, str], ...]
    objects: tuple[tuple[str, str], ...]
    sizes: Sizes
    mutates: bool
    vectors: str
    data: bytes

    def to_bytes(self) -> bytes:
        """The stored form, the same for equal packages: magic, length of the head (uint64), head as JSON, data."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "data"}
        head = json.dumps(fields, sort_keys=True).encode()
        return _MAGIC + struct.pack("<Q", len(head)) + head + self.data

    @classmethod
    def from_bytes(cls, data: bytes) -> Package:
        """The inverse of `to_bytes`. Raises BadArtifact for other bytes."""
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
                str(head["vectors"]),
                data[start + length :],
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise BadArtifact(f"not a package of a compiled frame: {error}") from error

    def check_installed(self) -> None:
        """Raise Incompatible if an installed module that was traced or called has another version, or was changed."""
        for module, before in self.installed:
            if (now := installed_text(module)) != before:
                raise Incompatible(f"{module} is {now or 'not loaded'}, and was {before} when it was compiled")

    def check_vectors(self) -> None:
        """Raise Incompatible if Inductor now compiles for other vector instructions."""
        if self.vectors and (now := vector_isa()) != self.vectors:
            raise Incompatible(f"it was compiled for {self.vectors}, and torch now compiles for {now}")

    def check_objects(self, values: Sequence[object]) -> None:
        """Raise Incompatible if the value of an expression in `objects` differs from the recorded text."""
        for (expression, text), value in zip(self.objects, values, strict=True):
            if text not in (PROVEN, object_text(value)):
                raise Incompatible(f"{expression} is a different object here")


def packaged(
    recorded: RecordedFrame,
    frame: str,
    sizes: Sizes,
    identified: Mapping[int, CodeType],
    resumes: Mapping[int, Any],
    *,
    is_root: bool,
) -> Package:
    """Make the package of a recorded frame. Called while Inductor has the options that it compiled the frame with.

    Args:
        frame: The name of the frame.
        identified: The code that the key covers, by address.
        resumes: Resume functions, which Dynamo makes from such code, by the address of their code.
        is_root: Whether it is the frame of the program's call, whose arguments the key covers.

    Raises:
        Incompatible: The package could be wrong in another process, and no check would notice.
    """
    unknown = [*recorded.reasons, *recorded.written.reasons, *unknown_targets(recorded.targets, identified)]
    objects = []
    for guard, value in zip(recorded.written.of_objects, recorded.written.objects, strict=True):
        is_proven = is_root and _is_of_program(value)
        text = PROVEN if is_proven else object_text(value) or (PROVEN if is_root else "")
        if not text:
            unknown.append(f"a guard compares {guard.name}, which has no identity in other processes")
        objects.append((guard.name, text))
    called = {
        name for code in {recorded.written.code, *recorded.traced} for name in code.co_names if id(code) in identified
    }
    unknown += [f"its code calls sys.{name}, whose value compiling changes" for name in sorted(called & _CHANGED)]
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
        vector_isa() if recorded.uses_cpu else "",
        recorded.to_bytes(),
    )


def _is_of_program(value: object) -> bool:
    """Whether a value is a module of the program. The key has what is read of it, and not the rest of the module."""
    return isinstance(value, ModuleType) and origin_of(value).is_program


def _pairs(values: Iterable[Sequence[object]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(first), str(second)) for first, second in values)
