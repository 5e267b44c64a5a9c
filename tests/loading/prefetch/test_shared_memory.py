from contextlib import closing
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.loading.prefetch.shared_memory import SHARED, empty
from warmstore.loading.prefetch.shared_segments import start_worker, taken

pytestmark = pytest.mark.forks


def test_elsewhere_an_array_is_its_own() -> None:
    made = empty((4, SHARED), np.dtype(np.float32))
    assert (made.shape, made.dtype) == ((4, SHARED), np.float32)
    assert taken(SHARED) is None


@pytest.mark.parametrize(
    ("shape", "dtype", "shared"),
    [((2, SHARED), "uint8", True), ((SHARED,), "float64", True), ((3,), "int64", False), ((SHARED,), ">i4", False)],
)
def test_workers_make_what_they_hand_over(shape: tuple[int, ...], dtype: str, shared: bool) -> None:
    def made(index: int) -> bool:
        array = empty(shape, np.dtype(dtype))
        array[...] = 7
        assert (array.shape, array.dtype) == (shape, np.dtype(dtype))
        return start_worker().sent(array) is not None

    with closing(ws.Pipeline(range(4)).step(made).loader(batch_size=4, workers=1, start_method="fork")) as loader:
        (batch,) = list(loader)
    assert batch.tolist() == [shared] * 4


def test_batches_come_over_as_they_were_made() -> None:
    def sample(index: int) -> dict[str, Any]:
        return {"image": np.full((64, 64), index, np.float32), "index": index}

    with closing(ws.Pipeline(range(32)).step(sample).loader(batch_size=8, workers=2, start_method="fork")) as loader:
        kept = list(loader)  # all of them at once: none lies where another one is
    for batch in kept:
        assert (batch["image"] == batch["index"][:, None, None]).all()
    assert sorted(index for batch in kept for index in batch["index"].tolist()) == list(range(32))
