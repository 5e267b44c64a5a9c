"""Profiles: options of the compilers that decide on which machines the compiled code can run.

A profile has environment variables, which a compiler reads when it is imported, and the same options for compilers that
are imported already. A variable that the user has set stays as it is.
"""

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class CompilerProfile:
    """A profile: environment variables, and the same and further options as attributes of `torch._inductor.config`.

    `requirements` are the `Artifact.requirements` of what Inductor compiles with exactly these options.
    """

    name: str
    variables: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    requirements: Mapping[str, Any] = field(default_factory=dict)


_FAST = CompilerProfile("fast", {})

# As /proc/cpuinfo spells them: AMD64 Architecture Processor supplement of the System V ABI, table 3.1.
_X86_64_V2 = ["cx16", "popcnt", "sse4_1", "sse4_2", "ssse3"]
_X86_64_V3 = [*_X86_64_V2, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"]

# x86-64-v3 has AVX2 and FMA, as every x86 server since 2015. The number of threads is not compiled in.
_PORTABLE = CompilerProfile(
    "portable",
    {
        "TORCHINDUCTOR_CPP_MARCH": "x86-64-v3",
        "TORCHINDUCTOR_CPP_DYNAMIC_THREADS": "1",
    },
    {"cpp.march": "x86-64-v3", "cpp.dynamic_threads": True, "cpp.simdlen": 256},
    {"isa": sorted(_X86_64_V3), "capability": None},
)

PROFILES = ("auto", "fast", "portable")


def choose(name: str) -> CompilerProfile:
    """The profile of a name. `auto` is `fast`; so is `portable` on machines other than x86-64. Raises ValueError."""
    if name not in PROFILES:
        raise ValueError(f"profile={name!r} is not known; choose one of {', '.join(PROFILES)}")
    return _PORTABLE if name == "portable" and platform.machine() in ("x86_64", "AMD64") else _FAST


def set_variables(profile: CompilerProfile) -> dict[str, str | None]:
    """Set the variables. Returns their previous values."""
    before = {name: os.environ.get(name) for name in profile.variables}
    for name, value in profile.variables.items():
        os.environ.setdefault(name, value)
    return before


def requirements_now(profile: CompilerProfile) -> Mapping[str, Any]:
    """The requirements of what Inductor compiles now in this thread: none if the user has set an option of the profile
    to another value, since the code then is for this machine."""
    config = sys.modules.get("torch._inductor.config")
    if config is None:
        return {}
    for name, value in profile.options.items():
        holder, last = _holder(config, name)
        if getattr(holder, last, None) != value:
            return {}
    return profile.requirements


def apply_options(profile: CompilerProfile, config: ModuleType) -> dict[str, Any]:
    """Set the options in `torch._inductor.config`. Options that this version does not have are skipped. Returns the
    previous values of the others."""
    before = {}
    for name, value in profile.options.items():
        variable = f"TORCHINDUCTOR_{name.replace('.', '_').upper()}"
        if variable in profile.variables and os.environ.get(variable) not in (None, profile.variables[variable]):
            continue  # the user's choice
        holder, last = _holder(config, name)
        if hasattr(holder, last):
            before[name] = getattr(holder, last)
            setattr(holder, last, value)
    return before


def restore_options(profile: CompilerProfile, before: Mapping[str, Any]) -> None:
    """Set the options to the values that `apply_options` returned, except those that were set to others since."""
    for name, value in before.items():
        holder, last = _holder(sys.modules["torch._inductor.config"], name)
        if getattr(holder, last) == profile.options[name]:
            setattr(holder, last, value)


def _holder(config: ModuleType, name: str) -> tuple[Any, str]:
    """The object that has an option as an attribute, None if this version has no such object, and the attribute's
    name."""
    *path, last = name.split(".")
    holder: Any = config
    for part in path:
        holder = getattr(holder, part, None)
    return holder, last
