"""cached_property as of Python 3.12, without the lock of Python 3.11.

That lock is one for all instances, and held while the attribute is computed: a child that is forked while a thread of
its parent computes one waits for ever. Without it, two threads may compute an attribute twice.
"""

import functools
import sys
from typing import TYPE_CHECKING, Any, TypeVar

T = TypeVar("T")

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as cached_property
else:

    class cached_property(functools.cached_property[T]):  # noqa: N801
        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            value = vars(instance)[self.attrname] = self.func(instance)
            return value
