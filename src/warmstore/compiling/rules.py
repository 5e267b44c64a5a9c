"""Rules for where an artifact may be used: a small class for each rule, and a list of rules for each kind of artifact.

A rule compares what an artifact needs, by default the environment it was made in, with the present environment. It
returns an objection or None. Of several usable artifacts the most specific kind wins, then the newest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import UNKNOWN_COMPUTE, Environment, value_text


class Rule(Protocol):
    """One condition of an artifact."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        """Why the artifact must not be used in the environment; None if it may be."""


@dataclass(frozen=True)
class Same:
    """A field of the environment is the same, or unknown in both. A requirement of None accepts any value."""

    field: str

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed, found = artifact.needs(self.field), getattr(environment, self.field)
        if _accepts_any(artifact, self.field) or needed == found:
            return None
        if isinstance(needed, list) and tuple(needed) == found:
            return None
        return f"needs {self.field} {value_text(needed)}, here is {value_text(found)}"


class SamePython:
    """The same minor version of Python, as 3.11.4 reads what 3.11.9 wrote, and the same ABI: 3.13t has another one than
    3.13, and libraries contain inlined functions of Python.h."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed, found = artifact.needs("python"), environment.python
        if not _accepts_any(artifact, "python") and _minor(needed) != _minor(found):
            return f"needs python {_minor(needed)}, here is {_minor(found)}"
        return Same("abi").objection(artifact, environment)


class InstructionSet:
    """The CPU has every extension that the artifact was built for."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        if not artifact.environment.isa and environment.isa and "isa" not in artifact.requirements:
            return "was built for a CPU whose extensions are unknown"
        lacking = sorted(set(artifact.needs("isa") or ()) - set(environment.isa))
        return f"needs a CPU with {', '.join(lacking)}" if lacking else None


class GlibcAtLeast:
    """The C library is no older than the one that the artifact was linked with, whose symbols it may use."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed, found = artifact.needs("glibc"), environment.glibc
        if needed == found or _accepts_any(artifact, "glibc"):
            return None
        if needed is not None and found is not None and _numbers(found) >= _numbers(needed):
            return None
        return f"needs glibc {f'{needed} or newer' if needed else 'none'}, here is {value_text(found)}"


@dataclass(frozen=True)
class Compute:
    """The GPUs have the compute capabilities of those where the artifact was made, or with `newer` also higher ones.

    Code for an architecture with a letter ("sm_90a", in the requirement `architecture`) needs exactly that one: CUDA
    C++ Programming Guide, "Compute Capabilities", architecture-specific features.
    """

    newer: bool = False

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed = {(int(major), int(minor)) for major, minor in artifact.needs("compute") or ()}
        found = set(environment.compute)
        if found == needed or _accepts_any(artifact, "compute"):
            return None
        if not needed:
            return f"was made without a GPU, here is compute capability {_capabilities(found)}"
        if not found:
            return f"needs a GPU of compute capability {_capabilities(needed)}, here is none"
        exact = not self.newer or str(artifact.requirements.get("architecture", ""))[-1:].isalpha()
        if not exact and UNKNOWN_COMPUTE not in needed and min(found) >= max(needed):
            return None
        wanted = f"{_capabilities(needed)}{'' if exact else ' or higher'}"
        return f"needs compute capability {wanted}, here is {_capabilities(found - needed or found)}"


class SameModels:
    """The GPUs are of the same models."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed, found = set(artifact.needs("gpus") or ()), set(environment.gpus)
        return None if found == needed else f"needs {value_text(sorted(needed))}, here is {value_text(sorted(found))}"


class CudaAtLeast:
    """CUDA has the same major version and is no older: a driver rejects PTX and cubins of a newer toolkit."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        needed, found = artifact.needs("cuda"), environment.cuda
        if needed == found or _accepts_any(artifact, "cuda"):
            return None
        if needed is None:
            return f"was made without CUDA, here is {found}"
        if found is not None and _numbers(found) >= _numbers(needed) and _numbers(found)[:1] == _numbers(needed)[:1]:
            return None
        return f"needs CUDA {needed} or newer of the same major version, here is {value_text(found)}"


