"""Global settings of NumPy, JAX and torch that decide results: precision, default dtypes, hooks of every module.

The walk records them once it meets the library.
"""

from __future__ import annotations

import sys

import numpy as np

from warmstore.identity.walk import Walk

_SETTINGS_OF_JAX = (
    "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable",
)  # fmt: skip


def record_settings(walk: Walk, library: str) -> None:
    """Record the global settings of a library, if it has any."""
    if library == "numpy":
        place, _ = walk.root(("settings", "numpy"), "settings of numpy")
        walk.setting_of_thread(place, lambda: repr(sorted(np.get_printoptions().items(), key=str)))
    elif library == "jax":
        place, _ = walk.root(("settings", "jax"), "settings of jax")
        walk.setting(place, _settings_of_jax)
    elif library == "torch":
        from warmstore.identity.kinds.torch_objects import GLOBAL_HOOKS, modes_text
        from warmstore.identity.kinds.torch_settings import settings_text, text_of_thread

        place, _ = walk.root(("settings", "torch"), "settings of torch")
        walk.setting(place, settings_text)
        walk.setting_of_thread(place + ".<thread>", text_of_thread)
        if walk.settings.modes:
            walk.setting_of_thread(place + ".<modes>", modes_text)
        for holder in GLOBAL_HOOKS:
            walk.watch(holder)
        for at, hook in enumerate([hook for holder in GLOBAL_HOOKS for hook in holder.values()]):
            walk.whole(place + f".<hook {at}>", hook)


def _settings_of_jax() -> str:
    config = getattr(sys.modules.get("jax"), "config", None)
    return ", ".join(f"{name} {getattr(config, name, None)}" for name in _SETTINGS_OF_JAX)
