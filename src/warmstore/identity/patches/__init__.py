"""What the program has put into installed modules and classes: code runs it without naming the program."""

from warmstore.identity.patches.search import Patches

__all__ = ["Patches"]
