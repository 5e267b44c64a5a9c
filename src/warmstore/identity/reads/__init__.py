"""What code reads: the globals, closures, defaults and attributes that a function uses, and their current values.

Where all code that the walk follows reads only attributes of a variable, these attributes count and not the whole
object. They are looked up on the live object as Python does. Any other use of a variable makes the whole object count.
"""

from warmstore.identity.reads.attributes import read_method
from warmstore.identity.reads.functions import read_call, read_called, read_function, read_named_files
from warmstore.identity.reads.modules import read_module, refuse_passed_modules
from warmstore.identity.reads.refusals import refusal_of

__all__ = [
    "read_call",
    "read_called",
    "read_function",
    "read_method",
    "read_module",
    "read_named_files",
    "refusal_of",
    "refuse_passed_modules",
]
