"""The hooks on JAX's cache, with a stand-in for its classes."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from warmstore.compiling.hooks.jax_hooks import JaxHooks


class Cache:
    path = "/live/jax"

    def get(self, key: str) -> bytes | None:
        return None

    def put(self, key: str, value: bytes) -> None: ...


@pytest.mark.parametrize(("process_id", "alone"), [(None, True), (0, True), (1, False)])
def test_only_the_process_of_a_job_that_stores_programs_lets_others_wait(
    monkeypatch: pytest.MonkeyPatch, process_id: int | None, alone: bool
) -> None:
    asked = []
    listener: Any = SimpleNamespace(
        inside=lambda path: path.removeprefix("/live/"),
        wanted=lambda path, *, alone: asked.append((path, alone)),
    )
    state = SimpleNamespace() if process_id is None else SimpleNamespace(process_id=process_id)
    monkeypatch.setitem(sys.modules, "jax._src.distributed", SimpleNamespace(global_state=state))
    hooks, cache = JaxHooks(listener), type("LRUCache", (Cache,), dict(vars(Cache)))
    hooks._lru_cache(SimpleNamespace(LRUCache=cache, _CACHE_SUFFIX="-cache"))  # type: ignore[arg-type]
    cache().get("jit_f-0a")
    assert asked == [("jax/jit_f-0a-cache", alone)]
