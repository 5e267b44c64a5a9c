"""warmstore stops ML training from doing the same work twice. Everything public is named here, and nothing else is."""

from typing import TYPE_CHECKING, Any

from warmstore.errors import (
    AmbiguousBatch,
    BadIds,
    BadIdType,
    Closed,
    Damaged,
    NewerFormat,
    NotAStore,
    NotStateless,
    PositionError,
    ReadOnly,
    SchemaMismatch,
    StaleCache,
    StoreExists,
    UnsupportedType,
    WarmstoreError,
    WriteFailed,
)
from warmstore.records.codecs import train_dictionary
from warmstore.records.fields import Array, Bytes, Json, Ragged, Text
from warmstore.records.store import RecordStore

if TYPE_CHECKING:
    from warmstore.features.cache import FeatureCache
    from warmstore.features.module import CachedModule
    from warmstore.features.statistics import CacheStats

__version__ = "0.1.0"

__all__ = [
    "AmbiguousBatch",
    "Array",
    "BadIdType",
    "BadIds",
    "Bytes",
    "CacheStats",
    "CachedModule",
    "Closed",
    "Damaged",
    "FeatureCache",
    "Json",
    "NewerFormat",
    "NotAStore",
    "NotStateless",
    "PositionError",
    "Ragged",
    "ReadOnly",
    "RecordStore",
    "SchemaMismatch",
    "StaleCache",
    "StoreExists",
    "Text",
    "UnsupportedType",
    "WarmstoreError",
    "WriteFailed",
    "train_dictionary",
]

# These need torch, which takes seconds to import: only who asks for them pays.
_LAZY = {
    "CacheStats": "warmstore.features.statistics",
    "CachedModule": "warmstore.features.module",
    "FeatureCache": "warmstore.features.cache",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'warmstore' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
