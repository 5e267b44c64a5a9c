"""Pickled leaves: any object per sample where it is asked for, and never unpickled where it is not."""

import dataclasses
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import warm

import warmstore as ws
from warmstore.errors import SchemaMismatch, UnsupportedType


@dataclasses.dataclass
class Box:
    corners: Any
    label: str


def boxes(ids: Any) -> list[Any]:
    return [Box(np.arange(number % 4) * number, f"box {number}") for number in ids]


def same(one: Box, other: Box) -> bool:
    return one.label == other.label and np.array_equal(one.corners, other.corners)


def opened(folder: Path, **options: Any) -> ws.FeatureCache:
    return ws.FeatureCache(folder, "c", lists="per_sample", **options)


def test_objects_come_back_before_and_after_the_flush_and_in_another_run(tmp_path: Path) -> None:
    ids = list(range(5))
    with opened(tmp_path, allow_pickle=True) as cache:
        given = boxes(ids)
        cache.put_batch(ids, given)
        given[0].label = "changed afterwards"
        for _ in range(2):
            found, missing = cache.get_batch([3, 1, 0])
            assert not len(missing)
            assert all(map(same, found, boxes([3, 1, 0])))
            found[0].label = "changed by who got it"
            cache.flush()
    with opened(tmp_path, allow_pickle=True) as cache:
        found, missing = cache.get_batch([7, *ids])
        assert missing.tolist() == [0]
        assert all(map(same, found, boxes(ids)))


def test_objects_beside_other_leaves_and_values_that_need_no_pickling(tmp_path: Path, counting: Any) -> None:
    def outputs(x: torch.Tensor) -> Any:
        numbers = [int(one) for one in x[:, 0]]
        things = [{"thing": {number, "a"} if number % 2 else None, "n": number} for number in numbers]
        return {"y": x * 2, "things": things, "fractions": [Fraction(number, 3) for number in numbers]}

    module = counting(outputs)
    x = torch.tensor([[1.0], [2.0], [3.0]])
    for _ in range(2):
        with opened(tmp_path, allow_pickle=True) as cache:
            features = ws.CachedModule(module, cache)
            for _ in range(2):
                for rows in ([0], [0, 1, 2], [1], [2, 1]):
                    got, expected = features(x[rows], cache_ids=[f"id {row}" for row in rows]), outputs(x[rows])
                    assert torch.equal(got["y"], expected["y"])
                    assert got["things"] == expected["things"]
                    assert got["fractions"] == expected["fractions"]
    assert sum(module.rows) == 3


def test_without_the_option_objects_are_refused_and_the_error_names_it(tmp_path: Path) -> None:
    with opened(tmp_path) as cache:
        with pytest.raises(UnsupportedType, match="allow_pickle=True"):
            cache.put_batch([1, 2], boxes([1, 2]))
        with pytest.raises(UnsupportedType, match="allow_pickle=True"):
            cache.put_batch([1], Fraction(1, 2))
    with opened(tmp_path, allow_pickle=True) as cache:
        with pytest.raises(UnsupportedType, match="function that cannot be pickled"):
            cache.put_batch([1, 2], [lambda: 1, lambda: 2])
        with pytest.raises(UnsupportedType, match="a list may hold any object per sample"):
            cache.put_batch([1], Fraction(1, 2))
        cache.put_batch([1, 2], boxes([1, 2]))
        with pytest.raises(SchemaMismatch):
            cache.put_batch([1, 2], torch.zeros(2))


class Evil:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_without_the_option(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    with opened(tmp_path / "caches", allow_pickle=True) as cache:
        cache.put_batch(["a", "b"], [Evil(touched), Evil(touched)])
    cache = opened(tmp_path / "caches")
    for _ in range(2):
        with pytest.raises(UnsupportedType, match="pass allow_pickle=True to FeatureCache if you trust"):
            cache.get_batch(["a", "b"])
    with pytest.raises(UnsupportedType, match="allow_pickle=True"):
        cache.get_batch(["a", "another"])
    cache.stats()
    cache.close()
    with opened(tmp_path / "merged") as other:
        other.merge(tmp_path / "caches/c")
    for arguments in (
        ["features", "stats", "caches"],
        ["store", "inspect", "caches/c"],
        ["store", "inspect", "merged/c"],
    ):
        done = warm.run([sys.executable, "-m", "warmstore", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
    assert not touched.exists()
    with opened(tmp_path / "merged", allow_pickle=True) as other:
        other.get_batch(["a"])
    assert touched.exists()


def test_objects_count_in_bytes(tmp_path: Path) -> None:
    with opened(tmp_path, allow_pickle=True, max_size="4MB") as cache:
        with pytest.raises(SchemaMismatch, match="too large"):
            cache.put_batch([1], [Box(np.zeros(1_000_000), "")])
        for number in range(100):
            cache.put_batch([number], [Box(np.full(10_000, number), "")])
        cache.flush()
        assert cache.stats().bytes <= 4_000_000
        found, missing = cache.get_batch([99, 0])
        assert missing.tolist() == [1]
        assert (found[0].corners == 99).all()
