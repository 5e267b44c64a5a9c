"""Batches as columns: mapped, and stacked of samples."""

from collections import OrderedDict, namedtuple
from types import MappingProxyType

import pytest

import warmstore as ws
from warmstore.tree.columns import map_columns, rebuilt, stack

Pair = namedtuple("Pair", "x y")


def test_tuples_keep_their_kind() -> None:
    assert rebuilt(Pair(1, 2), iter([3, 4])) == Pair(3, 4)
    assert type(rebuilt(Pair(1, 2), [3, 4])) is Pair
    assert rebuilt((1,), [3, 4]) == (3, 4)


def test_lists_are_columns() -> None:
    batch = {"a": [1, 2], "t": (Pair([3], "x"), OrderedDict(z=[4]))}
    found = map_columns(lambda column: column * 2, batch)
    assert found == {"a": [1, 2, 1, 2], "t": (Pair([3, 3], "xx"), {"z": [4, 4]})}
    assert type(found["t"][0]) is Pair
    assert map_columns(len, [1, 2]) == 2


def test_stack_looks_into_mappings_and_tuples() -> None:
    samples = [Pair({"a": at}, (at, [at])) for at in range(3)]
    assert stack(samples, lambda leaves: leaves) == Pair({"a": [0, 1, 2]}, ([0, 1, 2], [[0], [1], [2]]))
    assert stack([MappingProxyType({"a": 1}), {"a": 2}], sum) == {"a": 3}


def test_samples_of_different_kinds_are_a_column() -> None:
    samples = [{"a": 1}, (2,), 3]
    assert stack(samples, lambda leaves: leaves) == samples
    assert stack([(1,), [2]], lambda leaves: leaves) == [(1,), [2]]
    Swapped = namedtuple("Swapped", "y x")
    for mixed in ([Pair(1, 2), Swapped(3, 4)], [Pair(1, 2), (3, 4)], [(3, 4), Pair(1, 2)]):
        assert stack(mixed, lambda leaves: leaves) is not mixed
        assert list(map(type, stack(mixed, lambda leaves: leaves))) == list(map(type, mixed))


def test_samples_that_lack_a_part() -> None:
    samples = [{"n": {"a": 1, "b": 2}}, {"n": {"a": 1}}]
    for mixed in (samples, samples[::-1]):
        with pytest.raises(ws.SchemaMismatch, match="some samples of a batch have 'b' and others do not"):
            stack(mixed, lambda leaves: leaves)
    with pytest.raises(ws.SchemaMismatch, match=r"tuples of different lengths, \[1, 2\]"):
        stack([(1, 2), (1,)], lambda leaves: leaves)
