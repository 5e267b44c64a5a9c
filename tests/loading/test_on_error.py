"""What cannot be read is raised, left out or replaced, as was asked for, and counted."""

import logging
from typing import Any

import numpy as np
import pytest

import warmstore as ws

pytestmark = pytest.mark.forks


class Broken:
    """Numbers, some of which cannot be read."""

    def __init__(self, count: int, bad: set[int]) -> None:
        self.count = count
        self.bad = bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> Any:
        if at in self.bad:
            raise OSError(f"file {at} is truncated")
        return {"x": np.full(3, at), "name": f"{at}"}


@pytest.mark.parametrize("made", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
def test_bad_samples_are_left_out_and_counted(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    with ws.Loader(Broken(23, {4, 5, 17}), 4, ws.Shuffle(seed=1), on_error="skip", **made) as loader:
        for epoch in range(2):
            with caplog.at_level(logging.WARNING, "warmstore"):
                batches = list(loader)
            assert len(batches) == len(loader) == 6
            found = [at for batch in batches for at in batch["x"][:, 0].tolist()]
            assert sorted(found) == sorted(set(range(23)) - {4, 5, 17})
            assert [name for batch in batches for name in batch["name"]] == [str(at) for at in found]
            assert loader.skipped == 3 * (epoch + 1)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 6
    assert "left out the bad sample 17: OSError: file 17 is truncated" in said


def test_ranks_keep_their_steps_and_their_masks() -> None:
    found = []
    for rank in range(2):
        loader = ws.Loader(Broken(21, {3, 20}), 4, rank=rank, world_size=2, on_error="skip")
        batches = list(loader)
        assert len(batches) == 3
        for batch in batches:
            assert len(batch["valid"]) == len(batch["x"])
            found += batch["x"][batch["valid"]][:, 0].tolist()
    assert sorted(found) == sorted(set(range(21)) - {3, 20})


def test_batches_that_are_full_stay_full() -> None:
    def instead(error: Exception, position: int) -> Any:
        return {"x": np.full(3, -1), "name": "none"} if position == 5 else None

    for policy, kept in (("skip", set(range(10)) - {3, 5}), (instead, set(range(10)) - {3, 5} | {-1})):
        found: list[int] = []
        for batch in ws.Loader(Broken(10, {3, 5}), 4, uneven="full", on_error=policy):  # type: ignore[arg-type]
            assert len(batch["x"]) == len(batch["name"]) == 4
            found += batch["x"][batch["valid"]][:, 0].tolist()
        assert sorted(found) == sorted(kept)


def test_a_function_replaces_or_skips() -> None:
    asked = []

    def instead(error: Exception, position: int) -> Any:
        asked.append((str(error), position))
        return {"x": np.full(3, -position), "name": "none"} if position == 4 else None

    loader = ws.Loader(Broken(8, {4, 5}), 4, on_error=instead)
    _, batch = loader
    assert batch["x"][:, 0].tolist() == [-4, 6, 7]
    assert batch["name"] == ["none", "6", "7"]
    assert asked == [("file 4 is truncated", 4), ("file 5 is truncated", 5)]
    assert loader.skipped == 1


def test_an_error_is_raised_by_default_and_where_nothing_is_left() -> None:
    with pytest.raises(OSError, match="file 2 is truncated"):
        list(ws.Loader(Broken(8, {2}), 4))
    loader = ws.Loader(Broken(8, {4, 5, 6, 7}), 4, on_error="skip")
    batches = iter(loader)
    next(batches)
    with pytest.raises(OSError, match="file 4 is truncated") as caught:
        next(batches)
    assert "every sample of the batch is bad" in caught.value.__notes__[0]

    def refusing(error: Exception, position: int) -> Any:
        raise LookupError(f"{position} must not be missing") from error

    with pytest.raises(LookupError, match="2 must not be missing"):
        list(ws.Loader(Broken(8, {2}), 4, on_error=refusing))


def test_an_error_of_a_transform_is_no_bad_sample() -> None:
    def transform(batch: Any) -> Any:
        raise ValueError("of the transform")

    with pytest.raises(ValueError, match="of the transform"):
        list(ws.Loader(np.arange(3), 2, transform=transform, on_error="skip"))
