"""The leases of a cache in an actor of its own, which all actors of a fill ask."""

import logging
import os
from typing import Any

import ray
import xxhash
from ray.exceptions import RayActorError

from warmstore.features.leases import Claim, Leases
from warmstore.storage.array_types import UInt64

_log = logging.getLogger("warmstore")


class LeaseServer:
    """`Leases` as a named actor. It is started again where its node dies, and has then forgotten the leases.

    Args:
        location, id: of the cache, which they identify in the cluster.
        seconds: see `Leases`. The first process that starts the server decides.
    """

    def __init__(self, location: str, id: str, seconds: float) -> None:
        name = os.fsencode(f"{location}\0{id}")
        self._name = f"warmstore-leases-{xxhash.xxh3_64_hexdigest(name)}"
        self._seconds = seconds
        self._handle: Any = None
        self._connect()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None}

    def _connect(self) -> Any:
        options = {"max_restarts": -1, "max_task_retries": -1, "get_if_exists": True}
        actor = ray.remote(Leases).options(name=self._name, namespace="warmstore", num_cpus=0, **options)
        self._handle = actor.remote(self._seconds)
        return self._handle

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        handle = self._handle or self._connect()
        try:
            return ray.get(getattr(handle, method).remote(*arguments, **options))
        except RayActorError as error:
            # It ends with the program that started it. Another program may fill the same cache.
            _log.warning("the leases of the cache are lost, and some samples may be computed twice: %s", error)
            return ray.get(getattr(self._connect(), method).remote(*arguments, **options))

    def claim(self, owner: str, samples: UInt64) -> Claim:
        claim: Claim = self._ask("claim", owner, samples)
        return claim

    def finish(self, owner: str, samples: UInt64, *, stored: bool) -> None:
        self._ask("finish", owner, samples, stored=stored)

    def lost(self, samples: UInt64) -> None:
        self._ask("lost", samples)

    def forget(self, owner: str) -> None:
        self._ask("forget", owner)
