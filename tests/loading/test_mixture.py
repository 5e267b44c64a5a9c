"""Mixes hold their shares, walk every source in its own order, and resume like everything else."""

import json
import pickle
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmstore as ws
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of


def lists(batches: Any) -> list[list[int]]:
    return [batch.tolist() for batch in batches]


def mixed(**options: Any) -> ws.Mixture:
    return ws.Mixture({"a": np.arange(7), "b": 100 + np.arange(5)}, [3, 1], **options)


def test_each_source_walks_its_own_order_without_end() -> None:
    order = ws.Shuffle(seed=9)
    loader = ws.Loader(mixed(), 4, order)
    found = [at for batch in islice(loader.stream(), 60) for at in batch.tolist()]
    for first, n, seed, share in ((0, 7, 9, 180), (100, 5, 10, 60)):
        own = ws.Shuffle(seed=seed)
        expected = np.concatenate([own.indices(0, n, n, epoch) for epoch in range(40)])[:share] + first
        assert [at for at in found if (at >= 100) == (first == 100)] == expected.tolist()
    # Shares at every prefix.
    some = np.cumsum(np.array(found) >= 100)
    assert np.abs(some - np.arange(1, 241) / 4).max() <= 0.5


def test_an_epoch_is_as_many_samples_as_there_are_or_as_asked() -> None:
    assert sum(map(len, lists(ws.Loader(mixed(), 4)))) == 12
    loader = ws.Loader(mixed(samples=10), 4)
    assert len(loader) == 3
    both = lists(loader) + lists(loader)
    assert [at for batch in both for at in batch] == [
        at for batch in lists(ws.Loader(mixed(samples=20), 20)) for at in batch
    ]


def test_orders_of_their_own() -> None:
    orders = {"a": ws.Sequential(), "b": ws.Weighted([0, 0, 1, 0, 0])}
    loader = ws.Loader(mixed(samplers=orders, samples=8), 8)
    (batch,) = lists(loader)
    assert sorted(batch) == [0, 1, 2, 3, 4, 5, 102, 102]


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_and_resuming(workers: int) -> None:
    order = ws.Shuffle(seed=1)
    whole = [at for batch in lists(ws.Loader(mixed(samples=23), 5, order)) for at in batch]
    loader = ws.Loader(mixed(samples=23), 3, order, rank=0, world_size=2, workers=workers)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    ranks = []
    for rank in range(3):
        other = ws.Loader(mixed(samples=23), 2, order, rank=rank, world_size=3, uneven="allow", workers=workers)
        other.load_state_dict(state)
        ranks.append(lists(other))
    rest = [at for step in range(3) for rank in ranks for batch in rank[step : step + 1] for at in batch]
    assert whole[:6] + rest == whole
    evenly = ws.Mixture({"a": np.arange(7), "b": np.arange(5)}, [1, 1], samples=23)
    with pytest.raises(ws.BadState, match=r"'shares': \[3, 1\].*here it is.*'shares': \[1, 1\]"):
        ws.Loader(evenly, 2, order).load_state_dict(state)


def test_batches_have_one_structure_and_say_where_samples_are_from(store: ws.RecordStore) -> None:
    mix = ws.Mixture([store, store], [1, 2], source_key="source")
    (batch, *_) = ws.Loader(mix, 6, ws.Sequential(), fields=["number", "points", "title"], workers=0)
    assert batch["source"].dtype == np.int64
    assert sorted(batch["source"].tolist()) == [0, 0, 1, 1, 1, 1]
    for number in (0, 1):
        mine = np.flatnonzero(batch["source"] == number)
        assert batch["number"][mine].tolist() == list(range(len(mine)))
        assert [batch["title"][at] for at in mine] == [f"title {at}" for at in range(len(mine))]
        assert [len(batch["points"][at]) for at in mine] == list(range(len(mine)))
    (batch, *_) = ws.Loader(mix, 6, fields=["points"], collate={"points": "packed"}, to="torch")
    assert batch["points"]["max_seqlen"] == 3
    assert len(batch["points"]["cu_seqlens"]) == 7


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (np.arange(3.0), r"'a' has int64 of shape \(\), 'b' has float64 of shape \(\)"),
        (np.zeros((3, 2), int), r"'b' has int64 of shape \(2,\)"),
        ({"x": np.arange(3)}, r"'b' has a dict of \['x'\]"),
        (["text"], "'b' has a list"),
        ((np.arange(3), np.arange(3)), "'b' has a tuple of 2"),
    ],
)
def test_sources_that_differ_are_refused(other: Any, message: str) -> None:
    with pytest.raises(ws.SchemaMismatch, match=message):
        ws.Loader(ws.Mixture({"a": np.arange(4), "b": other}, [1, 1]), 2)


