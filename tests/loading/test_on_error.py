"""What cannot be read is raised, left out or replaced, as was asked for, and counted."""

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import warmstore as ws

pytestmark = pytest.mark.forks


@contextlib.contextmanager
def warns_of_the_first(*, unless: bool = False) -> Iterator[None]:
    """One warning is expected, whatever is left out; or none."""
    if unless:
        yield
        return
    with pytest.warns(RuntimeWarning, match=r"left out the bad sample \d+: OSError: file \d+ is truncated") as said:
        yield
    assert len(said) == 1


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
            with caplog.at_level(logging.INFO, "warmstore"), warns_of_the_first(unless=epoch > 0):
                batches = list(loader)
            assert len(batches) == len(loader) == 6
            found = [at for batch in batches for at in batch["x"][:, 0].tolist()]
            assert sorted(found) == sorted(set(range(23)) - {4, 5, 17})
            assert [name for batch in batches for name in batch["name"]] == [str(at) for at in found]
            assert loader.skipped == 3 * (epoch + 1)
    said = [record.getMessage() for record in caplog.records if "bad sample" in record.getMessage()]
    assert len(said) == 6
    assert "left out the bad sample 17: OSError: file 17 is truncated" in said


def test_ranks_keep_their_steps_and_their_masks() -> None:
    found = []
    for rank in range(2):
        loader = ws.Loader(Broken(21, {3, 20}), 4, rank=rank, world_size=2, on_error="skip")
        with warns_of_the_first():
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
        with warns_of_the_first():
            batches = list(ws.Loader(Broken(10, {3, 5}), 4, uneven="full", on_error=policy))  # type: ignore[arg-type]
        for batch in batches:
            assert len(batch["x"]) == len(batch["name"]) == 4
            found += batch["x"][batch["valid"]][:, 0].tolist()
        assert sorted(found) == sorted(kept)


def test_a_function_replaces_or_skips() -> None:
    asked = []

    def instead(error: Exception, position: int) -> Any:
        asked.append((str(error), position))
        return {"x": np.full(3, -position), "name": "none"} if position == 4 else None

    loader = ws.Loader(Broken(8, {4, 5}), 4, on_error=instead)
    with warns_of_the_first():
        _, batch = loader
    assert batch["x"][:, 0].tolist() == [-4, 6, 7]
    assert batch["name"] == ["none", "6", "7"]
    assert asked == [("file 4 is truncated", 4), ("file 5 is truncated", 5)]
    assert loader.skipped == 1


def test_replacements_belong_to_their_batch() -> None:
    """A program may keep one object for all bad samples, and change the batches that it got."""

    class Varying(Broken):
        def __getitem__(self, at: int) -> Any:
            return {"x": super().__getitem__(at)["x"][: at + 1]}

    blank = {"x": np.zeros(4)}
    for uneven in ("allow", "full"):
        batches = ws.Loader(Varying(5, {1, 3}), 3, uneven=uneven, on_error=lambda error, position: blank, workers=0)
        for batch in batches:
            before = [value.tolist() for value in batch["x"]]
            for value in batch["x"]:
                value += 1
            assert [(value - 1).tolist() for value in batch["x"]] == before
            assert blank["x"].tolist() == [0] * 4
    replaced = iter(
        ws.Loader(Varying(3, {0, 2}), 3, uneven="full", on_error=lambda error, at: None if at else blank, workers=0)
    )
    with warns_of_the_first():
        values = next(replaced)["x"]  # of the samples 0 and 1, and 1 again
    values[1] += 1
    assert values[2].tolist() == [1, 1]


