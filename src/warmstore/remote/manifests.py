"""Numbered manifests: many writers keep successive states in a remote without overwriting each other.

A series has the successive states of a record store, or of the artifacts of one host. Each state is an object with a
number in its name. The object is created only if no object has that name, and it never changes. So one of two writers
that create the same number is refused, and a higher number is a later state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from warmstore.remote.objects import Objects


class Numbered(NamedTuple):
    """The name of a manifest's object, and its parts. Names of one series are ordered by their numbers."""

    series: str
    number: int
    name: str


class Manifests:
    """The manifests below a folder of a remote.

    Args:
        folder: The prefix of their names.
        pattern: A regular expression for the rest of the names after a slash, with the groups `series` and `number`.
    """

    def __init__(self, folder: str, pattern: str) -> None:
        self.folder = folder
        self._pattern = re.compile(f"{re.escape(folder)}/{pattern}")

    def parse(self, name: str) -> Numbered | None:
        """The parts of an object's name; None for an object that is no manifest of this folder."""
        match = self._pattern.fullmatch(name)
        return None if match is None else Numbered(match["series"], int(match["number"]), name)

    async def by_series(
        self, objects: Objects, prefix: str = "", *, flowed: Callable[[int], None] | None = None
    ) -> dict[str, list[Numbered]]:
        """The manifests of each series, the newest first. On a remote that is not conditional, numbers may repeat.

        Args:
            prefix: Lists only series that begin with these parts.
            flowed: As for `Objects.entries_async`, whose errors this raises.
        """
        found: dict[str, list[Numbered]] = {}
        for entry in await objects.entries_async(f"{self.folder}/{prefix}".rstrip("/"), flowed=flowed):
            if (manifest := self.parse(entry.name)) is not None:
                found.setdefault(manifest.series, []).append(manifest)
        return {series: sorted(manifests, reverse=True) for series, manifests in found.items()}


async def create(objects: Objects, name: str, data: bytes) -> bool:
    """Create the object of a manifest. False if another writer created one of that name. After an error the object may
    exist, or not."""
    if await objects.put_async(name, data, create=True):
        return True
    # A request whose answer was lost is repeated, and then finds the object of the first one.
    return await objects.size_async(name) == len(data) and await objects.get_async(name) == data


async def remove_older(objects: Objects, manifests: Iterable[Numbered], *, keep: int) -> None:
    """Remove the manifests of one series except the `keep` newest, which other processes may still read."""
    await objects.delete_async(manifest.name for manifest in sorted(manifests, reverse=True)[keep:])
