"""Pickled leaves: Python objects of any kind per sample, as bytes, where the user asked for them.

Unpickling runs whatever code the bytes name. So nothing is unpickled unless this process was told `allow_pickle=True`,
whatever the cache says of itself.
"""

import pickle
from collections.abc import Sequence
from typing import Any

from warmstore.errors import UnsupportedType

_PROTOCOL = 5


def pickled(name: str, value: Any) -> bytes:
    """An object as bytes.

    Raises:
        UnsupportedType: it cannot be pickled.
    """
    try:
        return pickle.dumps(value, _PROTOCOL)
    except Exception as error:  # whatever the object's own code raises
        raise UnsupportedType(f"{name} holds a {type(value).__name__} that cannot be pickled: {error}") from error


def unpickled(path: str, values: Sequence[Any], *, allow_pickle: bool) -> list[Any]:
    """The objects of a pickled leaf, new ones each time.

    Raises:
        UnsupportedType: `allow_pickle` is False.
    """
    if not allow_pickle:
        raise UnsupportedType(
            f"leaf {path!r} of this cache holds pickled objects. Unpickling runs code that whoever wrote the cache has "
            "chosen: pass allow_pickle=True to FeatureCache if you trust all who could write it"
        )
    return [pickle.loads(value) for value in values]
