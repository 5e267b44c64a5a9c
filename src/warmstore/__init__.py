"""warmstore stops ML training from doing the same work twice. Everything public is named here, and nothing else is."""

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
from warmstore.records.fields import Array, Bytes, Json, Ragged, Text
from warmstore.records.store import RecordStore
