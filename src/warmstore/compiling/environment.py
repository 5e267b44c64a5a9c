"""The environment that a compiled artifact depends on: versions, device, instruction set, compiler, threads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from blake3 import blake3

from warmstore.errors import BadArtifact
from warmstore.storage.cached_property import cached_property

UNKNOWN_COMPUTE = (0, 0)
"""Stands for the compute capability of a GPU that cannot be asked for it, such as a MIG instance."""


@dataclass(frozen=True)
class Environment:
    """Everything that decides whether an artifact is usable on another machine. None or empty: absent or unknown.

    `abi` is the tag of Python's extension modules, such as "cpython-313t-x86_64-linux-gnu". `isa` has the
    extensions of the CPU's instruction set that compilers use. `capability` is the vector level of torch's kernels
    ("avx512", "avx2", "default"), which ATEN_CPU_CAPABILITY lowers. `gpus` are the models of the visible GPUs and
    `compute` their compute capabilities, in the same order. `driver` is the version of the CUDA driver. `threads`
    is torch's default number of threads.
    """

    system: str = ""
    machine: str = ""
    glibc: str | None = None
    python: str = ""
    abi: str | None = None
    torch: str | None = None
    torch_git: str | None = None
    torch_path: str | None = None
    triton: str | None = None
    cuda: str | None = None
    jax: str | None = None
    jaxlib: str | None = None
    gpus: tuple[str, ...] = ()
    compute: tuple[tuple[int, int], ...] = ()
    driver: str | None = None
    isa: tuple[str, ...] = ()
    capability: str = "default"
    compiler: str | None = None
    threads: int = 0

    def changes_from(self, other: Environment) -> list[str]:
        """The differences from `other`, such as "torch 2.12.0 -> 2.13.0". The path of torch does not count."""
        changes = []
        for name in (field.name for field in fields(self)):
            before, now = getattr(other, name), getattr(self, name)
            if before == now or name == "torch_path":
                continue
            if name == "isa":
                lost, new = sorted(set(before) - set(now)), sorted(set(now) - set(before))
                parts = (f"{word} {', '.join(isa)}" for word, isa in (("no", lost), ("with", new)) if isa)
                changes.append(" and ".join(parts))
            else:
                changes.append(f"{name} {value_text(before)} -> {value_text(now)}")
        return changes

    @cached_property
    def digest(self) -> str:
        """A hash of `to_json`, 32 hexadecimal digits."""
        return blake3(self.to_json().encode()).hexdigest(length=16)

    def to_json(self) -> str:
        """One line, the same for equal environments."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Environment:
        """The environment of `to_json`, without unknown names. Raises BadArtifact if the text is none."""
        try:
            found: Mapping[str, Any] = json.loads(text)
            if not isinstance(found, dict):
                raise ValueError("it is no object")
            known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
            for name, value in known.items():
                check_value(name, value)
            for name in ("gpus", "isa"):
                known[name] = tuple(known.get(name) or ())
            known["compute"] = tuple(map(tuple, known.get("compute") or ()))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise BadArtifact(f"not an environment ({error}): {str(text)[:80]!r}") from error
        return cls(**known)


def check_value(name: str, value: Any) -> None:
    """Raise ValueError if the value of a field, as JSON has it, is of another type. None is of every type."""
    if name in ("gpus", "isa"):
        is_valid = isinstance(value, list) and all(isinstance(each, str) for each in value)
    elif name == "compute":
        is_valid = isinstance(value, list) and all(map(_is_pair, value))
    else:
        is_valid = isinstance(value, int if name == "threads" else str)
    if value is not None and not is_valid:
        raise ValueError(f"{value!r} is not a value of {name!r}")


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(each, int) for each in value)


def value_text(value: object) -> str:
    """The value of a field for messages."""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
