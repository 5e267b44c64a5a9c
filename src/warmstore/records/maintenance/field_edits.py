"""Adding, dropping and mapping the fields of a store.

Each of these rewrites the store into its next generation. Values of other fields are copied as they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format.fields import Field, check_fields, check_known
from warmstore.records.maintenance.filtering import Gather
from warmstore.records.maintenance.rewrite import Utilisation, rewrite
from warmstore.records.store_session import StoreSession

Map = Callable[[dict[str, Any]], Any]
"""Gets a batch of records, as `gather` gives them, and returns n values."""


def add_field(
    session: StoreSession, name: str, field: Field, values: Any, gather: Gather, progress: bool | None
) -> Utilisation:
    """See `RecordStore.add_field`."""
    with session.editing():  # no other process changes the fields from here on
        known = session.generation.manifest.fields
        if name in known:
            raise SchemaMismatch(
                f"{session.path} has a field {name!r} already; change it with map_field, or drop it first"
            )
        return _set_field(session, name, field, values, gather, progress, f"add {name}")


def drop_field(session: StoreSession, name: str, progress: bool | None) -> Utilisation:
    """See `RecordStore.drop_field`."""
    with session.editing():
        known = session.generation.manifest.fields
        check_known(session.path, [name], known)
        fields = check_fields({key: field for key, field in known.items() if key != name})
        return rewrite(session, fields, {}, progress=progress, label=f"drop {name}")


def map_field(
    session: StoreSession, name: str, function: Map, field: Field | None, gather: Gather, progress: bool | None
) -> Utilisation:
    """See `RecordStore.map_field`."""
    with session.editing():
        known = session.generation.manifest.fields
        check_known(session.path, [name], known)
        return _set_field(session, name, field or known[name], function, gather, progress, f"map {name}")


def _set_field(
    session: StoreSession, name: str, field: Field, values: Any, gather: Gather, progress: bool | None, label: str
) -> Utilisation:
    """Rewrite a store with one field new or changed.

    Args:
        values: a function of records, a sequence of one value per record, or None for absent values.
    """

    def make(first: int, last: int) -> Any:
        if callable(values):
            return values(gather(slice(first, last)))
        if values is None:
            return [np.ma.masked] * (last - first)  # not None, which is a value of a Json field
        if len(values) != len(session):
            raise SchemaMismatch(
                f"a new field needs one value for each of the {len(session):,} records; got {len(values):,}"
            )
        return values[first:last]

    fields = check_fields({**session.generation.manifest.fields, name: field})
    return rewrite(session, fields, {name: make}, progress=progress, label=label)
