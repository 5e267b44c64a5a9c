"""Binds a module's fingerprint to an open version of a cache.

A cache with one id has one version, or with versions="new" one version for each fingerprint. A cache that was filled
under older rules of identity cannot be compared: it stays unchanged, and a new version is filled beside it.
"""

import logging
from pathlib import Path

from warmstore.errors import StaleCache
from warmstore.features.keyed.cache_versions import (
    Fingerprint,
    OtherRules,
    are_equal,
    have_same_rules,
    read_versions,
    version_folder,
)
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.records.format.manifest import holds_store

_log = logging.getLogger("warmstore")


def bind(version: OpenVersion, fingerprint: Fingerprint) -> bool:
    """Make `version` the version of a fingerprint, if it has none. Returns whether it is that version.

    Raises:
        StaleCache: `version` has another fingerprint, and the cache has only one version.
    """
    if version.options.versions != "new":
        try:
            _bind_current(version, fingerprint)
        except OtherRules:
            _move_beside(version, fingerprint)
        return True
    if version.module_fingerprint is None and version.writes:
        version.blocks.flush(version.commit)  # blocks of `put_batch`, before any module was bound
    with version.lock:
        if version.module_fingerprint is None and not len(version.blocks):
            _bind_any(version, fingerprint)
        return version.module_fingerprint is not None and are_equal(version.module_fingerprint, fingerprint)


def _bind_current(version: OpenVersion, fingerprint: Fingerprint) -> None:
    """Bind a fingerprint to the current folder of a version.

    Raises:
        StaleCache: the folder has another fingerprint.
    """
    with version.lock:
        if version.reader is None:
            version.find_store()
        known = version.fingerprint
        if known is None:
            version.module_fingerprint = fingerprint
            if version.reader is None or not version.writes:
                return
            known = version.reader.store.annotate("fingerprint", fingerprint)  # only `put_batch` has filled it
    version.check_fingerprint(known, fingerprint)


def _move_beside(version: OpenVersion, fingerprint: Fingerprint) -> None:
    """Move to a new folder beside a cache that was filled under other rules of identity.

    Raises:
        StaleCache: another version of the cache has another fingerprint under the same rules.
    """
    if version.writes:
        version.blocks.flush(version.commit)  # blocks of `put_batch`
    own = version_folder(version.folder, version.name, fingerprint)
    if not holds_store(own):
        for stored in read_versions(version.folder, version.name):
            if stored.fingerprint is not None and have_same_rules(stored.fingerprint, fingerprint):
                version.check_fingerprint(stored.fingerprint, fingerprint)
        _warn_other_rules(version, own)
    with version.lock:
        version.module_fingerprint = None
        version.move(own)
        _bind_current(version, fingerprint)


def _warn_other_rules(version: OpenVersion, own: Path) -> None:
    _log.warning(
        "the cache %r in %s was filled under other rules of identity: it stays unchanged, and samples are computed "
        "again into %s",
        version.id, version.folder, own.name,
    )  # fmt: skip


def _bind_any(version: OpenVersion, fingerprint: Fingerprint) -> None:
    """Bind a fingerprint to its own folder if it exists, else to the current folder if possible, else to a new one."""
    own = version_folder(version.folder, version.name, fingerprint)
    if holds_store(own):
        version.move(own)
    try:
        _bind_current(version, fingerprint)
    except StaleCache as error:
        if version.path == own:
            raise  # a collision of digests
        if type(error) is OtherRules:
            _warn_other_rules(version, own)
        version.move(own)
        _bind_current(version, fingerprint)
    version.module_fingerprint = fingerprint
