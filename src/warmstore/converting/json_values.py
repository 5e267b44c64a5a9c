"""JSON of other programs, refused where Python's parser would change it without a word."""

import json
import math
from typing import Any


def parsed(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: no JSON, or nested too deeply; an object has a key twice, or a number is beyond float64.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_float=_float)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return record


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond float64")
    return number
