"""Pickled leaves: Python objects of any type per sample, as bytes, if the user allows them.

Unpickling runs code that the bytes name. Nothing is unpickled unless the user of this process passed
`allow_pickle=True`; the metadata of a cache cannot change that.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from warmstore.errors import UnsupportedType

_PROTOCOL = 5


def pickled(name: str, value: Any) -> bytes:
    """An object as bytes.

    Raises:
        UnsupportedType: the object cannot be pickled.
    """
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception as error:  # the object's own code may raise anything
        raise UnsupportedType(f"{name} holds a {type(value).__name__} that cannot be pickled: {error}") from error


def unpickled(path: str, values: Sequence[Any], *, allow_pickle: bool) -> list[Any]:
    """New objects of a pickled leaf.

    Raises:
        UnsupportedType: `allow_pickle` is False.
    """
    if not allow_pickle:
        raise UnsupportedType(
            f"leaf {path!r} of this cache holds pickled objects. Unpickling runs code that the writer of the cache has "
            "chosen: pass allow_pickle=True to FeatureCache if you trust everybody who could write to the cache"
        )
    return [pickle.loads(value) for value in values]
