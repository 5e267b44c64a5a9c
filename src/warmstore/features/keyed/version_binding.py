"""Binding a module's fingerprint to an open version of a cache.

A cache under one id keeps one version, or with versions="new" one for each fingerprint. A cache that was filled under
older rules of identity cannot be compared: it stays as it is, and a new version is filled beside it.
"""

import logging
from pathlib import Path

from warmstore.errors import StaleCache
from warmstore.features.keyed.cache_versions import (
    Fingerprint,
    are_equal,
    have_same_rules,
    read_versions,
    version_folder,
)
from warmstore.features.keyed.open_version import OpenVersion, OtherRules
from warmstore.records.format.manifest import NAME

_log = logging.getLogger("warmstore")


def bind(version: OpenVersion, fingerprint: Fingerprint) -> bool:
    """Make `version` the version of a fingerprint, if it is free; return whether it is that version.

    Raises:
        StaleCache: it has another fingerprint, and the cache keeps one version only.
    """
    if version.options.versions != "new":
        try:
            _tie(version, fingerprint)
        except OtherRules:
            _leave(version, fingerprint)
        return True
    if version.module_fingerprint is None and version.writes:
        version.blocks.flush(version.commit)  # of `put_batch`, before any module was bound
    with version.lock:
        if version.module_fingerprint is None and not len(version.blocks):
            _become(version, fingerprint)
        return version.module_fingerprint is not None and are_equal(version.module_fingerprint, fingerprint)


def _tie(version: OpenVersion, fingerprint: Fingerprint) -> None:
    with version.lock:
        if version.reader is None:
            version.find_store()
        known = version.fingerprint
        if known is None:
            version.module_fingerprint = fingerprint
            if version.reader is None or not version.writes:
                return
            known = version.reader.store.annotate("fingerprint", fingerprint)  # so far it was filled by `put_batch`
    version.check_fingerprint(known, fingerprint)


def _leave(version: OpenVersion, fingerprint: Fingerprint) -> None:
    """Go on in a version beside a cache that was filled under other rules of identity. That cache is unchanged.

    Raises:
        StaleCache: a version beside it has another fingerprint under the same rules.
    """
    if version.writes:
        version.blocks.flush(version.commit)  # of `put_batch`
    own = version_folder(version.folder, version.name, fingerprint)
    if not (own / NAME).exists():
        for stored in read_versions(version.folder, version.name):
            if stored.fingerprint is not None and have_same_rules(stored.fingerprint, fingerprint):
                version.check_fingerprint(stored.fingerprint, fingerprint)
        _warn_left(version, own)
    with version.lock:
        version.module_fingerprint = None
        version.move(own)
        _tie(version, fingerprint)


def _warn_left(version: OpenVersion, own: Path) -> None:
    _log.warning(
        "the cache %r in %s was filled under other rules of identity: it stays as it is, and samples are computed "
        "anew into %s",
        version.id, version.folder, own.name,
    )  # fmt: skip


def _become(version: OpenVersion, fingerprint: Fingerprint) -> None:
    """Go on in the fingerprint's own folder if it has one, else in the present one if that is free or has it."""
    own = version_folder(version.folder, version.name, fingerprint)
    if (own / NAME).exists():
        version.move(own)
    try:
        _tie(version, fingerprint)
    except StaleCache as error:
        if version.path == own:
            raise  # a collision of digests
        if type(error) is OtherRules:
            _warn_left(version, own)
        version.move(own)
        _tie(version, fingerprint)
    version.module_fingerprint = fingerprint
