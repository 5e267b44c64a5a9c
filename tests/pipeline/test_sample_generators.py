"""Generators of samples: the same for the same numbers, others for others, and complete as NumPy's own."""

import copy
import pickle

import numpy as np

from warmstore.pipeline.sample_generators import sample_generator

NUMBERS = (1, 2, 3, 4)


def test_the_numbers_decide() -> None:
    first = sample_generator(*NUMBERS).random(4).tolist()
    assert first == sample_generator(*NUMBERS).random(4).tolist()
    others = [[*NUMBERS[:at], NUMBERS[at] + 1, *NUMBERS[at + 1 :]] for at in range(4)]
    others += [[2, 1, 3, 4], [1, 2, 4, 3], [0, 2, 3, 4]]
    drawn = [tuple(sample_generator(*other).random(4)) for other in others]
    assert len({tuple(first), *drawn}) == len(others) + 1


def test_values_stay_from_release_to_release() -> None:
    assert sample_generator(*NUMBERS).integers(0, 1000, 4).tolist() == [176, 28, 140, 753]


def test_neighbours_are_independent() -> None:
    draws = np.array([[sample_generator(0, epoch, index, 0).random() for index in range(1000)] for epoch in range(20)])
    counts = np.histogram(draws, 50, (0, 1))[0]
    expected = draws.size / 50
    assert ((counts - expected) ** 2 / expected).sum() < 98  # chi-square of 49 degrees of freedom: 1 in 20,000
    assert abs(np.corrcoef(draws[:, 1:].ravel(), draws[:, :-1].ravel())[0, 1]) < 0.03
    assert abs(np.corrcoef(draws[1:].ravel(), draws[:-1].ravel())[0, 1]) < 0.03


def test_it_can_be_sent_copied_and_spawned() -> None:
    rng = sample_generator(*NUMBERS)
    rng.random()
    copies = pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)
    wanted = rng.random()
    assert [other.random() for other in copies] == [wanted, wanted]
    children = [child.random() for child in (*rng.spawn(2), *rng.spawn(1))]
    assert children == [child.random() for child in sample_generator(*NUMBERS).spawn(3)]
    assert len(set(children)) == 3


def test_the_largest_numbers() -> None:
    assert sample_generator(2**64 - 1, 2**32 - 1, 2**63 - 1, 100).random() < 1
    state = sample_generator(*NUMBERS).bit_generator.seed_seq.generate_state(2)  # as other bit generators ask
    assert state.dtype == np.uint32
    assert len(state) == 2
