"""Random numbers by place, against the generator they are named after and against exact arithmetic."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from warmstore.loading.samplers.counter_rng import bounded, derive_keys, random_bits


def test_draws_are_splitmix64() -> None:
    """The reference's first outputs from state 1234567 (Vigna's splitmix64.c)."""
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert random_bits(np.arange(5, dtype=np.uint64), np.uint64(1234567)).tolist() == known


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1), st.integers(1, 2**62))
def test_scaling_is_the_upper_half_of_the_product(drawn: list[int], bound: int) -> None:
    exact = [value * bound >> 64 for value in drawn]
    assert bounded(np.array(drawn, np.uint64), bound).tolist() == exact


@given(st.sampled_from([2**32 - 1, 2**32, 2**32 + 1, 2**62, 1]))
def test_scaling_at_the_edges(bound: int) -> None:
    drawn = [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 2**32, 2**64 - 1]
    assert bounded(np.array(drawn, np.uint64), bound).tolist() == [value * bound >> 64 for value in drawn]


def test_every_part_of_a_key_counts() -> None:
    asked = [
        ("shuffle", 0, 0, 5),
        ("uniform", 0, 0, 5),
        ("shuffle", 1, 0, 5),
        ("shuffle", 0, 1, 5),
        ("shuffle", 0, 0, 6),
    ]
    assert len(np.unique([derive_keys(*each) for each in asked])) == 8 * len(asked)
