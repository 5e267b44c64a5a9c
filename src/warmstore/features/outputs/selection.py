"""The parts of a module's output that a CachedModule returns and caches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from warmstore.errors import SchemaMismatch

_MISSING = object()


@dataclass(frozen=True)
class OutputSelection:
    """names: of the parts; None for the whole output. is_one: whether the part stands for the output, not a dict."""

    names: tuple[str, ...] | None = None
    is_one: bool = False

    @classmethod
    def of(cls, select: str | Sequence[str] | None) -> "OutputSelection":
        """The selection that a user gives.

        Raises:
            ValueError: it names nothing, or something that is no text.
        """
        if select is None:
            return cls()
        names = (select,) if isinstance(select, str) else tuple(select)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ValueError(f"select is {select!r}; it must be the name of a part of the output, or a list of names")
        return cls(names, isinstance(select, str))

    @property
    def settings(self) -> dict[str, Any]:
        """What outputs depend on, as a setting of the call."""
        return {} if self.names is None else {"CachedModule(select)": [self.is_one, *self.names]}

    def of_output(self, output: Any) -> Any:
        """The selected parts of an output.

        Raises:
            SchemaMismatch: it has no part of a name.
        """
        if self.names is None:
            return output
        found = {name: _part(output, name) for name in self.names}
        return found[self.names[0]] if self.is_one else found


def _part(output: Any, name: str) -> Any:
    if isinstance(output, Mapping):
        found, known = output.get(name, _MISSING), list(output)
    else:
        found = getattr(output, name, _MISSING)
        known = list(getattr(output, "_fields", ()) or getattr(output, "__dict__", ()))
    if found is _MISSING:
        has = f"; it has {known}" if known else ""
        raise SchemaMismatch(f"the output, a {type(output).__name__}, has no part {name!r} to select{has}")
    return found