def test_dicts_that_differ_are_refused_by_their_key() -> None:
    one, other = {"x": np.arange(3), "y": np.arange(3)}, {"x": np.arange(3), "y": np.arange(3.0)}
    with pytest.raises(ws.SchemaMismatch, match="differ at 'y'"):
        ws.Loader(ws.Mixture([one, other], [1, 1]), 2)


class Pair(NamedTuple):
    x: Any
    y: Any


def test_tuples_keep_their_kind_and_must_be_of_one_length() -> None:
    one, other = Pair(np.arange(4), np.arange(4.0)), Pair(np.arange(3), np.arange(3.0))
    for batch in ws.Loader(ws.Mixture([one, other], [1, 1]), 2):
        assert type(batch) is Pair
        assert (batch.x.tolist(), batch.x.dtype) == (batch.y.tolist(), np.int64)
    two, three = (np.arange(4),) * 2, (np.arange(4),) * 3
    with pytest.raises(ws.SchemaMismatch, match="'0' has a tuple of 2, '1' has a tuple of 3"):
        ws.Loader(ws.Mixture([two, three], [1, 1]), 2)


def test_what_cannot_be_mixed() -> None:
    for nested in ({"x": mixed()}, ws.Mixture([mixed(), np.arange(3)], [1, 1])):
        with pytest.raises(ws.BadSource, match="must be the whole source"):
            ws.Loader(nested, 2)
    with pytest.raises(ws.BadSource, match="'b' of a mix has no samples"):
        ws.Loader(ws.Mixture({"a": np.arange(4), "b": np.arange(0)}, [1, 1]), 2)
    with pytest.raises(ValueError, match="got 1 for 2 sources"):
        ws.Mixture([np.arange(4), np.arange(3)], [1])
    with pytest.raises(ValueError, match=r"weights are for \['c'\]; the sources are \['a'\]"):
        ws.Mixture({"a": np.arange(3)}, {"c": 1})
    with pytest.raises(ValueError, match="samples must be"):
        mixed(samples=0)
    with pytest.raises(ws.SchemaMismatch, match="source_key 'source' needs batches that are dicts"):
        ws.Loader(mixed(source_key="source"), 2)


def test_absent_values_stay_absent(tmp_path: Any) -> None:
    with ws.RecordStore.create(tmp_path / "gaps", {"x": ws.Array("int64")}) as store:
        store.extend({"x": [1, None]})
    (batch,) = ws.Loader(ws.Mixture([store.path, {"x": np.arange(5, 7)}], [1, 1]), 4)
    assert np.ma.getmaskarray(batch["x"]).sum() == 1
    assert sorted(batch["x"].compressed().tolist()) == [1, 5, 6]


def flat(loader: ws.Loader, epochs: int) -> list[list[int]]:
    return [[at for batch in loader for at in batch.tolist()] for _ in range(epochs)]


