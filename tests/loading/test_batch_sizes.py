"""Budgets cut greedily: a batch is as long as it may be, and depends on where it begins and on nothing else."""

import json
import pickle
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmstore as ws
from warmstore.loading.first_fit import first_fit

LENGTHS = st.integers(1, 80).flatmap(lambda n: st.lists(st.integers(0, 12), min_size=n, max_size=n))
KINDS = pytest.mark.parametrize("kind", ["padded", "bounded", "packed", "rows"])


def drawn(kind: str, data: st.DataObject) -> ws.BatchSize:
    """A rule of a kind, over lengths of any kind."""
    lengths = data.draw(LENGTHS)
    if kind == "rows":
        return ws.RowBudget(data.draw(st.integers(1, 5)), data.draw(st.integers(12, 30)), lengths)
    tokens = data.draw(st.integers(16, 60))
    most = data.draw(st.integers(1, 6)) if kind == "bounded" else None
    if kind == "packed" or (kind == "bounded" and data.draw(st.booleans())):
        return ws.TokenBudget(tokens, lengths, padded=False, max_samples=most)
    return ws.TokenBudget(tokens, lengths, max_samples=most, multiple_of=data.draw(st.integers(1, 4)))


def fits(rule: ws.BatchSize, lengths: Any) -> bool:
    """The rule said once more, for one batch."""
    if len(lengths) > rule.limit:
        return False
    if isinstance(rule, ws.RowBudget):
        return len(first_fit(list(lengths), rule.rows, rule.length)) == len(lengths)
    assert isinstance(rule, ws.TokenBudget)
    if not rule.padded:
        return int(sum(lengths)) <= rule.tokens
    return -(-int(max(lengths)) // rule.multiple_of) * rule.multiple_of * len(lengths) <= rule.tokens


@KINDS
@given(st.data())
def test_every_batch_fits_and_is_as_long_as_may_be(kind: str, data: st.DataObject) -> None:
    rule = drawn(kind, data)
    lengths = rule.lengths
    ends = rule.cut(lengths, True)
    assert ends.dtype == np.int64
    assert ends[-1] == len(lengths)
    for first, last in pairwise([0, *ends.tolist()]):
        assert first < last
        assert fits(rule, lengths[first:last])
        assert last == len(lengths) or not fits(rule, lengths[first : last + 1])


@KINDS
@given(st.data())
def test_the_cut_is_markov_whatever_the_size_of_blocks(kind: str, data: st.DataObject) -> None:
    rule = drawn(kind, data)
    lengths = rule.lengths
    whole = rule.cut(lengths, True).tolist()
    # From any boundary on.
    start = data.draw(st.sampled_from([0, *whole[:-1]]))
    assert (rule.cut(lengths[start:], True) + start).tolist() == [end for end in whole if end > start]
    # In blocks of any size: what is left out of one begins the next.
    found, at, last = [], 0, 0
    while at < len(lengths):
        last = min(len(lengths), max(last, at) + data.draw(st.integers(1, 30)))
        ends = rule.cut(lengths[at:last], last == len(lengths))
        assert len(ends) or last - at < rule.limit
        found += (ends + at).tolist()
        at += int(ends[-1]) if len(ends) else 0
    assert found == whole


@KINDS
@given(st.data())
def test_what_may_still_grow_is_left_out(kind: str, data: st.DataObject) -> None:
    rule = drawn(kind, data)
    lengths = rule.lengths
    whole = rule.cut(lengths, True).tolist()
    open_ = rule.cut(lengths, False).tolist()
    full = len(lengths) - ([0, *whole][-2]) == rule.limit
    assert open_ == (whole if full else whole[:-1])
    assert rule.cut(lengths[:0], True).tolist() == rule.cut(lengths[:0], False).tolist() == []


@given(LENGTHS, st.integers(1, 5), st.integers(12, 20))
def test_a_row_budget_always_fits_its_rows(lengths: list[int], rows: int, length: int) -> None:
    rule = ws.RowBudget(rows, length, lengths)
    way = ws.PackRows(length, rows=rows, pad=-1)
    dataset = ws.Dataset([{"x": np.full(size, at)} for at, size in enumerate(lengths)], collate={"x": way})
    for first, last in pairwise([0, *rule.cut(rule.lengths, True).tolist()]):
        packed = dataset.__getitems__(np.arange(first, last)).batch["x"]
        assert packed["values"].shape == (rows, length)
        assert (packed["values"] >= 0).sum() == sum(lengths[first:last])


def test_known_cuts() -> None:
    lengths = [5, 3, 8, 1, 1, 2, 9, 4]
    assert ws.TokenBudget(16, lengths).cut(np.array(lengths), True).tolist() == [2, 4, 6, 7, 8]
    assert ws.TokenBudget(16, lengths, multiple_of=4).cut(np.array(lengths), True).tolist() == [2, 4, 6, 7, 8]
    assert ws.TokenBudget(16, lengths, padded=False).cut(np.array(lengths), True).tolist() == [3, 7, 8]
    assert ws.TokenBudget(16, lengths, padded=False, max_samples=2).cut(np.array(lengths), True).tolist() == [
        2,
        4,
        6,
        8,
    ]
    assert ws.TokenBudget(16, lengths, max_samples=1).cut(np.array(lengths), True).tolist() == [*range(1, 9)]
    assert ws.TokenBudget(60, [1] * 9, max_samples=4).cut(np.ones(9, np.int64), False).tolist() == [4, 8]
    assert ws.RowBudget(2, 9, lengths).cut(np.array(lengths), True).tolist() == [5, 8]


def test_limits() -> None:
    assert ws.TokenBudget(100, [7, 30]).limit == 14
    assert ws.TokenBudget(100, [7, 30], multiple_of=8).limit == 12
    assert ws.TokenBudget(100, [7, 30], max_samples=5).limit == 5
    assert ws.TokenBudget(100, [7, 30], max_samples=50).limit == 14
    assert ws.TokenBudget(100, [0, 30], padded=False).limit == 100
    assert ws.RowBudget(4, 10, [3]).limit == 13
    assert ws.RowBudget(4, 10, [0]).limit == 40
    assert ws.RowBudget(4, 10, []).limit == 4
    assert ws.TokenBudget(4, []).limit == 1


@pytest.mark.parametrize("padded", [True, False])
def test_the_largest_budgets_do_not_overflow(padded: bool) -> None:
    lengths = np.array([2**31 - 1, 2**30, 2**30 - 1, 1, 0, 2**31 - 1])
    rule = ws.TokenBudget(2**31 - 1, lengths, padded=padded)
    assert rule.cut(lengths, True).tolist() == ([1, 2, 4, 5, 6] if padded else [1, 3, 5, 6])
    assert ws.TokenBudget(2**31 - 1, lengths[1:4], multiple_of=2**30).cut(lengths[1:4], True).tolist() == [1, 2, 3]


def test_descriptions_are_json_and_tell_rules_apart() -> None:
    kinds: list[ws.BatchSize] = [
        ws.TokenBudget(8, [1, 2]),
        ws.TokenBudget(9, [1, 2]),
        ws.TokenBudget(8, [2, 1]),
        ws.TokenBudget(8, [1, 2], padded=False),
        ws.TokenBudget(8, [1, 2], max_samples=2),
        ws.TokenBudget(8, [1, 2], multiple_of=2),
        ws.RowBudget(1, 8, [1, 2]),
        ws.RowBudget(2, 8, [1, 2]),
        ws.RowBudget(1, 9, [1, 2]),
        ws.RowBudget(1, 8, [2, 1]),
    ]
    for at, kind in enumerate(kinds):
        described = kind.describe()
        assert json.loads(json.dumps(described)) == described
        assert [other == kind for other in kinds] == [other is kind for other in kinds]
        assert [other.describe() == described for other in kinds].index(True) == at
        again = pickle.loads(pickle.dumps(kind))
        assert again == kind
        assert hash(again) == hash(kind)
        assert again.limit == kind.limit
    assert kinds[0] != 8
    assert kinds[0].describe() == {
        "kind": "token_budget",
        "tokens": 8,
        "lengths": {"count": 2, "digest": "f59df9f51bfcb52f7ae49756810ec78b"},
        "padded": True,
        "max_samples": None,
        "multiple_of": 1,
    }
    assert kinds[6].describe() == {
        "kind": "row_budget",
        "rows": 1,
        "length": 8,
        "lengths": {"count": 2, "digest": "f59df9f51bfcb52f7ae49756810ec78b"},
    }


def test_lengths_are_the_rules_own() -> None:
    mine = np.arange(3)
    for rule in (ws.TokenBudget(9, mine), ws.RowBudget(3, 3, mine)):
        assert rule.lengths is not mine
        with pytest.raises(ValueError, match="read-only"):
            rule.lengths[0] = 5  # type: ignore[index]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ws.TokenBudget(8, [1, 9, 3, 12]), "2 of 4 .* longer than tokens=8; .* is sample 1 of length 9"),
        (lambda: ws.TokenBudget(10, [1, 9], multiple_of=4), "sample 1 of length 9, 12 in multiples of 4"),
        (lambda: ws.RowBudget(3, 8, [1, 2, 9]), "1 of 3 .* longer than a row of 8; .* is sample 2 of length 9"),
        (lambda: ws.TokenBudget(8, [1, -1]), "length 1 is -1"),
        (lambda: ws.RowBudget(3, 8, [1.5]), "lengths must be integers"),
        (lambda: ws.TokenBudget(0, [1]), "tokens must be an integer from 1 .*; got 0"),
        (lambda: ws.TokenBudget(2**31, [1]), "tokens must be an integer from 1 to .*; got 2147483648"),
        (lambda: ws.TokenBudget(8, [1], max_samples=0), "max_samples must be an integer"),
        (lambda: ws.TokenBudget(8, [1], multiple_of=0), "multiple_of must be an integer"),
        (lambda: ws.TokenBudget(8, [1], multiple_of=2, padded=False), "multiple_of=2 rounds padded lengths"),
        (lambda: ws.TokenBudget(8, [1], padded=1), "padded must be True or False; got 1"),
        (lambda: ws.RowBudget(0, 8, [1]), "rows must be an integer"),
        (lambda: ws.RowBudget(1, 8.0, [1]), "length of a row must be an integer"),
    ],
)  # fmt: skip
def test_refuses(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_rule_of_ones_own() -> None:
    class Pairs(ws.BatchSize):
        lengths = np.zeros(5, np.int64)
        limit = 2

        def cut(self, lengths: Any, final: bool) -> Any:
            ends = np.arange(2, len(lengths) + 1, 2)
            return np.append(ends, len(lengths)) if final and len(lengths) % 2 else ends

        def describe(self) -> dict[str, Any]:
            return {"kind": "pairs"}

    assert Pairs() == Pairs()
    assert Pairs().cut(Pairs.lengths, True).tolist() == [2, 4, 5]
    with pytest.raises(TypeError, match="abstract"):
        ws.BatchSize()  # type: ignore[abstract]
