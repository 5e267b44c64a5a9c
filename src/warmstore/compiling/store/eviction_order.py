"""The order of eviction in a full store."""

from __future__ import annotations

POLICIES = {
    "lru": "last_used, id",
    "lfu": "hits, last_used, id",
    "size": "size DESC, last_used, id",
    "age": "created, id",
}
"""The SQL order of each policy: unused for longest, used least often, largest, or oldest first."""


def order_of(eviction: str) -> str:
    """The SQL order of a policy. Raises ValueError for an unknown one."""
    if eviction not in POLICIES:
        raise ValueError(f"eviction {eviction!r} is not known; choose one of {', '.join(map(repr, POLICIES))}")
    return POLICIES[eviction]
