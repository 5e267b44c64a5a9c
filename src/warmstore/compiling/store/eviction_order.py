"""Which artifacts go first when a store is full."""

from __future__ import annotations

POLICIES = {
    "lru": "last_used, id",
    "lfu": "hits, last_used, id",
    "size": "size DESC, last_used, id",
    "age": "created, id",
}
"""Eviction by name, each the order in which artifacts go: unused for longest, used least often, largest, oldest."""


def order_of(eviction: str) -> str:
    """The SQL order of an eviction.

    Raises:
        ValueError: no such eviction.
    """
    if eviction not in POLICIES:
        raise ValueError(f"eviction {eviction!r} is not known; take one of {', '.join(map(repr, POLICIES))}")
    return POLICIES[eviction]
