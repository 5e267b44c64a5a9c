"""Code whose effects cannot be read from it: evaluated text, frames, the garbage collector, other programs.

Each refusal has a reason, which the user sees.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from warmstore.identity.origin import Origin

REFLECTION = frozenset(
    ("__subclasses__", "_getframe", "_current_frames", "f_back", "f_globals", "f_locals", "f_builtins", "gi_frame",
     "cr_frame", "ag_frame", "tb_frame", "__globals__", "__builtins__", "__subclasshook__", "settrace", "setprofile")
)  # fmt: skip
"""Attributes that give access to frames, globals or subclasses."""

REFUSED_BUILTINS = {
    "eval": "eval runs text that is unknown before it runs",
    "exec": "exec runs text that is unknown before it runs",
    "compile": "compile makes code from text that is unknown before it runs",
    "breakpoint": "a debugger may change any value",
    "input": "the text that a user types differs at each call",
}
REFUSED_MODULES = {
    "inspect": "inspect reads code and frames",
    "gc": "gc finds objects that the code does not name",
    "subprocess": "subprocess runs another program, which is unknown",
    "runpy": "runpy runs files that the code does not name",
    "code": "code runs text that is unknown before it runs",
}
_REFUSED_NAMES = frozenset(
    ("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile", "os.system", "os.popen", "os.fork",
     "posix.system", "posix.fork", "marshal.loads", "sys._current_exceptions", "os.getenv", "os.getenvb",
     "importlib.import_module", "builtins.__import__", "pydoc.locate", "pkgutil.resolve_name")
)  # fmt: skip


def refusal_of(value: Any) -> str:
    """Why the effects of a Python function or class cannot be read; "" where they can."""
    module, name = str(getattr(value, "__module__", "") or ""), str(getattr(value, "__name__", ""))
    if module == "builtins" and name in REFUSED_BUILTINS:
        return REFUSED_BUILTINS[name]
    if module in REFUSED_MODULES:
        return REFUSED_MODULES[module]
    return reflection_reason(f"{module}.{name}") if f"{module}.{name}" in _REFUSED_NAMES else ""


def reflection_reason(name: str) -> str:
    """The reason to refuse code that uses a name of reflection."""
    return f"{name} reads values that the code does not name"


def is_refused(module: ModuleType, origin: Origin) -> bool:
    """Whether reading any attribute of a module is refused."""
    return module.__name__ in REFUSED_MODULES and not origin.is_program
