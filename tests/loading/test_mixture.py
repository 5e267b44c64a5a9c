"""Mixes hold their shares, walk every source in its own order, and resume like everything else."""

import json
from itertools import islice
from typing import Any

import numpy as np
import pytest

import warmstore as ws


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
    with pytest.raises(ws.BadState, match=r"'shares': \[3, 1\].*here it is.*'shares': \[1, 1\]"):
        ws.Loader(ws.Mixture([np.arange(7), np.arange(5)], [1, 1], samples=23), 2, order).load_state_dict(state)


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
    ],
)
def test_sources_that_differ_are_refused(other: Any, message: str) -> None:
    with pytest.raises(ws.SchemaMismatch, match=message):
        ws.Loader(ws.Mixture({"a": np.arange(4), "b": other}, [1, 1]), 2)


def test_dicts_that_differ_are_refused_by_their_key() -> None:
    one, other = {"x": np.arange(3), "y": np.arange(3)}, {"x": np.arange(3), "y": np.arange(3.0)}
    with pytest.raises(ws.SchemaMismatch, match="differ at 'y'"):
        ws.Loader(ws.Mixture([one, other], [1, 1]), 2)


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
