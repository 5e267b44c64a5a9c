"""Rules of values that are an opaque state: buffers, files in memory, random generators, number contexts.

The state becomes one text. It may change in place, so a watch compares the text.
"""

from __future__ import annotations

import decimal
import io
import random
import struct
from typing import Any

import numpy as np

from warmstore.identity.kinds.registry import rule
from warmstore.identity.places import Place
from warmstore.identity.plain_data import decimal_context_text, shortened
from warmstore.identity.walk import Walk


@rule(bytearray)
def _bytearray(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: f"bytearray {shortened(bytes(value).hex())}")


@rule(memoryview)
def _memoryview(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: f"memoryview {value.format} {value.shape} {shortened(value.tobytes().hex())}")


@rule(io.BytesIO, io.StringIO)
def _memory_file(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: f"{type(value).__name__} {shortened(repr(value.getvalue()))} {value.tell()}")


@rule(struct.Struct)
def _struct(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"struct.Struct {value.format!r}")


@rule(decimal.Context)
def _decimal_context(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: decimal_context_text(value))


@rule(random.Random)
def _random(walk: Walk, place: Place, value: Any) -> None:
    if not walk.settings.draws and value is vars(random)["_inst"]:
        walk.fact(place, "default generator of random")
        return
    walk.state(place, lambda: f"random.Random {shortened(repr(value.getstate()))}")


@rule(np.random.Generator)
def _generator(walk: Walk, place: Place, value: Any) -> None:
    walk.state(place, lambda: f"numpy.random.Generator {shortened(_state_text(value.bit_generator.state))}")


@rule(np.random.RandomState)
def _random_state(walk: Walk, place: Place, value: Any) -> None:
    if not walk.settings.draws and value is vars(np.random.mtrand)["_rand"]:
        walk.fact(place, "default generator of numpy")
        return
    walk.state(place, lambda: f"numpy.random.RandomState {shortened(_state_text(value.get_state(legacy=False)))}")


def _state_text(state: Any) -> str:
    """The text of a generator's state, with the full content of its arrays: `repr` abbreviates long arrays."""
    if isinstance(state, dict):
        return repr({key: _state_text(value) for key, value in state.items()})
    return state.tobytes().hex() if isinstance(state, np.ndarray) else repr(state)
