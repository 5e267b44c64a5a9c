"""Adding, dropping and mapping the fields of a store.

Each of these rewrites the store into its next generation. Values of other fields are copied as they are stored.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format.fields import Field, check_fields, check_known
from warmstore.records.maintenance.filtering import Gather
from warmstore.records.maintenance.rewrite import Make, Utilisation, rewrite
from warmstore.records.store_session import StoreSession

Map = Callable[[dict[str, Any]], Any]
"""Gets a batch of records, as `gather` gives them, and returns n values."""


def add_field(
    session: StoreSession, name: str, field: Field, values: Any, gather: Gather, progress: bool | None
) -> Utilisation:
    """See `RecordStore.add_field`."""
    with session.editing():  # the fields are final from here on: no other process edits
        known = session.generation.manifest.fields
        if name in known:
            raise SchemaMismatch(
                f"{session.path} has a field {name!r} already; change it with map_field, or drop it first"
            )
        fields = check_fields({**known, name: field})
        return rewrite(session, fields, {name: _maker(session, values, gather)}, progress=progress, label=f"add {name}")


def drop_field(session: StoreSession, name: str, progress: bool | None) -> Utilisation:
    """See `RecordStore.drop_field`."""
    with session.editing():
        known = session.generation.manifest.fields
        check_known(session.path, [name], known)
        fields = {key: field for key, field in known.items() if key != name}
        return rewrite(session, check_fields(fields), {}, progress=progress, label=f"drop {name}")


def map_field(
    session: StoreSession, name: str, function: Map, field: Field | None, gather: Gather, progress: bool | None
) -> Utilisation:
    """See `RecordStore.map_field`."""
    with session.editing():
        known = session.generation.manifest.fields
        check_known(session.path, [name], known)
        fields = check_fields({**known, name: field or known[name]})
        return rewrite(
            session, fields, {name: _maker(session, function, gather)}, progress=progress, label=f"map {name}"
        )


def _maker(session: StoreSession, values: Any, gather: Gather) -> Make:
    """The values of positions [first, last), from a function of records or a sequence of one value per record."""
    if callable(values):
        return lambda first, last: values(gather(slice(first, last)))

    def take(first: int, last: int) -> Any:
        if values is None:
            return [np.ma.masked] * (last - first)  # not None, which is a value of a Json field
        if len(values) != len(session):
            raise SchemaMismatch(
                f"a new field needs one value for each of the {len(session):,} records; got {len(values):,}"
            )
        return values[first:last]

    return take
