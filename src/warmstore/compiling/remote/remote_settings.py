"""The settings of a compile cache's remote. A remote is used only if a key can check signatures."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from warmstore.errors import message_of
from warmstore.remote.limits import StallBudget
from warmstore.remote.location import Location
from warmstore.remote.obstore_stores import knows_option
from warmstore.remote.remote_options import check_options
from warmstore.remote.signing import KEY, KEY_FILE, Keyring

if TYPE_CHECKING:
    from warmstore.compiling.environment import Environment
    from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts
    from warmstore.compiling.store.artifact_store import ArtifactStore

URL = "WARMSTORE_REMOTE_URL"

_log = logging.getLogger("warmstore")


@dataclass(frozen=True)
class RemoteSettings:
    """A remote as the user gave it. `wait`: seconds that the process may wait for it in total while no data flows."""

    url: str = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    wait: float

    @classmethod
    def of(
        cls, url: str | os.PathLike[str] | None, options: Mapping[str, Any] | None, wait: float
    ) -> RemoteSettings | None:
        """The settings from arguments, else from the variable; None without either. Raises ValueError for an invalid
        value."""
        if not wait >= 0:
            raise ValueError(f"remote_wait={wait!r} must be a number of seconds, 0 or more")
        address = os.fspath(url) if url is not None else os.environ.get(URL, "")
        if not address:
            return None
        location, given = Location.parse(address), dict(options or {})
        with suppress(ImportError):  # `open_tier` logs it
            check_options(location, given, partial(knows_option, location))
        return cls(address, given, float(wait))


def open_tier(
    settings: RemoteSettings | None, store: ArtifactStore, environment: Environment, job: str
) -> RemoteArtifacts | None:
    """The remote of a store. None if it cannot be used; the log says why."""
    if settings is None:
        return None
    where = Location.parse(settings.url).url
    if store.read_only:
        _log.warning("remote cache %s: not used, since %s cannot be written", where, store.folder)
        return None
    try:
        keyring = Keyring.from_environment()
        if not keyring:
            _log.warning(
                "remote cache %s: not used, since its artifacts run as code here and no key is configured to check "
                "them; put a key of `warmstore signing-keys generate` into %s or a file that %s names",
                where,
                KEY,
                KEY_FILE,
            )
            return None
        from warmstore.compiling.remote.remote_artifacts import RemoteArtifacts
        from warmstore.remote.objects import Objects

        objects = Objects(settings.url, options=settings.options, at_exit=False)
        return RemoteArtifacts(objects, keyring, store, environment, job=job, budget=StallBudget(settings.wait))
    except Exception as error:
        _log.warning("remote cache %s: not used: %s", where, message_of(error))
        return None