@pytest.mark.parametrize("made", [{"workers": 0}, {"workers": 2}, {"processes": 2}])
@pytest.mark.parametrize("bad", [{4, 5, 6, 7}, {8, 9}, {0, 1, 2, 3, 8, 9}])
def test_a_batch_without_samples_is_left_out(made: Any, bad: set[int]) -> None:
    good = sorted(set(range(10)) - bad)
    with ws.Loader(Broken(10, bad), 4, on_error="skip", uneven="allow", **made) as loader:
        for epoch in range(2):
            with warns_of_the_first(unless=epoch > 0):
                batches = list(loader)
            assert [at for batch in batches for at in batch["x"][:, 0].tolist()] == good
            assert loader.epoch == epoch + 1
            assert loader.skipped == len(bad) * (epoch + 1)


def test_a_state_is_behind_a_batch_that_was_left_out() -> None:
    loader = ws.Loader(Broken(12, {4, 5, 6, 7, 9}), 4, on_error="skip", workers=2)
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    with warns_of_the_first():
        assert next(batches)["x"][:, 0].tolist() == [8, 10, 11]
    after = loader.state_dict()
    for state, left in ((before, [8, 10, 11]), (after, [*range(4), 8, 10, 11])):
        again = ws.Loader(Broken(12, {4, 5, 6, 7, 9}), 4, on_error="skip")
        again.load_state_dict(state)
        with warns_of_the_first():
            assert [at for batch in again for at in batch["x"][:, 0].tolist()] == left


def test_ranks_and_epochs_are_never_without_a_batch() -> None:
    loader = ws.Loader(Broken(8, {2, 3}), 2, rank=1, world_size=2, on_error="skip")
    with pytest.raises(OSError, match="file 2 is truncated") as caught:
        list(loader)
    assert "a rank without a batch would leave the others waiting" in caught.value.__notes__[0]
    for made in ({}, {"workers": 2}, {"processes": 2}):
        with (
            ws.Loader(Broken(5, set(range(5))), 2, on_error="skip", **made) as loader,  # type: ignore[arg-type]
            warns_of_the_first(),
            pytest.raises(ws.SampleSkipped, match=r"every sample of epoch 0 .* file 4 is truncated"),
        ):
            list(loader)
    loader = ws.Loader(Broken(5, set(range(5))), 2, on_error="skip")
    with warns_of_the_first(), pytest.raises(ws.SampleSkipped, match="every sample of epoch 0"):
        next(loader.stream())


def test_a_world_that_begins_later_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = ws.Loader(Broken(8, {0, 1}), 2, on_error="skip")
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(OSError, match="file 0 is truncated"):
        list(loader)


def test_torch_gets_the_error_of_a_batch_without_samples() -> None:
    loader = ws.Loader(Broken(8, {2, 3}), 2, on_error="skip")
    with pytest.raises(OSError, match="file 2 is truncated"):
        loader.dataset.__getitems__([2, 3])
    assert loader.dataset.__getitems__([1, 2])[0]["name"] == "1"


def test_what_fails_between_two_reads_is_not_read_again() -> None:
    class Flaky(Broken):
        reads = 0

        def __getitem__(self, at: int) -> Any:
            self.reads += at == 1
            if at == 1 and self.reads == 2:  # the second time, which is the last
                raise OSError("the connection was lost")
            return super().__getitem__(at)

    with warns_of_the_first():
        (batch,) = ws.Loader(Flaky(4, {0}), 4, on_error="skip")
    assert batch["name"] == ["1", "2", "3"]


def test_an_error_is_raised_by_default() -> None:
    with pytest.raises(OSError, match="file 2 is truncated"):
        list(ws.Loader(Broken(8, {2}), 4))

    def refusing(error: Exception, position: int) -> Any:
        raise LookupError(f"{position} must not be missing") from error

    with pytest.raises(LookupError, match="2 must not be missing"):
        list(ws.Loader(Broken(8, {2}), 4, on_error=refusing))


def test_an_error_of_a_transform_is_no_bad_sample() -> None:
    def transform(batch: Any) -> Any:
        raise ValueError("of the transform")

    with pytest.raises(ValueError, match="of the transform"):
        list(ws.Loader(np.arange(3), 2, transform=transform, on_error="skip"))