@given(
    st.lists(st.integers(1, 9), min_size=2, max_size=4),
    st.integers(1, 30),
    st.dictionaries(st.integers(1, 8), st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any), max_size=3),
    st.sampled_from(["exact", "random"]),
)
def test_sources_lose_and_repeat_nothing_where_weights_change(
    lengths: list[int], samples: int, schedule: dict[int, list[int]], interleave: str
) -> None:
    count = len(lengths)
    schedule = {epoch: [*weights[: count - 1], 1] for epoch, weights in schedule.items()}
    sources = [np.arange(length) for length in lengths]
    weights = [1] * count
    mix = ws.Mixture(sources, weights, samples=samples, schedule=schedule, interleave=interleave)
    sampler = mix.sampler(lengths, ws.Shuffle(3))
    n, first = sum(lengths), np.cumsum([0, *lengths])
    epochs = [sampler.indices(0, samples, n, epoch) for epoch in range(10)]
    found = np.concatenate(epochs)
    for number, length in enumerate(lengths):
        own = found[(found >= first[number]) & (found < first[number + 1])] - first[number]
        order = ws.Shuffle(3 + number)
        rounds = -(-len(own) // length)
        walked = [order.indices(0, length, length, epoch) for epoch in range(rounds)]
        assert own.tolist() == [at for epoch in walked for at in epoch.tolist()][: len(own)]
    # Shares since the last change: each within one sample at every prefix, or exact per block.
    starts = sorted({0, *schedule})
    for start, end in zip(starts, [*starts[1:], 10], strict=True):
        current = np.array(schedule.get(start, weights))
        part = np.concatenate(epochs[start:end]) if start < end else np.zeros(0)
        for number in range(count):
            own = (part >= first[number]) & (part < first[number + 1])
            share = current[number] / current.sum()
            off = np.abs(own.cumsum() - share * np.arange(1, len(part) + 1)).max(initial=0)
            assert off < 1 if interleave == "exact" else off <= share * (1 - share) * 1024 + 1e-6
            assert share or not own.any()


def test_weights_hold_from_their_epoch_on() -> None:
    mix = mixed(samples=8, schedule={10: {"b": 1, "a": 0}, 3: [1, 1]})
    epochs = flat(ws.Loader(mix, 8), 12)
    shares = [sum(at >= 100 for at in epoch) for epoch in epochs]
    assert shares == [2] * 3 + [4] * 7 + [8] * 2
    # What comes later changes nothing before.
    assert epochs[:3] == flat(ws.Loader(mixed(samples=8), 8), 3)


@pytest.mark.parametrize("interleave", ["exact", "random"])
def test_a_resume_across_a_change_of_weights(interleave: str) -> None:
    options: dict[str, Any] = {"samples": 7, "schedule": {1: [0, 1], 2: [2, 1]}, "interleave": interleave}
    sampler = ws.Shuffle(5)
    whole = flat(ws.Loader(mixed(**options), 2, sampler), 4)
    for epoch in range(4):
        loader = ws.Loader(mixed(**options), 2, sampler)
        state = {**loader.state_dict(), "epoch": epoch, "place": 4}
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert [at for batch in loader for at in batch.tolist()] == whole[epoch][4:]


def test_counting_far_epochs_costs_the_changes_and_not_the_epochs() -> None:
    mix = mixed(samples=12, schedule={2**50: [1, 3], 2**58: [1, 1], 2**63: [1, 2]}, interleave="random")
    sampler = mix.sampler([7, 5], ws.Sequential())
    found = sampler.indices(0, 12, 12, 2**58 + 5)
    # Of 12 places 9 and 3, then 3 and 9 were walked through an epoch; blocks are whole there, but for the last epochs.
    counts = np.array(mix.schedules[0][1].counts(12 * 2**50)) + mix.schedules[1][1].counts(12 * (2**58 - 2**50))
    counts += mix.schedules[2][1].counts(60)
    for at in found.tolist():
        source = int(at >= 7)
        assert at == (counts[source] % 5 + 7 if source else counts[source] % 7)
        counts[source] += 1
    # Before a change so late that no place comes after it nothing is counted.
    mixed(samples=2**60, interleave="random", schedule={2**62: [1, 2], 2**63: [1, 1]}).sampler([7, 5], ws.Sequential())
    with pytest.raises(ws.PositionError, match=r"at most 2\*\*62 places; epoch 9,223,372,036,854,775,808 of 12"):
        sampler.indices(0, 1, 12, 2**63)


def test_a_source_of_weight_zero_never_comes() -> None:
    for empty in (np.arange(0), np.zeros((0, 4)), []):
        (batch,) = ws.Loader(ws.Mixture([empty, 5 + np.arange(3), np.arange(2), empty], [0, 1, 0, 0], samples=4), 4)
        assert batch.tolist() == [5, 6, 7, 5]
    with pytest.raises(ws.BadSource, match="source '0' of a mix has no samples: leave it out, or give it the weight 0"):
        ws.Loader(ws.Mixture([np.arange(0), np.arange(3)], [0, 1], schedule={5: [1, 1]}), 2)
    with pytest.raises(ws.BadSource, match="source '0' of a mix has no samples"):
        ws.Loader(ws.Mixture([[], []], [1, 1]), 2)
    with pytest.raises(ValueError, match="one at least above zero"):
        ws.Mixture([np.arange(2), np.arange(3)], [0, 0])
    with pytest.raises(ValueError, match="one at least above zero"):
        mixed(schedule={1: [0, 0]})


def test_the_first_samples_are_of_sources_that_have_any() -> None:
    mix = ws.Mixture([np.arange(0), np.arange(3), np.arange(0), np.arange(2), np.arange(0)], [0, 1, 0, 1, 0])
    source = source_of(mix)
    assert isinstance(source, MixtureSource)
    assert source.first_positions.tolist() == [0, 3]
    assert source.read(source.first_positions).tolist() == [0, 0]
    assert source.sample_bytes == 8
    # An empty source may be of any kind, and its sampler is asked for nothing.
    options: dict[str, Any] = {"samplers": [ws.Weighted([1, 2]), None], "samples": 5}
    mix = ws.Mixture([[], np.arange(3)], [0, 1], **options)
    source = source_of(mix)
    assert source.sample_bytes == 8
    assert source_of([]).sample_bytes is None
    assert mix.sampler([0, 3], ws.Sequential()).indices(0, 5, 3, 0).tolist() == [0, 1, 2, 0, 1]


def test_random_interleaving_is_described_and_shuffles() -> None:
    plain = mixed().sampler([7, 5], ws.Sequential())
    assert plain.describe() == {
        "kind": "mixed",
        "shares": [3, 1],
        "lengths": [7, 5],
        "samplers": [{"kind": "sequential"}] * 2,
        "samples": 12,
    }
    assert not plain.shuffles
    assert mixed().sampler([7, 5], ws.Shuffle()).shuffles
    assert mixed(samplers={"a": ws.Uniform(), "b": None}).sampler([7, 5], ws.Sequential()).shuffles
    drawn = mixed(interleave="random", seed=4, schedule={2: [0, 1], 9: [1, 1]}).sampler([7, 5], ws.Sequential())
    assert drawn.shuffles
    described = drawn.describe()
    assert json.loads(json.dumps(described)) == described
    assert described == {
        **plain.describe(),
        "schedule": [[2, [0, 1]], [9, [1, 1]]],
        "interleave": {"kind": "random", "seed": 4},
    }
    assert pickle.loads(pickle.dumps(drawn)) == drawn


def test_random_interleaving_has_a_seed() -> None:
    first, again, other = (flat(ws.Loader(mixed(interleave="random", seed=seed), 4), 50) for seed in (0, None, 1))
    assert first == again
    assert first != other
    assert first != flat(ws.Loader(mixed(), 4), 50)


def test_blocks_are_other_ones_after_a_change_of_weights() -> None:
    epochs = flat(ws.Loader(mixed(samples=400, interleave="random", schedule={1: [3, 1]}), 400), 2)
    first, second = ([at >= 100 for at in epoch] for epoch in epochs)
    assert sum(one == other for one, other in zip(first, second, strict=True)) < 300  # 250 ± 10


def test_samplers_by_name_and_the_loaders_for_the_rest() -> None:
    mix = mixed(samplers={"a": "shuffle", "b": None})
    sampler = mix.sampler([7, 5], ws.Shuffle(9))
    assert sampler.samplers == (ws.Shuffle(0), ws.Shuffle(10))
    with pytest.raises(TypeError, match=r"sampler must be a ws\.Sampler; got the builtins\.list"):
        mixed(samplers=[[1], None])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": {0: [1, 1]}}, "epoch of a schedule must be an integer from 1 to .*; got 0"),
        ({"schedule": {"3": [1, 1]}}, "epoch of a schedule must be an integer from 1 to .*; got '3'"),
        ({"schedule": {True: [1, 1]}}, "epoch of a schedule must be an integer .*; got True"),
        ({"schedule": [[1, 1]]}, r"schedule of a mix must be a dict of weights by epoch; got \[\[1, 1\]\]"),
        ({"schedule": {3: [1]}}, "weights from epoch 3 on of a mix: one for each source; got 1 for 2 sources"),
        ({"schedule": {3: {"c": 1}}}, r"weights from epoch 3 on are for \['c'\]; the sources are \['a', 'b'\]"),
        ({"schedule": {3: [1, -1]}}, "weights of a mix must be finite and not negative"),
        ({"interleave": "shuffled"}, 'interleave must be "exact" or "random"; got \'shuffled\''),
        ({"seed": 3}, 'seed=3 of a mix is for interleave="random"'),
        ({"seed": -1, "interleave": "random"}, "seed must be an integer from 0"),
    ],
)
def test_refuses_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixed(**options)
