"""A batch is a list of samples to collate functions and to trainers, and is not split for those that do not look."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.records.sample_batch import SampleBatch

SAMPLES = [{"x": at, "y": "a" * at} for at in range(3)]


@pytest.fixture
def batch() -> Any:
    return ws.Dataset(SAMPLES).__getitems__([0, 1, 2])


def test_it_is_a_list_where_a_collate_function_looks(batch: Any) -> None:
    """`tokenizer.pad` of Hugging Face takes lists and tuples of samples, and anything else for one dict."""
    assert isinstance(batch, list)
    assert isinstance(batch, SampleBatch)
    assert batch == SAMPLES
    assert batch[1:] == SAMPLES[1:]
    assert batch[-1] == SAMPLES[-1]
    assert sorted(batch, key=lambda sample: -sample["x"]) == SAMPLES[::-1]


def test_trainers_make_a_list_of_its_type(batch: Any) -> None:
    """As accelerate and Lightning do to move samples to a device."""
    assert type(batch)(sample["x"] for sample in batch) == [0, 1, 2]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_copy_is_a_batch(batch: Any, copied: Callable[[Any], Any]) -> None:
    made = copied(batch)
    assert type(made) is SampleBatch
    assert made.positions == [0, 1, 2]
    assert np.array_equal(made.batch["x"], batch.batch["x"])
    assert made == SAMPLES


def test_cached_functions_take_it(batch: Any, tmp_path: Path) -> None:
    @ws.cached(tmp_path)
    def numbers(samples: Any) -> list[int]:
        return [int(sample["x"]) for sample in samples]

    other = ws.Dataset(SAMPLES).__getitems__([2, 1])
    assert [numbers(batch), numbers(other), numbers(batch)] == [[0, 1, 2], [2, 1], [0, 1, 2]]
