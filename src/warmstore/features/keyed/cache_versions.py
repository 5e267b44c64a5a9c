"""Versions: the caches of one id that were filled by different weights, code or settings, side by side.

The first version is in the folder of the id. The folders of the others are beside it; their names end with a hash of
the fingerprint, so every process can compute the folder of its module.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash

from warmstore.errors import StaleCache, WarmstoreError
from warmstore.identity.identity import TOGETHER, Identity
from warmstore.identity.identity import difference as facts_difference
from warmstore.identity.identity import differences as facts_differences
from warmstore.records.format.manifest import holds_store, read_manifest
from warmstore.replicate.record_store import RecordStore
from warmstore.storage.files import Files

_RULES = 3
"""Version of the rules of fingerprints: those of identities, and what of a call counts. A change of either is another
version, so that a cache that was filled under the earlier rules is no error."""

Fingerprint = dict[str, Any]
"""Identifies the computation of outputs. rules: version of the rules of fingerprints. digest: 32 hexadecimal digits,
equal for equal outputs. module: the digest of the module alone. facts: identities by place, to explain differences. A
cache from before these rules has hashes by part instead, named "weights", "code", ..."""

POLICIES = ("raise", "new", "ignore")
SUFFIX = "@0123456789abcdef"  # as long as any suffix; ids are quoted, so no other folder's name has an "@"
_MOST_FACTS = 2000
_BELOW = re.compile(r"^([^.\[(]*[.\[(]?[^.\[(]*).*$", re.DOTALL)
_VERSION = re.compile(r"(.*)@[0-9a-f]{16}")


@dataclass(frozen=True)
class CacheVersion:
    """One version of a cache on the disk.

    name: the name of its folder. entries: rows. bytes: size of the folder. fingerprint: of its outputs; None if
    `put_batch` alone filled it.
    """

    name: str
    entries: int
    bytes: int
    fingerprint: Fingerprint | None


def fingerprint_of(module: Identity, arguments: Mapping[str, Identity], autocast: str) -> Fingerprint:
    """The fingerprint of outputs.

    Args:
        arguments: identities of the arguments that are not per sample, by position or name.
        autocast: device and dtype of autocast, "" for none.
    """
    facts = dict(module.facts)
    whole = xxhash.xxh3_128(f"features {_RULES} {module.digest} {autocast}".encode())
    for name, argument in sorted(arguments.items()):
        whole.update(f"{name!r} {argument.digest}".encode())
        facts |= {place: text for place, text in argument.facts.items() if place not in facts}
    facts = {place: text for place, text in facts.items() if text != "[]"} | {"autocast": autocast or "none"}
    kept = facts if len(facts) <= _MOST_FACTS else _together(facts)
    return {"rules": _RULES, "digest": whole.hexdigest(), "module": module.digest, "facts": kept}


def _together(facts: Mapping[str, str]) -> dict[str, str]:
    """One fact for all facts of one child of the module, or of one name in another place."""
    groups: dict[str, list[str]] = {}
    for place, text in sorted(facts.items()):
        groups.setdefault(_BELOW.sub(r"\1", place), []).append(f"{place}={text}")
    together = {}
    for place, group in groups.items():
        joined = xxhash.xxh3_64_hexdigest("\n".join(group).encode("utf-8", "surrogatepass"))
        together[place] = f"{TOGETHER}{joined}" if len(group) > 1 else group[0].partition("=")[2]
    return together


def digest(fingerprint: Fingerprint) -> str:
    """16 hexadecimal digits that name the version of a fingerprint."""
    if "rules" in fingerprint:
        return str(fingerprint["digest"])[:16]
    return xxhash.xxh3_64_hexdigest(json.dumps(fingerprint, sort_keys=True, separators=(",", ":")).encode())


def have_same_rules(known: Fingerprint, given: Fingerprint) -> bool:
    """Whether two fingerprints were made by the same rules, so that they can be compared."""
    return known.get("rules") == given.get("rules")


def are_equal(known: Fingerprint, given: Fingerprint) -> bool:
    """Whether two fingerprints identify the same outputs."""
    if "rules" not in known:
        return known == given
    return have_same_rules(known, given) and bool(known["digest"] == given["digest"])


def difference(known: Fingerprint, given: Fingerprint) -> str:
    """The most important differences between two fingerprints, in words; "" if there are none."""
    if are_equal(known, given):
        return ""
    if not have_same_rules(known, given):
        return "it was filled under other rules of identity"
    if "rules" not in known:
        return " and ".join(f"the {part} changed" for part in {**known, **given} if known.get(part) != given.get(part))
    return facts_difference(*_comparable(known, given)) or "something changed that no fact names"


class OtherRules(StaleCache):
    """A cache was filled under other rules of identity, so its fingerprint cannot be compared."""


def check_equal(known: Fingerprint, given: Fingerprint, id: str, path: Path) -> None:
    """Raise StaleCache if two fingerprints differ.

    Args:
        id, path: of the version with the known one.
    """
    if changed := difference(known, given):
        kind = StaleCache if have_same_rules(known, given) else OtherRules
        raise kind(
            f"the cache {id!r} in {path.parent} has outputs of another computation: {changed}. Use another "
            "cache id for the changed module, pass versions='new' to keep both, undo the change, or remove "
            f"{path}"
        )


def differences(known: Fingerprint, given: Fingerprint) -> list[str]:
    """All differences between two fingerprints, in words, the most important first."""
    if are_equal(known, given) or "rules" not in known or not have_same_rules(known, given):
        return list(filter(None, [difference(known, given)]))
    return facts_differences(*_comparable(known, given)) or ["something changed that no fact names"]


def _comparable(known: Fingerprint, given: Fingerprint) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The facts of two fingerprints by the same rules, both by child if one of them has no others."""
    facts = known["facts"], given["facts"]
    if any(text.startswith(TOGETHER) for texts in facts for text in texts.values()):
        facts = _together(facts[0]), _together(facts[1])
    return facts


def version_folder(folder: Path, name: str, fingerprint: Fingerprint) -> Path:
    """The folder of the version of a fingerprint, if it is not the first version."""
    return folder / f"{name}@{digest(fingerprint)}"


def version_paths(folder: Path, name: str) -> list[Path]:
    """The folders of all versions of the cache `name`: the first version, then the others by name."""
    others = folder.iterdir() if folder.is_dir() else ()
    found = [path for path in others if (match := _VERSION.fullmatch(path.name)) and match[1] == name]
    return [path for path in (folder / name, *sorted(found)) if holds_store(path)]


def id_name(path: Path) -> str:
    """The folder name of the first version, given the folder of any version."""
    match = _VERSION.fullmatch(path.name)
    return match[1] if match else path.name


def read_versions(folder: Path, name: str) -> tuple[CacheVersion, ...]:
    """All versions that can be read. Damaged versions, and versions that are removed meanwhile, are left out."""
    found = []
    for path in version_paths(folder, name):
        with contextlib.suppress(WarmstoreError, FileNotFoundError):
            if "structure" not in read_manifest(path, Files()).metadata:
                continue
            with RecordStore.open(path) as store:
                fingerprint = store.metadata.get("fingerprint")
                found.append(CacheVersion(path.name, store._snapshot.length, store.nbytes, fingerprint))
    return tuple(found)
