"""Splits and folds hold every sample once, in the sizes, shares and groups that were asked for, everywhere the same."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.slow import either

import warmstore as ws
from warmstore.loading.splits import _rounded

MANY = settings(max_examples=either(100, 200))


def positions(parts: Any) -> list[list[int]]:
    return [part.positions.tolist() for part in (parts.values() if isinstance(parts, dict) else parts)]


def check_whole(parts: Any, n: int) -> None:
    assert sorted(at for part in positions(parts) for at in part) == list(range(n))


def test_shares_numbers_and_names() -> None:
    x = np.arange(100)
    assert [len(part) for part in ws.split(x, [0.8, 0.1, 0.1])] == [80, 10, 10]
    assert [len(part) for part in ws.split(x, 0.29)] == [29, 71]
    assert [len(part) for part in ws.split(x, 1.0)] == [100]
    assert [len(part) for part in ws.split(x, [70, 30])] == [70, 30]
    assert [len(part) for part in ws.split(x, 70)] == [70, 30]
    named = ws.split(x, {"train": 0.8, "valid": 0.2})
    assert {name: len(part) for name, part in named.items()} == {"train": 80, "valid": 20}
    assert sorted(named["train"].positions.tolist()) == named["train"].positions.tolist()
    check_whole(named, 100)
    train, valid = ws.split(x, 0.8, shuffle=False)
    assert (train.positions.tolist(), valid.positions.tolist()) == (list(range(80)), list(range(80, 100)))


def test_sizes_are_rounded_by_largest_remainders() -> None:
    assert _rounded([2.4, 0.3, 0.3], 3) == [3, 0, 0]
    assert _rounded([3.5, 3.5], 7) == [4, 3]
    assert _rounded([1.2, 1.6, 2.2], 5) == [1, 2, 2]
    assert _rounded([10 * 0.7, 10 * 0.2, 10 * 0.1], 10) == [7, 2, 1]


@MANY
@given(
    n=some.integers(0, 300),
    shares=some.lists(some.floats(0.01, 1), min_size=1, max_size=6),
    seed=some.integers(0, 2**64 - 1),
)
def test_every_sample_is_in_one_part(n: int, shares: list[float], seed: int) -> None:
    shares = [share / math.fsum(shares) for share in shares]
    parts = ws.split(range(n), shares, seed=seed)
    check_whole(parts, n)
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - n * share) < 1 + 1e-6


def test_a_seed_decides_and_no_generator() -> None:
    x = np.arange(3000)
    first = positions(ws.split(x, 0.5, seed=1))
    assert first == positions(ws.split(x, 0.5, seed=1))
    assert first != positions(ws.split(x, 0.5, seed=2))
    # The same on every machine and in every release: what was valid must not train.
    assert positions(ws.split(range(10), [5, 3, 2], seed=7)) == SEVEN
    share = len(set(first[0]) & set(positions(ws.split(x, 0.5, seed=2))[0])) / 1500
    assert 0.45 < share < 0.55


SEVEN = [[0, 2, 4, 7, 8], [1, 3, 5], [6, 9]]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ([0.5, 0.4], "sum to 0.9, not to 1"),
        ([0.9, 0.2], "not to 1"),
        (1.5, "not to 1"),
        ([5, 4], "sum to 9; the source has 10 samples"),
        (11, "sum to 11"),
        ([0.5, 5], "all shares or all numbers"),
        ([1.2, -0.2], "above zero"),
        ([0.0, 1.0], "above zero"),
        (0, "above zero"),
        ([], "must be shares"),
        (True, "must be shares"),
        ("0.5", "must be shares"),
        ([math.nan, 0.5], "must be shares"),
    ],
)
def test_parts_that_cannot_be(parts: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ws.split(range(10), parts)


@MANY
@given(
    labels=some.lists(some.integers(0, 5), min_size=1, max_size=120),
    shares=some.lists(some.floats(0.05, 1), min_size=2, max_size=5),
    seed=some.integers(0, 100),
)
def test_each_part_has_its_share_of_each_label(labels: list[int], shares: list[float], seed: int) -> None:
    shares = [share / math.fsum(shares) for share in shares]
    n = len(labels)
    parts = ws.split(range(n), shares, seed=seed, stratify=labels)
    check_whole(parts, n)
    sizes = [len(part) for part in ws.split(range(n), shares)]
    for part, share, size in zip(parts, shares, sizes, strict=True):
        assert abs(len(part) - size) <= 1
        for label in set(labels):
            held = sum(labels[at] == label for at in part.positions.tolist())
            assert abs(held - labels.count(label) * share) < 1 + 1e-6


def test_sizes_hold_where_every_label_is_rare() -> None:
    n = 30_000
    labels = np.repeat(np.arange(n // 3), 3)
    parts = ws.split(range(n), [0.8, 0.1, 0.1], stratify=labels)
    assert [len(part) for part in parts] == [24_000, 3_000, 3_000]
    check_whole(parts, n)
    rare = ws.split(range(n), [0.8, 0.1, 0.1], stratify=np.arange(n))
    assert [len(part) for part in rare] == [24_000, 3_000, 3_000]


def test_labels_of_any_kind(store: ws.RecordStore) -> None:
    for labels in (
        ["a", "b"] * 20,
        [("a", 1), None] * 20,
        np.array(["x", "y"] * 20),
        [b"a", "a"] * 20,
        [0.5, np.nan] * 20,
    ):
        train, _ = ws.split(range(40), 0.5, stratify=labels)
        assert sum(at % 2 for at in train.positions.tolist()) == 10
    assert len(ws.split(store, 10, stratify=store["title"])[0]) == 10
    torch = pytest.importorskip("torch")
    assert len(ws.split(range(4), 2, stratify=torch.tensor([0, 1, 0, 1]))[0]) == 2
    for wrong in ([1, 2], np.zeros((40, 2)), 3):
        with pytest.raises(ValueError, match="stratify must have a label for each of the 40 samples"):
            ws.split(range(40), 0.5, stratify=wrong)
    with pytest.raises(ValueError, match="cannot be had both"):
        ws.split(range(2), 0.5, stratify=[0, 1], groups=[0, 1])


@MANY
@given(
    groups=some.lists(some.integers(0, 30), min_size=1, max_size=150),
    shares=some.lists(some.floats(0.1, 1), min_size=2, max_size=4),
    seed=some.integers(0, 100),
)
def test_no_group_is_in_two_parts(groups: list[int], shares: list[float], seed: int) -> None:
    shares = [share / math.fsum(shares) for share in shares]
    n = len(groups)
    parts = ws.split(range(n), shares, seed=seed, groups=groups)
    check_whole(parts, n)
    held = [{groups[at] for at in part} for part in positions(parts)]
    assert sum(map(len, held)) == len(set(groups))
    largest = max(map(groups.count, groups))
    for part, share in zip(parts, shares, strict=True):
        assert abs(len(part) - n * share) <= largest + 1


def test_labels_that_are_masked_are_one_label() -> None:
    """As those of a field with absent values. They were those beneath, mostly 0."""
    labels = np.ma.MaskedArray([0, 0, 0, 0, 1, 1], [False, False, True, True, False, False])
    for seed in range(8):
        parts = ws.split(range(6), 0.5, seed=seed, stratify=labels)
        assert [sorted(at // 2 for at in part) for part in positions(parts)] == [[0, 1, 2]] * 2
        parts = ws.split(range(6), [1 / 3] * 3, seed=seed, groups=labels)
        assert sorted(positions(parts)) == [[0, 1], [2, 3], [4, 5]]


def test_labels_that_are_tensors_count_by_their_numbers() -> None:
    torch = pytest.importorskip("torch")
    numbers = [at // 4 for at in range(40)]
    labels = list(torch.tensor(numbers))  # as a data set of tensors gives them
    for name in ("groups", "stratify"):
        for given_labels in (labels, tuple(labels)):
            parts = ws.split(range(40), [0.5, 0.3, 0.2], **{name: given_labels})
            assert positions(parts) == positions(ws.split(range(40), [0.5, 0.3, 0.2], **{name: numbers}))
    flags = ws.split(range(40), 0.5, groups=[label > 4 for label in labels])
    assert positions(flags) == [list(range(20)), list(range(20, 40))]


def test_groups_fill_parts_evenly() -> None:
    groups = np.arange(100_000) // 10
    parts = ws.split(range(100_000), [0.8, 0.1, 0.1], groups=groups)
    assert [len(part) for part in parts] == [80_000, 10_000, 10_000]
    assert positions(parts) != positions(ws.split(range(100_000), [0.8, 0.1, 0.1], groups=groups, seed=1))
    assert positions(ws.split(range(6), 3, groups=list("aabbcc"), shuffle=False))[0] in ([0, 1], [0, 1, 2, 3])


@pytest.mark.parametrize(
    "options", [{}, {"stratify": [at % 3 for at in range(50)]}, {"groups": [at // 4 for at in range(50)]}]
)
def test_folds(options: Any) -> None:
    found = ws.folds(range(50), 4, seed=3, **options)
    check_whole([valid for _, valid in found], 50)
    for train, valid in found:
        check_whole([train, valid], 50)
        assert abs(len(valid) - 12.5) <= (2.5 if "groups" in options else 0.5)
        if "stratify" in options:
            counts = np.bincount(np.asarray(valid.positions) % 3)
            assert counts.max() - counts.min() <= 1
        if "groups" in options:
            assert not {at // 4 for at in train.positions.tolist()} & {at // 4 for at in valid.positions.tolist()}


def test_folds_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="k must be an integer from 2"):
        ws.folds(range(9), 1)
    with pytest.raises(ValueError, match="5 folds need 5 samples at least; there are 4"):
        ws.folds(range(4), 5)
    with pytest.raises(ValueError, match="3 folds need 3 groups at least; 1 would be empty"):
        ws.folds(range(9), 3, groups=[0, 1] * 4 + [0])


def test_parts_of_parts() -> None:
    outer, test = ws.split(np.arange(100) * 10, 0.9)
    train, valid = ws.split(outer, 0.5)
    assert sorted([*positions([train])[0], *positions([valid])[0], *positions([test])[0]]) == list(range(100))
    assert train[0] == 10 * train.positions[0]


@pytest.mark.slow
def test_ten_million_samples() -> None:
    train, valid = ws.split(range(10_000_000), 0.9, seed=5)
    assert (len(train), len(valid)) == (9_000_000, 1_000_000)
    assert 0.49 < (valid.positions < 5_000_000).mean() < 0.51
