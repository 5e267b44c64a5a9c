"""Filters whose functions use JAX, whose threads no process may have that forks."""

import pytest

import warmstore as ws


def test_an_answer_of_jax() -> None:
    jnp = pytest.importorskip("jax.numpy")
    assert len(ws.Pipeline(range(30)).filter(lambda value: jnp.array(value) < 3, name="few")) == 3
