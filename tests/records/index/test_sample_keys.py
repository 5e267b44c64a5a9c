"""Ids as keys: exact, and never two ids for one key."""

import itertools
import uuid
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from warmstore.errors import BadIds, BadIdType
from warmstore.records.index.sample_keys import Keys, as_keys

SIMPLE = st.integers() | st.integers(-(1 << 66), 1 << 66) | st.text() | st.binary() | st.uuids()
IDS = SIMPLE | st.recursive(SIMPLE, lambda parts: st.lists(parts, min_size=1, max_size=3).map(tuple), max_leaves=5)


def array_of(ids: list[Any]) -> Any:
    """Ids that no collate function has transposed."""
    array = np.empty(len(ids), object)
    for at, one in enumerate(ids):
        array[at] = one
    return array


@given(st.lists(IDS, unique=True))
def test_different_ids_are_different_keys(ids: list[Any]) -> None:
    keys = as_keys(array_of(ids))
    assert len(keys) == len(ids)
    assert len(set(keys.packed)) == len(ids)


@given(st.lists(IDS))
def test_a_key_does_not_depend_on_the_batch_it_is_in(ids: list[Any]) -> None:
    assert as_keys(array_of(ids)).packed == [as_keys([one]).packed[0] for one in ids]


@given(st.integers())
def test_no_string_is_the_key_of_an_int(number: int) -> None:
    keys = as_keys([number, str(number), f"int:{number}", hex(number)])
    assert len(set(keys.packed)) == 4


@pytest.mark.parametrize("number", [0, 5, 127])
def test_every_kind_of_int_is_one_key(number: int) -> None:
    same: list[Any] = [[number], (number,), torch.tensor([number]), [torch.tensor(number)], [np.int8(number)]]
    same += [np.array([number], kind) for kind in ("i1", "u1", "i4", "u8", ">i4", object)]
    assert len(set(itertools.chain.from_iterable(as_keys(ids).packed for ids in same))) == 1


@pytest.mark.parametrize("number", [-1, -(1 << 63), (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_the_ends_of_64_bits(number: int) -> None:
    kind = "u8" if number >= 1 << 63 else "i8"
    assert as_keys(np.array([number], kind)).packed == as_keys([number]).packed
    assert as_keys([number, 1 << 70]).packed[0] == as_keys([number]).packed[0]
    assert as_keys([number]).small == (number < 1 << 63)


def test_arrays_with_ids_beyond_63_bits() -> None:
    numbers = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    for order in "<>":
        assert as_keys(np.array(numbers, f"{order}u8")).packed == as_keys(numbers).packed


def test_every_kind_of_string_is_one_key() -> None:
    same = [["é"], ("é",), np.array(["é"]), np.array(["é"], object), [np.str_("é")]]
    assert len(set(itertools.chain.from_iterable(as_keys(ids).packed for ids in same))) == 1


@pytest.mark.parametrize(
    "ids",
    [
        [],
        (),
        np.zeros(0, np.int64),
        np.zeros(0, "U1"),
        torch.zeros(0, dtype=torch.int64),
        np.array([]),
        torch.tensor([]),
    ],
)
def test_no_ids(ids: Any) -> None:
    keys = as_keys(ids)
    assert len(keys) == 0
    assert keys.packed == []


@pytest.mark.parametrize(
    "ids",
    [
        *(None, 5, "abc", b"abc", [None], [1, None], iter([1]), np.zeros((2, 2), int), np.int64(1), torch.tensor(1)),
        *({"a", "b"}, frozenset("ab"), pd.DataFrame({"a": [1, 2], "b": [3, 4]})),
    ],
)
def test_what_is_not_a_list_of_ids(ids: Any) -> None:
    with pytest.raises(BadIds, match="cache_ids"):
        as_keys(ids)


@pytest.mark.parametrize(
    "ids",
    [
        *(
            [1.0],
            [True],
            [()],
            [(1, 2.0)],
            [bytearray(b"a")],
            [np.bool_(True)],
            np.zeros(2),
            np.ones(2, bool),
            torch.ones(2),
            [...],
        ),
        *(np.array([b"a"]), np.array(["2020"], "M8[Y]"), [chr(0xD800)], [1, "a", 1.5]),
    ],
    ids=repr,
)
def test_what_is_no_id(ids: Any) -> None:
    with pytest.raises(BadIdType, match="cache_ids"):
        as_keys(ids)


@given(st.lists(st.integers(-(1 << 63), (1 << 64) - 1)))
def test_stored_halves_are_the_keys_again(ids: list[int]) -> None:
    keys = as_keys(ids)
    back = Keys.of_halves(keys.halves)
    assert back.packed == keys.packed
    assert back.small == all(number < 1 << 63 for number in ids)


def test_strings_are_the_digests_of_xxhash() -> None:
    """They stand in stores."""
    texts = ["", "a", "é" * 100, "x" * 1000, "\0"]
    assert b"".join(as_keys(texts).packed) == b"".join(xxhash.xxh3_128_digest(text.encode()) for text in texts)
    assert as_keys([-1]).packed == [b"\xff" * 8 + b"dngis_sw"]
    parts = as_keys(["a", 1]).halves.tobytes()
    identifier = uuid.UUID(int=7)
    hashed = {b"a": (b"a", b"setyb_sw"), identifier: (identifier.bytes, b"diuu _sw"), ("a", 1): (parts, b"elput_sw")}
    for one, (data, seed) in hashed.items():
        wanted = np.frombuffer(xxhash.xxh3_128_digest(data, int.from_bytes(seed, "little")), np.uint64).tobytes()
        assert as_keys([one]).packed == [wanted], one


def test_a_path_is_its_text_on_every_system() -> None:
    paths = [PurePosixPath("images/a.png"), PureWindowsPath("images\\a.png"), Path("images/./a.png")]
    assert set(as_keys(paths).packed) == set(as_keys(["images/a.png"]).packed)


def test_parts_of_tuples_that_a_collate_function_has_transposed() -> None:
    """For a batch of two pairs the list has the length of the batch, and its tuples are ids of other samples."""
    pairs = [("left", "a"), ("left", "b")]
    with pytest.raises(BadIds, match="collate"):
        as_keys(torch.utils.data.default_collate(pairs))
    with pytest.raises(BadIds, match="collate"):
        as_keys(pairs)  # which looks the same
    assert len(as_keys([*pairs, ("right", "a")])) == 3
    assert as_keys(array_of(pairs)).packed == as_keys([*pairs, ("right", "a")]).packed[:2]


def test_some_of_the_keys() -> None:
    keys = as_keys([1, 2, 3])
    before = keys.packed
    assert keys.take([2, 0]).packed == [before[2], before[0]]
