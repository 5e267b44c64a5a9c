"""Global settings of libraries that decide results: precision, default dtypes, hooks of every module, options.

The walk records them once it meets the library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from warmstore.identity.object_state import full_name
from warmstore.identity.origin import origin_of_class
from warmstore.identity.places import Place
from warmstore.identity.walk import Walk

_SETTINGS_OF_JAX = (
    "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_default_matmul_precision", "jax_default_prng_impl",
    "jax_threefry_partitionable", "jax_random_seed_offset",
)  # fmt: skip

_FUNCTIONS = ("formatter", "override_repr")
"""Print options of NumPy that hold functions."""

_OPTIONS = {
    "gin_config": ("gin.config", "_CONFIG"),
    "pandas": ("pandas._config.config", "_global_config"),
    "xarray": ("xarray.core.options", "OPTIONS"),
}
"""By library: the module and name of the dict that has the options which its own code reads."""
_GROUPS_OF_PANDAS = ("compute", "future", "mode")
"""The groups of options that count. Others decide how tables look, and pandas sets some for the terminal."""


def record_settings(walk: Walk, library: str) -> None:
    """Record the global settings of a library, if it has any."""
    if library == "numpy":
        place, _ = walk.root(("settings", "numpy"), "settings of numpy")
        walk.setting_of_thread(place, _print_options)
        for name in _FUNCTIONS:
            _record_functions(walk, place + f".<{name}>", partial(_print_option, name))
    elif library == "jax":
        place, _ = walk.root(("settings", "jax"), "settings of jax")
        walk.setting(place, _settings_of_jax)
    elif library == "torch":
        from warmstore.identity.kinds.torch_objects import GLOBAL_HOOKS, modes_text, only_watches
        from warmstore.identity.kinds.torch_settings import settings_text, text_of_thread

        place, _ = walk.root(("settings", "torch"), "settings of torch")
        walk.setting(place, settings_text)
        if walk.settings.is_called_here:
            _record_operator_modes(walk, place + ".<thread>")
        else:
            walk.setting_of_thread(place + ".<thread>", text_of_thread)
        if walk.settings.modes:
            walk.setting_of_thread(place + ".<modes>", modes_text)
        for holder in GLOBAL_HOOKS:
            walk.watch(holder)
        hooks = [hook for holder in GLOBAL_HOOKS for hook in holder.values() if not only_watches(hook)]
        for at, hook in enumerate(hooks):
            walk.whole(place + f".<hook {at}>", hook)
    elif library == "scikit_learn":
        place, _ = walk.root(("settings", library), "settings of scikit-learn")
        walk.setting_of_thread(place, _settings_of_sklearn)
    elif library in _OPTIONS:
        module, name = _OPTIONS[library]
        place, _ = walk.root(("settings", library), f"settings of {library}")
        options = getattr(sys.modules.get(module), name, None)
        if library != "pandas":
            walk.whole(place, options)
        elif options is not None:
            for group in _GROUPS_OF_PANDAS:
                walk.whole(place + f".{group}", options.get(group))


def _record_operator_modes(walk: Walk, place: Place) -> None:
    """Record the settings of torch of this thread, and its modes that replace operators: those of the program with
    their state, others by their class."""
    from warmstore.identity.kinds.torch_objects import operator_modes
    from warmstore.identity.kinds.torch_settings import text_of_thread

    def text() -> str:
        return " ".join([text_of_thread(), *(full_name(type(mode)) for mode in operator_modes())])

    walk.setting_of_thread(place, text)
    walk.watch_cell(lambda: str([*map(id, operator_modes())]))  # the walk below keeps those that count alive
    for at, mode in enumerate(operator_modes()):
        if origin_of_class(type(mode)).is_program:
            walk.whole(place + f".<mode {at}>", mode)


def _print_options() -> str:
    """The print options of NumPy that are no functions, whose texts have addresses."""
    return repr(sorted((name, value) for name, value in np.get_printoptions().items() if name not in _FUNCTIONS))


def _print_option(name: str) -> Any:
    options: dict[str, Any] = np.get_printoptions()  # type: ignore[assignment]
    return options.get(name)


def _record_functions(walk: Walk, place: Place, read: Callable[[], Any]) -> None:
    """Record a print option that is a function, a dict of functions, or None."""
    value = read()
    if walk.settings.is_called_here:
        walk.watch_cell(read)
    if value is not None:
        walk.of_thread.add(place)
        walk.whole(place, value)


def _settings_of_sklearn() -> str:
    read = getattr(sys.modules.get("sklearn"), "get_config", dict)
    return repr(sorted(read().items()))


def _settings_of_jax() -> str:
    config = getattr(sys.modules.get("jax"), "config", None)
    return ", ".join(f"{name} {getattr(config, name, None)}" for name in _SETTINGS_OF_JAX)
