"""Walks give what the order gives, however many spans are computed together."""

from itertools import count, islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstore.errors import PositionError
from warmstore.loading.samplers.batched_indices import batched_indices
from warmstore.loading.samplers.replacement import Uniform
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.sequential import Sequential
from warmstore.loading.samplers.shuffle import Shuffle


@given(
    st.sampled_from([Sequential(), Shuffle(seed=2), Uniform(seed=2)]),
    st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)).map(sorted).map(tuple), max_size=20),
    st.integers(1, 5000),
)
def test_each_span_is_what_the_order_gives(order: Sampler, spans: list[tuple[int, int]], ahead: int) -> None:
    found = list(batched_indices(order, spans, 3000, 1, ahead=ahead))
    assert len(found) == len(spans)
    for (first, last), batch in zip(spans, found, strict=True):
        assert batch.dtype == np.int64
        assert np.array_equal(batch, order.indices(first, last, 3000, 1))


def test_ranks_share_an_epoch() -> None:
    n, batch, world = 1000, 16, 3
    spans = [(first, min(first + batch, n)) for first in range(0, n, batch)]
    ranks = [np.concatenate(list(batched_indices(Shuffle(), spans[rank::world], n, 0))) for rank in range(world)]
    assert np.array_equal(np.sort(np.concatenate(ranks)), np.arange(n))


def test_spans_may_be_endless() -> None:
    spans = ((place, place + 4) for place in count(0, 4))
    found = list(islice(batched_indices(Uniform(samples=2**40), spans, 50, 0, ahead=10), 7))
    assert np.array_equal(np.concatenate(found), Uniform(samples=2**40).indices(0, 28, 50, 0))


@pytest.mark.parametrize("spans", [[(0, 5), (5, 4)], [(0, 5), (5, 11)], [(-1, 2)]])
@pytest.mark.parametrize("ahead", [1, 100])
def test_refuses_spans_outside_the_epoch(spans: list[tuple[int, int]], ahead: int) -> None:
    with pytest.raises(PositionError):
        list(batched_indices(Sequential(), spans, 10, 0, ahead=ahead))
