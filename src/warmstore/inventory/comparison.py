"""Comparing what two caches were made from: two versions of feature caches, or of cached samples of pipelines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import NotAStore, SchemaMismatch
from warmstore.features.cache_inspection import find_caches
from warmstore.features.keyed.cache_store import is_cache
from warmstore.features.keyed.cache_versions import differences
from warmstore.identity.identity import differences as facts_differences
from warmstore.pipeline.step_identities import Description, difference_of
from warmstore.pipeline.tiers.sample_schema import SAMPLE, SampleSchema
from warmstore.pipeline.tiers.sample_table import match
from warmstore.pipeline.tiers.tier_about import read_about
from warmstore.pipeline.tiers.tier_inspection import find_tier
from warmstore.pipeline.tiers.tier_quota import ABOUT
from warmstore.pipeline.tiers.tier_store import KINDS
from warmstore.records.format.manifest import NAME, Manifest, holds_store, read_manifest
from warmstore.storage.array_types import UInt64
from warmstore.storage.files import Files


@dataclass(frozen=True)
class Comparison:
    """How the version at `second`, B, differs from that at `first`, A, one text for each difference; none if both were
    made from the same. kind: "features" or "pipeline". not_compared: what could not be compared, and why, or ""."""

    kind: str
    first: Path
    second: Path
    differences: tuple[str, ...]
    not_compared: str = ""


def compare(first: Path, second: Path) -> Comparison:
    """Compare two versions of caches, or caches that have one version.

    Raises:
        NotAStore: a folder is neither, or has several versions.
        SchemaMismatch: the two cannot be compared.
    """
    paths = _version(first), _version(second)
    tiers = [(path / ABOUT).is_file() for path in paths]
    if all(tiers):
        return _pipelines(*paths)
    if any(tiers):
        raise SchemaMismatch(f"{first} and {second} are caches of different kinds; name two of the same")
    one, two = (_cache(path) for path in paths)
    return Comparison("features", *paths, tuple(_features(paths, one, two)))


def _version(path: Path) -> Path:
    """The version at a path."""
    if (path / NAME).is_file() or (path / ABOUT).is_file():
        return path
    try:
        tier = find_tier(path)
    except NotAStore:
        versions = find_caches(path)
    else:
        versions = sorted(about.parent for about in tier.glob(f"[!.]*/{ABOUT}"))
    if len(versions) != 1:
        names = ", ".join(version.name for version in versions) or "none"
        raise NotAStore(f"{path} has {len(versions)} versions: {names}; name the folder of one")
    return versions[0]


def _cache(path: Path) -> Manifest:
    manifest = read_manifest(path, Files())
    if not is_cache(manifest):
        raise NotAStore(f"{path} is a record store, and has no fingerprint; name a version of a feature cache")
    return manifest


def _features(paths: tuple[Path, Path], one: Manifest, two: Manifest) -> list[str]:
    prints = one.metadata.get("fingerprint"), two.metadata.get("fingerprint")
    missing = [str(path) for path, known in zip(paths, prints, strict=True) if known is None]
    if prints[0] is None or prints[1] is None:
        raise SchemaMismatch(
            f"{' and '.join(missing)}: filled by put_batch alone, so that what made the outputs is not known"
        )
    found = differences(prints[0], prints[1])
    if one.metadata.get("structure") != two.metadata.get("structure"):
        found.append("the outputs have another structure")
    for name, field in one.fields.items():
        if name in two.fields and two.fields[name] != field:
            found.append(f"the output {name!r} was {field}, is {two.fields[name]}")
    return found


def _pipelines(first: Path, second: Path) -> Comparison:
    before, after = _about(first), _about(second)
    found = [*_steps(before["steps"], after["steps"]), *_schemas(before["schema"], after["schema"])]
    old, new = _sample_keys(first), _sample_keys(second)
    empty = [name for name, keys in (("A", old), ("B", new)) if not len(keys)]
    if empty:
        not_compared = f"the samples: {' and '.join(empty)} {'hold' if len(empty) > 1 else 'holds'} none"
        return Comparison("pipeline", first, second, tuple(found), not_compared)
    for name, keys, others in (("A", old, new), ("B", new, old)):
        if alone := int((match(others, keys) < 0).sum()):
            found.append(f"{alone:,} of {len(keys):,} samples are in {name} alone")
    return Comparison("pipeline", first, second, tuple(found))


def _about(path: Path) -> dict[str, Any]:
    about = read_about(path)
    if about is None:
        raise NotAStore(f"{path} has samples in another format than this warmstore's")
    return about


def _sample_keys(version: Path) -> UInt64:
    """The keys of the samples that a version holds: uint64 [samples, 2], hashes of what each is made from."""
    from warmstore.replicate.record_store import RecordStore

    keys = [np.empty((0, 2), np.uint64)]
    for kind in KINDS:
        if holds_store(version / kind):
            with RecordStore.open(version / kind) as store:
                keys.append(store[SAMPLE][:])
    return np.unique(np.concatenate(keys), axis=0)


def _schemas(before: dict[str, Any] | None, after: dict[str, Any] | None) -> list[str]:
    if before is None or after is None or before["structure"] != after["structure"]:
        return [] if before == after else ["the samples have another structure"]
    old, new = SampleSchema.from_json(before), SampleSchema.from_json(after)
    return [
        f"the field {name!r} of the samples was {was}, is {now}"
        for name, was, now in zip(old.names, old.fields, new.fields, strict=True)
        if was != now
    ]


def _steps(before: list[Description], after: list[Description]) -> list[str]:
    found = []
    for old, new in zip(before, after, strict=False):
        change = difference_of([old], [new])
        facts: tuple[Any, Any] = old["facts"], new["facts"]
        if change and old["name"] == new["name"] and all(facts) and (listed := facts_differences(*facts)):
            found += [f"step {new['name']!r}: {text}" for text in listed]
        elif change:
            found.append(change)
    found += [f"step {step['name']!r} is gone" for step in before[len(after) :]]
    return found + [f"step {step['name']!r} is new" for step in after[len(before) :]]
