"""Leases: which process computes a sample. Tried against a model, and by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warmstore.features import leases
from warmstore.features.leases import Leases


def hashes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_sample_has_one_owner_until_it_is_stored() -> None:
    table = Leases(10, Clock())
    assert table.claim("a", hashes(1, 2)).granted.tolist() == [True, True]
    assert table.claim("a", hashes(2)).granted.tolist() == [True]
    claim = table.claim("b", hashes(2, 3))
    assert (claim.granted.tolist(), claim.stored.tolist()) == ([False, True], [False, False])
    table.finish("b", hashes(2), stored=False)  # is not its owner
    assert table.claim("b", hashes(2)).granted.tolist() == [False]
    table.finish("a", hashes(1), stored=True)
    table.finish("a", hashes(2), stored=False)
    claim = table.claim("b", hashes(1, 2))
    assert (claim.granted.tolist(), claim.stored.tolist()) == ([False, True], [True, False])
    table.lost(hashes(1))
    assert table.claim("b", hashes(1)).granted.tolist() == [True]
    assert table.count == 3


def test_leases_end_with_their_owner() -> None:
    clock = Clock()
    table = Leases(10, clock)
    table.claim("a", hashes(1))
    clock.now = 9.9
    assert not table.claim("b", hashes(1)).granted.any()
    table.renew("a")
    clock.now = 19.8
    assert not table.claim("b", hashes(1)).granted.any()
    clock.now = 20
    assert table.claim("b", hashes(1)).granted.all()
    assert not table.claim("a", hashes(1)).granted.any()  # it was late, and somebody else has it now
    table.finish("a", hashes(1), stored=True)  # it has stored the sample nevertheless
    assert table.claim("c", hashes(1)).stored.all()
    table.claim("d", hashes(5))
    table.forget("d")
    assert table.claim("c", hashes(5)).granted.all()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sets(st.integers(0, 40), min_size=1), st.integers(0, 3))))
def test_like_a_model(steps: list[tuple[str, set[int], int]]) -> None:
    leases._UNSORTED = 8
    table, owners, stored = Leases(1, Clock()), {}, set()
    for owner, some, action in steps:
        samples = hashes(*sorted(some))
        if action < 2:
            claim = table.claim(owner, samples)
            for sample, granted, known in zip(sorted(some), claim.granted, claim.stored, strict=True):
                assert known == (sample in stored)
                assert granted == (sample not in stored and owners.setdefault(sample, owner) == owner)
        elif action == 2:
            table.finish(owner, samples, stored=True)
            stored |= some
            owners = {sample: one for sample, one in owners.items() if sample not in some or one != owner}
        else:
            table.lost(samples)
            stored -= some
