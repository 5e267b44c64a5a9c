"""Optional packages: which extra of warmstore brings each, and what stands in for a name that needs a missing one."""

import importlib
from collections.abc import Callable
from typing import Any, NoReturn

from warmstore.errors import NotInstalled

EXTRAS = {
    "torch": "torch",
    "blake3": "compile",
    "filelock": "compile",
    "platformdirs": "compile",
    "cryptography": "sign",
    "obstore": "remote",
    "scipy": "pipeline",
    "matplotlib": "pipeline",
    "jax": "jax",
    "nvidia": "dali",
    "ray": "ray",
    "datasets": "hf",
    "array_record": "convert",
    "h5py": "convert",
    "PIL": "convert",
    "sklearn": "demo",
    "lightning": "trainers",
    "transformers": "trainers",
}
"""Extras by the packages that they bring, as they are imported."""


def not_installed(what: str, error: ImportError, package: str | None = None) -> NotInstalled:
    """The error that names the extra.

    Args:
        what: what needs the package.
        error: from the import that failed.
        package: as it is imported; by default the one that is missing.
    """
    package = (package or error.name or "").partition(".")[0]
    extra = EXTRAS[package]
    reason = "" if error.name == package else f" ({error})"
    return NotInstalled(f"{what} needs {package}: pip install 'warmstore[{extra}]'{reason}", name=package)


def imported(module: str, what: str = "what you call") -> Any:
    """Import an optional module, which `what` needs.

    Raises:
        NotInstalled: its package is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_installed(what, error, module) from None


def is_of_extra(error: ImportError) -> bool:
    """Whether an import failed because a package is missing that an extra brings."""
    return isinstance(error, ModuleNotFoundError | NotInstalled) and (error.name or "").partition(".")[0] in EXTRAS


class _StandIn(type):
    """The class of classes that raise `NotInstalled` when they are called, subclassed, or asked for an attribute."""

    _error: Callable[[], NotInstalled]

    def __call__(cls, *args: Any, **options: Any) -> NoReturn:
        raise cls._error()

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)  # `inspect` and `copy` ask
        raise cls._error()


def stand_in(name: str, error: ImportError) -> Any:
    """What a public name is while a package that it needs is missing: it can be imported, and not used."""

    failure = not_installed(f"warmstore.{name}", error)
    message, package = str(failure), failure.name

    def missing() -> NotInstalled:  # a new one each time: what is raised keeps the frames of its callers
        return NotInstalled(message, name=package)

    def refuse(cls: Any, /, **options: Any) -> NoReturn:
        raise missing()

    members = {"_error": missing, "__doc__": message, "__init_subclass__": classmethod(refuse)}
    return _StandIn(name, (), members)
