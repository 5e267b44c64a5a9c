"""Which parameters of a long test the short run has; `--slow` has all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def thinned(count: int, parameters: Iterable[Any]) -> list[Any]:
    """The parameters, of which the short run has the first and every `count`-th after it; tuples are several values."""
    marked = []
    for at, values in enumerate(parameters):
        values = values if isinstance(values, tuple) else (values,)
        marked.append(pytest.param(*values, marks=() if at % count == 0 else pytest.mark.slow))
    return marked
