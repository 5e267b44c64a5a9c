"""Ray: reading a store as a `ray.data.Dataset`, writing one, and filling a feature cache with a pool of actors.

`pip install "warmstore[ray]"`. docs/ray.md has programs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from warmstore.extras import not_installed

if TYPE_CHECKING:
    from warmstore.ray.datasink import StoreDatasink, write
    from warmstore.ray.datasource import StoreDatasource, read
    from warmstore.ray.fill import fill

__all__ = ["StoreDatasink", "StoreDatasource", "fill", "read", "write"]

_MODULES = {
    "StoreDatasink": "datasink",
    "StoreDatasource": "datasource",
    "fill": "fill",
    "read": "datasource",
    "write": "datasink",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import_module("ray.data")
    except ImportError as error:
        raise not_installed("warmstore.ray", error, "ray") from error
    value = getattr(import_module(f"warmstore.ray.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
