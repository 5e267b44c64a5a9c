"""The engine as thousands of trials use it: no search for what a program has put into installed modules.

The corpus puts nothing there, and each search goes through everything that is imported.
"""

from collections.abc import Collection
from typing import Any

from warmstore.identity import Identity
from warmstore.identity.identity import identity_of_walk, walk_over
from warmstore.identity.patches import Patches


def identify(thing: Any, *, ignore: Collection[str] = ()) -> Identity:
    """As `warmstore.identity.identify`."""
    return identity_of_walk(walk_over(thing, ignore=ignore, patches=Patches()))
