"""Other formats into a store and out of one. One file a format; `conversion` and `export` are the two ways."""

from warmstore.records.convert.conversion import convert
from warmstore.records.convert.export import export

__all__ = ["convert", "export"]