class SameEnvironment:
    """The whole environment is the same. For kinds that are not in `KINDS`."""

    def objection(self, artifact: Artifact, environment: Environment) -> str | None:
        if artifact.environment == environment:
            return None
        return f"is of the unknown kind {artifact.kind!r}, which is usable only in exactly its own environment"


@dataclass(frozen=True)
class Kind:
    """A kind of artifact. Of the usable artifacts of a key, those with the highest `rank` are the most specific."""

    rank: int
    rules: tuple[Rule, ...]


_HOST = (Same("system"), Same("machine"))
_TORCH = (Same("torch"), Same("torch_git"))
_CPU = (*_HOST, InstructionSet(), Same("capability"))
_NATIVE = (*_CPU, GlibcAtLeast())
_OF_PYTHON = (*_TORCH, SamePython())

KINDS: dict[str, Kind] = {
    "triton.cubin": Kind(30, (*_HOST, Same("triton"), CudaAtLeast(), Compute())),
    "triton.ptx": Kind(20, (Same("triton"), CudaAtLeast(), Compute(newer=True))),
    "triton.ttir": Kind(10, (Same("triton"),)),
    "cpp.so": Kind(30, (*_NATIVE, *_OF_PYTHON)),
    "cpp.source": Kind(10, _TORCH),
    "fx_graph": Kind(20, (*_OF_PYTHON, *_CPU, Same("triton"), Compute())),
    "aot_autograd": Kind(20, (*_OF_PYTHON, *_CPU, Same("triton"), Compute())),
    "autotune": Kind(20, (*_TORCH, Same("triton"), SameModels(), Same("machine"), InstructionSet())),
    "pgo": Kind(10, _OF_PYTHON),
    "package": Kind(30, (*_NATIVE, *_OF_PYTHON, Same("triton"), Compute())),
    "answer": Kind(30, (*_HOST, *_TORCH, Same("isa"), Same("glibc"), Same("compiler"))),
    "details": Kind(0, ()),
    "header": Kind(30, (*_HOST, *_OF_PYTHON, Same("compiler"))),
    "jax": Kind(30, (*_NATIVE, Same("jax"), Same("jaxlib"), SameModels())),
}
"""Rank and rules of each kind."""

_UNKNOWN = Kind(0, (SameEnvironment(),))


def objections(artifact: Artifact, environment: Environment) -> list[str]:
    """Every reason why an artifact must not be used in an environment; none if it may be used."""
    rules = KINDS.get(artifact.kind, _UNKNOWN).rules
    return [reason for rule in rules if (reason := rule.objection(artifact, environment)) is not None]


def choose(candidates: Iterable[Artifact], environment: Environment) -> tuple[Artifact | None, list[str]]:
    """The most specific usable candidate, and why others are not usable.

    A reason is, for example, "triton.cubin made on HOST: needs compute capability 9.0, here is 8.0".
    """
    usable: list[Artifact] = []
    reasons = []
    for artifact in candidates:
        if found := objections(artifact, environment):
            reasons.append(f"{artifact.kind} made on {artifact.host or 'an unknown host'}: {'; '.join(found)}")
        else:
            usable.append(artifact)

    def order(artifact: Artifact) -> tuple[int, int, float]:
        kind = KINDS.get(artifact.kind, _UNKNOWN)
        return kind.rank, len(artifact.needs("isa") or ()), artifact.created

    return max(usable, key=order, default=None), reasons


def _accepts_any(artifact: Artifact, field: str) -> bool:
    """Whether an artifact has the requirement None. None in its environment is unknown, and accepts no other value."""
    return artifact.requirements.get(field, "") is None


def _capabilities(found: Iterable[tuple[int, int]]) -> str:
    return " and ".join("unknown" if each == UNKNOWN_COMPUTE else f"{each[0]}.{each[1]}" for each in sorted(found))


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _numbers(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split("."):
        if not part.isdecimal():
            break
        numbers.append(int(part))
    return tuple(numbers)
