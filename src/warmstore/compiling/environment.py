"""What a compiled artifact depends on outside the program: versions, device, instruction set, compiler, threads.

An `Environment` is plain data. Versions of torch, Triton and JAX are read from their files, without an import, so an
environment is the same before and after they are imported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from blake3 import blake3

from warmstore.errors import BadArtifact


@dataclass(frozen=True)
class Environment:
    """Everything that decides whether an artifact is usable on another machine. None or empty: absent or unknown.

    `isa` holds the extensions of the CPU's instruction set that compilers use. `capability` is the vector level that
    torch's kernels take ("avx512", "avx2", "default"), which ATEN_CPU_CAPABILITY lowers. `gpus` are the models that
    this process may use and `compute` their compute capabilities, in the same order. `driver` is the CUDA driver's
    version. `threads` is how many threads torch takes when nobody tells it.
    """

    system: str = ""
    machine: str = ""
    glibc: str | None = None
    python: str = ""
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
        """What differs from `other`, as in "torch 2.12.0 -> 2.13.0"; where torch lies does not count."""
        said = []
        for name in (one.name for one in fields(self)):
            before, now = getattr(other, name), getattr(self, name)
            if before == now or name == "torch_path":
                continue
            if name == "isa":
                lost, won = sorted(set(before) - set(now)), sorted(set(now) - set(before))
                said.append(" and ".join(f"{what} {', '.join(of)}" for what, of in (("no", lost), ("with", won)) if of))
            else:
                said.append(f"{name} {value_text(before)} -> {value_text(now)}")
        return said

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that are equal exactly for equal environments, on every machine."""
        return blake3(self._json.encode()).hexdigest(length=16)

    def to_json(self) -> str:
        """One line, the same for equal environments."""
        return self._json

    @cached_property
    def _json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Environment:
        """The environment that `to_json` wrote. Names that this version does not know are left out.

        Raises:
            BadArtifact: the text is no environment.
        """
        try:
            found: Mapping[str, Any] = json.loads(text)
            known = {field.name: found[field.name] for field in fields(cls) if field.name in found}
            for name in ("gpus", "isa"):
                known[name] = tuple(known.get(name, ()))
            known["compute"] = tuple((int(major), int(minor)) for major, minor in known.get("compute", ()))
        except (ValueError, TypeError, KeyError) as error:
            raise BadArtifact(f"not the record of an environment ({error}): {text[:80]!r}") from error
        return cls(**known)


def value_text(value: object) -> str:
    """A value of a field, or several, as messages show it."""
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
