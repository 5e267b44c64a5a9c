"""Checks whether the compile cache can work on this machine, and shows the reasons for the misses of the last runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from warmstore.compiling.environment import Environment
from warmstore.compiling.finding import Finding
from warmstore.compiling.hooks.torch_hooks import TESTED, is_tested
from warmstore.compiling.misses import lookup_log
from warmstore.compiling.probes import probe
from warmstore.compiling.rules import objections
from warmstore.compiling.scratch.compiler_files import is_whole_library
from warmstore.compiling.scratch.scratch_dir import places, why_not, why_not_trusted
from warmstore.compiling.single_flight import SingleFlight
from warmstore.compiling.store.artifact_quota import UNLIMITED
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.errors import message_of
from warmstore.storage.user_paths import user_path


def doctor(folder: Path, job: str | None = None) -> list[Finding]:
    """Check this machine and a store's folder, and make no store. With `job`, show only the last run of this job.

    Raises:
        ValueError: A newer warmstore made the store.
    """
    folder = user_path(folder).absolute()
    environment = probe()
    if not folder.exists():
        return [*_machine(environment), _none_yet(folder)]
    return [*_machine(environment), *_folders(folder), *_store(folder, environment), *_last_runs(folder, job)]


def _machine(environment: Environment) -> Iterator[Finding]:
    versions = f"tested: {', '.join(TESTED)}"
    if environment.torch is None:
        yield Finding("torch", True, "not installed")
    elif is_tested(environment.torch):
        yield Finding("torch", True, f"{environment.torch} ({versions})")
    else:
        yield Finding("torch", False, f"{environment.torch}; only artifacts that the job used are found ({versions})")
    if environment.compiler is None:
        yield Finding("compiler", False, "no g++, clang++ or $CXX; code for the CPU cannot be compiled")
    else:
        yield Finding("compiler", True, environment.compiler)
    level = f"{environment.capability}, {len(environment.isa)} extensions"
    if lowered := os.environ.get("ATEN_CPU_CAPABILITY"):
        level += f"; set by ATEN_CPU_CAPABILITY={lowered}, so code for all extensions of the CPU is not usable"
    yield Finding("instruction set", environment.capability != "default", level)
    yield Finding("GPUs", True, ", ".join(environment.gpus) or "none")


def _none_yet(folder: Path) -> Finding:
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    is_writable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    text = f"there is none in {folder}; `init` or an import creates one"
    return Finding("store", is_writable, text if is_writable else f"{text}, but {there} cannot be written")


def _folders(folder: Path) -> Iterator[Finding]:
    try:
        trusted = why_not_trusted(folder)
        yield Finding("store", not trusted, f"{folder} {trusted}".rstrip())
    except OSError as error:
        yield Finding("store", False, message_of(error))
        return
    try:
        SingleFlight(folder / "flights").close()
        yield Finding("locks", True, "writable: one of several cold processes compiles")
    except OSError as error:
        yield Finding("locks", False, f"{message_of(error)}; every cold process compiles")
    reasons = []
    for parent in places(folder):
        try:
            reason = why_not(parent)
        except OSError as error:
            reason = message_of(error)
        if not reason:
            yield Finding("place to compile in", True, str(parent))
            return
        reasons.append(f"{parent} {reason}")
    yield Finding("place to compile in", False, "; ".join(reasons))


def _store(folder: Path, environment: Environment) -> Iterator[Finding]:
    if not (folder / "index.sqlite").exists():
        yield Finding("artifacts", True, "none yet; `init` or an import creates the store")
        return
    try:
        store = ArtifactStore(folder, UNLIMITED)
    except OSError as error:
        yield Finding("artifacts", False, message_of(error))
        return
    with store:
        artifacts = store.all()
        usable = sum(not objections(artifact, environment) for artifact in artifacts)
        yield Finding("artifacts", True, f"{len(artifacts)}, of which {usable} are usable here")
        broken = []
        for artifact in artifacts:
            try:
                data = store.read(artifact)
                if artifact.kind == "cpp.so" and not is_whole_library(data):
                    broken.append(f"{artifact.key} is truncated")
            except (OSError, LookupError) as error:
                broken.append(message_of(error))
        yield Finding("integrity", not broken, "; ".join(broken[:5]) or "no artifact is damaged")


def _last_runs(folder: Path, job: str | None) -> Iterator[Finding]:
    for name, lookups in lookup_log.read(folder, job):
        missed = [lookup for lookup in lookups if not lookup.hit]
        yield Finding(f"last run of {name}", not missed, f"{len(lookups) - len(missed)} of {len(lookups)} found")
        for lookup in missed:
            yield Finding(f"last run of {name}: {lookup.key}", False, lookup.why)
