"""Texts of arguments: equal texts stand for equal values.

Plain data, arrays and tensors have a text of their whole content, made anew for each call. A string or path that names
a file counts with the size and time of the file, or of all files below a folder. Any other object has no text here: its
identity is found by a walk, as far as the function reads it.
"""

import sys
from decimal import Decimal
from typing import Any

import numpy as np

from warmstore.errors import NoFingerprint
from warmstore.functions.results import holds_results
from warmstore.identity.named_files import FEW, FileStamps, TooManyFiles, first_parts
from warmstore.identity.object_state import full_name
from warmstore.identity.plain_data import (
    ATOMS,
    BYTES,
    LONGEST_PATH,
    NAMES_A_FILE,
    VOIDS,
    NotPlain,
    PlainTexts,
    array_text,
    decimal_context_text,
    texts_in,
)
from warmstore.identity.samples.sample_hashes import state_of

_STAMPS = FileStamps(is_left_out=holds_results)  # otherwise each result that is kept would change the argument
_CONTAINERS = frozenset((list, tuple, dict))
_NAMES = NAMES_A_FILE | BYTES
_DEEPEST = 20
_LONGEST_KEY = 40


def text_of(place: str, value: Any, objects: dict[str, Any], depth: int = 0) -> str:
    """The text of a value.

    Args:
        objects: gets the parts that have no text, and tensors with more than their content, by place.

    Raises:
        NoFingerprint: it names a folder with more than 100,000 files.
    """
    kind = type(value)
    rule = ATOMS.get(kind)
    try:
        if rule is not None:
            text = f"{kind.__name__} {rule(value)}"
            if kind is Decimal:
                text += f" {decimal_context_text()}"
            if kind in VOIDS:
                return f"{text} {_files(place, texts_in(np.asarray(value)))}"
            return f"{text} {_files(place, [value])}" if kind in _NAMES else text
        if kind is np.ndarray:
            return f"{array_text(value)} {_files(place, texts_in(value))}"
        if kind.__module__ == "torch" and (tensor := _tensor_text(value)):
            if _has_more(value):
                objects[place] = value
            return tensor
        plain = PlainTexts(_is_never_simple)
        text = plain.text(value)
        if plain.has_decimals:
            text += f" {decimal_context_text()}"
    except NotPlain:
        if kind in _CONTAINERS and depth < _DEEPEST and len(value):
            return _items(place, value, objects, depth + 1)
        objects[place] = value
        return f"object {full_name(kind)}"
    return f"{text} {_files(place, plain.strings)}" if plain.strings else text


def _items(place: str, value: Any, objects: dict[str, Any], depth: int) -> str:
    """The text of a container that has parts which are no plain data."""
    pairs = value.items() if type(value) is dict else enumerate(value)
    texts = [
        (
            text_of(f"{place}.<key {at}>", key, objects, depth),
            text_of(f"{place}[{_shown(at, key)}]", item, objects, depth),
        )
        for at, (key, item) in enumerate(pairs)
    ]
    return f"{type(value).__name__} {[(len(key), key, len(text), text) for key, text in texts]}"


def _shown(at: int, key: Any) -> str:
    """A key in a place, where no two keys of a dict look the same."""
    text = repr(key) if type(key) in (str, int, bytes) else ""
    return text if 0 < len(text) <= _LONGEST_KEY else f"{text:.{_LONGEST_KEY}}<value {at}>"


def _files(place: str, names: list[Any]) -> str:
    """What the files and folders are that some texts name; "" without any."""

    firsts = first_parts() if len(names) > FEW else None  # most of many texts, such as the keys of a table, name none

    def stamp(text: str) -> str:
        if len(text) > LONGEST_PATH or (firsts is not None and text.partition("/")[0] not in firsts):
            return ""
        try:
            return _STAMPS.stamp(text, is_sample=True)
        except TooManyFiles as error:
            raise NoFingerprint(
                f"{place}: {str(error).partition(', too many')[0]}, too many to be examined in each call. "
                f"Pass ignore=({place!r},) where their content makes no difference"
            ) from None

    return state_of(names, stamp)


def _tensor_text(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return ""
    from warmstore.identity.kinds.torch_objects import is_transformed, modes_text, tensor_text

    if is_transformed(value):
        return ""
    flags = f"{value.requires_grad} {value.is_leaf} {value.is_inference()}"
    return f"{tensor_text(value)} {value.device.type} {flags} {modes_text()}"


def _has_more(tensor: Any) -> bool:
    """Whether a tensor has attributes, a gradient or hooks, or is used in a mode that replaces operators."""
    from warmstore.identity.kinds.torch_objects import operator_modes
    from warmstore.identity.kinds.training_state import HOOKS_OF_TENSORS

    if operator_modes():
        return True
    hooks = any(getattr(tensor, name, None) for name in HOOKS_OF_TENSORS)
    return bool(vars(tensor)) or hooks or (tensor.is_leaf and tensor.grad is not None)


def _is_never_simple(kind: type) -> bool:
    return False
