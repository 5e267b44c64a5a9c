"""The encoders of this process: those that the program has registered, and those of warmstore.

Worker processes get the registered ones with the pipeline. Another run registers its own.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from warmstore.pipeline.encoders.encoder import Encoder
from warmstore.tree.type_names import find_type, type_name

_FAMILIES = {
    "PIL": "warmstore.pipeline.encoders.pil",
    "numpy": "warmstore.pipeline.encoders.numpy_text",
    "pyarrow": "warmstore.pipeline.encoders.arrow",
}
"""The modules with encoders of warmstore, by the library whose types they encode."""


class Registry:
    """Encoders by type, and by the name of the type. Types of a library are found when one of them is met."""

    def __init__(self) -> None:
        self._by_type: dict[type, Encoder] = {}
        self._by_name: dict[tuple[str, str], Encoder] = {}
        self._loaded: set[str] = set()

    def add(self, encoder: Encoder) -> None:
        """Add an encoder, in place of another one of the same type."""
        module, name = type_name(encoder.cls)
        previous = self._by_name.get((module, name))
        if previous is not None:
            self._by_type.pop(previous.cls, None)  # of the same name, as a module that was loaded again has
        self._by_type[encoder.cls] = self._by_name[module, name] = encoder

    def remove(self, cls: type) -> None:
        """Remove the encoder of a type, if it has one."""
        self._by_type.pop(cls, None)
        self._by_name.pop((type_name(cls)[0], type_name(cls)[1]), None)

    def of(self, cls: type) -> Encoder | None:
        """The encoder of a type; None if there is none. A subclass does not have the encoder of its base class."""
        found = self._by_type.get(cls)
        return self._by_type.get(cls) if found is None and self._load(cls.__module__) else found

    def named(self, module: str, name: str) -> Encoder | None:
        """The encoder of the type with a name."""
        found = self._by_name.get((module, name))
        return self._by_name.get((module, name)) if found is None and self._load(module) else found

    def registered(self) -> list[Encoder]:
        """The encoders that the program has registered."""
        return [encoder for encoder in self._by_type.values() if not encoder.is_own]

    def take_in(self, encoders: Sequence[Encoder]) -> None:
        """Add encoders that another process has registered."""
        for encoder in encoders:
            self.add(encoder)

    def _load(self, module: str) -> bool:
        """Load the encoders of warmstore for the library of a module; False if there is nothing to load."""
        library = str(module).partition(".")[0]
        if library in self._loaded or library not in _FAMILIES:
            return False
        try:
            encoders: list[Encoder] = importlib.import_module(_FAMILIES[library]).ENCODERS
        except ImportError:
            return False  # a kept value of a library that this process does not have
        self._loaded.add(library)
        for encoder in encoders:
            if encoder.cls not in self._by_type:
                self.add(encoder)
        return True


REGISTRY = Registry()

_KEPT = (bool, int, float, complex, str, bytes, bytearray, memoryview, list, tuple, dict, type(None))


def register_encoder(
    cls: type,
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    *,
    equal: Callable[[Any, Any], bool] | None = None,
    version: str | None = None,
) -> None:
    """Let pipelines keep values of a type.

    Every value is checked when it is kept: `decode(encode(value))` must be the same as the value. A sample with another
    result is not kept, and computed every time. Register encoders where the type is defined: every run needs them, and
    workers that are not forked get functions by their names. What an earlier run kept is used only by the same code.

    Args:
        cls: the type, at the top of a module. Its subclasses need encoders of their own. Another encoder of the type is
            replaced.
        encode: returns the parts of a value: anything that pipelines can keep, also values of registered types. Arrays
            and other mutable parts must be those of the value and not copies, so that memory that the sample shares
            with it stays shared.
        decode: makes a value of its parts, which are its own.
        equal: whether two values are the same to any step, called as equal(value, decoded). None compares all that
            pickle would write, arrays by their bits and the order of their axes in memory.
        version: stands for the parts of the functions that have no fingerprint. Change it when they change.

    Raises:
        TypeError: `cls` is no type, or a function is not callable.
        ValueError: `cls` is kept without an encoder, or is not found by its name.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_encoder takes a type; got {cls!r:.80}")
    for name, function in (("encode", encode), ("decode", decode)):
        if not callable(function):
            raise TypeError(f"{name} is a function of one argument; got {function!r:.80}")
    if equal is not None and not callable(equal):
        raise TypeError(f"equal is a function of two values; got {equal!r:.80}")
    full = ".".join(type_name(cls))
    if cls in _KEPT or full in ("numpy.ndarray", "torch.Tensor"):
        raise ValueError(f"values of {full} are kept without an encoder; register a type of your own")
    # A spawned process runs the main module under another name, which is not yet that of `type_name`.
    if find_type(cls.__module__, cls.__qualname__) is not cls:
        raise ValueError(
            f"{full} is not found by its name, so no other run can decode it; define it at the top of a module"
        )
    REGISTRY.add(Encoder(cls, encode, decode, equal, version))
