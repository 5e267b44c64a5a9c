"""What a pipeline says to a call that cannot be right."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.errors import BadSource, NotPicklable


def plain(value: Any) -> Any:
    return value


def never(value: Any) -> bool:
    return False


pipe = ws.Pipeline(range(4)).step(plain)


@pytest.mark.parametrize("call", [pipe.loader, pipe.fill])
def test_a_batch_size_in_place_of_a_plan(call: Callable[[Any], Any]) -> None:
    with pytest.raises(
        TypeError, match=r"a plan, as pipe\.plan\(\.\.\.\) makes one, or None; got 32: pass batch_size=32"
    ):
        call(32)


def test_something_else_in_place_of_a_plan() -> None:
    with pytest.raises(TypeError, match="or None; got 'cache'"):
        pipe.dataset("cache")  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["random", "batched"])
def test_options_that_are_no_bools(option: str) -> None:
    with pytest.raises(
        TypeError, match=rf"{option} must be True or False; step 'plain' has 'no'.*args=\{{'{option}': \.\.\.\}}"
    ):
        ws.Pipeline(range(4)).step(plain, **{option: "no"})


@pytest.mark.parametrize("is_dataset", [False, True])
def test_indices(is_dataset: bool) -> None:
    data: Any = pipe.dataset() if is_dataset else pipe
    assert data[np.int64(-1)] == 3
    with pytest.raises(TypeError, match=r"one integer; got slice\(2, 4, None\): for several samples use \[data\[at\]"):
        data[2:4]
    with pytest.raises(TypeError, match="one integer; got 'a'"):
        data["a"]
    with pytest.raises(IndexError, match="there are 4 samples; got the index 4"):
        data[4]


def test_functions_of_errors_that_cannot_be_called() -> None:
    with pytest.raises(TypeError, match=r"called as fn\(error, value\).* step 'plain' cannot take two arguments"):
        ws.Pipeline(range(4)).step(plain, on_error=lambda error: None)  # type: ignore[arg-type, misc]
    ws.Pipeline(range(4)).step(plain, on_error=max)  # whose signature is unknown


def test_a_filter_that_nothing_passes() -> None:
    empty = ws.Pipeline(range(4)).step(plain).filter(never)
    with pytest.warns(RuntimeWarning, match="filter 'never' passes none of 4 samples"):
        assert len(empty) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(BadSource, match="no sample passes the filters"):
            empty.plan(memory="1MB")


@pytest.mark.filterwarnings("ignore:Got pickle error")
def test_a_data_set_that_cannot_be_sent_to_spawned_workers() -> None:
    data = ws.Pipeline(range(4)).step(lambda value: value).dataset()
    loader: Any = torch.utils.data.DataLoader(data, num_workers=1, multiprocessing_context="spawn")  # type: ignore[arg-type]
    with pytest.raises(
        NotPicklable, match=r"step '<lambda>' cannot be sent to worker processes.* at the top of a module"
    ):
        next(iter(loader))
