"""warmstore stops ML training from doing the same work twice. Everything public is named here, and nothing else is."""

from typing import TYPE_CHECKING, Any

from warmstore.errors import (
    AmbiguousBatch,
    BadIds,
    BadIdType,
    BadSource,
    Closed,
    Damaged,
    NewerFormat,
    NoSource,
    NotAStore,
    NotInstalled,
    NotStateless,
    PositionError,
    ReadOnly,
    SchemaMismatch,
    StaleCache,
    StoreExists,
    TargetExists,
    UnknownFormat,
    UnsupportedType,
    WarmstoreError,
    WriteFailed,
)
from warmstore.records.codecs import train_dictionary
from warmstore.records.fields import Array, Bytes, Json, Ragged, Text
from warmstore.records.store import RecordStore
from warmstore.records.values import Packed

if TYPE_CHECKING:
    from warmstore.features.cache import FeatureCache
    from warmstore.features.filling import Filled
    from warmstore.features.merging import Merged
    from warmstore.features.module import CachedModule
    from warmstore.features.statistics import CacheStats
    from warmstore.features.versions import CacheVersion
    from warmstore.records.convert.conversion import convert
    from warmstore.records.convert.export import export

__version__ = "0.1.0"

__all__ = [
    "AmbiguousBatch",
    "Array",
    "BadIdType",
    "BadIds",
    "BadSource",
    "Bytes",
    "CacheStats",
    "CacheVersion",
    "CachedModule",
    "Closed",
    "Damaged",
    "FeatureCache",
    "Filled",
    "Json",
    "Merged",
    "NewerFormat",
    "NoSource",
    "NotAStore",
    "NotInstalled",
    "NotStateless",
    "Packed",
    "PositionError",
    "Ragged",
    "ReadOnly",
    "RecordStore",
    "SchemaMismatch",
    "StaleCache",
    "StoreExists",
    "TargetExists",
    "Text",
    "UnknownFormat",
    "UnsupportedType",
    "WarmstoreError",
    "WriteFailed",
    "convert",
    "export",
    "train_dictionary",
]

# These need torch, tqdm or more of pyarrow, which take time to import: only who asks for them pays.
_LAZY = {
    "CacheStats": "warmstore.features.statistics",
    "CacheVersion": "warmstore.features.versions",
    "CachedModule": "warmstore.features.module",
    "FeatureCache": "warmstore.features.cache",
    "Filled": "warmstore.features.filling",
    "Merged": "warmstore.features.merging",
    "convert": "warmstore.records.convert.conversion",
    "export": "warmstore.records.convert.export",
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
