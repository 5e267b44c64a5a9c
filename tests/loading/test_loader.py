"""Loaders hand out each sample of an epoch once, in the one order, and go on exactly where they were stopped."""

import copy
import gc
import json
import os
import pickle
import threading
import traceback
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.slow import either, thinned

import warmstore as ws
from warmstore.loading.samplers.sampler import Sampler

pytestmark = pytest.mark.forks

ORDERS = [ws.Sequential(), ws.Shuffle(seed=3), ws.Uniform(seed=3), ws.Uniform(samples=31), ws.Window(4, step=3)]


def ours() -> list[threading.Thread]:
    """Worker threads that live."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("warmstore-loader")]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    if ours():  # collecting takes half a second where JAX and torch are loaded
        gc.collect()
    assert not ours()


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def flat(batches: Any) -> list[int]:
    return [at for batch in batches for at in batch]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("order", ORDERS)
def test_one_for_is_one_epoch_in_order(order: Sampler, workers: int) -> None:
    loader = ws.Loader(np.arange(23), 4, order, workers=workers, prefetch=2)
    for epoch in range(3):
        assert loader.epoch == epoch
        batches = lists(loader)
        assert len(batches) == len(loader)
        expected = order.indices(0, order.length(23), 23, epoch).tolist()
        assert [position for batch in batches for position in batch] == expected
        assert all(len(batch) == 4 for batch in batches[:-1])


def test_epochs_end_for_good() -> None:
    loader = ws.Loader(np.arange(5), 2, epochs=2)
    assert lists(loader) == [[0, 1], [2, 3], [4]]
    assert lists(loader) == [[0, 1], [2, 3], [4]]
    assert lists(loader) == []
    assert lists(loader.stream()) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_over_epochs(workers: int) -> None:
    loader = ws.Loader(np.arange(5), 2, workers=workers)
    assert lists(islice(loader.stream(), 7)) == [[0, 1], [2, 3], [4], [0, 1], [2, 3], [4], [0, 1]]
    assert (loader.epoch, loader.state_dict()["place"]) == (2, 2)
    resumed = ws.Loader(np.arange(5), 2, workers=workers)
    resumed.load_state_dict(loader.state_dict())
    assert lists(islice(resumed.stream(), 3)) == [[2, 3], [4], [0, 1]]
    assert lists(loader) == [[0, 1], [2, 3], [4]]
    finite = ws.Loader(np.arange(3), 2, epochs=2, workers=workers)
    assert lists(finite.stream()) == [[0, 1], [2], [0, 1], [2]]
    assert lists(finite) == []


def test_a_stream_without_batches_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch for this rank"):
        ws.Loader(np.arange(3), 4, uneven="drop").stream()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_iter_starts_an_epoch(workers: int) -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order, workers=workers)
    for batch in loader:
        if len(batch) == 3:
            break
    del batch
    assert not ours()
    assert loader.state_dict()["place"] == 3
    assert flat(lists(loader)) == order.indices(0, 10, 10, 1).tolist()
    unused = iter(loader)  # of which nothing is taken
    assert loader.epoch == 2
    assert flat(lists(loader)) == order.indices(0, 10, 10, 2).tolist()
    assert flat(lists(unused)) == order.indices(0, 10, 10, 3).tolist()
    loader.close()
    alike = ws.Loader(np.arange(10), 3, workers=workers)
    next(iter(alike))
    assert lists(alike) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert alike.epoch == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_ends_with_its_last_batch(workers: int) -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order, workers=workers)
    for epoch in range(3):
        batches = iter(loader)
        taken = [next(batches).tolist() for _ in range(len(loader))]
        assert not ours()
        assert flat(taken) == order.indices(0, 10, 10, epoch).tolist()
        assert (loader.epoch, loader.state_dict()["place"]) == (epoch + 1, 0)
    assert list(batches) == []  # pulled later, it is just at its end
    last = zip(loader, range(10), strict=False)
    assert flat(batch.tolist() for batch, _ in last) == order.indices(0, 10, 10, 3).tolist()


def test_an_unfinished_epoch_does_not_count() -> None:
    loader = ws.Loader(np.arange(6), 2, ws.Shuffle(seed=1), epochs=2)
    next(iter(loader))
    assert [len(lists(loader)) for _ in range(3)] == [3, 3, 0]
    assert loader.epoch == 3
    loader = ws.Loader(np.arange(6), 2, epochs=2)
    next(iter(loader))
    assert len(lists(loader.stream())) == 6
    assert lists(loader) == []


def test_resume_partial_goes_on_after_a_break() -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order, resume_partial=True)
    first = lists(islice(loader, 2))
    loader.sampler.set_epoch(5)  # as a trainer does by itself
    assert flat(first + lists(loader)) == order.indices(0, 10, 10, 0).tolist()
    next(iter(loader))
    loader.set_epoch(1)
    assert len(lists(loader)) == 3
    next(iter(loader))
    loader.set_epoch(7)
    assert flat(lists(loader)) == order.indices(0, 10, 10, 7).tolist()


def test_set_epoch_names_the_next_one() -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order)
    loader.set_epoch(4)
    assert loader.epoch == 4
    running = iter(loader)
    first = next(running).tolist()
    loader.set_epoch(9)
    assert loader.state_dict()["epoch"] == 4
    assert first + flat(lists(running)) == order.indices(0, 10, 10, 4).tolist()
    assert loader.epoch == 9
    lazily = iter(loader)
    loader.sampler.set_epoch(2)  # between iter() and its first batch, as Lightning does
    assert flat(lists(lazily)) == order.indices(0, 10, 10, 2).tolist()
    with pytest.raises(ValueError, match="epoch must be an integer from 0"):
        loader.set_epoch(-1)


def test_a_loaded_state_survives_its_own_epochs_name_and_iters_without_a_batch() -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order)
    lists(loader)
    taken = lists(islice(loader, 2))
    other = ws.Loader(np.arange(10), 3, order)
    other.load_state_dict(loader.state_dict())
    iter(other)
    other.set_epoch(1)
    assert len(other) == 4
    assert flat(taken + lists(other)) == order.indices(0, 10, 10, 1).tolist()
    other.load_state_dict(loader.state_dict())
    other.set_epoch(3)
    assert flat(lists(other)) == order.indices(0, 10, 10, 3).tolist()


SHAPES = [(2, 1), (3, 1), (4, 2), (1, 3), (7, 1), (5, 5)]  # batch sizes and world sizes


def all_ranks(state: Any, size: int, world: int, order: Sampler, **options: Any) -> list[int]:
    """The rest of an epoch over all ranks, in the global order, each rank stepping in turn."""
    loaders = [
        ws.Loader(np.arange(17), size, order, rank=rank, world_size=world, uneven="allow", **options)
        for rank in range(world)
    ]
    if state is not None:
        for loader in loaders:
            loader.load_state_dict(json.loads(json.dumps(state)))
    ranks = [lists(loader) for loader in loaders]
    return [
        at for step in range(max(map(len, ranks))) for rank in ranks for batch in rank[step : step + 1] for at in batch
    ]


@pytest.mark.parametrize("workers", thinned(2, [0, 2]))
@pytest.mark.parametrize("order", [ws.Shuffle(seed=1), ws.Uniform(samples=29), ws.Window(3, step=2)])
def test_a_state_at_any_step_resumes_anywhere(order: Sampler, workers: int) -> None:
    length = order.length(17)
    whole = order.indices(0, length, 17, 0).tolist()
    for size, world in SHAPES:
        for rank in range(world):
            loader = ws.Loader(
                np.arange(17), size, order, rank=rank, world_size=world, uneven="allow", workers=workers, prefetch=3
            )
            states = [loader.state_dict()]
            states += [loader.state_dict() for _ in loader]
            assert loader.state_dict()["epoch"] == 1
            assert len(states) == len(loader) + 1
            for step, state in enumerate(states[:-1]):
                place = state["place"]
                assert place == step * size * world
                for other_size, other_world in SHAPES:
                    rest = all_ranks(state, other_size, other_world, order, workers=2 - workers if rank == 0 else 0)
                    assert whole[:place] + rest == whole


@settings(max_examples=either(15, 30))
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4), st.integers(0, 5), st.integers(0, 2)), max_size=6),
    st.integers(0, 5),
)
def test_stopping_again_and_again_changes_nothing(n: int, runs: list[tuple[int, int, int, int]], seed: int) -> None:
    order = ws.Shuffle(seed=seed)
    state, found = None, []
    for size, world, steps, workers in [*runs, (4, 2, 10**6, 1)]:
        parts = []
        for rank in range(world):
            loader = ws.Loader(np.arange(n), size, order, rank=rank, world_size=world, uneven="allow", workers=workers)
            if state is not None:
                loader.load_state_dict(state)
            parts.append(lists(islice(loader, steps)))
            if rank == 0:
                after = loader.state_dict()
            loader.close()
        found += [
            at for step in range(max(map(len, parts))) for part in parts for b in part[step : step + 1] for at in b
        ]
        state = after
        if state["epoch"]:
            break
    assert found == order.indices(0, n, n, 0).tolist()


def test_a_state_after_the_last_batch_belongs_to_the_next_epoch() -> None:
    loader = ws.Loader(np.arange(4), 2)
    batches = iter(loader)
    next(batches)
    next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["place"]) == (1, 0)
    other = ws.Loader(np.arange(4), 2)
    other.load_state_dict(state)
    assert lists(other) == [[0, 1], [2, 3]]
    other.load_state_dict({**state, "epoch": 0, "place": 4})  # of ranks that had more to do
    assert lists(other) == [[0, 1], [2, 3]]
    assert other.epoch == 2


def test_a_state_is_small_and_survives_json() -> None:
    weighted = ws.Weighted(np.random.default_rng(0).random(10_000))
    loader = ws.Loader(np.arange(10_000), 7, weighted, workers=2)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 500


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_a_state_ends_a_running_for(workers: int) -> None:
    loader = ws.Loader(np.arange(10), 2, workers=workers)
    state = loader.state_dict()
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    loader.load_state_dict(state)
    assert not ours()
    with pytest.raises(RuntimeError, match="load_state_dict has ended"):
        next(batches)
    assert next(iter(loader)).tolist() == [0, 1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_batch_in_the_middle_disturbs_nothing(workers: int) -> None:
    order = ws.Shuffle(seed=2)
    loader = ws.Loader(np.arange(10), 2, order, workers=workers)
    one = iter(loader)
    first = next(one).tolist()
    assert next(iter(loader)).tolist() == order.indices(0, 2, 10, 1).tolist()
    assert first + flat(lists(one)) == order.indices(0, 10, 10, 0).tolist()
    assert flat(lists(loader)) == order.indices(0, 10, 10, 1).tolist()
    for one_batch, other in zip(loader, loader, strict=True):
        assert set(one_batch.tolist()) != set(other.tolist())


def test_other_data_or_another_order_is_refused(store: ws.RecordStore, tmp_path: Any) -> None:
    loader = ws.Loader(store, 4, ws.Shuffle(seed=1))
    state = loader.state_dict()
    with pytest.raises(ws.BadState, match="23 samples; here there are 22"):
        ws.Loader(np.arange(22), 4, ws.Shuffle(seed=1)).load_state_dict(state)
    with pytest.raises(ws.BadState, match=r"'seed': 1.*here it is.*'seed': 2"):
        ws.Loader(store, 4, ws.Shuffle(seed=2)).load_state_dict(state)
    with pytest.raises(ws.BadState, match=r"'kind': 'shuffle'.*here it is.*'kind': 'sequential'"):
        ws.Loader(store, 4).load_state_dict(state)
    copy = store.filter(tmp_path / "copy", slice(None))
    other = ws.Loader(copy, 4, ws.Shuffle(seed=1))
    with pytest.raises(ws.BadState, match=f"identity .*{store._manifest.id}.*here it is .*{copy._manifest.id}"):
        other.load_state_dict(state)
    other.load_state_dict(state, check_identity=False)
    # Data without an identity contradicts nobody.
    ws.Loader([np.zeros(2)] * 23, 4, ws.Shuffle(seed=1)).load_state_dict(state)
    with pytest.raises(ws.BadState, match="'kind': 'array'"):
        ws.Loader(np.arange(23), 4, ws.Shuffle(seed=1)).load_state_dict(state)
    copy.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 3}, "format 3; this warmstore reads up to 2"),
        ({"format": 1}, "format 1 of an early release"),
        ({"format": "1"}, "no state of a loader"),
        ({"place": 11}, "place 11 of epoch 0, which has 10 places"),
        ({"place": -1}, "the place -1"),
        ({"epoch": 1.5}, "the epoch 1.5"),
        ({"epoch": None}, "the epoch None"),
        ({"finished": "2"}, "the finished '2'"),
        ({"samples": None}, "of None samples; here there are 10"),
        ({"sampler": {1, 2}}, "a value that no loader writes"),
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, Any], message: str) -> None:
    loader = ws.Loader(np.arange(10), 2)
    before = loader.state_dict()
    with pytest.raises(ws.BadState, match=message):
        loader.load_state_dict({**before, **change})
    assert loader.state_dict() == before
    with pytest.raises(ws.BadState, match="lacks"):
        loader.load_state_dict({"format": 2})
    with pytest.raises(ws.BadState, match="no state"):
        loader.load_state_dict([])  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("uneven", ["pad", "full", "drop", "allow"])
@pytest.mark.parametrize(
    ("count", "size", "world"), [(33, 8, 4), (10, 4, 1), (10, 4, 2), (10, 4, 3), (3, 2, 5), (8, 2, 4)]
)
def test_ranks_take_equal_steps_and_say_what_is_repeated(
    workers: int, uneven: Any, count: int, size: int, world: int
) -> None:
    loaders = [
        ws.Loader({"x": np.arange(count)}, size, rank=r, world_size=world, uneven=uneven, workers=workers)
        for r in range(world)
    ]
    ranks = [list(loader) for loader in loaders]
    assert [len(rank) for rank in ranks] == [len(loader) for loader in loaders]
    if uneven != "allow":
        assert len({len(rank) for rank in ranks}) == 1
    if uneven in ("pad", "full"):
        assert len({len(rank[-1]["x"]) for rank in ranks}) == 1
    marks = uneven == "full" or (uneven == "pad" and world > 1)
    assert all(("valid" in batch) == marks for rank in ranks for batch in rank)
    if uneven == "full":
        assert all(len(batch["x"]) == size for rank in ranks for batch in rank)
    valid = [[batch.get("valid", np.ones(len(batch["x"]), bool)) for batch in rank] for rank in ranks]
    real = [
        at
        for rank, masks in zip(ranks, valid, strict=True)
        for batch, mask in zip(rank, masks, strict=True)
        for at in batch["x"][mask].tolist()
    ]
    kept = count // (size * world) * size * world if uneven == "drop" else count
    assert sorted(real) == list(range(kept))
    assert [loader.padded for loader in loaders] == [int((~masks[-1]).sum()) if masks else 0 for masks in valid]
    for plain, loader in zip(range(world), loaders, strict=True):  # arrays have no mask, and the same rows
        other = ws.Loader(np.arange(count), size, rank=plain, world_size=world, uneven=uneven)
        assert lists(other) == [batch["x"].tolist() for batch in ranks[plain]]
        assert other.padded == loader.padded


def test_one_rank_is_not_padded() -> None:
    loader = ws.Loader({"x": np.arange(10)}, 4)
    assert [list(batch) for batch in loader] == [["x"]] * 3
    assert loader.padded == 0


def test_the_mask_needs_a_place() -> None:
    with pytest.raises(ValueError, match="batches have 'valid' already"):
        ws.Loader({"valid": np.arange(3)}, 2, uneven="full")
    ws.Loader({"valid": np.arange(3)}, 2)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_a_transform_raises_reaches_the_caller_at_its_batch(workers: int) -> None:
    failing = {"on": True}

    def transform(batch: Any) -> Any:
        if failing["on"] and 4 in batch:
            raise LookupError("no four")
        return batch + 100

    loader = ws.Loader(np.arange(10), 2, transform=transform, workers=workers)
    seen = []
    with pytest.raises(LookupError, match="no four") as caught:
        seen.extend(batch.tolist() for batch in loader)
    assert seen == [[100, 101], [102, 103]]
    assert not ours()
    assert "in transform" in "".join(traceback.format_tb(caught.value.__traceback__))
    (note,) = caught.value.__notes__
    assert "epoch 0, places 4 to 6" in note
    assert "[4, 5]" in note
    state = loader.state_dict()
    assert state["place"] == 4
    failing["on"] = False
    assert len(lists(loader)) == 5
    loader.load_state_dict(state)
    assert lists(loader) == [[104, 105], [106, 107], [108, 109]]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_resume_exactly(workers: int) -> None:
    def noisy(batch: Any, rng: np.random.Generator) -> Any:
        return batch + rng.random(len(batch))

    def make(**options: Any) -> ws.Loader:
        return ws.Loader(np.arange(12), 3, ws.Shuffle(seed=5), transform=noisy, random=True, **options)

    whole = lists(make(workers=0))
    assert lists(make(workers=2)) == whole
    loader = make(workers=workers)
    next(iter(loader))
    other = make(workers=2 - workers)
    other.load_state_dict(loader.state_dict())
    assert lists(other) == whole[1:]
    assert lists(other) != whole
    # Batches of the same places are made alike whatever rank has them.
    ranks = [lists(make(rank=rank, world_size=2, workers=0)) for rank in range(2)]
    assert [batch for pair in zip(*ranks, strict=True) for batch in pair] == whole
    with pytest.raises(ws.BadState, match="seed 5; here it is 6"):
        make(seed=6).load_state_dict(loader.state_dict())
    with pytest.raises(ValueError, match="there is none"):
        ws.Loader(np.arange(3), 1, random=True)


def test_at_most_prefetch_batches_are_made_ahead() -> None:
    made, gate = [], threading.Semaphore(0)

    def transform(batch: Any) -> Any:
        made.append(int(batch[0]))
        gate.release()
        return batch

    loader = ws.Loader(np.arange(100), 1, transform=transform, workers=3, prefetch=2)
    batches = iter(loader)
    for handed in range(20):
        next(batches)
        # All that may be begun is begun; wait until it is, without a clock.
        while len(made) < handed + 3:
            gate.acquire()
        assert len(made) == handed + 3
    loader.close()


def test_workers_make_batches_at_the_same_time() -> None:
    barrier = threading.Barrier(3)

    def transform(batch: Any) -> Any:
        barrier.wait()
        return batch

    loader = ws.Loader(np.arange(9), 1, transform=transform, workers=3, prefetch=5)
    assert lists(loader) == [[at] for at in range(9)]


def test_copies_stand_where_the_loader_stands_and_go_their_own_ways() -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 3, order, workers=2, to="torch")
    batches = iter(loader)
    first = next(batches).tolist()
    for made in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        made.load_state_dict(made.state_dict())
        assert first + flat(lists(made)) == order.indices(0, 10, 10, 0).tolist()
        made.close()
    assert first + flat(lists(batches)) == order.indices(0, 10, 10, 0).tolist()


@pytest.mark.parametrize("ahead", [{"workers": 0}, {"workers": 2}, {"processes": 2, "start_method": "fork"}], ids=str)
def test_an_epoch_does_not_end_with_a_stop_iteration_of_a_transform(ahead: Any) -> None:
    def transform(batch: Any) -> Any:
        return next(iter([batch] if batch[0] < 6 else []))

    with ws.Loader(np.arange(10), 2, transform=transform, **ahead) as loader:
        batches = iter(loader)
        assert lists(islice(batches, 3)) == [[0, 1], [2, 3], [4, 5]]
        with pytest.raises(RuntimeError, match="StopIteration") as raised:
            next(batches)
        assert "positions [6, 7]" in "".join(traceback.format_exception(raised.value))
        assert (loader.epoch, loader.state_dict()["place"]) == (0, 6)


def test_a_shallow_copy_has_worker_processes_of_its_own() -> None:
    with ws.Loader(np.arange(12), 2, processes=1, start_method="fork") as loader:
        batches = iter(loader)
        got = [next(batches).tolist()]
        with copy.copy(loader) as copied:
            others = iter(copied)
            for other in ([0, 1], [2, 3]):
                assert next(others).tolist() == other
                got.append(next(batches).tolist())
        assert [*got, *lists(batches)] == np.arange(12).reshape(6, 2).tolist()


def test_a_shallow_copy_counts_skipped_samples_alone() -> None:
    loader = ws.Loader(lambda: iter(range(6)), 2)
    copied = copy.copy(loader)
    assert lists(copied) == [[0, 1], [2, 3], [4, 5]]
    copied._skipped.count = 3
    assert (loader.skipped, len(loader._last_places)) == (0, 0)


def test_a_state_stays_loaded_while_another_thread_waits_for_a_batch() -> None:
    waits, goes_on, raised = threading.Event(), threading.Event(), []

    def transform(batch: Any) -> Any:
        waits.set()
        goes_on.wait()
        return batch

    def read() -> None:
        with pytest.raises(RuntimeError, match="load_state_dict has ended") as error:
            next(batches)
        raised.append(error)

    loader = ws.Loader(np.arange(10), 2, transform=transform, workers=0)
    state = {**loader.state_dict(), "place": 6}
    batches = iter(loader)
    reader = threading.Thread(target=read)
    reader.start()
    waits.wait()
    loader.load_state_dict(state)
    goes_on.set()
    reader.join()
    assert raised
    assert loader.state_dict() == state


def test_nothing_is_handed_out_beyond_the_last_epoch() -> None:
    loader = ws.Loader(np.arange(10), 3, epochs=1)
    loader.load_state_dict({**loader.state_dict(), "place": 10})
    assert lists(loader) == []
    assert loader.epoch == 1


def test_ranks_without_a_step_count_their_epochs_in_a_stream() -> None:
    loaders = [ws.Loader(np.arange(5), 2, rank=rank, world_size=2, uneven="allow", epochs=3) for rank in range(2)]
    for loader in loaders:
        loader.load_state_dict({**loader.state_dict(), "place": 4})
    ranks = [lists(loader.stream()) for loader in loaders]
    assert ranks == [[[4], [0, 1], [4], [0, 1], [4]], [[2, 3], [2, 3]]]
    assert [loader.epoch for loader in loaders] == [3, 3]


@pytest.mark.parametrize("workers", [0, 2])
def test_closing(workers: int) -> None:
    with ws.Loader(np.arange(10), 2, workers=workers) as loader:
        batches = iter(loader)
        next(batches)
        loader.close()
        assert not ours()
        with pytest.raises(ws.Closed):
            next(batches)
        loader.close()
    with pytest.raises(ws.Closed, match="make another one"):
        iter(loader)


def test_dropping_a_loader_ends_its_threads() -> None:
    loader = ws.Loader(np.arange(100), 2, workers=2)
    batches = iter(loader)
    next(batches)
    assert 0 < len(ours()) <= 2  # the first one may have done the work of the second
    gone = weakref.ref(loader)
    del loader, batches
    assert gone() is None
    assert not ours()


def test_an_interrupt_in_the_caller_ends_the_threads() -> None:
    loader = ws.Loader(np.arange(100), 2, workers=2)

    def train() -> None:
        for batch in loader:
            if 4 in batch:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        train()
    del caught
    assert not ours()
    assert loader.state_dict()["place"] == 6


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_leaves_the_threads_to_the_parent() -> None:
    loader = ws.Loader(np.arange(10), 2, workers=2)
    batches = iter(loader)
    next(batches)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            rest = lists(batches)  # by threads of its own
            del batches
            os.write(write, json.dumps([rest, len(ours())]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert json.load(said) == [[[2, 3], [4, 5], [6, 7], [8, 9]], 0]
    os.waitpid(child, 0)
    assert lists(batches) == [[2, 3], [4, 5], [6, 7], [8, 9]]


def test_threads_are_only_taken_where_they_pay(store: ws.RecordStore) -> None:
    assert ws.Loader(store["image"], 4).workers == 0
    assert ws.Loader({"x": store["image"], "y": np.arange(23)}, 4, to="torch").workers == 0
    assert ws.Loader(store["jpeg"], 4).workers > 0
    assert ws.Loader(store["image"], 4, transform=lambda batch: batch).workers > 0
    assert ws.Loader(np.zeros((8, 1 << 20)), 4).workers > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1"),
        ({"epochs": -1}, "epochs must be"),
        ({"prefetch": 0}, "prefetch must be"),
        ({"workers": -1}, "workers must be"),
        ({"seed": 5}, r"seed=5 has an effect with random=True only; pass sampler=ws.Shuffle\(seed=...\)"),
        ({"workers": 1, "processes": 1}, "pass workers or processes"),
        ({"start_method": "thread"}, "start_method must be one of"),
        ({"collate": "stack"}, "collate must be"),
        ({"to": "tpu"}, "to must be"),
        ({"to": 3}, "to must be"),
        ({"uneven": "fill"}, "uneven must be one of"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"sampler": "random"}, "names no sampler"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ws.Loader({"x": np.arange(3)}, **{"batch_size": 1, **options})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": True}, r'Loader has no option shuffle=True; pass sampler="shuffle"'),
        ({"drop_last": True}, 'pass uneven="drop"'),
        ({"order": "shuffle"}, "pass sampler="),
        ({"wrokers": 2}, "Loader has no option wrokers=2$"),
    ],
)
def test_options_by_other_names(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ws.Loader(np.arange(3), 1, **options)
    with pytest.raises(TypeError, match=message.replace("Loader", "BatchSampler")):
        ws.BatchSampler(3, 1, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transform": [len]}, r"transform must be a function of a batch; got \["),
        ({"resume_partial": "yes"}, "resume_partial must be True or False; got 'yes'"),
        ({"random": np.random.default_rng(), "transform": len}, "random must be True or False"),
        ({"fields": "x"}, "fields must be a list of names; got 'x'"),
    ],
)
def test_options_of_another_type(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ws.Loader({"x": np.arange(3)}, 1, **options)


def test_a_name_waits_for_the_stream_that_goes_on() -> None:
    order = ws.Shuffle(seed=3)
    loader = ws.Loader(np.arange(10), 5, order)
    batches = loader.stream()
    for _ in range(3):
        next(batches)
    loader.set_epoch(9)
    next(batches)
    assert (loader.state_dict()["epoch"], loader.epoch) == (2, 9)
    assert next(batches).tolist() == order.indices(0, 5, 10, 2).tolist()
    assert flat(lists(loader)) == order.indices(0, 10, 10, 9).tolist()


def test_the_sampler_knows_its_rows_without_counting_them() -> None:
    for rank, rows in ((0, 9), (1, 9)):
        loader = ws.Loader(np.arange(17), 4, "shuffle", rank=rank, world_size=2)
        assert len(loader.sampler) == len(list(loader.sampler)) == rows
        assert list(loader.sampler) == flat(lists(loader))
    assert len(ws.Loader(np.arange(10**7), 4, "shuffle").sampler) == 10**7


@pytest.mark.parametrize("made", [{"processes": 1}, {"workers": 1}])
def test_an_iterator_that_has_not_begun_begins_late(made: Any) -> None:
    with ws.Loader(np.arange(4), 2, **made) as loader:
        unused, batches = iter(loader), iter(loader)
        assert next(batches).tolist() == [0, 1]
        loader.load_state_dict(loader.state_dict())
        assert lists(unused) == [[2, 3]]


def test_a_rank_outside_the_world() -> None:
    with pytest.raises(ws.BadRank, match="rank 2 is outside a world of 2"):
        ws.Loader(np.arange(3), 1, rank=2, world_size=2)
    with pytest.raises(ws.BadRank, match="belong together"):
        ws.Loader(np.arange(3), 1, world_size=2)


def test_it_says_what_it_is() -> None:
    assert "5 samples" in repr(ws.Loader(np.arange(5), 2, ws.Shuffle(seed=4)))
    assert "seed=4" in repr(ws.Loader(np.arange(5), 2, ws.Shuffle(seed=4)))
